"""The archive of a bundle in both media types: made from its files, and read back with every blob checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from libipld import encode_multibase

from pinwarden.artifacts.archives.rules import ArchiveLimits
from pinwarden.artifacts.archives.tar import BLOCK, tar_in_memory
from pinwarden.bundle.archive import tar, zstd
from pinwarden.bundle.archive.car import read_car, write_car
from pinwarden.bundle.archive.limits import DEFAULT_LIMITS, BundleLimits
from pinwarden.bundle.archive.tar import TarFile, headers_of, most_bytes, write_tar
from pinwarden.bundle.archive.tree import SourceFile
from pinwarden.bundle.descriptor import CAR, Descriptor
from pinwarden.bundle.manifest import Entry, Manifest
from pinwarden.core.cid import BLOB_PREFIX, Cid, blob_cid, document_cbor
from pinwarden.core.errors import PinwardenError

Contents = Mapping[str, memoryview | bytes]
"""The bytes of every file by its path, each of which was hashed."""


def entry_of(file: SourceFile) -> Entry:
    """A file as the manifest lists it."""
    return Entry(
        path=file.path, blob_cid=str(blob_cid(file.data)), size_bytes=len(file.data), executable=file.executable
    )


def make_archive(
    media_type: str, unlinked: Mapping[str, Any], root: Cid, files: Sequence[SourceFile], *, compress: bool = False
) -> bytes:
    """The archive of the files that the manifest without its links lists."""
    if media_type == CAR:
        blobs = ((blob_cid(file.data), file.data) for file in files)
        return write_car(root, document_cbor(dict(unlinked)), blobs)
    plain = write_tar(TarFile(path=file.path, data=file.data, executable=file.executable) for file in files)
    return (zstd.compressed if compress else zstd.stored)(plain)


def check_archive(
    descriptor: Descriptor, manifest: Manifest, archive: bytes, limits: BundleLimits = DEFAULT_LIMITS
) -> Contents:
    """The files of a bundle, every byte of which the manifest names.

    1. The archive is as long as the descriptor says.
    2. Its files together are not more than may be unpacked.
    3. Every blob has the bytes that its CID names, and the size that the manifest says.
    4. There is nothing else in the archive.
    """
    if len(archive) != descriptor.size_bytes:
        raise PinwardenError(
            "ARTIFACT_MISMATCH",
            f"the archive has {len(archive)} bytes, and the descriptor says {descriptor.size_bytes}",
            data={"found": len(archive), "wanted": descriptor.size_bytes},
        )
    check_amount(manifest, limits)
    read: Callable[[Manifest, bytes], Contents] = _from_car if descriptor.media_type == CAR else _from_tar
    return read(manifest, archive)


def check_amount(manifest: Manifest, limits: BundleLimits = DEFAULT_LIMITS) -> None:
    """Refuse a manifest of more files or bytes than are unpacked, before any of them is looked at."""
    total = sum(entry.size_bytes for entry in manifest.entries)
    if len(manifest.entries) > limits.files or total > limits.total_bytes:
        raise PinwardenError(
            "ARCHIVE_UNSAFE",
            f"the bundle has {len(manifest.entries)} files of {total} bytes; at most {limits.files} of "
            f"{limits.total_bytes} are unpacked",
        )


def _from_car(manifest: Manifest, archive: bytes) -> Contents:
    found = read_car(archive, Cid.parse(manifest.root_cid), [entry.blob_cid for entry in manifest.entries])
    contents: dict[str, memoryview | bytes] = {}
    for entry in manifest.entries:
        data = found.get(entry.blob_cid)
        if data is None:
            _missing(entry)
        if len(data) != entry.size_bytes:
            _other_size(entry, data)
        contents[entry.path] = data
    return contents


def _from_tar(manifest: Manifest, archive: bytes) -> Contents:
    hashed, spelled = hashlib.sha256, encode_multibase
    contents: dict[str, memoryview | bytes] = {}
    for entry, data in _as_written(manifest, archive) or _matched(manifest, archive):
        if spelled("b", BLOB_PREFIX + hashed(data).digest()) != entry.blob_cid:
            raise PinwardenError(
                "ARTIFACT_MISMATCH",
                f"{entry.path[:120]!a} has other bytes than the manifest names",
                data={"path": entry.path, "wanted": entry.blob_cid},
            )
        contents[entry.path] = data
    if len(contents) != len(manifest.entries):
        _missing(next(entry for entry in manifest.entries if entry.path not in contents))
    return contents


def _as_written(manifest: Manifest, archive: bytes) -> Iterable[tuple[Entry, memoryview | bytes]] | None:
    """Every file where it lies in the archive, if the archive is the one that `make_archive` makes of the manifest.

    Nothing has to be understood then, only compared. None says no more than that somebody else wrote it.
    """
    frame = zstd.StoredFrame.of(archive)
    if frame is None:
        return None
    data, view, block, first = frame.data, frame.view, zstd.BLOCK, frame.where(0)
    found: list[memoryview | bytes] = []
    place = 0
    for path, _, size, executable in manifest.entries:
        headers = headers_of(path, size, executable)
        start = place + len(headers)
        stop, number = start + size, place // block
        if number == stop // block:  # nearly always: all of it lies in one block
            where = first + 3 * number
            if not data.startswith(headers, place + where):
                return None
            found.append(view[start + where : stop + where])
        else:
            if frame.read(place, start) != headers:
                return None
            found.append(frame.read(start, stop))
        place = stop + -size % BLOCK
    end = frame.size - place == len(tar.END) and frame.read(place, frame.size) == tar.END
    return zip(manifest.entries, found, strict=True) if end else None


def _matched(manifest: Manifest, archive: bytes) -> Iterator[tuple[Entry, memoryview | bytes]]:
    """Every file of anybody's tarball with the entry that lists it; each once, and no other."""
    plain = zstd.decompressed(archive, most_bytes((entry.path, entry.size_bytes) for entry in manifest.entries))
    left = {entry.path: entry for entry in manifest.entries}
    limits = ArchiveLimits(members=2 * len(left) + 1000, total_bytes=len(plain), path_bytes=4096)
    for file in tar_in_memory(plain, limits):
        entry = left.pop(file.path, None)
        if entry is None:
            raise PinwardenError(
                "ARCHIVE_UNSAFE",
                f"the archive has a file that the manifest does not list, or has it twice: {file.path[:120]!a}",
            )
        data = file.read()
        if len(data) != entry.size_bytes:
            _other_size(entry, data)
        yield entry, data


def _other_size(entry: Entry, data: memoryview | bytes) -> NoReturn:
    raise PinwardenError(
        "ARTIFACT_MISMATCH",
        f"{entry.path[:120]!a} has {len(data)} bytes, and the manifest says {entry.size_bytes}",
        data={"path": entry.path, "found": len(data), "wanted": entry.size_bytes},
    )


def _missing(entry: Entry) -> NoReturn:
    raise PinwardenError(
        "ARTIFACT_MISMATCH",
        f"the archive does not have {entry.path[:120]!a}",
        data={"path": entry.path, "wanted": entry.blob_cid},
    )
