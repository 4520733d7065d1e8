"""CARv1: a header that names the root, then blocks, each under the CID of its bytes.

The first block is the DAG-CBOR of the manifest without its links, so the archive's root is the bundle's root CID. The
blobs follow in the order of the manifest, each once.
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
    """The archive. The same blob twice is written once."""
    blocks = {bytes(root): root_block}
    for cid, data in blobs:
        blocks.setdefault(bytes(cid), data)
    parts = [_framed(_header(bytes(root)))]
    for name, data in blocks.items():
        parts += [_varint(_CID_BYTES + len(data)), name, data]
    return b"".join(parts)


def read_car(data: bytes, root: Cid, wanted: Collection[str]) -> dict[str, memoryview]:
    """The blobs by their CIDs, each of which fits its bytes.

    A block that nobody asked for, or that comes twice, makes the archive unusable: it is there for another reader.
    """
    found: dict[str, memoryview] = {}
    names, first, begun = set(wanted), bytes(root), False
    hashed, spelled = hashlib.sha256, libipld.encode_multibase
    for name, content in _blocks(data, first):
        if hashed(content).digest() != name[4:]:
            raise PinwardenError(
                "ARTIFACT_MISMATCH", f"block {len(found) + 1} of the archive has other bytes than its CID names"
            )
        text = spelled("b", name)
        if text in names and text not in found:
            found[text] = content
        elif name != first or found or begun:
            _refuse(f"holds a block twice, or one that is no file of the bundle: {text}")
        else:
            begun = True
    return found


def _blocks(data: bytes, root: bytes) -> Iterator[tuple[bytes, memoryview]]:
    header = _framed(_header(root))
    if not data.startswith(header):
        _refuse("does not begin with a CARv1 header that names the bundle's root CID and no other")
    view, place, end = memoryview(data), len(header), len(data)
    while place < end:
        # Lengths of two bytes, as most blocks have, are read here; the rest is left to the function.
        if data[place] > 0x7F and place + 1 < end and 0 < data[place + 1] <= 0x7F:
            size, place = data[place] & 0x7F | data[place + 1] << 7, place + 2
        else:
            size, place = _read_varint(data, place)
        start, after = place + _CID_BYTES, place + size
        if start > after or after > end:
            _refuse("is cut off, or says another length of a block than it has")
        yield data[place:start], view[start:after]
        place = after


def _header(root: bytes) -> bytes:
    """``{"roots": [root], "version": 1}`` in DAG-CBOR, where a CID is tag 42 over a zero byte and its bytes."""
    return b"\xa2\x65roots\x81\xd8\x2a\x58\x25\x00" + root + b"\x67version\x01"


def _framed(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    number = 0
    for count, byte in enumerate(data[place : place + _MAX_VARINT]):
        number |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if byte == 0 and count:
                _refuse("spells a length in more bytes than it needs")
            return number, place + count + 1
    _refuse("is cut off inside a length, or has an impossible one")


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the archive {why}")
