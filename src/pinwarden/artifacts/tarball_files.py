"""The files of a package's gzipped tarball, as npm and cargo put them: below the one folder that the tarball has.

Both who judges a package and who unpacks it ask here, so that both see the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, NoReturn

from pinwarden.artifacts.archives.limits import DEFAULT_LIMITS, ArchiveLimits
from pinwarden.artifacts.archives.tar import TarFile, tar_stream
from pinwarden.core.errors import PinwardenError

MOST_FILE_BYTES = 4 * 1024 * 1024
"""For one file that is asked for by name: a manifest, or a build file."""


def package_files(
    stream: IO[bytes], named: frozenset[str], limits: ArchiveLimits = DEFAULT_LIMITS
) -> Iterator[tuple[str, TarFile]]:
    """Every file with the path that it has in the package: the first folder is dropped.

    Links are left out, as package clients do. A path that comes twice makes the tarball unusable, and so does a file
    whose name is one of ``named`` in other capitals: on some file systems it is that file.
    """
    folded = {name.lower(): name for name in named}
    seen: set[str] = set()
    for file in tar_stream(stream, limits, links="skip", only_gzip=True):
        _, _, path = file.path.partition("/")
        if not path:
            continue
        wanted = folded.get(path.lower(), path)
        if path in seen or wanted != path:
            _refuse(f"has more than one {wanted[:120]!a}, or one in other capitals")
        seen.add(path)
        yield path, file


def read_files(
    stream: IO[bytes],
    names: frozenset[str],
    limits: ArchiveLimits = DEFAULT_LIMITS,
    *,
    file_bytes: int = MOST_FILE_BYTES,
) -> dict[str, bytes]:
    """The files of those names in the package. The whole tarball is looked at."""
    found: dict[str, bytes] = {}
    for path, file in package_files(stream, names, limits):
        if path in names:
            if file.size > file_bytes:
                _refuse(f"has a {path} of more than {file_bytes} bytes")
            found[path] = bytes(file.read())
    return found


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball {why}")
