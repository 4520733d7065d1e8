"""The files of an npm tarball, and its ``package.json``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pinwarden.artifacts.archives.limits import DEFAULT_LIMITS, ArchiveLimits
from pinwarden.artifacts.tarball_files import MOST_FILE_BYTES, package_files, read_files
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.files import open_regular

NAMES = frozenset({"package.json", "binding.gyp"})
"""Files by which npm decides what to run."""


class TarballManifest(Record):
    """What npm finds when it has unpacked the tarball."""

    document: Any
    has_gyp: bool
    """There is a ``binding.gyp``, which npm builds on installation unless told otherwise."""


def unpacked(archive: Path) -> Iterator[tuple[str, bool, bytes]]:
    """The files of a package: path, whether it may be started, bytes. They are the ones that `read_manifest` judged."""
    with open_regular(archive) as stream:
        for path, file in package_files(stream, NAMES):
            yield path, file.executable, bytes(file.read())


def read_manifest(
    stream: IO[bytes], limits: ArchiveLimits = DEFAULT_LIMITS, *, file_bytes: int = MOST_FILE_BYTES
) -> TarballManifest:
    """The manifest. One that is not there, or could be read in two ways, makes the tarball unusable."""
    files = read_files(stream, NAMES, limits, file_bytes=file_bytes)
    if "package.json" not in files:
        raise PinwardenError("ARCHIVE_UNSAFE", "the tarball has no package.json")
    try:
        # As npm reads it: without a byte order mark, and the last of repeated members counts. Real packages have some.
        document = strict_json.parse_last_wins(files["package.json"].removeprefix(b"\xef\xbb\xbf"))
    except PinwardenError as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball's package.json cannot be read: {err}") from err
    return TarballManifest(document=document, has_gyp="binding.gyp" in files)
