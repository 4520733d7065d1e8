"""Reading archives in tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pinwarden.artifacts.archives.rules import ARCHIVE_LIMITS, ArchiveLimits
from pinwarden.artifacts.archives.tar import read_gzipped_tar
from pinwarden.artifacts.archives.zip import ZipMember
from pinwarden.system.files import open_regular


def tar_members(path: Path, *, limits: ArchiveLimits = ARCHIVE_LIMITS) -> Iterator[ZipMember]:
    """The files of a gzipped tarball, in their order."""
    with open_regular(path) as stream:
        for file in read_gzipped_tar(stream, limits):
            yield ZipMember(path=file.path, executable=file.executable, data=bytes(file.read()))
