"""ZIP files without hidden places: the members lie one after another, from the first byte to the directory.

A ZIP file can be read from its start, or from the directory at its end, and bytes that only one of the two ways comes
across make it two archives in one.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import BinaryIO, NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.system.files import open_regular

_LOCAL, _END, _END64, _LOCATOR64 = b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_END_SIZE, _END64_SIZE, _LOCATOR64_SIZE = 22, 56, 20
_DESCRIPTORS = frozenset({12, 16, 20, 24})
_STREAMED = 0x08


def check_layout(path: Path, *, comment: int = 0) -> None:
    """Refuse a ZIP file with bytes that belong to nothing.

    ``comment`` is a length that the end record may state although nothing follows here: that of a signature block which
    was cut off.
    """
    with open_regular(path) as stream:
        directory, members = _directory(stream, path, comment)
        at, streamed = 0, False
        for member in _listed(stream, path, directory, members):
            _check_gap(path, member.header_offset - at, streamed=streamed)
            at = _end_of(stream, path, member)
            streamed = bool(member.flag_bits & _STREAMED)
        _check_gap(path, directory - at, streamed=streamed)


def _listed(stream: BinaryIO, path: Path, directory: int, members: int) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(stream) as archive:
            found = archive.infolist()
            start = archive.start_dir
    except (zipfile.BadZipFile, struct.error, ValueError, EOFError, NotImplementedError, OverflowError) as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"{path.name} is not a whole archive: {err}") from err
    if start != directory or len(found) != members:
        _refuse(path, "has a directory that is not where it says")
    return sorted(found, key=lambda each: each.header_offset)


def _check_gap(path: Path, gap: int, *, streamed: bool) -> None:
    """Nothing lies between two members, except the sizes of one whose sizes were not known when it began."""
    if gap and not (streamed and gap in _DESCRIPTORS):
        _refuse(path, "has bytes that belong to no member, or members inside each other")


def _end_of(stream: BinaryIO, path: Path, member: zipfile.ZipInfo) -> int:
    stream.seek(member.header_offset)
    head = stream.read(30)
    if len(head) != 30 or head[:4] != _LOCAL:
        _refuse(path, f"has no member where its directory says: {member.filename[:120]!a}")
    name, extra = struct.unpack("<HH", head[26:])
    return member.header_offset + 30 + int(name) + int(extra) + member.compress_size


def _directory(stream: BinaryIO, path: Path, comment: int) -> tuple[int, int]:
    """Where the directory begins, and how many members it has."""
    whole = stream.seek(0, 2)
    end_at = whole - _END_SIZE
    end = _at(stream, end_at, _END_SIZE)
    if end[:4] != _END:
        _refuse(path, "does not end where an archive ends")
    disk, first_disk, here, members, size, offset, said = struct.unpack("<HHHHIIH", end[4:])
    if said not in (0, comment) or disk or first_disk or here != members:
        _refuse(path, "has an end record with a comment, or of several disks")
    locator = _at(stream, end_at - _LOCATOR64_SIZE, _LOCATOR64_SIZE)
    if locator[:4] == _LOCATOR64:
        end_at -= _LOCATOR64_SIZE + _END64_SIZE
        record = _at(stream, end_at, _END64_SIZE)
        if record[:4] != _END64 or struct.unpack("<Q", locator[8:16])[0] != end_at:
            _refuse(path, "has an end record for large archives in a place of its own")
        members, size, offset = struct.unpack("<QQQ", record[32:])
    if offset + size != end_at:
        _refuse(path, "has bytes between its directory and its end")
    return offset, members


def _at(stream: BinaryIO, offset: int, size: int) -> bytes:
    if offset < 0:
        return b""
    stream.seek(offset)
    return stream.read(size)


def _refuse(path: Path, why: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"{path.name} {why}")
