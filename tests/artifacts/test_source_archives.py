"""Archives of source-mode servers: checked by their content hash, then unpacked whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import unicodedata
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from pinwarden.artifacts import archive
from pinwarden.artifacts.archives.limits import ArchiveLimits
from pinwarden.artifacts.artifact import ArtifactFacts, PackageName
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.system.net.endpoint import Endpoint
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRules
from tests.servers.plain_http import files, plain_server

NOW = "2026-11-16T00:00:00Z"
MANIFEST = {"name": "jira", "version": "1.0.0", "runtime": "bun", "entry": "src/index.ts", "author": "Acme"}
HONEST: Sequence[tuple[str, bytes]] = (("server.json", json.dumps(MANIFEST).encode()), ("src/index.ts", b"1"))


def tarred(members: Sequence[tuple[str, bytes]] = HONEST, *, mode: int = 0o644, compress: str = "gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{compress}") as made:  # type: ignore[call-overload]
        for name, data in members:
            about = tarfile.TarInfo(name)
            about.size, about.mode = len(data), mode
            made.addfile(about, io.BytesIO(data))
    return buffer.getvalue()


def zipped(members: Sequence[tuple[str, bytes]] = HONEST) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, data in members:
            made.writestr(name, data)
    return buffer.getvalue()


def linked(kind: bytes, target: str) -> bytes:
    buffer = io.BytesIO(tarred(compress=""))
    with tarfile.open(fileobj=buffer, mode="a") as made:
        about = tarfile.TarInfo("link")
        about.type, about.linkname = kind, target
        made.addfile(about)
    return buffer.getvalue()


def unpack(folder: Path, data: bytes, wanted: Digest | None = None) -> archive.Unpacked:
    (folder / "jira.tar.gz").write_bytes(data)
    return archive.unpack(folder / "jira.tar.gz", wanted or Digest.of(data), folder / "jira")


def refusal(folder: Path, data: bytes, wanted: Digest | None = None) -> str:
    """The code, after nothing was found to be left of the attempt."""
    with pytest.raises(PinwardenError) as caught:
        unpack(folder, data, wanted)
    assert [each.name for each in folder.iterdir()] == ["jira.tar.gz"]
    return caught.value.code


class TestUnpacking:
    @pytest.mark.parametrize("data", [tarred(), tarred(compress=""), tarred(compress="xz"), zipped()])
    def test_an_honest_archive_becomes_a_folder(self, tmp_path: Path, data: bytes) -> None:
        found = unpack(tmp_path, data)
        assert (found.manifest.name, found.manifest.entry) == ("jira", "src/index.ts")
        assert (tmp_path / "jira/src/index.ts").read_bytes() == b"1"
        assert sorted(each.name for each in tmp_path.iterdir()) == ["jira", "jira.tar.gz"]

    def test_equal_content_has_an_equal_tree_in_any_archive(self, tmp_path: Path) -> None:
        trees = set()
        for number, data in enumerate((tarred(), tarred(compress="xz"), zipped(), tarred(tuple(reversed(HONEST))))):
            (tmp_path / str(number)).mkdir()
            trees.add(str(unpack(tmp_path / str(number), data).tree))
        assert len(trees) == 1

    @pytest.mark.parametrize(("mode", "kept"), [(0o6777, 0o555), (0o600, 0o444), (0, 0o444), (0o755, 0o555)])
    def test_attack_modes_are_those_of_a_file_to_read_or_to_run(self, tmp_path: Path, mode: int, kept: int) -> None:
        unpack(tmp_path, tarred(mode=mode))
        assert (tmp_path / "jira/src/index.ts").stat().st_mode & 0o7777 == kept

    def test_attack_other_bytes_fail_hard_before_anything_is_unpacked(self, tmp_path: Path) -> None:
        assert refusal(tmp_path, tarred(), Digest.of(b"what was locked")) == "ARTIFACT_MISMATCH"

    def test_order_other_bytes_answer_before_an_unsafe_archive(self, tmp_path: Path) -> None:
        evil = tarred([*HONEST, ("../evil", b"")])
        assert refusal(tmp_path, evil, Digest.of(b"what was locked")) == "ARTIFACT_MISMATCH"
        assert refusal(tmp_path, evil) == "ARCHIVE_UNSAFE"

    def test_a_folder_that_exists_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "jira").mkdir()
        (tmp_path / "jira/mine").write_text("x")
        with pytest.raises(PinwardenError) as caught:
            unpack(tmp_path, tarred())
        assert caught.value.code == "FILE_EXISTS"
        assert (tmp_path / "jira/mine").read_text() == "x"

    @pytest.mark.parametrize(
        "name",
        [
            "../evil",
            "/evil",
            "a/../../evil",
            "a\\evil",
            "C:evil",
            "nul",
            "a.",
            "src/index.ts",
            "SRC/other.ts",
            "src/INDEX.ts",
            "src/index.ts/x",
            "src",
        ],
    )
    @pytest.mark.parametrize("kind", ["tar", "zip"])
    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_attack_names_that_lead_out_or_meet(self, tmp_path: Path, kind: str, name: str) -> None:
        members = [*HONEST, (name, b"evil")]
        assert refusal(tmp_path, tarred(members) if kind == "tar" else zipped(members)) == "ARCHIVE_UNSAFE"

    def test_attack_names_that_differ_in_composition_only(self, tmp_path: Path) -> None:
        names = [unicodedata.normalize(form, "src/é.ts") for form in ("NFC", "NFD")]
        assert refusal(tmp_path, tarred([*HONEST, *((name, b"") for name in names)])) == "ARCHIVE_UNSAFE"

    @pytest.mark.parametrize(
        "kind",
        [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE],
        ids=["sym", "hard", "fifo", "dev"],
    )
    def test_attack_links_and_devices(self, tmp_path: Path, kind: bytes) -> None:
        assert refusal(tmp_path, linked(kind, "/etc/passwd")) == "ARCHIVE_UNSAFE"

    def test_attack_small_outside_and_enormous_inside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(archive, "LIMITS", ArchiveLimits(members=10, total_bytes=100_000))
        assert refusal(tmp_path, tarred([*HONEST, ("zeros", bytes(200_000))])) == "ARCHIVE_UNSAFE"
        assert refusal(tmp_path, tarred([*HONEST, *((f"f{n}", b"") for n in range(10))])) == "ARCHIVE_UNSAFE"

    def test_attack_what_is_not_an_archive(self, tmp_path: Path) -> None:
        for data in (b"", b"hello", b"PK\x03\x04", tarred()[:-20], b"evil" + zipped()):
            assert refusal(tmp_path, data) == "ARCHIVE_UNSAFE"

    def test_attack_a_second_archive_behind_the_end_of_the_first(self, tmp_path: Path) -> None:
        hidden = tarred([("src/index.ts", b"evil")], compress="")
        for data in (tarred(compress="") + hidden, gzip.compress(tarred(compress="") + hidden), tarred() + tarred()):
            assert refusal(tmp_path, data) == "ARCHIVE_UNSAFE"

    def test_attack_a_size_that_two_readers_take_from_two_places(self, tmp_path: Path) -> None:
        about = tarfile.TarInfo("src/other.ts")
        about.pax_headers = {"size": "512"}
        buffer = io.BytesIO(tarred(compress=""))
        with tarfile.open(fileobj=buffer, mode="a", format=tarfile.PAX_FORMAT) as made:
            made.addfile(about)
        assert refusal(tmp_path, buffer.getvalue()) == "ARCHIVE_UNSAFE"

    def test_attack_a_header_without_end(self, tmp_path: Path) -> None:
        about = tarfile.TarInfo("src/other.ts")
        about.pax_headers = {"comment": "x" * 100_000}
        buffer = io.BytesIO(tarred(compress=""))
        with tarfile.open(fileobj=buffer, mode="a", format=tarfile.PAX_FORMAT) as made:
            made.addfile(about)
        assert refusal(tmp_path, buffer.getvalue()) == "ARCHIVE_UNSAFE"

    def test_long_names_and_folders_are_unpacked(self, tmp_path: Path) -> None:
        name = "/".join(["a" * 90] * 4)
        for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w", format=form) as made:
                folder = tarfile.TarInfo("src")
                folder.type = tarfile.DIRTYPE
                made.addfile(folder)
                for path, data in (*HONEST, (name, b"long")):
                    about = tarfile.TarInfo(path)
                    about.size = len(data)
                    made.addfile(about, io.BytesIO(data))
            place = tmp_path / str(form)
            place.mkdir()
            unpack(place, buffer.getvalue())
            assert (place / "jira" / name).read_bytes() == b"long"

    def test_a_manifest_that_is_missing_or_lies_leaves_nothing(self, tmp_path: Path) -> None:
        assert refusal(tmp_path, tarred(HONEST[1:])) == "SERVER_ENTRY_INVALID"
        assert refusal(tmp_path, tarred(HONEST[:1])) == "SERVER_ENTRY_INVALID"


class TestFacts:
    def look(self, data: bytes, version: str = "", into: Path | None = None) -> ArtifactFacts:
        client = Fetcher(FetchRules(limits=FetchLimits(attempts=1)), {})
        try:
            with plain_server(files({"/jira.tar.gz": data})) as server:
                package = PackageName(ecosystem="archive", name=f"{server.url}jira.tar.gz", version=version)
                return archive.facts(package, client, Endpoint(url=server.url, said_by="user"), now=NOW, into=into)
        finally:
            client.close()

    def test_an_archive_is_hashed_and_kept(self, tmp_path: Path) -> None:
        data = tarred()
        facts = self.look(data, "1.0.0", tmp_path)
        assert (facts.files[0].name, facts.files[0].sha256) == ("jira.tar.gz", Digest.of(data))
        assert (facts.problems, facts.publisher, facts.missing) == ((), "Acme", None)
        assert (tmp_path / Digest.of(data).hex).read_bytes() == data

    def test_attack_what_is_wrong_with_an_archive_is_told(self) -> None:
        def codes(data: bytes, version: str = "") -> list[str]:
            return [each.code for each in self.look(data, version).problems]

        assert codes(tarred([*HONEST, ("../evil", b"")])) == ["archive_unsafe"]
        assert codes(tarred(HONEST[1:])) == ["archive_manifest_invalid"]
        assert codes(tarred(), "2.0.0") == ["archive_manifest_mismatch"]

    def test_a_local_file_is_read_without_a_network(self, tmp_path: Path) -> None:
        (tmp_path / "jira.tar").write_bytes(tarred())
        client = Fetcher(FetchRules(offline=True), {})
        package = PackageName(ecosystem="archive", name=str(tmp_path / "jira.tar"))
        assert archive.facts(package, client, now=NOW).files[0].sha256 == Digest.of(tarred())
        missing = PackageName(ecosystem="archive", name=str(tmp_path / "none"))
        assert archive.facts(missing, client, now=NOW).missing == "package"
