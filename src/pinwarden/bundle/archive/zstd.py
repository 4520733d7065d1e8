"""Zstandard frames: stored, which is the same on every machine, or compressed, which depends on the library's version.

The size of an archive is in the descriptor, so other bytes would give the bundle another descriptor CID.
"""

from __future__ import annotations

from itertools import pairwise

from pinwarden.core.errors import PinwardenError

_MAGIC = b"\x28\xb5\x2f\xfd"
_STORED = b"\xc0\x50"  # eight bytes of content size, no checksum; a window of one megabyte
BLOCK = 128 * 1024
_BEGIN = 14  # where the first block of such a frame is
_RAW, _RLE = 0, 1
_SIZE_BYTES = (0, 2, 4, 8)
_DICTIONARY_BYTES = (0, 1, 2, 4)
_LEAST_BLOCK = 256  # on average; whoever writes smaller ones wants to keep a reader busy
_MAX_WINDOW = 1 << 27  # what the zstd program takes unless it is told otherwise


def stored(data: bytes) -> bytes:
    """One frame of raw blocks (RFC 8878, section 3.1.1.2), written without a library."""
    parts = [_MAGIC + _STORED + len(data).to_bytes(8, "little")]
    for place in range(0, max(len(data), 1), BLOCK):
        block = data[place : place + BLOCK]
        last = place + BLOCK >= len(data)
        parts += [(len(block) << 3 | last).to_bytes(3, "little"), block]
    return b"".join(parts)


class StoredFrame:
    """A frame as `stored` writes it, read where it lies: only what crosses from one block to the next is copied."""

    __slots__ = ("data", "size", "view")

    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.view, self.size = data, memoryview(data), size

    @classmethod
    def of(cls, data: bytes) -> StoredFrame | None:
        """None if somebody else wrote the frame, or it is none."""
        size = int.from_bytes(data[6:_BEGIN], "little")
        blocks = -(-size // BLOCK) or 1
        if data[:6] != _MAGIC + _STORED or len(data) != _BEGIN + size + 3 * blocks:
            return None
        full, last = (BLOCK << 3).to_bytes(3, "little"), size - (blocks - 1) * BLOCK << 3 | 1
        headers = b"".join(data[place : place + 3] for place in range(_BEGIN, len(data), BLOCK + 3))
        return cls(data, size) if headers == full * (blocks - 1) + last.to_bytes(3, "little") else None

    @staticmethod
    def where(block: int) -> int:
        """By how much the content of a block is further on in the frame than in what it holds."""
        return _BEGIN + 3 + 3 * block

    def read(self, start: int, stop: int) -> memoryview | bytes:
        """A part of what the frame holds."""
        stop = min(stop, self.size)
        cuts = [start, *range((start // BLOCK + 1) * BLOCK, stop, BLOCK), stop]
        wheres = ((one, other, self.where(one // BLOCK)) for one, other in pairwise(cuts))
        parts = [self.view[one + where : other + where] for one, other, where in wheres]
        return parts[0] if len(parts) == 1 else b"".join(parts)


def compressed(data: bytes) -> bytes:
    """One frame, as small as this version of the library makes it."""
    import zstandard

    return zstandard.ZstdCompressor(level=19, threads=0).compress(data)


def decompressed(data: bytes, most: int) -> bytes:
    """What the frame holds, if it is not more than it may be; not a byte more is unpacked to find out."""
    frame = _frame(data, most // _LEAST_BLOCK + 1000)
    plain = _joined(data, frame) if all(kind == _RAW for kind, _, _ in frame) else _by_library(data, most)
    if len(plain) > most:
        raise PinwardenError("ARCHIVE_UNSAFE", f"the archive unpacks to more than the {most} bytes that its files need")
    return plain


Block = tuple[int, int, int]
"""What kind a block is of, and where its content begins and ends."""


def _frame(data: bytes, most_blocks: int) -> list[Block]:
    """The blocks of what must be one whole frame and nothing else. The library does not say that an end is missing."""
    descriptor = data[4] if len(data) > 4 else 0
    single = descriptor >> 5 & 1
    place = 5 + (1 - single) + _DICTIONARY_BYTES[descriptor & 3] + (_SIZE_BYTES[descriptor >> 6] or single)
    blocks: list[Block] = []
    last = not data.startswith(_MAGIC)
    while not last and len(blocks) < most_blocks and place + 3 <= len(data):
        header = int.from_bytes(data[place : place + 3], "little")
        last, kind = bool(header & 1), header >> 1 & 3
        start = place + 3
        place = start + (1 if kind == _RLE else header >> 3)
        blocks.append((kind, start, place))
    place += 4 * (descriptor >> 2 & 1)  # the checksum
    if not last or not blocks or place != len(data):
        raise PinwardenError("ARCHIVE_UNSAFE", "the archive is not one whole Zstandard frame")
    return blocks


def _joined(data: bytes, frame: list[Block]) -> bytes:
    """A stored frame, without a library. It is no longer than the archive; of checksums every file has a better one."""
    view = memoryview(data)
    return b"".join(view[start:end] for _, start, end in frame)


def _by_library(data: bytes, most: int) -> bytes:
    import zstandard

    try:
        reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(data, read_across_frames=False)
        parts = [reader.read(most + 1)]
        while parts[-1] and sum(map(len, parts)) <= most:
            parts.append(reader.read(most + 1 - sum(map(len, parts))))
    except (zstandard.ZstdError, MemoryError) as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"the archive is no whole Zstandard frame: {err}") from err
    return b"".join(parts)
