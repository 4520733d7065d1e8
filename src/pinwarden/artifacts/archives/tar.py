"""Reads tar archives, both to check them and to unpack them, so that a check sees the files that are unpacked.

Programs disagree about tarballs with data after the end marker, two sizes or names for one member, bytes after a name's
terminator, or a second gzip stream. Such tarballs raise ``ARCHIVE_UNSAFE``. For all other tarballs, npm, pip, cargo,
tar and the standard library find the same files.
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
_PREFIX_WITH_TIMES = re.compile(rb"([^\0]*)\0+(?:[0-7]{11}[\0 ]){2}", re.DOTALL)
"""The prefix field of older npm clients: a shorter prefix, then the times of access and of the last status change."""
_FILE, _FOLDER, _LINK = frozenset(b"0\0"), frozenset(b"5"), frozenset(b"12")
_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = ord("x"), ord("g"), ord("L"), ord("K")
_IGNORED_KEYS = frozenset(b"mtime atime ctime uid gid uname gname comment linkpath".split())
_VENDOR_PREFIXES = (b"SCHILY.", b"LIBARCHIVE.", b"NODETAR.", b"APPLE.", b"RHT.", b"MSWINDOWS.")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|(?:^|/)\.{0,2}(?:/|$)|^[A-Za-z]:")
_MAX_REPEATED = 16 * 1024 * 1024
_SAME_FOLDER = re.compile(r"/(?:\./)+")
_DECODE_ERRORS = (zlib.error, EOFError, ValueError, OverflowError)
_MANY_ZEROS = 256  # a header with more zero bytes has a byte sum below 65,520, the modulus of Adler-32 minus one

TarBytes = bytes | memoryview
LinkHandling = Literal["refuse", "skip"]


class TarMember(NamedTuple):
    """One file of a tarball. This is a tuple for speed, because a bundle can have 100,000 files."""

    path: str
    size: int
    executable: bool
    read: Callable[[], TarBytes]
    """Returns the file's bytes. Must be called before the next file is read."""


class _BlockSource(Protocol):
    def read(self, size: int) -> TarBytes: ...
    def skip(self, size: int) -> None: ...
    def at_end(self) -> bool: ...


def read_tar(data: bytes, limits: ArchiveLimits) -> Iterator[TarMember]:
    """Return the files of an uncompressed tarball in memory, without copying their bytes."""
    return _read_members(_MemorySource(data), limits, "refuse")


def read_gzipped_tar(stream: IO[bytes], limits: ArchiveLimits) -> Iterator[TarMember]:
    """Yield the files of a package's gzipped tarball. Links are skipped, as npm and cargo do."""
    try:
        yield from _read_members(_StreamSource(_decompress(stream), limits), limits, "skip")
    except (*_DECODE_ERRORS, OSError) as err:
        if isinstance(err, OSError) and err.errno is not None:
            raise PinwardenError("FILE_UNREADABLE", f"cannot read the tarball: {err.strerror}") from err
        raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball is damaged or incomplete: {err}") from err


def _read_members(source: _BlockSource, limits: ArchiveLimits, links: LinkHandling) -> Iterator[TarMember]:
    extended = _ExtendedHeaders()
    seen: set[str] = set()
    repeatable: dict[str, tuple[bool, bytes]] = {}
    count = total = 0
    while any(header := bytes(source.read(BLOCK))):
        size, kind = _parse_size(header), header[_KIND]
        if kind in (_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK):
            if size > limits.header_bytes:
                _refuse("has a header that is too long")
            extended.add(kind, bytes(source.read(size)))
            source.skip(-size % BLOCK)
            continue
        count += 1
        if count > limits.members:
            _refuse(f"has more than {limits.members} members")
        path = extended.take_path(header, size)
        if kind in _FILE:
            total += size
            if total > limits.total_bytes:
                _refuse(f"unpacks to more than {limits.total_bytes} bytes")
            plain = _SAME_FOLDER.sub("/", path) if links == "skip" else path
            content = _MemberContent(source, size)
            executable = bool(_parse_octal(header[_MODE]) & 0o111)
            if _check_path(plain, limits) in seen:
                if plain not in repeatable or (executable, bytes(content.read())) != repeatable.pop(plain):
                    _refuse(f"has {path[:120]!a} twice")
                content.skip_rest()
                continue
            seen.add(plain)
            if plain != path and size <= _MAX_REPEATED:
                # npm packs the file that package.json names as ./index.js under this name and, next, without the step.
                data = bytes(content.read())
                repeatable = {plain: (executable, data)}
                yield TarMember(plain, size, executable, memoryview(data).tobytes)
            else:
                yield TarMember(plain, size, executable, content.read)
            content.skip_rest()
        elif size or kind not in _FOLDER | _LINK or (kind in _LINK and links == "refuse"):
            _refuse(f"has a member that is neither a file nor a folder: {path[:120]!a}")
    extended.check_none_left()
    while not source.at_end():
        if any(source.read(BLOCK)):
            _refuse("continues after its end marker")


