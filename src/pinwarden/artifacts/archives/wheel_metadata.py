"""The METADATA of a wheel, read without unpacking anything else."""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

_MAX_DIRECTORY = 64 * 1024 * 1024  # the directory is read into memory as a whole; 100,000 members have about 10 MB
_MAX_MEMBERS = 200_000
_MAX_METADATA = 8 * 1024 * 1024  # it holds the README
_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_DIST_INFO = re.compile(r"[^/]+\.dist-info/METADATA")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|(?:^|/)\.{1,2}(?:/|$)|^/|//|^[A-Za-z]:")


class WheelMetadata(Record):
    """What a wheel says it is."""

    name: str
    version: str
    project_urls: Mapping[str, str] = field(default_factory=dict)


def read_wheel_metadata(stream: IO[bytes]) -> WheelMetadata:
    """Name and version from a wheel's METADATA. ``ARCHIVE_UNSAFE`` if there is not exactly one."""
    try:
        _check_directory(stream)
        with zipfile.ZipFile(stream) as archive:
            return _parse(_metadata_bytes(archive))
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        OSError,  # seeking to where no file has anything
    ) as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"a wheel is not a whole ZIP file: {type(err).__name__}") from err


def _check_directory(stream: IO[bytes]) -> None:
    """A directory of gigabytes is refused before anybody reads it."""
    size = stream.seek(0, 2)
    start = max(0, size - _END.size - 0xFFFF)
    stream.seek(start)
    tail = stream.read(size - start)
    place = tail.rfind(b"PK\x05\x06")
    if place < 0:
        _unsafe("has no directory")
    members, length = _END.unpack_from(tail, place)[4:6]
    locator = start + place - _LOCATOR_64.size
    if locator >= 0:
        stream.seek(locator)
        mark, _, record, _ = _LOCATOR_64.unpack(stream.read(_LOCATOR_64.size))
        if mark == b"PK\x06\x07" and record < size:
            stream.seek(record)
            members, length = _END_64.unpack(stream.read(_END_64.size))[7:9]
    if length > _MAX_DIRECTORY or members > _MAX_MEMBERS:
        _unsafe("has a directory that is too large")
    stream.seek(0)


def _metadata_bytes(archive: zipfile.ZipFile) -> bytes:
    names = [member.orig_filename for member in archive.infolist()]
    if len(names) > _MAX_MEMBERS or len(set(names)) != len(names):
        _unsafe("holds a name twice, or too many")
    for name in names:
        if _UNSAFE.search(name):
            _unsafe(f"holds a name that leads elsewhere: {name[:120]!a}")
    found = [member for member in archive.infolist() if _DIST_INFO.fullmatch(member.filename)]
    if len(found) != 1:
        _unsafe(f"has {len(found)} METADATA files instead of one")
    if found[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        _unsafe("is compressed in a way that installers do not expect")  # some ways take memory as the archive says
    with archive.open(found[0]) as stream:
        data = stream.read(_MAX_METADATA + 1)
    if len(data) > _MAX_METADATA:
        _unsafe("has a METADATA file that is too large")
    return data


def _parse(data: bytes) -> WheelMetadata:
    from packaging.metadata import parse_email

    raw, _ = parse_email(data)
    urls = dict(raw.get("project_urls", {}))
    if raw.get("home_page"):
        urls.setdefault("Homepage", raw["home_page"])
    # A field that comes twice is not in ``raw``, and nothing equals the empty name.
    return WheelMetadata(name=raw.get("name", ""), version=raw.get("version", ""), project_urls=urls)


def _unsafe(why: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"a wheel {why}")
