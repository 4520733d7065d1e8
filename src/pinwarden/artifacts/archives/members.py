"""Archives from strangers: tarballs and ZIP files are read member by member, and nothing in them chooses a place.

Members that lead out of the archive, that are links or devices, or that come twice make the whole archive unusable:
two readers could unpack it differently.
"""

from __future__ import annotations

import lzma
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from pinwarden.artifacts.archives.limits import DEFAULT_LIMITS, ArchiveLimits
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|(?:^|/)\.{0,2}(?:/|$)|^[A-Za-z]:")
_BROKEN = (
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


class Member(Record):
    """One file of an archive."""

    path: str
    """With forward slashes, relative, and without steps back."""
    executable: bool
    data: bytes = field(repr=False)


def zip_members(path: Path, *, limits: ArchiveLimits = DEFAULT_LIMITS) -> Iterator[Member]:
    """The files of a ZIP file, in the order of its directory."""
    gate = _Gate(path, limits)
    with _reading(path), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            gate.count()
            mode = member.external_attr >> 16
            if stat.S_ISLNK(mode):
                gate.refuse(f"holds a link {member.filename[:120]!a}")
            if member.flag_bits & 0x1:
                gate.refuse(f"holds an encrypted file {member.filename[:120]!a}")
            if member.orig_filename != member.filename:
                gate.refuse(f"holds a name that readers cut off differently: {member.orig_filename[:120]!a}")
            if member.is_dir():
                gate.safe(member.filename.rstrip("/"), again=True)
                continue
            name = gate.safe(member.filename)
            gate.take(member.file_size)
            with archive.open(member) as stream:
                data = stream.read(member.file_size + 1)
            if len(data) != member.file_size:
                gate.refuse(f"says another size for {name[:120]!a} than it has")
            yield Member(path=name, executable=bool(mode & 0o111), data=data)


class _Gate:
    """Counts what comes out of one archive, and refuses what must not."""

    def __init__(self, archive: Path, limits: ArchiveLimits) -> None:
        self._archive = archive
        self._limits = limits
        self._members = self._bytes = 0
        self._seen: set[str] = set()

    def count(self) -> None:
        self._members += 1
        if self._members > self._limits.members:
            self.refuse(f"holds more than {self._limits.members} members")

    def take(self, size: int) -> None:
        self._bytes += size
        if size < 0 or self._bytes > self._limits.total_bytes:
            self.refuse(f"unpacks to more than {self._limits.total_bytes} bytes")

    def safe(self, name: str, *, again: bool = False) -> str:
        """The name, if it stays inside, is a name for every reader, and was not there before."""
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            self.refuse(f"holds a name that is not text: {name[:120]!a}")
        if not name or size > self._limits.path_bytes or _UNSAFE.search(name):
            self.refuse(f"holds a name that leads elsewhere or cannot be a file: {name[:120]!a}")
        if name in self._seen and not again:
            self.refuse(f"holds {name[:120]!a} twice")
        self._seen.add(name)
        return name

    def refuse(self, why: str) -> NoReturn:
        raise PinwardenError("ARCHIVE_UNSAFE", f"{self._archive.name} {why}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"{path.name} is not a whole archive: {err}") from err
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"{path}: {err.strerror or err}") from err
