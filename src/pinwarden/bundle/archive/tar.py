"""Tar, written so that only paths, bytes and the right to be started are in it. It is read by `archives/tar.py`.

Headers are ustar; a path that does not fit into one has a pax header of its own before it, with nothing but the path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from zlib import adler32

from pinwarden.artifacts.archives.tar import BLOCK

END = b"\0" * (2 * BLOCK)


class TarFile(NamedTuple):
    """One file that is to be written. No record, for the same reason as an entry of a manifest."""

    path: str
    data: memoryview | bytes
    executable: bool


def write_tar(files: Iterable[TarFile]) -> bytes:
    """The files in their order; the same files give the same bytes everywhere."""
    parts: list[bytes | memoryview] = []
    for file in files:
        parts += [headers_of(file.path, len(file.data), file.executable), file.data, _padding(len(file.data))]
    return b"".join([*parts, END])


def headers_of(path: str, size: int, executable: bool) -> bytes:
    """What stands before the bytes of a file, as it is written here."""
    name, mode = path.encode(), _STARTED if executable else _PLAIN
    if len(name) <= 100 and path.isascii():
        return _header(name, size, mode, _AS_FILE)
    record = _pax_record(b"path", name)
    before = _header(b"pax", len(record), _PLAIN, _AS_PAX) + record + _padding(len(record))
    return before + _header(b"long", size, mode, _AS_FILE)


_OWNER_AND_GROUP = b"0000000\0" * 2
_PLAIN, _STARTED = b"0000644\0" + _OWNER_AND_GROUP, b"0000755\0" + _OWNER_AND_GROUP
_TIME = b"00000000000\0"
_AFTER_KIND = b"".join((b"\0" * 100, b"ustar\x0000", b"\0" * 64, b"0000000\0" * 2)).ljust(BLOCK - 157, b"\0")
_AS_FILE, _AS_PAX = b"0" + _AFTER_KIND, b"x" + _AFTER_KIND


def _header(name: bytes, size: int, mode: bytes, rest: bytes) -> bytes:
    start = b"%b%b%011o\0%b" % (name.ljust(100, b"\0"), mode, size, _TIME)
    # The checksum is taken over spaces in its own place. The lower half of Adler-32 is one
    # more than the sum of so few bytes.
    checksum = (adler32(start) & 0xFFFF) - 1 + _REST_SUM[rest[0]]
    return b"%b%06o\0 %b" % (start, checksum, rest)


_REST_SUM = {rest[0]: sum(b" " * 8 + rest) for rest in (_AS_FILE, _AS_PAX)}


def _pax_record(key: bytes, value: bytes) -> bytes:
    """``<length> key=value`` and a newline, where the length counts its own digits."""
    rest = b" %b=%b\n" % (key, value)
    length = len(rest)
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


def _padding(size: int) -> bytes:
    return b"\0" * (-size % BLOCK)


def most_bytes(sizes: Iterable[tuple[str, int]]) -> int:
    """How long a tarball of files with these paths and sizes can be at most, with room for what others write."""
    rows = list(sizes)
    return sum(size + 4 * len(path) + 8 * BLOCK for path, size in rows) + 64 * BLOCK
