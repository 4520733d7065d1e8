"""CARv1 archives: a header that names the root, then blocks, each prefixed with the CID of its bytes.

The first block is the DAG-CBOR of the unlinked manifest, so the archive's root is the bundle's root CID. The blobs
follow in manifest order, each once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from typing import NoReturn

import libipld

from pinwarden.core.cid import Cid
from pinwarden.core.errors import PinwardenError

_CID_BYTES = 36
_MAX_VARINT = 9


def write_car(root: Cid, root_block: bytes, blobs: Iterable[tuple[Cid, bytes]]) -> bytes:
    """Write an archive. Identical blobs are written once."""
    blocks = {bytes(root): root_block}
    for cid, data in blobs:
        blocks.setdefault(bytes(cid), data)
    parts = [_framed(_header(bytes(root)))]
    for name, data in blocks.items():
        parts += [_varint(_CID_BYTES + len(data)), name, data]
    return b"".join(parts)


def read_car(data: bytes, root: Cid, wanted: Collection[str]) -> dict[str, memoryview]:
    """Read and verify the wanted blobs, by CID.

    An archive with a duplicate or unlisted block is refused: another reader might use that block instead.
    """
    blobs: dict[str, memoryview] = {}
    names, first, root_seen = set(wanted), bytes(root), False
    sha256, encode = hashlib.sha256, libipld.encode_multibase
    for name, content in _blocks(data, first):
        if sha256(content).digest() != name[4:]:
            raise PinwardenError("ARTIFACT_MISMATCH", f"block {len(blobs) + 1} of the archive does not match its CID")
        text = encode("b", name)
        if text in names and text not in blobs:
            blobs[text] = content
        elif name != first or blobs or root_seen:
            _refuse(f"contains a block twice, or one that is not a file of the bundle: {text}")
        else:
            root_seen = True
    return blobs


def _blocks(data: bytes, root: bytes) -> Iterator[tuple[bytes, memoryview]]:
    header = _framed(_header(root))
    if not data.startswith(header):
        _refuse("does not start with a CARv1 header whose only root is the bundle's root CID")
    view, offset, end = memoryview(data), len(header), len(data)
    while offset < end:
        # Most blocks have a length of two bytes; decoding it inline is the fast path.
        if data[offset] > 0x7F and offset + 1 < end and 0 < data[offset + 1] <= 0x7F:
            size, offset = data[offset] & 0x7F | data[offset + 1] << 7, offset + 2
        else:
            size, offset = _read_varint(data, offset)
        start, stop = offset + _CID_BYTES, offset + size
        if start > stop or stop > end:
            _refuse("is truncated, or states a wrong block length")
        yield data[offset:start], view[start:stop]
        offset = stop


def _header(root: bytes) -> bytes:
    """``{"roots": [root], "version": 1}`` in DAG-CBOR, where a CID is tag 42 over a zero byte and its bytes."""
    return b"\xa2\x65roots\x81\xd8\x2a\x58\x25\x00" + root + b"\x67version\x01"


def _framed(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[offset : offset + _MAX_VARINT]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if byte == 0 and count:
                _refuse("contains a length that is not minimally encoded")
            return value, offset + count + 1
    _refuse("is truncated inside a length, or contains an impossible length")


def _refuse(problem: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the archive {problem}")
