"""Write the archive of a bundle (CAR or tar+zstd); read an archive and verify every blob in it.

A CARv1 archive has a header that names the root, then blocks, each prefixed with the CID of its bytes. The first block
is the DAG-CBOR of the unlinked manifest, so the archive's root is the bundle's root CID. The blobs follow in manifest
order, each once. ``tar_zstd.py`` implements the tar+zstd format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import libipld
from libipld import encode_multibase

from pinwarden.artifacts.archives.rules import ArchiveLimits
from pinwarden.artifacts.archives.tar import BLOCK, read_tar
from pinwarden.bundle import tar_zstd
from pinwarden.bundle.bundle_documents import (
    BUNDLE_LIMITS,
    CAR_MEDIA_TYPE,
    BundleDescriptor,
    BundleLimits,
    Manifest,
    ManifestEntry,
)
from pinwarden.bundle.source_tree import SourceFile
from pinwarden.bundle.tar_zstd import TarInput, build_tar_headers, estimate_max_tar_bytes, write_tar
from pinwarden.core.digest import BLOB_PREFIX, Cid, blob_cid, document_cbor
from pinwarden.core.errors import PinwardenError

FileContents = Mapping[str, memoryview | bytes]
"""The verified bytes of every file, by path."""


def build_manifest_entry(file: SourceFile) -> ManifestEntry:
    """Build the manifest entry of a file, with the CID of its bytes."""
    return ManifestEntry(
        path=file.path, blob_cid=str(blob_cid(file.data)), size_bytes=len(file.data), executable=file.executable
    )


def build_archive(
    media_type: str, unlinked: Mapping[str, Any], root: Cid, files: Sequence[SourceFile], *, compress: bool = False
) -> bytes:
    """Build the archive of the files that an unlinked manifest lists. ``root`` is the manifest's root CID."""
    if media_type == CAR_MEDIA_TYPE:
        blobs = ((blob_cid(file.data), file.data) for file in files)
        return write_car(root, document_cbor(dict(unlinked)), blobs)
    plain = write_tar(TarInput(path=file.path, data=file.data, executable=file.executable) for file in files)
    return (tar_zstd.build_compressed_frame if compress else tar_zstd.build_stored_frame)(plain)


def check_archive(
    descriptor: BundleDescriptor, manifest: Manifest, archive: bytes, limits: BundleLimits = BUNDLE_LIMITS
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
        _read_car_files if descriptor.media_type == CAR_MEDIA_TYPE else _read_tar_files
    )
    return read(manifest, archive)


def check_limits(manifest: Manifest, limits: BundleLimits = BUNDLE_LIMITS) -> None:
    """Refuse a manifest with too many files or bytes, before any file is read."""
    total = sum(entry.size_bytes for entry in manifest.entries)
    if len(manifest.entries) > limits.files or total > limits.total_bytes:
        raise PinwardenError(
            "ARCHIVE_UNSAFE",
            f"the bundle has {len(manifest.entries)} files with {total} bytes; the limits are {limits.files} files and "
            f"{limits.total_bytes} bytes",
        )


def _read_car_files(manifest: Manifest, archive: bytes) -> FileContents:
    blobs = read_car(archive, Cid.parse(manifest.root_cid), [entry.blob_cid for entry in manifest.entries])
    contents: dict[str, memoryview | bytes] = {}
    for entry in manifest.entries:
        data = blobs.get(entry.blob_cid)
        if data is None:
            _refuse_missing_file(entry)
        if len(data) != entry.size_bytes:
            _refuse_size(entry, data)
        contents[entry.path] = data
    return contents


def _read_tar_files(manifest: Manifest, archive: bytes) -> FileContents:
    hashed, spelled = hashlib.sha256, encode_multibase
    contents: dict[str, memoryview | bytes] = {}
    for entry, data in _read_own_tar(manifest, archive) or _read_foreign_tar(manifest, archive):
        if spelled("b", BLOB_PREFIX + hashed(data).digest()) != entry.blob_cid:
            raise PinwardenError(
                "ARTIFACT_MISMATCH",
                f"the content of {entry.path[:120]!a} does not match the manifest",
                data={"path": entry.path, "wanted": entry.blob_cid},
            )
        contents[entry.path] = data
    if len(contents) != len(manifest.entries):
        _refuse_missing_file(next(entry for entry in manifest.entries if entry.path not in contents))
    return contents


def _read_own_tar(manifest: Manifest, archive: bytes) -> Iterable[tuple[ManifestEntry, memoryview | bytes]] | None:
    """Return the files of an archive that `build_archive` wrote; None if another tool wrote the archive.

    For speed, headers are compared instead of parsed, and only files that span several blocks are copied.
    """
    frame = tar_zstd.StoredFrame.parse(archive)
    if frame is None:
        return None
    data, view, block_size, first_shift = frame.data, frame.view, tar_zstd.ZSTD_BLOCK, frame.compute_shift(0)
    contents: list[memoryview | bytes] = []
    offset = 0
    for path, _, size, executable in manifest.entries:
        headers = build_tar_headers(path, size, executable)
        start = offset + len(headers)
        stop, block = start + size, offset // block_size
        if block == stop // block_size:  # nearly every file is inside one block
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