class _MemberContent:
    """Reads or skips the bytes of one file."""

    __slots__ = ("_padding", "_remaining", "_source")

    def __init__(self, source: _BlockSource, size: int) -> None:
        self._source = source
        self._remaining = size
        self._padding = -size % BLOCK

    def read(self) -> TarBytes:
        size, self._remaining = self._remaining, 0
        return self._source.read(size)

    def skip_rest(self) -> None:
        self._source.skip(self._remaining + self._padding)


class _ExtendedHeaders:
    """The extended headers that precede a member.

    They may contain one name, and a size if it equals the size in the member's own header.
    """

    def __init__(self) -> None:
        self._path: str | None = None
        self._size: int | None = None
        self._used: set[int] = set()

    def add(self, kind: int, data: bytes) -> None:
        if kind in self._used and kind != _PAX_GLOBAL:
            _refuse("has two headers for one member")
        self._used.add(kind)
        if kind == _LONG_NAME:
            self._set_path(_parse_name(data))
        elif kind in (_PAX, _PAX_GLOBAL):
            self._add_records(data, is_global=kind == _PAX_GLOBAL)

    def _add_records(self, records: bytes, *, is_global: bool) -> None:
        while records:
            digits, _, _ = records.partition(b" ")
            length = int(digits) if digits.isdigit() and len(digits) < 7 else 0
            record, records = records[:length], records[length:]
            key, equals, value = record[len(digits) + 1 :].partition(b"=")
            if not equals or len(record) != length or not value.endswith(b"\n"):
                _refuse("has a damaged header")
            if key in _IGNORED_KEYS or key.startswith(_VENDOR_PREFIXES):
                continue
            if key == b"path" and not is_global:
                self._set_path(_parse_name(value[:-1]))
            elif key == b"size" and not is_global and self._size is None and value[:-1].isdigit() and len(value) < 16:
                self._size = int(value)
            else:
                _refuse(f"has an unsupported extended header: {key[:40]!a}")

    def _set_path(self, name: str) -> None:
        if self._path is not None:
            _refuse("has two names for one member")
        self._path = name

    def take_path(self, header: bytes, size: int) -> str:
        """Return the path of the member that starts with ``header``, and forget its extended headers."""
        if self._size is not None and self._size != size:
            _refuse("states two sizes for one member")
        path = _parse_header_path(header) if self._path is None else self._path
        self._path = self._size = None
        self._used = set()
        return path

    def check_none_left(self) -> None:
        if self._used - {_PAX_GLOBAL}:
            _refuse("ends with an extended header without a member")


def _parse_header_path(header: bytes) -> str:
    name, prefix = header[_NAME], header[_PREFIX]
    if header[_MAGIC] == _USTAR:
        prefix_text = _parse_name(_cut_times(prefix))
        return f"{prefix_text}/{_parse_name(name)}".removeprefix("./") if prefix_text else _parse_name(name)
    if any(prefix):  # some programs read this field as the start of the name, others as timestamps
        _refuse("has a header in an unknown format")
    return _parse_name(name)


def _cut_times(prefix: bytes) -> bytes:
    """Return the prefix without times after its end, which no program takes for a part of the name."""
    match = _PREFIX_WITH_TIMES.fullmatch(prefix)
    return match[1] if match else prefix


