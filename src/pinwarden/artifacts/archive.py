"""Archives of source-mode servers: the content hash is checked before anything is unpacked, and all stays inside."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from pinwarden.artifacts.archives.limits import ArchiveLimits
from pinwarden.artifacts.archives.members import Member, tar_members, zip_members
from pinwarden.artifacts.archives.zip_layout import check_layout
from pinwarden.artifacts.artifact import ArtifactFacts, PackageName, Problem
from pinwarden.artifacts.content_hash import check_content
from pinwarden.artifacts.environments.store import remove_tree
from pinwarden.artifacts.environments.tree import write_file
from pinwarden.artifacts.local_files import registry_of, taken_in
from pinwarden.artifacts.portable_paths import PathSet, check_portable
from pinwarden.artifacts.server_manifest import MANIFEST_NAME, ServerManifest, parse
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock.closure import tree_digest
from pinwarden.system.files import open_regular
from pinwarden.system.net.endpoint import Endpoint
from pinwarden.system.net.fetch import Fetcher

ARCHIVE_UNSAFE = "archive_unsafe"
MANIFEST_INVALID = "archive_manifest_invalid"
MANIFEST_MISMATCH = "archive_manifest_mismatch"
LIMITS = ArchiveLimits(members=20_000, total_bytes=512 * 1024 * 1024)
"""Sources of one server; what it depends on is not in its archive."""
_ZIP = b"PK\x03\x04"
_CHUNK = 1 << 20


class Unpacked(Record):
    """A source-mode server in a folder."""

    manifest: ServerManifest
    tree: Digest
    """What :func:`pinwarden.lock.closure.tree_digest` says of its files."""


def facts(
    package: PackageName,
    fetcher: Fetcher,
    endpoint: Endpoint | None = None,
    *,
    now: str,
    into: Path | None = None,
) -> ArtifactFacts:
    """What the archive at an address or path is. The package's version is the one that its manifest should have."""
    blank = ArtifactFacts(package=package, registry=registry_of(package.name), checked_at=now)
    with taken_in(package, fetcher, endpoint, into=into) as taken:
        if taken is None:
            return replace(blank, missing="package")
        manifest, problems = _read(taken.path)
        if manifest is not None and package.version not in ("", manifest.version):
            message = f"the archive is of version {manifest.version}, asked for was {package.version[:120]!a}"
            problems = (Problem(code=MANIFEST_MISMATCH, message=message),)
        author = manifest.author if manifest else None
        return replace(blank, files=(taken.file,), publisher=author, problems=problems)


def unpack(archive: Path, wanted: Digest, folder: Path) -> Unpacked:
    """Unpack an archive with that content hash into a folder that does not exist yet: whole, or not at all."""
    if folder.exists() or folder.is_symlink():
        raise PinwardenError("FILE_EXISTS", f"{folder} exists already")
    try:
        with TemporaryDirectory(prefix="pinwarden-") as private:
            # 1. A copy that nobody changes between the check and its use.
            copy = Path(private) / archive.name
            check_content(_copied(archive, copy), wanted, archive.name)
            # 2. Everything in it into a new folder beside the wanted one, which then takes its name.
            fresh = Path(mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
            try:
                unpacked = _unpack(copy, fresh)
                fresh.rename(folder)
            finally:
                remove_tree(fresh)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{folder}: {err.strerror or err}") from err
    return unpacked


def members(archive: Path) -> Iterator[Member]:
    """The files of an archive, tar or ZIP, under names that mean the same everywhere."""
    seen = PathSet()
    with open_regular(archive) as stream:
        is_zip = stream.read(4) == _ZIP
    if is_zip:
        check_layout(archive)
    for member in (zip_members if is_zip else tar_members)(archive, limits=LIMITS):
        seen.add(check_portable(member.path))
        yield member


def _unpack(archive: Path, folder: Path) -> Unpacked:
    rows = [write_file(folder, each.path, each.data, executable=each.executable) for each in members(archive)]
    return Unpacked(manifest=_manifest(_manifest_in(folder), {path for path, _, _ in rows}), tree=tree_digest(rows))


def _manifest_in(folder: Path) -> bytes | None:
    place = folder / MANIFEST_NAME
    return place.read_bytes() if place.is_file() else None


def _read(archive: Path) -> tuple[ServerManifest | None, tuple[Problem, ...]]:
    data: bytes | None = None
    paths: set[str] = set()
    try:
        for member in members(archive):
            paths.add(member.path)
            data = member.data if member.path == MANIFEST_NAME else data
        return _manifest(data, paths), ()
    except PinwardenError as err:
        code = {"ARCHIVE_UNSAFE": ARCHIVE_UNSAFE, "SERVER_ENTRY_INVALID": MANIFEST_INVALID}.get(err.code)
        if code is None:
            raise
        return None, (Problem(code=code, message=err.message),)


def _manifest(data: bytes | None, paths: set[str]) -> ServerManifest:
    if data is None:
        raise PinwardenError("SERVER_ENTRY_INVALID", f"the archive has no {MANIFEST_NAME}")
    manifest = parse(data)
    if manifest.entry not in paths:
        message = f"{MANIFEST_NAME}: entry names a file that the archive does not hold: {manifest.entry[:80]!a}"
        raise PinwardenError("SERVER_ENTRY_INVALID", message, data={"member": "entry"})
    return manifest


def _copied(source: Path, target: Path) -> Digest:
    hasher = hashlib.sha256()
    with open_regular(source) as stream, target.open("xb") as copy:
        while data := stream.read(_CHUNK):
            hasher.update(data)
            copy.write(data)
    return Digest(hasher.digest())
