"""Single files of a gzipped tarball from a stranger, read in one pass without unpacking anything."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase
from typing import IO, Any, NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

_BROKEN = (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError, UnicodeError)
_ABOUT_ANOTHER = frozenset("xgXLK")  # headers that hold the name of the next member, of any length


class TarballLimits(Record):
    """Bounds on what is read, against archives that are small outside and enormous inside."""

    unpacked_bytes: int = 4 * 1024 * 1024 * 1024
    members: int = 100_000
    file_bytes: int = 4 * 1024 * 1024
    """For one file that is asked for: a manifest, or a build file."""
    header_bytes: int = 64 * 1024
    """For one long name. The standard library takes such a header into memory whole."""


DEFAULT_LIMITS = TarballLimits()


def read_files(stream: IO[bytes], names: frozenset[str], limits: TarballLimits = DEFAULT_LIMITS) -> dict[str, bytes]:
    """The files of those names right below the one folder that the tarball has; names are in lower case.

    Links are left out, as package clients do. A file that is there twice, also in other capitals, and any path that
    leads elsewhere make the tarball unusable.
    """
    found: dict[str, bytes] = {}
    with _reading():
        for archive, member in _members(stream, limits):
            name = _unpacked_path(member.name)
            if name not in names:
                continue
            if name in found:
                _refuse(f"has more than one {name}, so that two readers could see different packages")
            if member.size > limits.file_bytes:
                _refuse(f"has a {name} of more than {limits.file_bytes} bytes")
            content = archive.extractfile(member)
            found[name] = content.read() if content else b""
    return found


def _members(stream: IO[bytes], limits: TarballLimits) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    class Careful(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, *arguments: Any, **named: Any) -> Any:
            made = super().frombuf(*arguments, **named)
            if made.type.decode("latin-1") in _ABOUT_ANOTHER and made.size > limits.header_bytes:
                _refuse("has a header that is too long")
            return made

    with gzip.open(stream) as plain:
        bounded = _Bounded(plain, limits.unpacked_bytes)
        # What comes after the end mark is read, too: some readers go on there.
        with tarfile.open(fileobj=bounded, mode="r|", tarinfo=Careful, ignore_zeros=True) as archive:
            for count, member in enumerate(archive):
                if count >= limits.members:
                    _refuse(f"has more than {limits.members} members")
                archive.members = []  # type: ignore[attr-defined] # kept for random access, which a stream has not
                if member.isreg():
                    yield archive, member


def _unpacked_path(name: str) -> str:
    """Where a member is put, in lower case because some file systems do not tell: the first folder is dropped."""
    steps = name.replace("\\", "/").split("/")
    if ".." in steps or name.startswith("/"):
        _refuse(f"has a path that leads elsewhere: {name[:120]!a}")
    return "/".join(step for step in steps[1:] if step not in ("", ".")).lower()


class _Bounded(RawIOBase):
    """What is unpacked, up to a limit."""

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream = stream
        self._left = limit
        self._limit = limit

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            _refuse(f"unpacks to more than {self._limit} bytes")
        return data


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except _BROKEN as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball is not a whole archive: {type(err).__name__}") from err


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball {why}")
