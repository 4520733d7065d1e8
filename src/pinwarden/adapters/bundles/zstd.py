"""Zstandard frames: stored, which is the same on every machine, or compressed, which depends on the library's version.

The size of an archive is in the descriptor, so other bytes would give the bundle another descriptor CID.
"""

from __future__ import annotations

from pinwarden.core.errors import PinwardenError

_MAGIC = b"\x28\xb5\x2f\xfd"
_STORED = b"\xc0\x50"  # eight bytes of content size, no checksum; a window of one megabyte
_BLOCK = 128 * 1024
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
    """What the frames hold, if it is not more than it may be; not a byte more is unpacked to find out."""
    import zstandard

    try:
        reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(data, read_across_frames=True)
        plain = reader.read(most + 1)
        while len(plain) <= most and (more := reader.read(most + 1 - len(plain))):
            plain += more
    except (zstandard.ZstdError, MemoryError) as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"the archive is no whole Zstandard frame: {err}") from err
    if len(plain) > most:
        raise PinwardenError("ARCHIVE_UNSAFE", f"the archive unpacks to more than the {most} bytes that its files need")
    return plain
