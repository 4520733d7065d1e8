"""The one reader of tarballs: what judges an archive and what unpacks it see the same files, or none.

Programs read a tarball differently as soon as it says something twice or in an unusual way: a second archive behind the
end, a size in two places, two names for one member, bytes behind a name's end, another gzip stream after the first. All
of that is refused. What is left means the same to npm, pip, cargo, tar and the standard library.
"""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Literal, NamedTuple, NoReturn, Protocol

from pinwarden.artifacts.archives.limits import ArchiveLimits
from pinwarden.core.errors import PinwardenError

BLOCK = 512
_CHUNK = 1 << 18
_MODE, _SIZE, _CHECKSUM, _KIND = slice(100, 108), slice(124, 136), slice(148, 156), 156
_NAME, _MAGIC, _PREFIX = slice(0, 100), slice(257, 265), slice(345, 500)
_USTAR = b"ustar\x0000"
_FILE, _FOLDER, _LINK = frozenset(b"0\0"), frozenset(b"5"), frozenset(b"12")
_PAX, _PAX_FOR_ALL, _LONG_NAME, _LONG_TARGET = ord("x"), ord("g"), ord("L"), ord("K")
_IGNORED = frozenset(b"mtime atime ctime uid gid uname gname comment linkpath".split())
_OF_VENDORS = (b"SCHILY.", b"LIBARCHIVE.", b"NODETAR.", b"APPLE.", b"RHT.", b"MSWINDOWS.")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|(?:^|/)\.{0,2}(?:/|$)|^[A-Za-z]:")
_BROKEN = (zlib.error, lzma.LZMAError, EOFError, ValueError, OverflowError)
_ZEROS = 256  # with more of them than this, the others add up to less than 65,520

Data = bytes | memoryview
Links = Literal["refuse", "skip"]


class TarFile(NamedTuple):
    """One file of a tarball. A tuple, because a bundle has a hundred thousand of them."""

    path: str
    size: int
    executable: bool
    read: Callable[[], Data]
    """Its bytes. They can be asked for until the next file is."""


class _Source(Protocol):
    """Where the blocks come from."""

    def take(self, size: int) -> Data: ...
    def skip(self, size: int) -> None: ...
    def at_end(self) -> bool: ...


def tar_in_memory(data: bytes, limits: ArchiveLimits) -> Iterator[TarFile]:
    """The files of an uncompressed tarball that is in memory; their bytes are not copied."""
    return _files(_Memory(data), limits, "refuse")


def tar_stream(
    stream: IO[bytes], limits: ArchiveLimits, *, links: Links = "refuse", only_gzip: bool = False
) -> Iterator[TarFile]:
    """The files of a tarball, compressed by gzip or else by bzip2, xz or nothing.

    npm leaves links out when it unpacks a package; ``skip`` does the same.
    """
    try:
        yield from _files(_Stream(_plain(stream, only_gzip=only_gzip), limits), limits, links)
    except (*_BROKEN, OSError) as err:
        if isinstance(err, OSError) and err.errno is not None:
            raise PinwardenError("FILE_UNREADABLE", f"the tarball cannot be read: {err.strerror}") from err
        raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball is not a whole archive: {err}") from err


def _files(source: _Source, limits: ArchiveLimits, links: Links) -> Iterator[TarFile]:
    about = _About()
    seen: set[str] = set()
    count = total = 0
    while any(header := bytes(source.take(BLOCK))):
        size, kind = _checked_size(header), header[_KIND]
        if kind in (_PAX, _PAX_FOR_ALL, _LONG_NAME, _LONG_TARGET):
            if size > limits.header_bytes:
                _refuse("has a header that is too long")
            about.take(kind, bytes(source.take(size)))
            source.skip(-size % BLOCK)
            continue
        count += 1
        if count > limits.members:
            _refuse(f"holds more than {limits.members} members")
        path = about.path(header, size)
        if kind in _FILE:
            total += size
            if total > limits.total_bytes:
                _refuse(f"unpacks to more than {limits.total_bytes} bytes")
            if _safe(path, limits) in seen:
                _refuse(f"holds {path[:120]!a} twice")
            seen.add(path)
            content = _Content(source, size)
            yield TarFile(path, size, bool(_octal(header[_MODE]) & 0o111), content.read)
            content.pass_over()
        elif size or kind not in _FOLDER | _LINK or (kind in _LINK and links == "refuse"):
            _refuse(f"holds a link, a device or something unknown: {path[:120]!a}")
    about.check_end()
    while not source.at_end():
        if any(source.take(BLOCK)):
            _refuse("goes on after its end")


