"""Archives of bundles: the same bytes on every machine, and nothing written of those that were tampered with."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import libipld
import pytest
import zstandard

from pinwarden import PinwardenError
from pinwarden.artifacts.archives.rules import ARCHIVE_LIMITS
from pinwarden.artifacts.archives.tar import read_tar
from pinwarden.bundle import tar_zstd
from pinwarden.bundle.acceptance import check_documents
from pinwarden.bundle.bundle_archive import check_archive
from pinwarden.bundle.bundle_documents import (
    CAR_MEDIA_TYPE,
    TAR_ZSTD_MEDIA_TYPE,
    BundleDocuments,
    BundleLimits,
    ManifestEntry,
    descriptor_from_json,
)
from pinwarden.bundle.bundle_files import unpack
from pinwarden.bundle.document import encode_document
from pinwarden.bundle.pack import PackedBundle, PackOptions, pack_folder
from pinwarden.bundle.source_tree import read_tree
from pinwarden.core.digest import Cid, blob_cid
from pinwarden.core.record import replace

SERVER = b'{"name": "@acme/notes", "version": "1.0.0", "runtime": "python", "entry": "main.py"}'
LONG = "d" * 60 + "/" + "f" * 60 + ".txt"
FILES = {"server.json": SERVER, "main.py": b"print('notes')\n", "bin/start": b"#!/bin/sh\n", "ü/leer": b"", LONG: b"x"}
BOTH = pytest.mark.parametrize("media_type", [CAR_MEDIA_TYPE, TAR_ZSTD_MEDIA_TYPE], ids=["car", "tar+zstd"])


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def folder_of(folder: Path, files: dict[str, bytes], *, mask: int = 0o022) -> Path:
    with umask(mask):
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        if "bin/start" in files:
            (folder / "bin/start").chmod(0o777 & ~mask)
    return folder


def packed(folder: Path, media_type: str = CAR_MEDIA_TYPE, *, compress: bool = False) -> PackedBundle:
    return pack_folder(PackOptions(folder=folder, output=folder.parent, media_type=media_type, compress=compress))


class World:
    """A packed bundle, and what would be written of it."""

    def __init__(self, folder: Path, media_type: str, files: dict[str, bytes] = FILES) -> None:
        self.bundle = packed(folder_of(folder / "source", files), media_type)
        self.archive = self.bundle.archive
        self.destination = folder / "destination"
        self.folder = folder

    @property
    def documents(self) -> BundleDocuments:
        return check_documents(encode_document(self.bundle.descriptor), encode_document(self.bundle.manifest))

    def install(self, archive: bytes, *, honest_size: bool = False, limits: BundleLimits | None = None) -> None:
        """As an installer does it; ``honest_size`` lets the descriptor say the size of this archive."""
        documents = self.documents
        descriptor = documents.descriptor
        if honest_size:
            descriptor = replace(descriptor, size_bytes=len(archive))
        contents = check_archive(descriptor, documents.manifest, archive, limits or BundleLimits())
        unpack(documents.manifest.entries, contents, self.destination)

    def refuses(self, archive: bytes, code: str, *, honest_size: bool = True) -> PinwardenError:
        with pytest.raises(PinwardenError) as caught:
            self.install(archive, honest_size=honest_size)
        assert caught.value.code == code, caught.value.message
        assert sorted(path.name for path in self.folder.iterdir()) == ["source"]
        return caught.value

    def written(self) -> dict[str, tuple[bytes, int]]:
        return {
            path.relative_to(self.destination).as_posix(): (path.read_bytes(), path.stat().st_mode & 0o777)
            for path in self.destination.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def car(tmp_path: Path) -> World:
    return World(tmp_path, CAR_MEDIA_TYPE)


@pytest.fixture
def tarball(tmp_path: Path) -> World:
    return World(tmp_path, TAR_ZSTD_MEDIA_TYPE)


# The same bytes everywhere


@BOTH
def test_packing_is_reproducible_whatever_the_umask_times_and_order(media_type: str, tmp_path: Path) -> None:
    first = folder_of(tmp_path / "one", FILES, mask=0o022)
    other = folder_of(tmp_path / "other", dict(reversed(FILES.items())), mask=0o077)
    os.utime(other / "main.py", (1, 1))
    if os.getuid() == 0:
        os.chown(other / "main.py", 1234, 1234)
    with umask(0o077):
        second = packed(other, media_type)
    assert packed(first, media_type) == second


def test_the_author_of_the_server_is_in_the_descriptor(tmp_path: Path) -> None:
    stated = SERVER.replace(b'"entry"', b'"author": "Ada", "entry"')
    with_author = World(tmp_path / "stated", CAR_MEDIA_TYPE, {**FILES, "server.json": stated})
    assert with_author.documents.descriptor.author == "Ada"
    world = World(tmp_path / "none", CAR_MEDIA_TYPE)
    assert world.documents.descriptor.author is None
    document = world.bundle.descriptor
    for written, author in (({"name": "Ada", "url": "x"}, "Ada"), ({"name": 7}, None), (["Ada"], None), ("", None)):
        other = {**document, "tool": {**document["tool"], "author": written}}
        assert descriptor_from_json(other).author == author


def test_packed_bytes_match_earlier_releases(tmp_path: Path) -> None:
    """Known answers: another machine, another Python or another library would show here."""
    folder = folder_of(tmp_path / "source", FILES)
    bundles = [packed(folder, media_type) for media_type in (CAR_MEDIA_TYPE, TAR_ZSTD_MEDIA_TYPE)]
    assert [(bundle.root_cid, sha256(bundle.archive).hexdigest()) for bundle in bundles] == [
        (ROOT, "de20f0b35c24bf9e42aa126aefee451a2109a17745932ca3977d75108ec2b250"),
        (ROOT, "fc4db61cc02f55b29f62bc0a5d78a747111d1d02b1a6c94c5a54e5b8e5c51e33"),
    ]


ROOT = "bafyreifisekcfjfpmppox3moww5vjoosks6kcqi5lj36az6x5kx3cyj7w4"


def test_work_files_are_left_out_and_listed(tmp_path: Path) -> None:
    extra = {".git/config": b"", "lib/__pycache__/x.pyc": b"", ".env": b"TOKEN=1", "lib/.DS_Store": b""}
    folder = folder_of(tmp_path / "source", {**FILES, **extra})
    tree = read_tree(folder)
    assert [file.path for file in tree.files] == sorted(FILES)
    assert tree.excluded == (".env", ".git", "lib/.DS_Store", "lib/__pycache__")


@BOTH
def test_unpacking_restores_files_and_modes_whatever_the_umask(media_type: str, tmp_path: Path) -> None:
    world = World(tmp_path, media_type)
    with umask(0o077):
        world.install(world.archive)
    modes = {path: 0o755 if path == "bin/start" else 0o644 for path in FILES}
    assert world.written() == {path: (data, modes[path]) for path, data in FILES.items()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["destination", "source"]


def test_a_compressed_archive_is_smaller_and_unpacks_to_the_same(tmp_path: Path) -> None:
    world = World(tmp_path, TAR_ZSTD_MEDIA_TYPE, {**FILES, "text": b"again and " * 10_000})
    small = packed(tmp_path / "source", TAR_ZSTD_MEDIA_TYPE, compress=True)
    assert len(small.archive) < len(world.archive) / 10
    assert small.root_cid == world.bundle.root_cid
    world.install(small.archive, honest_size=True)
    assert world.written()["text"][0] == b"again and " * 10_000


def test_the_standard_library_reads_the_tarball_as_we_do(tarball: World) -> None:
    plain = zstandard.ZstdDecompressor().decompress(tarball.archive)
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        theirs = {member.name: (archive.extractfile(member) or io.BytesIO()).read() for member in archive}
        assert {(member.mtime, member.uid, member.gid, member.uname, member.gname) for member in archive} == {
            (0, 0, 0, "", "")
        }
    assert theirs == FILES


def test_another_library_reads_the_root_of_the_car_as_we_do(car: World) -> None:
    """It knows no raw blocks, so it is given the header and the first block."""
    first_blob = car.archive.index(bytes(blob_cid(FILES["bin/start"]))) - 1  # its length takes one byte
    header, blocks = libipld.decode_car(car.archive[:first_blob])
    root = bytes(Cid.parse(car.bundle.root_cid))
    assert (header["version"], header["roots"]) == (1, [root])
    unlinked = {name: car.bundle.manifest[name] for name in ("schema_version", "cid_profile", "entries")}
    assert blocks == {root: unlinked}


def test_another_program_s_tarball_of_the_same_files_is_read(tarball: World) -> None:
    tarball.install(compressed(made_by_tarfile(FILES)), honest_size=True)
    assert {path: data for path, (data, _) in tarball.written().items()} == FILES


def test_files_that_cross_block_boundaries_are_read_without_copying_correctly(
    tmp_path: Path,
) -> None:
    """Sizes around the edges of blocks, names that need a header of their own, empty files; and one of two blocks."""
    edges = {f"at{size}.bin": bytes([size % 251]) * size for size in (0, 1, 511, 512, 513, 130560, 130561, 131072)}
    long = {f"{'long' * 30}{index}.txt": b"x" * 40000 * index for index in range(8)}
    files = {"server.json": SERVER, "main.py": b"", **edges, **long}
    world = World(tmp_path, TAR_ZSTD_MEDIA_TYPE, files)
    documents, archive = world.documents, world.archive
    frame = tar_zstd.StoredFrame.parse(archive)
    assert frame is not None
    plain = tar_zstd.decompress(archive, frame.size)
    again = compressed(plain)
    for given in (archive, again):
        described = replace(documents.descriptor, size_bytes=len(given))
        contents = check_archive(described, documents.manifest, given)
        assert {path: bytes(data) for path, data in contents.items()} == files
    assert bytes(frame.read(0, frame.size)) == plain
    assert tar_zstd.StoredFrame.parse(archive[:-1]) is None
    assert tar_zstd.StoredFrame.parse(compressed(b"x" * 1000)) is None


def made_by_tarfile(files: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        folder = tarfile.TarInfo("./bin")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mtime = len(data), 1234567890.5
            archive.addfile(member, io.BytesIO(data))
        for member in more:
            archive.addfile(member)
    return plain.getvalue()


def compressed(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(plain)


# Folders that are no bundle


def link(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/passwd")


def folder_link(folder: Path) -> None:
    (folder / "link").symlink_to("bin")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def alike(folder: Path) -> None:
    (folder / "MAIN.py").write_bytes(b"")


def not_text(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_bytes(b"")


def decomposed(folder: Path) -> None:
    (folder / "u\u0308ber").write_bytes(b"")


def device_of_windows(folder: Path) -> None:
    (folder / "aux.js").write_bytes(b"")


@pytest.mark.parametrize("spoil", [link, folder_link, pipe, alike, not_text, decomposed, device_of_windows])
def test_a_folder_with_unportable_files_is_not_packed(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "source", FILES)
    spoil(folder)
    with pytest.raises(PinwardenError) as caught:
        packed(folder)
    assert caught.value.code == "ARCHIVE_UNSAFE"


# Tampered archives


def test_a_changed_byte_anywhere_in_a_car_is_detected(car: World) -> None:
    documents = car.documents
    taken = []
    for offset in range(len(car.archive)):
        broken = bytearray(car.archive)
        broken[offset] ^= 1
        try:
            check_archive(documents.descriptor, documents.manifest, bytes(broken))
            taken.append(offset)
        except PinwardenError as err:
            assert err.code in ("ARCHIVE_UNSAFE", "ARTIFACT_MISMATCH")
    assert taken == []


def test_a_changed_byte_anywhere_in_a_tarball_is_detected_or_changes_no_file(tarball: World) -> None:
    documents = tarball.documents
    whole = check_archive(documents.descriptor, documents.manifest, tarball.archive)
    refused = 0
    for offset in range(0, len(tarball.archive), 3):
        broken = bytearray(tarball.archive)
        broken[offset] ^= 1
        try:
            assert check_archive(documents.descriptor, documents.manifest, bytes(broken)) == whole
        except PinwardenError as err:
            assert err.code in ("ARCHIVE_UNSAFE", "ARTIFACT_MISMATCH")
            refused += 1
    assert refused > 100


@BOTH
def test_tampered_blob_is_refused_before_anything_is_written(media_type: str, tmp_path: Path) -> None:
    world = World(tmp_path, media_type)
    world.refuses(world.archive.replace(b"print('notes')", b"print('evil!')"), "ARTIFACT_MISMATCH")


@BOTH
def test_an_archive_of_another_size_than_the_descriptor_states_is_refused(media_type: str, tmp_path: Path) -> None:
    world = World(tmp_path, media_type)
    err = world.refuses(world.archive + b"\0", "ARTIFACT_MISMATCH", honest_size=False)
    assert err.data == {"found": len(world.archive) + 1, "wanted": len(world.archive)}


@BOTH
def test_a_truncated_archive_is_refused(media_type: str, tmp_path: Path) -> None:
    world = World(tmp_path, media_type)
    for size in (0, 1, 30, len(world.archive) // 2, len(world.archive) - 1):
        with pytest.raises(PinwardenError) as caught:
            world.install(world.archive[:size], honest_size=True)
        assert caught.value.code in ("ARCHIVE_UNSAFE", "ARTIFACT_MISMATCH")
    assert not world.destination.exists()


def block(data: bytes) -> bytes:
    size = 36 + len(data)
    assert size < 0x4000
    return bytes([size & 0x7F | 0x80, size >> 7]) + bytes(blob_cid(data)) + data


def test_smuggled_block_that_the_manifest_does_not_list_is_refused(car: World) -> None:
    car.refuses(car.archive + block(b"x" * 200), "ARCHIVE_UNSAFE")


def test_duplicate_block_is_refused(car: World) -> None:
    data = FILES["server.json"] + b" " * 100
    world = World(car.folder / "second", CAR_MEDIA_TYPE, {**FILES, "more": data})
    world.refuses(world.archive + block(data), "ARCHIVE_UNSAFE")


def test_duplicate_root_block_is_refused(car: World) -> None:
    root = bytes(Cid.parse(car.documents.root_cid))
    start = car.archive.index(root, car.archive.index(root) + 1) - 2  # the header names it first
    end = start + 2 + (car.archive[start] & 0x7F | car.archive[start + 1] << 7)
    car.refuses(car.archive[:end] + car.archive[start:end] + car.archive[end:], "ARCHIVE_UNSAFE")
    car.install(car.archive)


def test_missing_blob_is_refused(car: World) -> None:
    last = car.archive.index(bytes(blob_cid(FILES["server.json"]))) - 1
    error = car.refuses(car.archive[:last], "ARTIFACT_MISMATCH")
    assert error.data["path"] in FILES


def test_car_with_a_foreign_root_is_refused(car: World, tmp_path: Path) -> None:
    other = packed(folder_of(tmp_path / "source" / "sub", {**FILES, "main.py": b"evil"}))
    car.refuses(other.archive, "ARCHIVE_UNSAFE")


def test_car_block_that_claims_an_enormous_length_is_refused(car: World) -> None:
    car.refuses(car.archive + b"\xff" * 8 + b"\x7f" + b"x" * 100, "ARCHIVE_UNSAFE")
    car.refuses(car.archive + b"\xff" * 20, "ARCHIVE_UNSAFE")
    car.refuses(car.archive + b"\xa4\x80\x00" + b"x" * 36, "ARCHIVE_UNSAFE")


def test_car_bomb_of_one_blob_under_ten_thousand_names_is_refused(car: World) -> None:
    manifest = car.documents.manifest
    name = str(blob_cid(b"\0" * 1_000_000))
    entries = tuple(ManifestEntry(path=f"f{index:05}", blob_cid=name, size_bytes=1_000_000) for index in range(10_000))
    with pytest.raises(PinwardenError) as caught:
        check_archive(car.documents.descriptor, replace(manifest, entries=entries), car.archive)
    assert caught.value.code == "ARCHIVE_UNSAFE"
    assert not car.destination.exists()


def test_bundle_of_too_many_files_is_refused(car: World) -> None:
    with pytest.raises(PinwardenError) as caught:
        car.install(car.archive, limits=BundleLimits(files=len(FILES) - 1))
    assert caught.value.code == "ARCHIVE_UNSAFE"
    assert not car.destination.exists()


def test_zstd_bomb_is_refused_without_unpacking_it(tarball: World) -> None:
    bomb = zstandard.ZstdCompressor().compress(b"\0" * 50_000_000)
    assert len(bomb) < 10_000
    tarball.refuses(bomb, "ARCHIVE_UNSAFE")
    with pytest.raises(PinwardenError):
        tar_zstd.decompress(bomb * 1000, 10_000)  # 50 GB unpacked


def test_zstd_frame_that_asks_for_an_enormous_window_is_refused(tarball: World) -> None:
    frame = b"\x28\xb5\x2f\xfd" + b"\x00" + b"\xf8" + (1).to_bytes(3, "little")
    tarball.refuses(frame, "ARCHIVE_UNSAFE")


def test_invalid_zstd_frame_is_refused(tarball: World) -> None:
    tarball.refuses(made_by_tarfile(FILES), "ARCHIVE_UNSAFE")
    tarball.refuses(tarball.archive + b"junk", "ARCHIVE_UNSAFE")


def test_tar_bomb_whose_header_claims_an_enormous_file_is_refused(tarball: World) -> None:
    plain = bytearray(made_by_tarfile({"main.py": b""}))
    start = plain.index(b"main.py")
    plain[start + 124 : start + 136] = b"77777777777\0"
    plain[start + 148 : start + 156] = b" " * 8
    plain[start + 148 : start + 156] = b"%06o\0 " % sum(plain[start : start + 512])
    tarball.refuses(compressed(bytes(plain)), "ARCHIVE_UNSAFE")


def member(name: str, kind: bytes = tarfile.REGTYPE, **more: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    made.linkname = more.get("linkname", "")
    return made


@pytest.mark.parametrize(
    "evil",
    [
        member("../evil"),
        member("/etc/evil"),
        member("bin/../../evil"),
        member("link", tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("link", tarfile.LNKTYPE, linkname="main.py"),
        member("device", tarfile.CHRTYPE),
        member("pipe", tarfile.FIFOTYPE),
        member("main.py"),
        member("unlisted"),
    ],
    ids=[
        "path traversal",
        "absolute path",
        "path traversal inside",
        "symbolic link",
        "hard link",
        "device",
        "named pipe",
        "duplicate file",
        "file that the manifest does not list",
    ],
)
def test_tar_with_a_malicious_member_is_refused(evil: tarfile.TarInfo, tarball: World) -> None:
    tarball.refuses(compressed(made_by_tarfile(FILES, evil)), "ARCHIVE_UNSAFE")


def test_tar_with_data_after_its_end_is_refused(tarball: World) -> None:
    plain = made_by_tarfile(FILES)
    tarball.refuses(compressed(plain + plain[:512]), "ARCHIVE_UNSAFE")
    tarball.refuses(compressed(plain.rstrip(b"\0")), "ARCHIVE_UNSAFE")


def test_tar_header_that_changes_how_the_next_is_read_is_refused() -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        evil = tarfile.TarInfo("main.py")
        evil.pax_headers = {"GNU.sparse.size": "1"}
        archive.addfile(evil)
    with pytest.raises(PinwardenError) as caught:
        list(read_tar(plain.getvalue(), ARCHIVE_LIMITS))
    assert caught.value.code == "ARCHIVE_UNSAFE"


# Manifests that lead elsewhere


@pytest.mark.parametrize("path", ["../evil", "/evil", "a/../../evil", "a//b", "./a", "C:evil", "a\0b", "nul", "bin"])
def test_path_traversal_in_a_manifest_is_refused_where_files_are_written(path: str, car: World) -> None:
    """Acceptance refuses such a manifest (MANIFEST_PATH_INVALID); unpacking does not rely on that."""
    entries = (*car.documents.manifest.entries, ManifestEntry(path=path, blob_cid=str(blob_cid(b"")), size_bytes=0))
    with pytest.raises(PinwardenError) as caught:
        unpack(entries, {entry.path: b"" for entry in entries}, car.destination)
    assert caught.value.code == "ARCHIVE_UNSAFE"
    assert sorted(path.name for path in car.folder.iterdir()) == ["source"]


def test_existing_files_are_not_overwritten(car: World, tmp_path: Path) -> None:
    elsewhere = tmp_path / "source"
    car.destination.symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    with pytest.raises(PinwardenError) as caught:
        car.install(car.archive)
    assert caught.value.code == "FILE_EXISTS"
    assert sorted(elsewhere.rglob("*")) == before


def test_a_failed_unpack_leaves_nothing_behind(car: World) -> None:
    entries = car.documents.manifest.entries
    contents = {entry.path: b"" for entry in entries[:-1]}
    with pytest.raises(KeyError):
        unpack(entries, contents, car.destination)
    assert sorted(path.name for path in car.folder.iterdir()) == ["source"]