def _read_foreign_tar(manifest: Manifest, archive: bytes) -> Iterator[tuple[ManifestEntry, memoryview | bytes]]:
    """Yield the files of an archive that another tool wrote, with their manifest entries. Each file must occur once."""
    plain = tar_zstd.decompress(
        archive, estimate_max_tar_bytes((entry.path, entry.size_bytes) for entry in manifest.entries)
    )
    left = {entry.path: entry for entry in manifest.entries}
    limits = ArchiveLimits(members=2 * len(left) + 1000, total_bytes=len(plain), path_bytes=4096)
    for file in read_tar(plain, limits):
        entry = left.pop(file.path, None)
        if entry is None:
            raise PinwardenError(
                "ARCHIVE_UNSAFE",
                f"the archive contains a file twice, or one that the manifest does not list: {file.path[:120]!a}",
            )
        data = file.read()
        if len(data) != entry.size_bytes:
            _refuse_size(entry, data)
        yield entry, data


def _refuse_size(entry: ManifestEntry, data: memoryview | bytes) -> NoReturn:
    raise PinwardenError(
        "ARTIFACT_MISMATCH",
        f"{entry.path[:120]!a} has {len(data)} bytes; the manifest states {entry.size_bytes}",
        data={"path": entry.path, "found": len(data), "wanted": entry.size_bytes},
    )


def _refuse_missing_file(entry: ManifestEntry) -> NoReturn:
    raise PinwardenError(
        "ARTIFACT_MISMATCH",
        f"{entry.path[:120]!a} is missing from the archive",
        data={"path": entry.path, "wanted": entry.blob_cid},
    )


# CARv1


_CID_BYTES = 36
_MAX_VARINT = 9


def write_car(root: Cid, root_block: bytes, blobs: Iterable[tuple[Cid, bytes]]) -> bytes:
    """Build a CARv1 archive. Identical blobs are written once."""
    blocks = {bytes(root): root_block}
    for cid, data in blobs:
        blocks.setdefault(bytes(cid), data)
    parts = [_prefix_length(_build_header(bytes(root)))]
    for name, data in blocks.items():
        parts += [_encode_varint(_CID_BYTES + len(data)), name, data]
    return b"".join(parts)


def read_car(data: bytes, root: Cid, wanted: Collection[str]) -> dict[str, memoryview]:
    """Return the wanted blobs by CID, each verified against its CID.

    An archive with a duplicate or unlisted block is refused: other software might read that block instead.
    """
    blobs: dict[str, memoryview] = {}
    names, first, root_seen = set(wanted), bytes(root), False
    sha256, encode = hashlib.sha256, libipld.encode_multibase
    for name, content in _iter_blocks(data, first):
        if sha256(content).digest() != name[4:]:
            raise PinwardenError("ARTIFACT_MISMATCH", f"block {len(blobs) + 1} of the archive does not match its CID")
        text = encode("b", name)
        if text in names and text not in blobs:
            blobs[text] = content
        elif name != first or blobs or root_seen:
            _refuse_archive(f"contains a block twice, or one that is not a file of the bundle: {text}")
        else:
            root_seen = True
    return blobs


def _iter_blocks(data: bytes, root: bytes) -> Iterator[tuple[bytes, memoryview]]:
    header = _prefix_length(_build_header(root))
    if not data.startswith(header):
        _refuse_archive("does not start with a CARv1 header whose only root is the bundle's root CID")
    view, offset, end = memoryview(data), len(header), len(data)
    while offset < end:
        # Most length prefixes have two bytes. Decoding them inline is the fast path.
        if data[offset] > 0x7F and offset + 1 < end and 0 < data[offset + 1] <= 0x7F:
            size, offset = data[offset] & 0x7F | data[offset + 1] << 7, offset + 2
        else:
            size, offset = _read_varint(data, offset)
        start, stop = offset + _CID_BYTES, offset + size
        if start > stop or stop > end:
            _refuse_archive("is truncated, or states a wrong block length")
        yield data[offset:start], view[start:stop]
        offset = stop


def _build_header(root: bytes) -> bytes:
    """``{"roots": [root], "version": 1}`` in DAG-CBOR, where a CID is tag 42 over a zero byte and its bytes."""
    return b"\xa2\x65roots\x81\xd8\x2a\x58\x25\x00" + root + b"\x67version\x01"


def _prefix_length(data: bytes) -> bytes:
    return _encode_varint(len(data)) + data


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[offset : offset + _MAX_VARINT]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if byte == 0 and count:
                _refuse_archive("contains a length that is not minimally encoded")
            return value, offset + count + 1
    _refuse_archive("is truncated inside a length, or contains an impossible length")


def _refuse_archive(problem: str) -> NoReturn:
    raise PinwardenError("ARCHIVE_UNSAFE", f"the archive {problem}")
