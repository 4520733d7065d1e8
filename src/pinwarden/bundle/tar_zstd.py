"""The tar+zstd format of bundles: reproducible tar files in Zstandard frames.

By default, frames are not compressed, so every machine writes the same bytes. Compressed frames depend on the version
of the zstd library. The descriptor contains the size of the archive, so the descriptor's CID then depends on that
version too.

Tar headers are ustar and contain only path, size and executable bit. A path that does not fit gets a pax header with
nothing but the path. Tar files are read by ``artifacts/archives/tar.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple
from zlib import adler32

from pinwarden.artifacts.archives.tar import BLOCK
from pinwarden.core.errors import PinwardenError

_MAGIC = b"\x28\xb5\x2f\xfd"
_STORED_HEADER = b"\xc0\x50"  # frame header: content size in eight bytes, no checksum, a window of 1 MiB
ZSTD_BLOCK = 128 * 1024
_FIRST_BLOCK = 14  # offset of the first block in a frame with this header
_RAW, _RLE = 0, 1
_SIZE_BYTES = (0, 2, 4, 8)
_DICTIONARY_BYTES = (0, 1, 2, 4)
_MIN_AVERAGE_BLOCK = 256  # bytes; limits the number of blocks, because small blocks only waste the reader's time
_MAX_WINDOW = 1 << 27  # the default limit of the zstd program


def build_stored_frame(data: bytes) -> bytes:
    """Build one frame of raw blocks (RFC 8878, section 3.1.1.2), without compression."""
    parts = [_MAGIC + _STORED_HEADER + len(data).to_bytes(8, "little")]
    for offset in range(0, max(len(data), 1), ZSTD_BLOCK):
        block = data[offset : offset + ZSTD_BLOCK]
        last = offset + ZSTD_BLOCK >= len(data)
        parts += [(len(block) << 3 | last).to_bytes(3, "little"), block]
    return b"".join(parts)


class StoredFrame:
    """A frame written by `build_stored_frame`. A read inside one block returns a view; a read across blocks copies."""

    __slots__ = ("data", "size", "view")

    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.view, self.size = data, memoryview(data), size

    @classmethod
    def parse(cls, data: bytes) -> StoredFrame | None:
        """Parse a frame. Returns None unless `build_stored_frame` could have written it."""
        size = int.from_bytes(data[6:_FIRST_BLOCK], "little")
        blocks = -(-size // ZSTD_BLOCK) or 1
        if data[:6] != _MAGIC + _STORED_HEADER or len(data) != _FIRST_BLOCK + size + 3 * blocks:
            return None
        full, last = (ZSTD_BLOCK << 3).to_bytes(3, "little"), size - (blocks - 1) * ZSTD_BLOCK << 3 | 1
        headers = b"".join(data[offset : offset + 3] for offset in range(_FIRST_BLOCK, len(data), ZSTD_BLOCK + 3))
        return cls(data, size) if headers == full * (blocks - 1) + last.to_bytes(3, "little") else None

    @staticmethod
    def compute_shift(block: int) -> int:
        """The distance between a block's position in the frame and in the content."""
        return _FIRST_BLOCK + 3 + 3 * block

    def read(self, start: int, stop: int) -> memoryview | bytes:
        """Return a slice of the content."""
        stop = min(stop, self.size)
        cuts = [start, *range((start // ZSTD_BLOCK + 1) * ZSTD_BLOCK, stop, ZSTD_BLOCK), stop]
        spans = ((first, last, self.compute_shift(first // ZSTD_BLOCK)) for first, last in pairwise(cuts))
        parts = [self.view[first + shift : last + shift] for first, last, shift in spans]
        return parts[0] if len(parts) == 1 else b"".join(parts)


def build_compressed_frame(data: bytes) -> bytes:
    """Build one frame with compression level 19, the highest that the zstd program uses without ``--ultra``."""
    import zstandard

    return zstandard.ZstdCompressor(level=19, threads=0).compress(data)


def decompress(data: bytes, most: int) -> bytes:
    """Decompress a frame. Raises ARCHIVE_UNSAFE if its content has more than ``most`` bytes."""
    frame = _parse_blocks(data, most // _MIN_AVERAGE_BLOCK + 1000)
    plain = (
        _join_raw_blocks(data, frame)
        if all(kind == _RAW for kind, _, _ in frame)
        else _decompress_with_library(data, most)
    )
    if len(plain) > most:
        raise PinwardenError(
            "ARCHIVE_UNSAFE", f"the archive decompresses to more than {most} bytes, the most that its files need"
        )
    return plain


ZstdBlock = tuple[int, int, int]
"""Type of a block, and start and end of its content."""


def _parse_blocks(data: bytes, most_blocks: int) -> list[ZstdBlock]:
    """Return the blocks of a frame. Raises ARCHIVE_UNSAFE if the data is not exactly one complete frame."""
    descriptor = data[4] if len(data) > 4 else 0
    single = descriptor >> 5 & 1
    offset = 5 + (1 - single) + _DICTIONARY_BYTES[descriptor & 3] + (_SIZE_BYTES[descriptor >> 6] or single)
    blocks: list[ZstdBlock] = []
    last = not data.startswith(_MAGIC)
    while not last and len(blocks) < most_blocks and offset + 3 <= len(data):
        header = int.from_bytes(data[offset : offset + 3], "little")
        last, kind = bool(header & 1), header >> 1 & 3
        start = offset + 3
        offset = start + (1 if kind == _RLE else header >> 3)
        blocks.append((kind, start, offset))
    offset += 4 * (descriptor >> 2 & 1)  # the checksum
    if not last or not blocks or offset != len(data):
        raise PinwardenError("ARCHIVE_UNSAFE", "the archive is not exactly one complete Zstandard frame")
    return blocks


def _join_raw_blocks(data: bytes, frame: list[ZstdBlock]) -> bytes:
    """Return the content of a stored frame. The checksum is ignored, because every file is verified by its CID."""
    view = memoryview(data)
    return b"".join(view[start:end] for _, start, end in frame)


def _decompress_with_library(data: bytes, most: int) -> bytes:
    import zstandard

    try:
        reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(data, read_across_frames=False)
        parts = [reader.read(most + 1)]
        while parts[-1] and sum(map(len, parts)) <= most:
            parts.append(reader.read(most + 1 - sum(map(len, parts))))
    except (zstandard.ZstdError, MemoryError) as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"the archive is not a valid Zstandard frame: {err}") from err
    return b"".join(parts)


TAR_END = b"\0" * (2 * BLOCK)


class TarInput(NamedTuple):
    """One file to write. A tuple for speed, like the entries of a manifest."""

    path: str
    data: memoryview | bytes
    executable: bool


def write_tar(files: Iterable[TarInput]) -> bytes:
    """Write files in order; the same files give the same bytes on every machine."""
    parts: list[bytes | memoryview] = []
    for file in files:
        parts += [
            build_tar_headers(file.path, len(file.data), file.executable),
            file.data,
            _build_padding(len(file.data)),
        ]
    return b"".join([*parts, TAR_END])


def build_tar_headers(path: str, size: int, executable: bool) -> bytes:
    """Build the header blocks of a file, as `write_tar` writes them."""
    name, mode = path.encode(), _EXECUTABLE_MODE if executable else _PLAIN_MODE
    if len(name) <= 100 and path.isascii():
        return _build_header(name, size, mode, _FILE_TRAILER)
    record = _build_pax_record(b"path", name)
    before = _build_header(b"pax", len(record), _PLAIN_MODE, _PAX_TRAILER) + record + _build_padding(len(record))
    return before + _build_header(b"long", size, mode, _FILE_TRAILER)


_OWNER_AND_GROUP = b"0000000\0" * 2
_PLAIN_MODE, _EXECUTABLE_MODE = b"0000644\0" + _OWNER_AND_GROUP, b"0000755\0" + _OWNER_AND_GROUP
_TIME = b"00000000000\0"
_AFTER_TYPE = b"".join((b"\0" * 100, b"ustar\x0000", b"\0" * 64, b"0000000\0" * 2)).ljust(BLOCK - 157, b"\0")
_FILE_TRAILER, _PAX_TRAILER = b"0" + _AFTER_TYPE, b"x" + _AFTER_TYPE


def _build_header(name: bytes, size: int, mode: bytes, rest: bytes) -> bytes:
    start = b"%b%b%011o\0%b" % (name.ljust(100, b"\0"), mode, size, _TIME)
    # The checksum field counts as spaces. For so few bytes the lower half of Adler-32 is their sum plus one.
    checksum = (adler32(start) & 0xFFFF) - 1 + _TRAILER_SUMS[rest[0]]
    return b"%b%06o\0 %b" % (start, checksum, rest)


_TRAILER_SUMS = {rest[0]: sum(b" " * 8 + rest) for rest in (_FILE_TRAILER, _PAX_TRAILER)}


def _build_pax_record(key: bytes, value: bytes) -> bytes:
    """Build ``<length> key=value`` and a newline. The length includes its own digits."""
    rest = b" %b=%b\n" % (key, value)
    length = len(rest)
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


def _build_padding(size: int) -> bytes:
    return b"\0" * (-size % BLOCK)


def estimate_max_tar_bytes(sizes: Iterable[tuple[str, int]]) -> int:
    """Return an upper bound on the size of a tar file with these files, whichever tool wrote its headers."""
    rows = list(sizes)
    return sum(size + 4 * len(path) + 8 * BLOCK for path, size in rows) + 64 * BLOCK
