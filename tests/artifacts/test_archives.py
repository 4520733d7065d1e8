"""Archives from strangers: what honest packages look like passes, every known trick is refused."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pinwarden.artifacts.archives.package_tarball import read_tarball_files
from pinwarden.artifacts.archives.rules import ArchiveLimits
from pinwarden.artifacts.archives.zip import ZipMember, read_zip_members
from pinwarden.core.errors import PinwardenError
from tests.support.archives import tar_members


def tarball(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for about, data in members:
            about.size = len(data) if about.isreg() else about.size
            archive.addfile(about, io.BytesIO(data))
    return path


def named(name: str, mode: int = 0o644, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    about = tarfile.TarInfo(name)
    about.mode, about.type, about.linkname = mode, kind, target
    return about


def zipped(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def refusal(read: Callable[[], object]) -> PinwardenError:
    with pytest.raises(PinwardenError) as caught:
        read()
    return caught.value


def test_files_of_an_honest_tarball_come_out_with_path_bit_and_bytes(tmp_path: Path) -> None:
    path = tarball(
        tmp_path / "a.tgz",
        (named("package", 0o755, tarfile.DIRTYPE), b""),
        (named("package/index.js"), b"1"),
        (named("./package/bin/run", 0o755), b"2"),
    )
    assert list(tar_members(path)) == [
        ZipMember(path="package/index.js", executable=False, data=b"1"),
        ZipMember(path="package/bin/run", executable=True, data=b"2"),
    ]


@pytest.mark.parametrize(
    "name",
    ["../evil", "a/../../evil", "/etc/passwd", "a//b", "C:/x", "a\\..\\b", "a\nb", "", ".", "x/", "a" * 2000],
)
def test_a_path_outside_the_tarball_is_refused(tmp_path: Path, name: str) -> None:
    path = tarball(tmp_path / "a.tgz", (named(name), b"x"))
    assert refusal(lambda: list(tar_members(path))).code == "ARCHIVE_UNSAFE"


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_pipes_in_a_tarball_are_refused(tmp_path: Path, kind: bytes) -> None:
    path = tarball(tmp_path / "a.tgz", (named("package/x", kind=kind, target="../../etc/passwd"), b""))
    assert refusal(lambda: list(tar_members(path))).code == "ARCHIVE_UNSAFE"


def test_links_are_left_out_where_the_package_client_leaves_them_out(tmp_path: Path) -> None:
    link = named("package/x", kind=tarfile.SYMTYPE, target="/etc/passwd")
    path = tarball(tmp_path / "a.tgz", (link, b""), (named("package/y"), b"y"))
    assert list(read_tarball_files(path)) == [("y", False, b"y")]


def test_a_file_that_comes_twice_is_refused_because_readers_would_disagree(tmp_path: Path) -> None:
    path = tarball(tmp_path / "a.tgz", (named("package/x"), b"good"), (named("./package/x"), b"evil"))
    assert refusal(lambda: list(tar_members(path))).code == "ARCHIVE_UNSAFE"


def test_a_tar_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    limits = ArchiveLimits(total_bytes=1_000_000)
    path = tarball(tmp_path / "bomb.tgz", (named("package/zeros"), bytes(5_000_000)))
    assert path.stat().st_size < 10_000
    assert "more than 1000000 bytes" in refusal(lambda: list(tar_members(path, limits=limits))).message


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    path = tarball(tmp_path / "a.tgz", *((named(f"package/{number}"), b"") for number in range(20)))
    assert refusal(lambda: list(tar_members(path, limits=ArchiveLimits(members=10)))).code == "ARCHIVE_UNSAFE"


@pytest.mark.parametrize("cut", [200, 300])
def test_a_truncated_tarball_is_refused(tmp_path: Path, cut: int) -> None:
    whole = tarball(tmp_path / "a.tgz", (named("package/x"), bytes(range(256)) * 400)).read_bytes()
    path = tmp_path / "cut.tgz"
    path.write_bytes(whole[:-cut])
    assert refusal(lambda: list(tar_members(path))).code == "ARCHIVE_UNSAFE"


@pytest.mark.parametrize("data", [b"", b"no archive", gzip.compress(b"neither is this", mtime=0)])
def test_something_else_than_a_tarball_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.tgz"
    path.write_bytes(data)
    assert refusal(lambda: list(tar_members(path))).code == "ARCHIVE_UNSAFE"


def test_files_of_an_honest_zip_come_out_with_path_bit_and_bytes(tmp_path: Path) -> None:
    runnable = zipfile.ZipInfo("bin/run")
    runnable.external_attr = (stat.S_IFREG | 0o755) << 16
    path = zipped(tmp_path / "a.whl", ("pkg/", b""), ("pkg/x.py", b"1"), (runnable, b"2"))
    assert list(read_zip_members(path)) == [
        ZipMember(path="pkg/x.py", executable=False, data=b"1"),
        ZipMember(path="bin/run", executable=True, data=b"2"),
    ]


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/passwd", "C:/x", "a/./b", "x\n"])
def test_a_path_outside_the_zip_is_refused(tmp_path: Path, name: str) -> None:
    path = zipped(tmp_path / "a.zip", (name, b"x"))
    assert refusal(lambda: list(read_zip_members(path))).code == "ARCHIVE_UNSAFE"


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("x")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert refusal(lambda: list(read_zip_members(zipped(tmp_path / "a.zip", (link, b"/etc/passwd"))))).code == (
        "ARCHIVE_UNSAFE"
    )


def test_a_name_that_is_cut_off_at_a_nul_by_some_readers_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", ("good.pyXevil", b"x"))
    path.write_bytes(path.read_bytes().replace(b"good.pyXevil", b"good.py\x00evil"))
    assert refusal(lambda: list(read_zip_members(path))).code == "ARCHIVE_UNSAFE"


def test_a_zip_with_a_wrong_size_in_its_directory_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", ("x", b"0123456789"))
    data = bytearray(path.read_bytes())
    place = data.index(b"PK\x01\x02")
    data[place + 24 : place + 28] = (5).to_bytes(4, "little")
    path.write_bytes(data)
    assert refusal(lambda: list(read_zip_members(path))).code == "ARCHIVE_UNSAFE"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_comes_twice_in_a_zip_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", ("x", b"good"), ("x", b"evil"))
    assert refusal(lambda: list(read_zip_members(path))).code == "ARCHIVE_UNSAFE"


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(5_000_000))
    limits = ArchiveLimits(total_bytes=1_000_000)
    assert refusal(lambda: list(read_zip_members(path, limits=limits))).code == "ARCHIVE_UNSAFE"


def test_a_missing_archive_is_unreadable_and_not_unsafe(tmp_path: Path) -> None:
    assert refusal(lambda: list(read_zip_members(tmp_path / "none.zip"))).code == "FILE_UNREADABLE"