def _parse_name(field: bytes) -> str:
    name, _, trailing_bytes = field.partition(b"\0")
    if any(trailing_bytes):
        _refuse("has bytes after the end of a name")
    try:
        return name.decode().removeprefix("./")
    except UnicodeDecodeError:
        _refuse(f"has a name that is not UTF-8: {name[:120]!a}")


def _check_path(path: str, limits: ArchiveLimits) -> str:
    """Return the path unchanged. Raises if it leaves the target folder or is not a valid file name."""
    if not path or len(path.encode()) > limits.path_bytes or _UNSAFE.search(path):
        _refuse(f"has a path that leaves the target folder or is not a valid file name: {path[:120]!a}")
    return path


def _parse_size(header: bytes) -> int:
    if _parse_octal(header[_CHECKSUM]) != _sum_bytes(header[:148] + b"        " + header[156:]):
        _refuse("has a damaged header")
    return _parse_octal(header[_SIZE])


def _sum_bytes(header: bytes) -> int:
    """Return the sum of a header's bytes.

    A small sum equals the lower half of Adler-32 minus one, which is faster to compute.
    """
    if header.count(0) > _MANY_ZEROS:
        return (zlib.adler32(header) & 0xFFFF) - 1
    return sum(header)


def _parse_octal(text: bytes) -> int:
    digits = text.rstrip(b"\0 ").lstrip(b" ") or b"0"
    if digits.strip(b"01234567"):
        _refuse("has a header field that is not an octal number")
    return int(digits, 8)


class _MemorySource:
    """Blocks of a tarball in memory."""

    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)
        self._position = 0

    def read(self, size: int) -> TarBytes:
        start, self._position = self._position, self._position + size
        if self._position > len(self._view):
            _refuse("is truncated")
        return self._view[start : self._position]

    def skip(self, size: int) -> None:
        self.read(size)

    def at_end(self) -> bool:
        return self._position == len(self._view)


class _StreamSource:
    """Blocks of a tarball that is read in chunks, up to a size limit."""

    def __init__(self, chunks: Iterator[bytes], limits: ArchiveLimits) -> None:
        self._chunks = chunks
        self._chunk = memoryview(b"")
        # Every member has a header and is padded to full blocks; long names need additional headers.
        self._remaining = limits.total_bytes + 8 * BLOCK * limits.members
        self._limit = limits.total_bytes

    def read(self, size: int) -> TarBytes:
        parts = []
        while size:
            part = self._take(size)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def skip(self, size: int) -> None:
        while size:
            size -= len(self._take(size))

    def at_end(self) -> bool:
        return not self._fill()

    def _take(self, max_size: int) -> memoryview:
        if not self._fill():
            _refuse("is truncated")
        part, self._chunk = self._chunk[:max_size], self._chunk[max_size:]
        return part

    def _fill(self) -> bool:
        while not self._chunk:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._remaining -= len(chunk)
            if self._remaining < 0:
                _refuse(f"unpacks to more than {self._limit} bytes")
            self._chunk = memoryview(chunk)
        return True


def _decompress(stream: IO[bytes]) -> Iterator[bytes]:
    """Return the decompressed bytes of a gzip file. Raises if it has more than one gzip stream."""
    first = stream.read(_CHUNK)
    if first[:2] != b"\x1f\x8b":
        _refuse("is not gzip-compressed")
    return _inflate(first, stream)


def _inflate(first: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    decompressor = zlib.decompressobj(16 + zlib.MAX_WBITS)
    data = first
    while not decompressor.eof:
        if not data:
            data = stream.read(_CHUNK)
            if not data:
                _refuse("is truncated")
        yield decompressor.decompress(data, _CHUNK)
        data = decompressor.unconsumed_tail
    _check_trailing_bytes(decompressor.unused_data, stream)


def _check_trailing_bytes(trailing_bytes: bytes, stream: IO[bytes]) -> None:
    while trailing_bytes:
        if any(trailing_bytes):
            _refuse("has data after its gzip stream")
        trailing_bytes = stream.read(_CHUNK)
    while trailing_bytes := stream.read(_CHUNK):
        if any(trailing_bytes):
            _refuse("has data after its gzip stream")


def _refuse(problem: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball {problem}")
