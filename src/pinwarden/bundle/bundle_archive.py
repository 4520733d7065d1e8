"""A bundle's archive (CAR or tar+zstd): written from files, read back with every blob verified, and unpacked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from libipld import encode_multibase

from pinwarden.artifacts.archives.rules import ArchiveLimits, check_all_portable
from pinwarden.artifacts.archives.tar import BLOCK, tar_in_memory
from pinwarden.bundle import tar_zstd
from pinwarden.bundle.car import read_car, write_car
from pinwarden.bundle.descriptor import CAR_MEDIA_TYPE, Descriptor
from pinwarden.bundle.manifest import DEFAULT_LIMITS, BundleLimits, Manifest, ManifestEntry
from pinwarden.bundle.source_tree import SourceFile
from pinwarden.bundle.tar_zstd import TarFile, max_tar_bytes, tar_headers, write_tar
from pinwarden.core.cid import BLOB_PREFIX, Cid, blob_cid, document_cbor
from pinwarden.core.errors import PinwardenError

FileContents = Mapping[str, memoryview | bytes]
"""The verified bytes of every file, by path."""


def manifest_entry(file: SourceFile) -> ManifestEntry:
    """The manifest entry of a file."""
    return ManifestEntry(
        path=file.path, blob_cid=str(blob_cid(file.data)), size_bytes=len(file.data), executable=file.executable
    )


def make_archive(
    media_type: str, unlinked: Mapping[str, Any], root: Cid, files: Sequence[SourceFile], *, compress: bool = False
) -> bytes:
    """Write the archive of the files in an unlinked manifest (without descriptor CID and root CID)."""
    if media_type == CAR_MEDIA_TYPE:
        blobs = ((blob_cid(file.data), file.data) for file in files)
        return write_car(root, document_cbor(dict(unlinked)), blobs)
    plain = write_tar(TarFile(path=file.path, data=file.data, executable=file.executable) for file in files)
    return (tar_zstd.compressed_frame if compress else tar_zstd.stored_frame)(plain)


def check_archive(
    descriptor: Descriptor, manifest: Manifest, archive: bytes, limits: BundleLimits = DEFAULT_LIMITS
) -> FileContents:
    """Verify an archive against its documents and return the files.

    1. The archive has the size in the descriptor.
    2. The files do not exceed the limits.
    3. Every blob matches its CID and its size in the manifest.
    4. The archive contains nothing else.
    """
    if len(archive) != descriptor.size_bytes:
        raise PinwardenError(
            "ARTIFACT_MISMATCH",
            f"the archive has {len(archive)} bytes; the descriptor states {descriptor.size_bytes}",
            data={"found": len(archive), "wanted": descriptor.size_bytes},
        )
    check_limits(manifest, limits)
    read: Callable[[Manifest, bytes], FileContents] = (
        _from_car if descriptor.media_type == CAR_MEDIA_TYPE else _from_tar
    )
    return read(manifest, archive)


def check_limits(manifest: Manifest, limits: BundleLimits = DEFAULT_LIMITS) -> None:
    """Refuse a manifest with too many files or bytes, before reading any of them."""
    total = sum(entry.size_bytes for entry in manifest.entries)
    if len(manifest.entries) > limits.files or total > limits.total_bytes:
        raise PinwardenError(
            "ARCHIVE_UNSAFE",
            f"the bundle has {len(manifest.entries)} files with {total} bytes; the limits are {limits.files} files and "
            f"{limits.total_bytes} bytes",
        )


def _from_car(manifest: Manifest, archive: bytes) -> FileContents:
    blobs = read_car(archive, Cid.parse(manifest.root_cid), [entry.blob_cid for entry in manifest.entries])
    contents: dict[str, memoryview | bytes] = {}
    for entry in manifest.entries:
        data = blobs.get(entry.blob_cid)
        if data is None:
            _missing(entry)
        if len(data) != entry.size_bytes:
            _other_size(entry, data)
        contents[entry.path] = data
    return contents


def _from_tar(manifest: Manifest, archive: bytes) -> FileContents:
    hashed, spelled = hashlib.sha256, encode_multibase
    contents: dict[str, memoryview | bytes] = {}
    for entry, data in _as_written(manifest, archive) or _matched(manifest, archive):
        if spelled("b", BLOB_PREFIX + hashed(data).digest()) != entry.blob_cid:
            raise PinwardenError(
                "ARTIFACT_MISMATCH",
                f"the content of {entry.path[:120]!a} does not match the manifest",
                data={"path": entry.path, "wanted": entry.blob_cid},
            )
        contents[entry.path] = data
    if len(contents) != len(manifest.entries):
        _missing(next(entry for entry in manifest.entries if entry.path not in contents))
    return contents


def _as_written(manifest: Manifest, archive: bytes) -> Iterable[tuple[ManifestEntry, memoryview | bytes]] | None:
    """The files of an archive that `make_archive` wrote, without copying: headers are compared, not parsed.

    None if another tool wrote the archive.
    """
    frame = tar_zstd.StoredFrame.parse(archive)
    if frame is None:
        return None
    data, view, block_size, first_shift = frame.data, frame.view, tar_zstd.ZSTD_BLOCK, frame.shift(0)
    contents: list[memoryview | bytes] = []
    offset = 0
    for path, _, size, executable in manifest.entries:
        headers = tar_headers(path, size, executable)
        start = offset + len(headers)
        stop, block = start + size, offset // block_size
        if block == stop // block_size:  # nearly always: the file is inside one block
            shift = first_shift + 3 * block
            if not data.startswith(headers, offset + shift):
                return None
            contents.append(view[start + shift : stop + shift])
        else:
            if frame.read(offset, start) != headers:
                return None
            contents.append(frame.read(start, stop))
        offset = stop + -size % BLOCK
    complete = frame.size - offset == len(tar_zstd.TAR_END) and frame.read(offset, frame.size) == tar_zstd.TAR_END
    return zip(manifest.entries, contents, strict=True) if complete else None


def _matched(manifest: Manifest, archive: bytes) -> Iterator[tuple[ManifestEntry, memoryview | bytes]]:
    """The files of any tarball with their manifest entries; each exactly once."""
    plain = tar_zstd.decompress(archive, max_tar_bytes((entry.path, entry.size_bytes) for entry in manifest.entries))
    left = {entry.path: entry for entry in manifest.entries}
    limits = ArchiveLimits(members=2 * len(left) + 1000, total_bytes=len(plain), path_bytes=4096)
    for file in tar_in_memory(plain, limits):
        entry = left.pop(file.path, None)
        if entry is None:
            raise PinwardenError(
                "ARCHIVE_UNSAFE",
                f"the archive contains a file twice, or one that the manifest does not list: {file.path[:120]!a}",
            )
        data = file.read()
        if len(data) != entry.size_bytes:
            _other_size(entry, data)
        yield entry, data


def _other_size(entry: ManifestEntry, data: memoryview | bytes) -> NoReturn:
    raise PinwardenError(
        "ARTIFACT_MISMATCH",
        f"{entry.path[:120]!a} has {len(data)} bytes; the manifest states {entry.size_bytes}",
        data={"path": entry.path, "found": len(data), "wanted": entry.size_bytes},
    )


def _missing(entry: ManifestEntry) -> NoReturn:
    raise PinwardenError(
        "ARTIFACT_MISMATCH",
        f"{entry.path[:120]!a} is missing from the archive",
        data={"path": entry.path, "wanted": entry.blob_cid},
    )


def unpack(entries: Iterable[ManifestEntry], contents: FileContents, destination: Path) -> None:
    """Write verified files into a new folder, all or none: they appear under `destination` in one rename.

    ``contents`` comes from `check_archive`. The paths are checked again here, where they reach the file system.
    """
    from tempfile import mkdtemp

    from pinwarden.artifacts.environments.store import remove_tree

    files = list(entries)
    check_all_portable([entry.path for entry in files])
    if destination.exists() or destination.is_symlink():
        raise PinwardenError("FILE_EXISTS", f"{destination} already exists")
    try:
        # A private folder, so that no other user can plant a symlink in it.
        fresh = Path(mkdtemp(dir=destination.parent, prefix=f".{destination.name}."))
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{destination.parent}: {err.strerror or err}") from err
    try:
        created: set[str] = set()
        for entry in files:
            _write(fresh, entry, contents[entry.path], created)
        fresh.chmod(0o755)
        fresh.rename(destination)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{destination}: {err.strerror or err}") from err
    finally:
        remove_tree(fresh)


def _write(folder: Path, entry: ManifestEntry, data: memoryview | bytes, created: set[str]) -> None:
    path = folder / entry.path
    parent = entry.path.rpartition("/")[0]
    if parent and parent not in created:
        path.parent.mkdir(parents=True, exist_ok=True)
        created.add(parent)
    mode = 0o755 if entry.executable else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, mode)  # regardless of the umask
        stream.write(data)