class _Content:
    """The bytes of the file that was given out last."""

    __slots__ = ("_left", "_padding", "_source")

    def __init__(self, source: _Source, size: int) -> None:
        self._source = source
        self._left = size
        self._padding = -size % BLOCK

    def read(self) -> Data:
        size, self._left = self._left, 0
        return self._source.take(size)

    def pass_over(self) -> None:
        self._source.skip(self._left + self._padding)


class _About:
    """What headers before a member say of it. One name, and the size that the member has itself, or none of it."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._size: int | None = None
        self._used: set[int] = set()

    def take(self, kind: int, data: bytes) -> None:
        if kind in self._used and kind != _PAX_FOR_ALL:
            _refuse("has two headers for one member")
        self._used.add(kind)
        if kind == _LONG_NAME:
            self._name(_text(data))
        elif kind in (_PAX, _PAX_FOR_ALL):
            self._records(data, for_all=kind == _PAX_FOR_ALL)

    def _records(self, records: bytes, *, for_all: bool) -> None:
        while records:
            digits, _, _ = records.partition(b" ")
            length = int(digits) if digits.isdigit() and len(digits) < 7 else 0
            record, records = records[:length], records[length:]
            key, equals, value = record[len(digits) + 1 :].partition(b"=")
            if not equals or len(record) != length or not value.endswith(b"\n"):
                _refuse("has a damaged header")
            if key in _IGNORED or key.startswith(_OF_VENDORS):
                continue
            if key == b"path" and not for_all:
                self._name(_text(value[:-1]))
            elif key == b"size" and not for_all and self._size is None and value[:-1].isdigit() and len(value) < 16:
                self._size = int(value)
            else:
                _refuse(f"has a header that changes how it is read: {key[:40]!a}")

    def _name(self, name: str) -> None:
        if self._path is not None:
            _refuse("has two names for one member")
        self._path = name

    def path(self, header: bytes, size: int) -> str:
        """The path of the member that the header begins; what was said before is spent."""
        if self._size is not None and self._size != size:
            _refuse("says in two places how long a member is")
        path = _name_in(header) if self._path is None else self._path
        self._path = self._size = None
        self._used = set()
        return path

    def check_end(self) -> None:
        if self._used - {_PAX_FOR_ALL}:
            _refuse("ends with a header for a member that does not come")


def _name_in(header: bytes) -> str:
    name, prefix = header[_NAME], header[_PREFIX]
    if header[_MAGIC] == _USTAR:
        prefix_text = _text(prefix)
        return f"{prefix_text}/{_text(name)}".removeprefix("./") if prefix_text else _text(name)
    if any(prefix):  # some readers take it for the beginning of the name, others for times
        _refuse("has a header of no known kind")
    return _text(name)


def _text(field: bytes) -> str:
    name, _, rest = field.partition(b"\0")
    if any(rest):
        _refuse("has bytes behind the end of a name")
    try:
        return name.decode().removeprefix("./")
    except UnicodeDecodeError:
        _refuse(f"holds a name that is not text: {name[:120]!a}")


def _safe(path: str, limits: ArchiveLimits) -> str:
    """The path, if it stays inside and is a name for every reader."""
    if not path or len(path.encode()) > limits.path_bytes or _UNSAFE.search(path):
        _refuse(f"holds a name that leads elsewhere or cannot be a file: {path[:120]!a}")
    return path


def _checked_size(header: bytes) -> int:
    if _octal(header[_CHECKSUM]) != _sum(header[:148] + b"        " + header[156:]):
        _refuse("has a damaged header")
    return _octal(header[_SIZE])


def _sum(header: bytes) -> int:
    """The sum of a header's bytes. The lower half of Adler-32 is one more than it, as long as it is below 65,521."""
    if header.count(0) > _ZEROS:
        return (zlib.adler32(header) & 0xFFFF) - 1
    return sum(header)


