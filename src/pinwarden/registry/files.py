"""The files of a registry, wherever they are served: by a live registry, by any web server, or from a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pinwarden.core import strict_json
from pinwarden.core.cid import blob_cid, document_cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.registry import layout
from pinwarden.system.files import read_file

if TYPE_CHECKING:
    from pinwarden.system.net.fetch import Fetcher

MOST_DOCUMENT = 64 * 1024 * 1024
MOST_ARCHIVE = 512 * 1024 * 1024


class RegistryFiles(ABC):
    """A registry as something to read from. Nothing it says is believed here, but what a CID names is checked."""

    @abstractmethod
    def find(self, path: str, max_bytes: int = MOST_DOCUMENT) -> bytes | None:
        """The bytes at a path of `documents.registry.layout`; None if there are none."""

    def get(self, path: str, max_bytes: int = MOST_DOCUMENT) -> bytes:
        """The bytes at a path. That there are none is an error."""
        data = self.find(path, max_bytes)
        if data is None:
            raise PinwardenError("SERVER_NOT_FOUND", f"the registry {self} does not have {path[:200]}")
        return data

    def document(self, cid: str) -> bytes:
        """A document, if it is the one that the CID names."""
        data = self.get(layout.document_path(cid))
        if str(document_cid(data)) != cid:
            raise PinwardenError("ARTIFACT_MISMATCH", f"the registry {self} has another document under {cid}")
        return data

    def blob(self, cid: str, max_bytes: int = MOST_ARCHIVE) -> bytes:
        """An archive, if it is the one that the CID names."""
        data = self.get(layout.blob_path(cid), max_bytes)
        if str(blob_cid(data)) != cid:
            raise PinwardenError("ARTIFACT_MISMATCH", f"the registry {self} has other bytes under {cid}")
        return data


class FolderRegistry(RegistryFiles):
    """A static export on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def find(self, path: str, max_bytes: int = MOST_DOCUMENT) -> bytes | None:
        """The bytes of a file below the folder."""
        place = self._folder / path
        if ".." in Path(path).parts or not place.is_file():
            return None
        return read_file(place, max_bytes)


class HttpRegistry(RegistryFiles):
    """A registry at an address, which ends with a slash."""

    def __init__(self, url: str, fetcher: Fetcher, token: str | None = None) -> None:
        from pinwarden.system.net.endpoint import Endpoint

        self._base = url if url.endswith("/") else f"{url}/"
        self._endpoint = Endpoint(
            url=self._base,
            said_by="argument",
            source="the registry's address",
            authorization=f"Bearer {token}" if token else None,
        )
        self._fetcher = fetcher

    def __str__(self) -> str:
        return self._base

    def find(self, path: str, max_bytes: int = MOST_DOCUMENT) -> bytes | None:
        """The bytes at a path below the address."""
        from pinwarden.system.net.fetch import FetchRequest

        # Reading needs no token, so none is shown.
        bare = FetchRequest(endpoint=self._bare(), url=self._url(path))
        answer = self._fetcher.get(bare, max_bytes=max_bytes)
        return answer.body if answer.found else None

    def send(self, method: str, path: str, body: bytes, media_type: str) -> Any:
        """Send something, and return the JSON of the answer. A refusal is raised as the registry states it."""
        from pinwarden.system.net.fetch import FetchRequest, RequestBody

        sent = RequestBody(method=method, body=body, media_type=media_type)
        answer = self._fetcher.send(FetchRequest(endpoint=self._endpoint, url=self._url(path), sent=sent))
        try:
            value = strict_json.parse_json(answer.body, Limits(max_bytes=1 << 20)) if answer.body else {}
        except PinwardenError:
            value = None
        if answer.status in (200, 201):
            return value
        raise _refusal(value, answer.status, str(self))

    def _bare(self) -> Any:
        from pinwarden.core.record import replace

        return replace(self._endpoint, authorization=None)

    def _url(self, path: str) -> str:
        return f"{self._base}{quote(path, safe='/+')}"


def _refusal(value: Any, status: int, registry: str) -> PinwardenError:
    """A refusal in the registry's own words, if it has some that are known here."""
    from pinwarden.core.errors import CODES

    error = value.get("error") if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if isinstance(error, dict) and isinstance(code, str) and code in CODES and isinstance(message, str):
        from pinwarden.core.visible import show_invisible

        hint = error.get("hint")
        return PinwardenError(
            code,
            f"the registry {registry} refused: {show_invisible(message[:500])}",
            hint=show_invisible(hint[:300]) if isinstance(hint, str) and hint else None,
            data={"status": status},
        )
    from pinwarden.bundle.signatures import to_bytes
    from pinwarden.system.net.fetch_failures import status_failed

    return status_failed(registry, status, to_bytes(value) if isinstance(value, dict) else b"")
