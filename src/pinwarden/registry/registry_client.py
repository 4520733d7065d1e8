"""Read files of a registry, from its server, a static export or a folder; send requests to a live registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from pinwarden.core import strict_json
from pinwarden.core.digest import blob_cid, document_cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import Limits
from pinwarden.registry import names
from pinwarden.system.files import read_file

if TYPE_CHECKING:
    from pinwarden.system.net.fetch import Fetcher

MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
MAX_ARCHIVE_BYTES = 512 * 1024 * 1024


class RegistryReader(ABC):
    """Reads a registry's files. Only `get_document` and `get_blob` verify what they return, against the CID."""

    @abstractmethod
    def find(self, path: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes | None:
        """Return the bytes at a path (see ``names.py``); None if there are none."""

    def find_query(self, path: str, query: Mapping[str, str], max_bytes: int) -> bytes | None:  # noqa: ARG002
        """Return the response to a query; None if the registry answers none, as a static export."""
        return None

    def get(self, path: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        """Return the bytes at a path. Raises if there are none."""
        data = self.find(path, max_bytes)
        if data is None:
            raise PinwardenError("SERVER_NOT_FOUND", f"the registry {self} does not have {path[:200]}")
        return data

    def get_document(self, cid: str) -> bytes:
        """Return the document with this CID. Raises ARTIFACT_MISMATCH if the received document does not match it."""
        data = self.get(names.document_path(cid))
        if str(document_cid(data)) != cid:
            raise PinwardenError(
                "ARTIFACT_MISMATCH", f"the document that {self} serves for {cid} does not match the CID"
            )
        return data

    def get_blob(self, cid: str, max_bytes: int = MAX_ARCHIVE_BYTES) -> bytes:
        """Return the archive with this CID. Raises ARTIFACT_MISMATCH if the received archive does not match it."""
        data = self.get(names.blob_path(cid), max_bytes)
        if str(blob_cid(data)) != cid:
            raise PinwardenError(
                "ARTIFACT_MISMATCH", f"the archive that {self} serves for {cid} does not match the CID"
            )
        return data


class FolderRegistry(RegistryReader):
    """A static export in a local folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def find(self, path: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes | None:
        """Return the bytes of a file below the folder; None if there is no such file."""
        file = self._folder / path
        if ".." in Path(path).parts or not file.is_file():
            return None
        return read_file(file, max_bytes)


class HttpRegistry(RegistryReader):
    """A registry or static export at a URL."""

    def __init__(self, url: str, fetcher: Fetcher, token: str | None = None) -> None:
        from pinwarden.system.net.connections import ServiceEndpoint

        self._base = url if url.endswith("/") else f"{url}/"
        self._endpoint = ServiceEndpoint(
            url=self._base,
            configured_by="argument",
            source="the registry's address",
            authorization=f"Bearer {token}" if token else None,
        )
        self._fetcher = fetcher

    def __str__(self) -> str:
        return self._base

    def find(self, path: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes | None:
        """Download the bytes at a path below the URL; None if there are none."""
        return self._download(self._build_url(path), max_bytes)

    def find_query(self, path: str, query: Mapping[str, str], max_bytes: int) -> bytes | None:
        """Download the response to a query; None if the address answers none."""
        return self._download(f"{self._build_url(path)}?{urlencode(query, errors='replace')}", max_bytes)

    def _download(self, url: str, max_bytes: int) -> bytes | None:
        from pinwarden.system.net.fetch import FetchRequest

        # Reading needs no token, so none is sent.
        bare = FetchRequest(endpoint=self._create_endpoint_without_token(), url=url)
        response = self._fetcher.get(bare, max_bytes=max_bytes)
        return response.body if response.found else None

    def send(self, method: str, path: str, body: bytes, media_type: str) -> Any:
        """Send a request, and return the JSON of the response. If the registry refuses the request, raise its error."""
        from pinwarden.system.net.fetch import FetchRequest, UploadBody

        upload = UploadBody(method=method, body=body, media_type=media_type)
        response = self._fetcher.send(FetchRequest(endpoint=self._endpoint, url=self._build_url(path), upload=upload))
        try:
            value = strict_json.parse_json(response.body, Limits(max_bytes=1 << 20)) if response.body else {}
        except PinwardenError:
            value = None
        if response.status in (200, 201):
            return value
        raise _build_refusal(value, response.status, str(self))

    def _create_endpoint_without_token(self) -> Any:
        from pinwarden.core.record import replace

        return replace(self._endpoint, authorization=None)

    def _build_url(self, path: str) -> str:
        return f"{self._base}{quote(path, safe='/+')}"


def _build_refusal(value: Any, status: int, registry: str) -> PinwardenError:
    """Return the registry's error, if its code is known; otherwise an error for the HTTP status."""
    from pinwarden.core.errors import CODES

    error = value.get("error") if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if isinstance(error, dict) and isinstance(code, str) and code in CODES and isinstance(message, str):
        from pinwarden.core.text import show_invisible

        hint = error.get("hint")
        return PinwardenError(
            code,
            f"the registry {registry} refused: {show_invisible(message[:500])}",
            hint=show_invisible(hint[:300]) if isinstance(hint, str) and hint else None,
            data={"status": status},
        )
    from pinwarden.bundle.document import encode_document
    from pinwarden.system.net.network_errors import status_error

    return status_error(registry, status, encode_document(value) if isinstance(value, dict) else b"")