def _octal(text: bytes) -> int:
    digits = text.rstrip(b"\0 ").lstrip(b" ") or b"0"
    if digits.strip(b"01234567"):
        _refuse("has a number in a header that is not written in octal digits")
    return int(digits, 8)


class _Memory:
    """Blocks of a tarball that is in memory."""

    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)
        self._at = 0

    def take(self, size: int) -> Data:
        start, self._at = self._at, self._at + size
        if self._at > len(self._view):
            _refuse("is cut off")
        return self._view[start : self._at]

    def skip(self, size: int) -> None:
        self.take(size)

    def at_end(self) -> bool:
        return self._at == len(self._view)


class _Stream:
    """Blocks of a tarball that is read piece by piece, up to a limit."""

    def __init__(self, plain: Iterator[bytes], limits: ArchiveLimits) -> None:
        self._plain = plain
        self._piece = memoryview(b"")
        # Each member has a header and is filled up to whole blocks; long names take some more.
        self._left = limits.total_bytes + 8 * BLOCK * limits.members
        self._limit = limits.total_bytes

    def take(self, size: int) -> Data:
        parts = []
        while size:
            part = self._next(size)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def skip(self, size: int) -> None:
        while size:
            size -= len(self._next(size))

    def at_end(self) -> bool:
        return not self._fill()

    def _next(self, size: int) -> memoryview:
        if not self._fill():
            _refuse("is cut off")
        part, self._piece = self._piece[:size], self._piece[size:]
        return part

    def _fill(self) -> bool:
        while not self._piece:
            piece = next(self._plain, None)
            if piece is None:
                return False
            self._left -= len(piece)
            if self._left < 0:
                _refuse(f"unpacks to more than {self._limit} bytes")
            self._piece = memoryview(piece)
        return True


def _plain(stream: IO[bytes], *, only_gzip: bool) -> Iterator[bytes]:
    """What is in the stream, decompressed. One compressed stream and no second one behind it."""
    first = stream.read(_CHUNK)
    if first[:2] == b"\x1f\x8b":
        return _inflated(first, stream)
    if only_gzip:
        _refuse("is not compressed by gzip")
    if first[:3] == b"BZh":
        return _decompressed(bz2.BZ2Decompressor(), first, stream)
    if first[:6] == b"\xfd7zXZ\0":
        return _decompressed(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY), first, stream)
    return _pieces(first, stream)


_XZ_MEMORY = 128 * 1024 * 1024
"""What xz needs at its highest level, and some more."""


def _pieces(first: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    while first:
        yield first
        first = stream.read(_CHUNK)


def _inflated(first: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    decompressor = zlib.decompressobj(16 + zlib.MAX_WBITS)
    data = first
    while not decompressor.eof:
        if not data:
            data = stream.read(_CHUNK)
            if not data:
                _refuse("is cut off")
        yield decompressor.decompress(data, _CHUNK)
        data = decompressor.unconsumed_tail
    _check_rest(decompressor.unused_data, stream)


def _decompressed(decompressor: Any, first: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    data = first
    while not decompressor.eof:
        yield decompressor.decompress(data, _CHUNK)
        data = b""
        if decompressor.needs_input and not decompressor.eof:
            data = stream.read(_CHUNK)
            if not data:
                _refuse("is cut off")
    _check_rest(decompressor.unused_data, stream)


def _check_rest(rest: bytes, stream: IO[bytes]) -> None:
    while rest:
        if any(rest):
            _refuse("goes on after the end of its compressed stream")
        rest = stream.read(_CHUNK)
    while rest := stream.read(_CHUNK):
        if any(rest):
            _refuse("goes on after the end of its compressed stream")


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball {why}")
