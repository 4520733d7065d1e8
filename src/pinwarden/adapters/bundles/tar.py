"""Tar, written so that only paths, bytes and the right to be started are in it, and read as strictly.

Headers are ustar; a path that does not fit into one has a pax header of its own before it, with nothing but the path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn
from zlib import adler32

from pinwarden.core.errors import PinwardenError

BLOCK = 512
END = b"\0" * (2 * BLOCK)
_MAX_HEADER = 64 * 1024
_MODE, _SIZE, _CHECKSUM, _KIND = slice(100, 108), slice(124, 136), slice(148, 156), 156
_ZEROS = 256  # with more of them than this, the others add up to less than 65,520
_FILE, _FOLDER, _PAX = frozenset(b"0\0"), ord("5"), ord("x")
_IGNORED = (b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname", b"comment")


class TarFile(NamedTuple):
    """One file of a tarball. No record, for the same reason as an entry of a manifest."""

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
    # The checksum is taken over spaces in its own place. See `_sum` for Adler-32; 148 bytes are always few enough.
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


def read_tar(data: bytes) -> Iterator[TarFile]:
    """The files of a tarball. Links, devices and whatever changes how it is read are refused."""
    view, place, end, path = memoryview(data), 0, len(data), None
    while place + BLOCK <= end and data[place]:
        header = data[place : place + BLOCK]
        size = _checked_size(header)
        content = view[place + BLOCK : place + BLOCK + size]
        place += BLOCK + size + -size % BLOCK
        if place > end:
            _refuse("is cut off")
        kind = header[_KIND]
        if kind in _FILE:
            yield TarFile(path or _name(header), content, bool(_octal(header[_MODE]) & 0o100))
            path = None
        elif kind == _PAX:
            path = _pax_path(bytes(content[: _MAX_HEADER + 1]))
        elif kind == _FOLDER and size == 0:
            path = None
        else:
            _refuse(f"holds a link, a device or something unknown: {_name(header)[:120]!a}")
    if place + BLOCK > end or data[place:].strip(b"\0"):
        _refuse("has no end, or goes on after it")


def _checked_size(header: bytes) -> int:
    if _octal(header[_CHECKSUM]) != _sum(header[:148] + b"        " + header[156:]):
        _refuse("has a damaged header")
    return _octal(header[_SIZE])


def _sum(header: bytes) -> int:
    """The sum of a header's bytes. The lower half of Adler-32 is one more than it, as long as it is below 65,521."""
    if header.count(0) > _ZEROS:
        return (adler32(header) & 0xFFFF) - 1
    return sum(header)


_NOT_OCTAL = "has a number in a header that is not written in octal digits"


def _octal(text: bytes) -> int:
    digits = text.strip(b"\0 ")
    try:
        return int(digits, 8) if digits.isdigit() else _refuse(_NOT_OCTAL)
    except ValueError:
        _refuse(_NOT_OCTAL)


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    if header[345] and header.startswith(b"ustar", 257):
        name = header[345:500].partition(b"\0")[0] + b"/" + name
    return _text(name)


def _pax_path(records: bytes) -> str | None:
    if len(records) > _MAX_HEADER:
        _refuse("has a header that is too long")
    path = None
    while records:
        digits, _, _ = records.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 7 else 0
        record, records = records[:length], records[length:]
        key, equals, value = record[len(digits) + 1 :].partition(b"=")
        if not equals or len(record) != length or not value.endswith(b"\n"):
            _refuse("has a damaged header")
        if key == b"path" and path is None:
            path = _text(value[:-1])
        elif key not in _IGNORED:
            _refuse(f"has a header that changes how it is read: {key[:40]!a}")
    return path


def _text(name: bytes) -> str:
    try:
        return name.decode().removeprefix("./")
    except UnicodeDecodeError:
        _refuse(f"holds a name that is not text: {name[:120]!a}")


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball {why}")
