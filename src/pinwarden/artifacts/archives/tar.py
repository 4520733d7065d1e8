"""The only tar reader: the code that checks an archive and the code that unpacks it see the same files.

Tar implementations disagree about archives that state something twice or unusually: data after the end marker, two
sizes or names for one member, bytes after a name's terminator, a second gzip stream. All of that is rejected with
``ARCHIVE_UNSAFE``. What remains means the same to npm, pip, cargo, tar and the standard library.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Literal, NamedTuple, NoReturn, Protocol

from pinwarden.artifacts.archives.rules import ArchiveLimits
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
_BROKEN = (zlib.error, EOFError, ValueError, OverflowError)
_ZEROS = 256  # with more zero bytes than this, the sum of the others is below 65,520

Data = bytes | memoryview
Links = Literal["refuse", "skip"]


class TarMember(NamedTuple):
    """One file of a tarball. A tuple for speed: bundles may have 100,000 of them."""

    path: str
    size: int
    executable: bool
    read: Callable[[], Data]
    """Its bytes. Callable until the next file is requested."""


class _Source(Protocol):
    """Where the tar blocks come from."""

    def take(self, size: int) -> Data: ...
    def skip(self, size: int) -> None: ...
    def at_end(self) -> bool: ...


def tar_in_memory(data: bytes, limits: ArchiveLimits) -> Iterator[TarMember]:
    """The files of an uncompressed tarball in memory; their bytes are not copied."""
    return _files(_Memory(data), limits, "refuse")


def tar_stream(stream: IO[bytes], limits: ArchiveLimits) -> Iterator[TarMember]:
    """The files of a package's gzipped tarball. Links are skipped, as npm and cargo do."""
    try:
        yield from _files(_Stream(_decompressed(stream), limits), limits, "skip")
    except (*_BROKEN, OSError) as err:
        if isinstance(err, OSError) and err.errno is not None:
            raise PinwardenError("FILE_UNREADABLE", f"cannot read the tarball: {err.strerror}") from err
        raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball is damaged or incomplete: {err}") from err


def _files(source: _Source, limits: ArchiveLimits, links: Links) -> Iterator[TarMember]:
    extended = _ExtendedHeaders()
    seen: set[str] = set()
    count = total = 0
    while any(header := bytes(source.take(BLOCK))):
        size, kind = _checked_size(header), header[_KIND]
        if kind in (_PAX, _PAX_FOR_ALL, _LONG_NAME, _LONG_TARGET):
            if size > limits.header_bytes:
                _refuse("has a header that is too long")
            extended.take(kind, bytes(source.take(size)))
            source.skip(-size % BLOCK)
            continue
        count += 1
        if count > limits.members:
            _refuse(f"has more than {limits.members} members")
        path = extended.path(header, size)
        if kind in _FILE:
            total += size
            if total > limits.total_bytes:
                _refuse(f"unpacks to more than {limits.total_bytes} bytes")
            if _safe(path, limits) in seen:
                _refuse(f"has {path[:120]!a} twice")
            seen.add(path)
            content = _Content(source, size)
            yield TarMember(path, size, bool(_octal(header[_MODE]) & 0o111), content.read)
            content.skip_rest()
        elif size or kind not in _FOLDER | _LINK or (kind in _LINK and links == "refuse"):
            _refuse(f"has a link, a device or an unknown kind of member: {path[:120]!a}")
    extended.check_end()
    while not source.at_end():
        if any(source.take(BLOCK)):
            _refuse("continues after its end marker")


class _Content:
    """The bytes of the most recent file."""

    __slots__ = ("_padding", "_remaining", "_source")

    def __init__(self, source: _Source, size: int) -> None:
        self._source = source
        self._remaining = size
        self._padding = -size % BLOCK

    def read(self) -> Data:
        size, self._remaining = self._remaining, 0
        return self._source.take(size)

    def skip_rest(self) -> None:
        self._source.skip(self._remaining + self._padding)


class _ExtendedHeaders:
    """Extended headers of the next member: at most one name, and a size only if the member's own header agrees."""

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
                _refuse(f"has an unsupported extended header: {key[:40]!a}")

    def _name(self, name: str) -> None:
        if self._path is not None:
            _refuse("has two names for one member")
        self._path = name

    def path(self, header: bytes, size: int) -> str:
        """The path of the member that starts with this header. Resets the extended headers."""
        if self._size is not None and self._size != size:
            _refuse("states two sizes for one member")
        path = _name_in(header) if self._path is None else self._path
        self._path = self._size = None
        self._used = set()
        return path

    def check_end(self) -> None:
        if self._used - {_PAX_FOR_ALL}:
            _refuse("ends with an extended header without a member")


