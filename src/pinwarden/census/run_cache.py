"""What the workers of one machine downloaded in a run, so that no document and no file is requested twice in it.

Documents and files are below the store of the worker, in a folder for each run. Bytes that are taken from there are
hashed again, like those of a download.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pinwarden.artifacts.environments.store import remove_tree
from pinwarden.census.pace import SharedPace
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import parse_json
from pinwarden.system.files import hold_write_lock, read_file, write_atomically
from pinwarden.system.net.fetch import DownloadResult, FetchResponse
from pinwarden.system.target import HttpAddress

if TYPE_CHECKING:
    from pinwarden.system.net.fetch import FetchRequest

_MAX_DOCUMENT = 16 * 1024 * 1024  # a larger one is requested again
_WAIT_SECONDS = 600.0
_KEPT_SECONDS = 2 * 86_400.0
_CHUNK = 1 << 18


class RunCache:
    """The documents and files of one run on this machine. Thread-safe, also between processes."""

    def __init__(self, root: Path, name: str, pace: SharedPace, user_agent: str) -> None:
        """``name`` differs for every run of every census."""
        self._folder = root / "census" / Digest.of_bytes(name.encode()).hex[:32]
        self._pace = pace
        self._resolved: set[str] = set()
        self._lock = threading.Lock()
        self.user_agent = user_agent
        self.resolver_folder = self._folder / "resolver"
        """The cache of npm and uv. They request what they have in it from this run no second time."""
        try:
            self.resolver_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"cannot create {self._folder}: {err.strerror or err}") from err
        for old in self._folder.parent.iterdir():
            with suppress(OSError):
                if old != self._folder and time.time() - old.stat().st_mtime > _KEPT_SECONDS:
                    remove_tree(old)

    def count_resolved(self, host: str, packages: Sequence[str]) -> None:
        """Reserve time for the requests of a resolver: one for each package that was not in its cache."""
        with self._lock:
            new = set(packages) - self._resolved
            self._resolved |= new
        self._pace.reserve(host, len(new))

    @contextmanager
    def open_entry(self, wanted: FetchRequest) -> Iterator[CacheEntry | None]:
        """Lock and yield the entry of a request; None if its response must not be kept."""
        is_plain = wanted.authorization is None and wanted.form is None and wanted.upload is None and not wanted.headers
        if not is_plain:
            yield None
            return
        name = Digest.of_bytes(f"{wanted.accept}\n{wanted.etag}\n{wanted.url}".encode()).hex
        with hold_write_lock(self._folder / name, _WAIT_SECONDS):
            yield CacheEntry(self._folder / name)


class CacheEntry:
    """One document or file of a run."""

    def __init__(self, path: Path) -> None:
        self._head = path.with_suffix(".json")
        self._body = path

    def read_document(self) -> FetchResponse | None:
        """Return a document that was fetched in this run; None if none was."""
        head = self._read_head()
        if head is None:
            return None
        body = read_file(self._body, _MAX_DOCUMENT)
        if str(Digest.of_bytes(body)) != head["digest"]:
            return None
        return FetchResponse(
            status=head["status"], address=HttpAddress.parse(head["url"]), headers=head["headers"], body=body
        )

    def write_document(self, response: FetchResponse) -> None:
        """Keep a document."""
        if len(response.body) > _MAX_DOCUMENT:
            return
        write_atomically(self._body, response.body)
        members = {"status": response.status, "headers": dict(response.headers)}
        self._write_head(response.address, Digest.of_bytes(response.body), members)

    def read_file(self, to: BinaryIO, algorithms: Sequence[str]) -> DownloadResult | None:
        """Copy a file that was downloaded in this run, and hash it; None if there is none, or other bytes."""
        head = self._read_head()
        if head is None:
            return None
        start, size = to.tell(), 0
        hashers = {name: hashlib.new(name) for name in {*algorithms, "sha256"}}
        with self._body.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                for hasher in hashers.values():
                    hasher.update(chunk)
                to.write(chunk)
                size += len(chunk)
        digests = {name: Digest(hasher.digest(), name) for name, hasher in hashers.items()}
        if str(digests["sha256"]) != head["digest"]:
            to.seek(start)
            to.truncate()
            return None
        return DownloadResult(
            address=HttpAddress.parse(head["url"]), size=size, digests=tuple(digests[name] for name in algorithms)
        )

    def write_file(self, stream: BinaryIO, result: DownloadResult) -> None:
        """Keep a file that was downloaded into a named file, without copying it if possible."""
        sha256 = next((digest for digest in result.digests if digest.algorithm == "sha256"), None)
        name = getattr(stream, "name", None)
        if sha256 is None or not isinstance(name, str) or stream.tell() != result.size:
            return
        stream.flush()
        with suppress(OSError):
            self._body.unlink(missing_ok=True)
            os.link(name, self._body)
            self._write_head(result.address, sha256, {"status": 200, "headers": {}})

    def _read_head(self) -> dict[str, Any] | None:
        try:
            head = parse_json(read_file(self._head))
            is_whole = isinstance(head, dict) and head.keys() >= {"url", "digest", "status", "headers"}
            return head if is_whole and self._body.is_file() else None
        except PinwardenError:
            return None

    def _write_head(self, address: HttpAddress, digest: Digest, members: dict[str, Any]) -> None:
        head = {"url": str(address), "digest": str(digest), **members}
        write_atomically(self._head, json.dumps(head).encode())
