"""Reads the tarballs of npm and cargo packages, in which all files are below one top-level folder.

Pinwarden uses this module both to check a package and to unpack it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from pinwarden.artifacts.archives.rules import ARCHIVE_LIMITS, ArchiveLimits
from pinwarden.artifacts.archives.tar import TarMember, read_gzipped_tar
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.files import open_regular

MAX_FILE_BYTES = 4 * 1024 * 1024
"""The largest manifest or build file that Pinwarden reads."""


def read_package_files(
    stream: IO[bytes], exact_names: frozenset[str], limits: ArchiveLimits = ARCHIVE_LIMITS
) -> Iterator[tuple[str, TarMember]]:
    """Yield every file with its path below the top-level folder. Skips links, as npm and cargo do.

    Raises ``ARCHIVE_UNSAFE`` for a duplicate path, and for a path that differs only in case from a name in
    ``exact_names``, because some file systems treat both as one file.
    """
    by_folded_name = {name.lower(): name for name in exact_names}
    seen: set[str] = set()
    for file in read_gzipped_tar(stream, limits):
        _, _, path = file.path.partition("/")
        if not path:
            continue
        exact_name = by_folded_name.get(path.lower(), path)
        if path in seen or exact_name != path:
            _refuse(f"has {exact_name[:120]!a} more than once, or in another letter case")
        seen.add(path)
        yield path, file


def read_named_files(
    stream: IO[bytes],
    names: frozenset[str],
    limits: ArchiveLimits = ARCHIVE_LIMITS,
    *,
    file_bytes: int = MAX_FILE_BYTES,
) -> dict[str, bytes]:
    """Return the files with these names. Reads the entire tarball and refuses it if any member is unsafe."""
    contents: dict[str, bytes] = {}
    for path, file in read_package_files(stream, names, limits):
        if path in names:
            if file.size > file_bytes:
                _refuse(f"has a {path} of more than {file_bytes} bytes")
            contents[path] = bytes(file.read())
    return contents


def _refuse(problem: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball {problem}")


MANIFEST_FILES = frozenset({"package.json", "binding.gyp"})
"""The files that determine which scripts npm runs on installation."""


class PackageJson(Record):
    """The ``package.json`` of a tarball."""

    document: Any
    has_gyp: bool
    """Whether the tarball has a ``binding.gyp``, which npm builds on installation by default."""


def read_tarball_files(archive: Path) -> Iterator[tuple[str, bool, bytes]]:
    """Yield path, executable bit and bytes of every file, with the same checks as :func:`read_package_json`."""
    with open_regular(archive) as stream:
        for path, file in read_package_files(stream, MANIFEST_FILES):
            yield path, file.executable, bytes(file.read())


def read_package_json(
    stream: IO[bytes], limits: ArchiveLimits = ARCHIVE_LIMITS, *, file_bytes: int = MAX_FILE_BYTES
) -> PackageJson:
    """Read ``package.json``. Raises ``ARCHIVE_UNSAFE`` if it is missing or ambiguous."""
    files = read_named_files(stream, MANIFEST_FILES, limits, file_bytes=file_bytes)
    if "package.json" not in files:
        raise PinwardenError("ARCHIVE_UNSAFE", "the tarball has no package.json")
    try:
        # Some packages have a byte order mark or duplicate members. Like npm, skip the mark and use the last duplicate.
        document = strict_json.parse_last_wins(files["package.json"].removeprefix(b"\xef\xbb\xbf"))
    except PinwardenError as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball's package.json is not valid JSON: {err}") from err
    return PackageJson(document=document, has_gyp="binding.gyp" in files)
