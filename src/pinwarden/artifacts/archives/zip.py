"""Reads ZIP files, and refuses those that programs could interpret differently.

The reader refuses links, duplicate names, and paths that leave the target folder. It also refuses bytes that belong to
no member, because they can hide a second archive: some programs start at the first byte, others at the directory at the
end of the file.
"""

from __future__ import annotations

import lzma
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn

from pinwarden.artifacts.archives.rules import ARCHIVE_LIMITS, ArchiveLimits
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.system.files import open_regular

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|(?:^|/)\.{0,2}(?:/|$)|^[A-Za-z]:")
_DECODE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeError,
    ValueError,
    OverflowError,
)


class ZipMember(Record):
    """One file of a ZIP file."""

    path: str
    """A relative path with forward slashes and without ``..``."""
    executable: bool
    data: bytes = field(repr=False)


def read_zip_members(path: Path, *, limits: ArchiveLimits = ARCHIVE_LIMITS) -> Iterator[ZipMember]:
    """Yield the files of a ZIP file, in the order of its directory."""
    checker = _MemberChecker(path, limits)
    with _convert_errors(path), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            checker.count_member()
            mode = member.external_attr >> 16
            if stat.S_ISLNK(mode):
                checker.refuse(f"has a link {member.filename[:120]!a}")
            if member.flag_bits & 0x1:
                checker.refuse(f"has an encrypted file {member.filename[:120]!a}")
            if member.orig_filename != member.filename:
                checker.refuse(f"has a name that programs truncate differently: {member.orig_filename[:120]!a}")
            if member.is_dir():
                checker.check_name(member.filename.rstrip("/"), allow_repeat=True)
                continue
            name = checker.check_name(member.filename)
            checker.add_size(member.file_size)
            with archive.open(member) as stream:
                data = stream.read(member.file_size + 1)
            if len(data) != member.file_size:
                checker.refuse(f"states a wrong size for {name[:120]!a}")
            yield ZipMember(path=name, executable=bool(mode & 0o111), data=data)


class _MemberChecker:
    """Counts members and bytes of one archive, and refuses unsafe names."""

    def __init__(self, archive: Path, limits: ArchiveLimits) -> None:
        self._archive = archive
        self._limits = limits
        self._members = self._bytes = 0
        self._seen: set[str] = set()

    def count_member(self) -> None:
        self._members += 1
        if self._members > self._limits.members:
            self.refuse(f"has more than {self._limits.members} members")

    def add_size(self, size: int) -> None:
        self._bytes += size
        if size < 0 or self._bytes > self._limits.total_bytes:
            self.refuse(f"unpacks to more than {self._limits.total_bytes} bytes")

    def check_name(self, name: str, *, allow_repeat: bool = False) -> str:
        """Return the name unchanged. Raises if it leaves the target folder, is not a valid name, or is a duplicate."""
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            self.refuse(f"has a name that is not valid Unicode: {name[:120]!a}")
        if not name or size > self._limits.path_bytes or _UNSAFE.search(name):
            self.refuse(f"has a path that leaves the target folder or is not a valid file name: {name[:120]!a}")
        if name in self._seen and not allow_repeat:
            self.refuse(f"has {name[:120]!a} twice")
        self._seen.add(name)
        return name

    def refuse(self, problem: str) -> NoReturn:
        raise PinwardenError("ARCHIVE_UNSAFE", f"{self._archive.name} {problem}")


@contextmanager
def _convert_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except _DECODE_ERRORS as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"{path.name} is a damaged or incomplete archive: {err}") from err
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"cannot read {path}: {err.strerror or err}") from err


_LOCAL, _END, _END64, _LOCATOR64 = b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_END_SIZE, _END64_SIZE, _LOCATOR64_SIZE = 22, 56, 20
_DESCRIPTOR_SIZES = frozenset({12, 16, 20, 24})
_STREAMED = 0x08


def check_zip_layout(path: Path, *, signature_block_size: int = 0) -> None:
    """Refuse a ZIP file with bytes that belong to neither a member nor the directory.

    If a signature block was removed from the end of the file, the end record may still state the size of this block as
    the length of an archive comment.
    """
    with open_regular(path) as stream:
        directory, members = _read_end_record(stream, path, signature_block_size)
        end, was_streamed = 0, False
        for member in _read_directory(stream, path, directory, members):
            _check_gap(path, member.header_offset - end, was_streamed=was_streamed)
            end = _find_member_end(stream, path, member)
            was_streamed = bool(member.flag_bits & _STREAMED)
        _check_gap(path, directory - end, was_streamed=was_streamed)


def _read_directory(stream: BinaryIO, path: Path, directory: int, members: int) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
            start = archive.start_dir
    except (zipfile.BadZipFile, struct.error, ValueError, EOFError, NotImplementedError, OverflowError) as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"{path.name} is a damaged or incomplete archive: {err}") from err
    if start != directory or len(entries) != members:
        _refuse(path, "has a directory whose offset or length differs from its end record")
    return sorted(entries, key=lambda entry: entry.header_offset)


def _check_gap(path: Path, gap: int, *, was_streamed: bool) -> None:
    """Raise unless two members are adjacent. After a streamed member, there may be a data descriptor."""
    if gap and not (was_streamed and gap in _DESCRIPTOR_SIZES):
        _refuse(path, "has bytes between its members, or overlapping members")


def _find_member_end(stream: BinaryIO, path: Path, member: zipfile.ZipInfo) -> int:
    stream.seek(member.header_offset)
    head = stream.read(30)
    if len(head) != 30 or head[:4] != _LOCAL:
        _refuse(path, f"has no member at the offset in its directory: {member.filename[:120]!a}")
    name, extra = struct.unpack("<HH", head[26:])
    return member.header_offset + 30 + int(name) + int(extra) + member.compress_size


def _read_end_record(stream: BinaryIO, path: Path, signature_block_size: int) -> tuple[int, int]:
    """Return the offset of the directory, and the number of members it lists."""
    file_size = stream.seek(0, 2)
    end_at = file_size - _END_SIZE
    end = _read_at(stream, end_at, _END_SIZE)
    if end[:4] != _END:
        _refuse(path, "does not end with an end record")
    disk, first_disk, members_on_disk, members, size, offset, comment_length = struct.unpack("<HHHHIIH", end[4:])
    if comment_length not in (0, signature_block_size) or disk or first_disk or members_on_disk != members:
        _refuse(path, "has an archive comment, or spans several disks")
    locator = _read_at(stream, end_at - _LOCATOR64_SIZE, _LOCATOR64_SIZE)
    if locator[:4] == _LOCATOR64:
        end_at -= _LOCATOR64_SIZE + _END64_SIZE
        record = _read_at(stream, end_at, _END64_SIZE)
        if record[:4] != _END64 or struct.unpack("<Q", locator[8:16])[0] != end_at:
            _refuse(path, "has a misplaced ZIP64 end record")
        members, size, offset = struct.unpack("<QQQ", record[32:])
    if offset + size != end_at:
        _refuse(path, "has bytes between its directory and its end record")
    return offset, members


def _read_at(stream: BinaryIO, offset: int, size: int) -> bytes:
    if offset < 0:
        return b""
    stream.seek(offset)
    return stream.read(size)


def _refuse(path: Path, problem: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"{path.name} {problem}")