def _name_in(header: bytes) -> str:
    name, prefix = header[_NAME], header[_PREFIX]
    if header[_MAGIC] == _USTAR:
        prefix_text = _text(prefix)
        return f"{prefix_text}/{_text(name)}".removeprefix("./") if prefix_text else _text(name)
    if any(prefix):  # some readers take it for the start of the name, others for timestamps
        _refuse("has a header in an unknown format")
    return _text(name)


def _text(field: bytes) -> str:
    name, _, rest = field.partition(b"\0")
    if any(rest):
        _refuse("has bytes after the end of a name")
    try:
        return name.decode().removeprefix("./")
    except UnicodeDecodeError:
        _refuse(f"has a name that is not UTF-8: {name[:120]!a}")


def _safe(path: str, limits: ArchiveLimits) -> str:
    """Return the path unchanged if it stays inside the archive and is a valid file name."""
    if not path or len(path.encode()) > limits.path_bytes or _UNSAFE.search(path):
        _refuse(f"has a name that leaves the archive or is not a valid file name: {path[:120]!a}")
    return path


def _checked_size(header: bytes) -> int:
    if _octal(header[_CHECKSUM]) != _sum(header[:148] + b"        " + header[156:]):
        _refuse("has a damaged header")
    return _octal(header[_SIZE])


def _sum(header: bytes) -> int:
    """The sum of a header's bytes, computed through Adler-32, whose lower half is the sum plus one below 65,521."""
    if header.count(0) > _ZEROS:
        return (zlib.adler32(header) & 0xFFFF) - 1
    return sum(header)


def _octal(text: bytes) -> int:
    digits = text.rstrip(b"\0 ").lstrip(b" ") or b"0"
    if digits.strip(b"01234567"):
        _refuse("has a header field that is not an octal number")
    return int(digits, 8)


class _Memory:
    """Blocks of a tarball in memory."""

    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)
        self._at = 0

    def take(self, size: int) -> Data:
        start, self._at = self._at, self._at + size
        if self._at > len(self._view):
            _refuse("is truncated")
        return self._view[start : self._at]

    def skip(self, size: int) -> None:
        self.take(size)

    def at_end(self) -> bool:
        return self._at == len(self._view)


class _Stream:
    """Blocks of a tarball read in chunks, up to a limit."""

    def __init__(self, plain: Iterator[bytes], limits: ArchiveLimits) -> None:
        self._plain = plain
        self._piece = memoryview(b"")
        # Every member has a header and is padded to full blocks; long names need more.
        self._remaining = limits.total_bytes + 8 * BLOCK * limits.members
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
            _refuse("is truncated")
        part, self._piece = self._piece[:size], self._piece[size:]
        return part

    def _fill(self) -> bool:
        while not self._piece:
            piece = next(self._plain, None)
            if piece is None:
                return False
            self._remaining -= len(piece)
            if self._remaining < 0:
                _refuse(f"unpacks to more than {self._limit} bytes")
            self._piece = memoryview(piece)
        return True


def _decompressed(stream: IO[bytes]) -> Iterator[bytes]:
    """The decompressed bytes of a gzip file with exactly one stream."""
    first = stream.read(_CHUNK)
    if first[:2] != b"\x1f\x8b":
        _refuse("is not gzip-compressed")
    return _inflated(first, stream)


def _inflated(first: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    decompressor = zlib.decompressobj(16 + zlib.MAX_WBITS)
    data = first
    while not decompressor.eof:
        if not data:
            data = stream.read(_CHUNK)
            if not data:
                _refuse("is truncated")
        yield decompressor.decompress(data, _CHUNK)
        data = decompressor.unconsumed_tail
    _check_rest(decompressor.unused_data, stream)


def _check_rest(rest: bytes, stream: IO[bytes]) -> None:
    while rest:
        if any(rest):
            _refuse("has data after its gzip stream")
        rest = stream.read(_CHUNK)
    while rest := stream.read(_CHUNK):
        if any(rest):
            _refuse("has data after its gzip stream")


def _refuse(problem: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball {problem}")
