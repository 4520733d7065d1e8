"""Zstandard frames: stored, which is the same on every machine, or compressed, which depends on the library's version.

The size of an archive is in the descriptor, so other bytes would give the bundle another descriptor CID.
"""

from __future__ import annotations

from pinwarden.core.errors import PinwardenError

_MAGIC = b"\x28\xb5\x2f\xfd"
_STORED = b"\xc0\x50"  # eight bytes of content size, no checksum; a window of one megabyte
_BLOCK = 128 * 1024
_SIZE_BYTES = (0, 2, 4, 8)
_DICTIONARY_BYTES = (0, 1, 2, 4)
_LEAST_BLOCK = 256  # on average; whoever writes smaller ones wants to keep a reader busy
_MAX_WINDOW = 1 << 27  # what the zstd program takes unless it is told otherwise


def stored(data: bytes) -> bytes:
    """One frame of raw blocks (RFC 8878, section 3.1.1.2), written without a library."""
    parts = [_MAGIC + _STORED + len(data).to_bytes(8, "little")]
    for place in range(0, max(len(data), 1), _BLOCK):
        block = data[place : place + _BLOCK]
        last = place + _BLOCK >= len(data)
        parts += [(len(block) << 3 | last).to_bytes(3, "little"), block]
    return b"".join(parts)


def compressed(data: bytes) -> bytes:
    """One frame, as small as this version of the library makes it."""
    import zstandard

    return zstandard.ZstdCompressor(level=19, threads=0).compress(data)


def decompressed(data: bytes, most: int) -> bytes:
    """What the frame holds, if it is not more than it may be; not a byte more is unpacked to find out."""
    import zstandard

    try:
        reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(data, read_across_frames=False)
        plain = reader.read(most + 1)
        while len(plain) <= most and (more := reader.read(most + 1 - len(plain))):
            plain += more
    except (zstandard.ZstdError, MemoryError) as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"the archive is no whole Zstandard frame: {err}") from err
    if len(plain) > most:
        raise PinwardenError("ARCHIVE_UNSAFE", f"the archive unpacks to more than the {most} bytes that its files need")
    _check_end(data, len(plain) // _LEAST_BLOCK + 1000)
    return plain


def _check_end(data: bytes, most_blocks: int) -> None:
    """Refuse what is not one whole frame and nothing else: the library does not say that the end is missing."""
    descriptor = data[4] if len(data) > 4 else 0
    single = descriptor >> 5 & 1
    size = _SIZE_BYTES[descriptor >> 6] or single
    place = 5 + (1 - single) + _DICTIONARY_BYTES[descriptor & 3] + size
    last = False
    while not last and most_blocks and place + 3 <= len(data):
        header = int.from_bytes(data[place : place + 3], "little")
        last = bool(header & 1)
        repeats = header >> 1 & 3 == 1  # one byte stands for all
        place += 3 + (1 if repeats else header >> 3)
        most_blocks -= 1
    place += 4 * (descriptor >> 2 & 1)  # the checksum
    if not last or place != len(data):
        raise PinwardenError("ARCHIVE_UNSAFE", "the archive is not one whole Zstandard frame")
