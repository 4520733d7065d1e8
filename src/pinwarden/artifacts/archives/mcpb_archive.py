"""Reads MCPB bundles: the ZIP file without its signature block, the manifest, and the members."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from pinwarden.artifacts.archives.rules import ArchiveLimits, PathSet
from pinwarden.artifacts.archives.zip import ZipMember, check_zip_layout, read_zip_members
from pinwarden.artifacts.mcpb_manifest import (
    MANIFEST_NAME,
    BundleManifest,
    McpbParts,
    parse_manifest,
    split_signature,
)
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.files import open_regular

LIMITS = ArchiveLimits(members=100_000, total_bytes=1024 * 1024 * 1024)
"""Bundles that include a Python environment can have several hundred megabytes."""
_CHUNK = 1 << 20


class McpbContent(Record):
    """A bundle's ZIP file without the signature block."""

    archive: Path
    signature_block_size: int
    """The size of the removed signature block in bytes."""


def read_bundle_parts(path: Path) -> McpbParts:
    """Find where the content of a bundle ends and its signature block begins."""
    with open_regular(path) as stream:

        def read(offset: int, size: int) -> bytes:
            stream.seek(offset)
            return stream.read(size)

        return split_signature(stream.seek(0, 2), read)


def hash_content(path: Path, size: int, algorithm: str = "sha256") -> Digest:
    """Return the digest of the first ``size`` bytes of a file."""
    with open_regular(path) as stream:
        count, digest = _hash_prefix(stream, size, algorithm)
    if count != size:
        raise PinwardenError("FILE_UNREADABLE", f"{path} was truncated while it was read")
    return digest


@contextmanager
def open_content(path: Path, parts: McpbParts) -> Iterator[McpbContent]:
    """Open a bundle's ZIP file without the signature block.

    The block must be removed, because ZIP readers search for the directory from the end of the file, and the block
    could contain a second directory.
    """
    with open_regular(path) as stream:
        file_size = stream.seek(0, 2)
        if parts.content_size == file_size:
            yield McpbContent(archive=path, signature_block_size=0)
            return
        with TemporaryDirectory(prefix="pinwarden-") as folder:
            archive = Path(folder) / path.name
            stream.seek(0)
            with archive.open("xb") as copy:
                _copy_prefix(stream, copy, parts.content_size)
            yield McpbContent(archive=archive, signature_block_size=file_size - parts.content_size)


def read_bundle_members(bundle: McpbContent) -> Iterator[ZipMember]:
    """Yield the files of a bundle. Raises ``ARCHIVE_UNSAFE`` if a file system would treat two paths as the same."""
    check_zip_layout(bundle.archive, signature_block_size=bundle.signature_block_size)
    seen = PathSet()
    for member in read_zip_members(bundle.archive, limits=LIMITS):
        seen.add(member.path)
        yield member


def read_bundle_manifest(bundle: McpbContent) -> BundleManifest:
    """Read the manifest and check every member."""
    manifest_data: bytes | None = None
    paths: set[str] = set()
    for member in read_bundle_members(bundle):
        paths.add(member.path)
        if member.path == MANIFEST_NAME:
            manifest_data = member.data
    if manifest_data is None:
        raise PinwardenError("BUNDLE_INVALID", f"the bundle has no {MANIFEST_NAME}")
    manifest = parse_manifest(manifest_data)
    # On Windows, clients append .exe to the entry point.
    if not paths & {manifest.entry_point, f"{manifest.entry_point}.exe"}:
        message = f"the bundle's manifest: server.entry_point is not in the bundle: {manifest.entry_point[:80]!a}"
        raise PinwardenError("BUNDLE_INVALID", message, data={"member": "server.entry_point"})
    return manifest


def _hash_prefix(stream: BinaryIO, size: int, algorithm: str) -> tuple[int, Digest]:
    hasher = hashlib.new(algorithm)
    remaining = size
    while remaining and (data := stream.read(min(remaining, _CHUNK))):
        hasher.update(data)
        remaining -= len(data)
    return size - remaining, Digest(hasher.digest(), algorithm)


def _copy_prefix(source: BinaryIO, target: BinaryIO, size: int) -> None:
    remaining = size
    while remaining and (data := source.read(min(remaining, _CHUNK))):
        target.write(data)
        remaining -= len(data)
