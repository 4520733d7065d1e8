"""Tarballs without hidden places: member after member, one end mark, and nothing but zeros after it.

Some readers stop at the end mark and others go on behind it, and headers that speak about the next member can be of any
size. Both are looked at here in the raw blocks, before a reader makes something of them.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from pathlib import Path
from typing import IO, NoReturn, cast

from pinwarden.adapters.archives.members import ArchiveLimits
from pinwarden.adapters.files import open_regular
from pinwarden.core.errors import PinwardenError

_BLOCK = 512
_CHUNK = 1 << 20
_PLAIN = frozenset(b"05\0")  # files and folders
_ABOUT_ANOTHER = frozenset(b"xgLK")
_HEADER_BYTES = 64 * 1024
"""Long names and times need a few hundred."""
_CHANGES_THE_WALK = (b" size=", b"GNU.sparse")


def check_tar(path: Path, limits: ArchiveLimits) -> None:
    """Refuse a tarball, compressed or not, that has more in it than its members."""
    with open_regular(path) as stream:
        try:
            with _opened(stream) as plain:
                _Walk(path, plain, limits).go()
        except (zlib.error, lzma.LZMAError, EOFError, gzip.BadGzipFile, ValueError) as err:
            raise PinwardenError("ARCHIVE_UNSAFE", f"{path.name} is not a whole archive: {err}") from err


def _opened(stream: IO[bytes]) -> IO[bytes]:
    magic = stream.read(6)
    stream.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stream))
    if magic[:3] == b"BZh":
        return cast("IO[bytes]", bz2.BZ2File(stream))
    return cast("IO[bytes]", lzma.LZMAFile(stream)) if magic == b"\xfd7zXZ\0" else stream


class _Walk:
    """One way through the blocks of a tarball."""

    def __init__(self, path: Path, stream: IO[bytes], limits: ArchiveLimits) -> None:
        self._path = path
        self._stream = stream
        # Each member has a header and is filled up to whole blocks; long names take some more.
        self._left = limits.total_bytes + 8 * _BLOCK * limits.members

    def go(self) -> None:
        while (header := self._take(_BLOCK)).strip(b"\0"):
            size = self._size(header[124:136])
            kind = header[156]
            if kind in _ABOUT_ANOTHER:
                self._check_about(self._take(size))
            elif kind in _PLAIN:
                self._skip(size)
            else:
                self._refuse("holds something that is neither file nor folder")
            self._skip(-size % _BLOCK)
        while rest := self._read(_CHUNK):
            if rest.strip(b"\0"):
                self._refuse("goes on after its end")

    def _check_about(self, data: bytes) -> None:
        if any(mark in data for mark in _CHANGES_THE_WALK):
            self._refuse("says in two places how long a member is")

    def _size(self, text: bytes) -> int:
        digits = text.rstrip(b"\0 ").lstrip(b" ") or b"0"
        if any(each not in b"01234567" for each in digits):
            self._refuse("has a member whose size is not written as octal digits")
        return int(digits, 8)

    def _take(self, size: int) -> bytes:
        if size > _HEADER_BYTES:
            self._refuse("has a header that is too long")
        data = self._read(size)
        return data if len(data) == size else self._refuse("is cut off")

    def _skip(self, size: int) -> None:
        while size:
            data = self._read(min(size, _CHUNK))
            if not data:
                self._refuse("is cut off")
            size -= len(data)

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        return data if self._left >= 0 else self._refuse("unpacks to far more than its limit")

    def _refuse(self, why: str) -> NoReturn:
        raise PinwardenError("ARCHIVE_UNSAFE", f"{self._path.name} {why}")
