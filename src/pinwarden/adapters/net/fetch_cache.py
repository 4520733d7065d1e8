"""Copies of documents that a registry said may be asked for again by their tag (``ETag``).

A copy is used only when the registry itself says that it is still good, and only when its bytes are the ones that
were kept: a damaged copy is not there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pinwarden.adapters.files import read_file, write_atomically
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

_KEPT_HEADERS = ("content-type", "docker-content-digest", "last-modified")
_MAX_BYTES = 64 * 1024 * 1024


class Kept(Record):
    """A document as it was kept."""

    etag: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class FetchCache:
    """A folder of documents by address. Nothing that needed a credential is put into it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, url: str, accept: str) -> Kept | None:
        """The copy of a document, if there is a whole one."""
        path = self._path(url, accept)
        try:
            head, _, body = read_file(path, _MAX_BYTES + 65536).partition(b"\n")
            about = json.loads(head)
            kept = Kept(etag=about["etag"], headers=dict(about["headers"]), body=body)
            whole = about["url"] == url and about["accept"] == accept and about["sha256"] == Digest.of(body).hex
        except (PinwardenError, ValueError, KeyError, TypeError, RecursionError):
            return None
        usable = isinstance(kept.etag, str) and kept.etag.isascii() and kept.etag.isprintable()
        return kept if whole and usable else None

    def keep(self, url: str, accept: str, headers: Mapping[str, str], body: bytes) -> None:
        """Keep a document, if the registry gave it a tag. Without room for it, nothing is lost."""
        etag = headers.get("etag", "")
        if not etag or len(body) > _MAX_BYTES or "no-store" in headers.get("cache-control", ""):
            return
        about = {
            "url": url,
            "accept": accept,
            "etag": etag,
            "sha256": Digest.of(body).hex,
            "headers": {name: headers[name] for name in _KEPT_HEADERS if name in headers},
        }
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._path(url, accept), json.dumps(about).encode() + b"\n" + body)
        except (PinwardenError, OSError):
            return

    def _path(self, url: str, accept: str) -> Path:
        return self._folder / Digest.of(f"{accept}\n{url}".encode()).hex
