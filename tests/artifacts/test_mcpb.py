"""MCPB bundles that the official program packed and signed: what they are, who signed them, and how they start."""

from __future__ import annotations

import io
import json
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pinwarden.artifacts import mcpb
from pinwarden.artifacts.artifact import FetchedArtifact, PackageRef
from pinwarden.artifacts.cms import load_anchors
from pinwarden.artifacts.environments import mcpb as environment
from pinwarden.artifacts.environments.mcpb import Runtimes
from pinwarden.artifacts.environments.python import Interpreter
from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.environments.tree import TREE
from pinwarden.artifacts.mcpb import BundleSettings
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRules
from tests.servers.plain_http import Said, files, plain_server
from tests.support.bundles import (
    FOOTER,
    HEADER,
    Identity,
    Wish,
    authority,
    block,
    issue,
    manifest,
    needs_node,
    needs_openssl,
    openssl_says,
    packed,
    rsa_key,
    sign_with_cli,
    signature_in,
)

NODE = shutil.which("node")
RUNTIMES = Runtimes(node=Path(NODE) if NODE else None, python=Interpreter.current(), platform="linux")


def now() -> str:
    return datetime.now(UTC).isoformat()


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    client = Fetcher(FetchRules(limits=FetchLimits(attempts=1)), {})
    yield client
    client.close()


def fetch(path: Path, *anchors: Identity, manifest_name: str | None = None) -> FetchedArtifact:
    trusted = load_anchors(each.pem.decode() for each in anchors)
    client = Fetcher(FetchRules(offline=True), {})
    package = PackageRef(ecosystem="mcpb", name=str(path))
    return mcpb.fetch_artifact(package, client, BundleSettings(manifest_name=manifest_name, anchors=trusted), now=now())


def codes(artifact: FetchedArtifact) -> list[str]:
    return [each.code for each in artifact.problems]


def state(artifact: FetchedArtifact) -> str:
    assert artifact.signer is not None
    return artifact.signer.state


def zipped(members: Sequence[tuple[str, bytes]], **about: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in [("manifest.json", json.dumps(manifest(**about)).encode()), *members]:
            archive.writestr(name, data)
    return buffer.getvalue()


SERVER = ("server/index.js", b"1")


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Identity]:
    """A bundle that the official program packed and signed, and the authority behind the signature."""
    folder = tmp_path_factory.mktemp("signed")
    root = authority()
    between = issue(Wish(name="Acme Issuing", key=rsa_key(2), authority=True), root)
    bundle = packed(folder)
    sign_with_cli(bundle, issue(Wish(), between), [between])
    return bundle.read_bytes(), root


@needs_node
class TestFacts:
    def test_an_unsigned_bundle_is_its_content(self, tmp_path: Path) -> None:
        bundle = packed(tmp_path)
        artifact = fetch(bundle, manifest_name="acme-notes")
        (file,) = artifact.files
        digest = Digest.of_bytes(bundle.read_bytes())
        assert (file.name, file.size, file.sha256, file.content) == (
            "acme-notes.mcpb",
            bundle.stat().st_size,
            digest,
            digest,
        )
        assert (state(artifact), artifact.problems, artifact.facts.publisher) == ("unsigned", (), "Acme")

    @needs_openssl
    def test_a_bundle_signed_by_the_official_program_is_valid(
        self, tmp_path: Path, signed: tuple[bytes, Identity]
    ) -> None:
        data, root = signed
        (tmp_path / "a.mcpb").write_bytes(data)
        artifact = fetch(tmp_path / "a.mcpb", root)
        content, signature = signature_in(data)
        assert openssl_says(tmp_path, content, signature, [root]) == "valid"
        assert (state(artifact), artifact.problems) == ("valid", ())
        assert artifact.signer is not None
        assert (artifact.signer.subject, artifact.signer.issuer) == ("CN=Acme Notes", "CN=Acme Issuing")
        assert artifact.files[0].sha256 == Digest.of_bytes(data)
        assert artifact.files[0].content == Digest.of_bytes(content)
        assert state(fetch(tmp_path / "a.mcpb")) == "valid-untrusted"

    @needs_openssl
    def test_attack_a_changed_member_invalidates_the_signature(
        self, tmp_path: Path, signed: tuple[bytes, Identity]
    ) -> None:
        content, signature = signature_in(signed[0])
        for changed in (content + b"\0", zipped([SERVER])):
            (tmp_path / "a.mcpb").write_bytes(changed + block(signature))
            artifact = fetch(tmp_path / "a.mcpb", signed[1])
            assert openssl_says(tmp_path, changed, signature, [signed[1]]) == "invalid"
            assert (state(artifact), codes(artifact)[0]) == ("invalid", "mcpb_signature_invalid")

    def test_a_bundle_is_fetched_and_left_under_its_digest(
        self, tmp_path: Path, fetcher: Fetcher, signed: tuple[bytes, Identity]
    ) -> None:
        data, _ = signed
        with plain_server(files({"/r/acme.mcpb?key=secret": data})) as server:
            package = PackageRef(ecosystem="mcpb", name=f"{server.url}r/acme.mcpb?key=secret", version="1.0.0")
            gone = PackageRef(ecosystem="mcpb", name=f"{server.url}r/none.mcpb")
            settings = BundleSettings(endpoint=ServiceEndpoint(url=server.url, configured_by="user"))
            artifact = mcpb.fetch_artifact(package, fetcher, settings, now=now(), save_folder=tmp_path)
            nothing = mcpb.fetch_artifact(gone, fetcher, settings, now=now())
        assert (artifact.files[0].name, artifact.files[0].sha256) == ("acme.mcpb", Digest.of_bytes(data))
        assert [each.name for each in tmp_path.iterdir()] == [Digest.of_bytes(data).hex]
        assert "secret" not in artifact.registry
        assert (nothing.missing, nothing.files, nothing.signer) == ("package", (), None)

    def test_attack_a_private_address_is_not_contacted(self, fetcher: Fetcher) -> None:
        with plain_server(files({"/a.mcpb": b""})) as server:
            package = PackageRef(ecosystem="mcpb", name=f"{server.url}a.mcpb")
            with pytest.raises(PinwardenError) as caught:
                mcpb.fetch_artifact(package, fetcher, now=now())
        assert caught.value.code == "ADDRESS_REFUSED"
        assert server.asked == []

    def test_a_server_that_fails_is_not_a_missing_bundle(self, fetcher: Fetcher) -> None:
        with plain_server(files({"/a.mcpb": Said(status=500)})) as server:
            package = PackageRef(ecosystem="mcpb", name=f"{server.url}a.mcpb")
            settings = BundleSettings(endpoint=ServiceEndpoint(url=server.url, configured_by="user"))
            with pytest.raises(PinwardenError) as caught:
                mcpb.fetch_artifact(package, fetcher, settings, now=now())
        assert caught.value.code == "FETCH_FAILED"

    def test_a_path_that_is_not_there_is_missing(self, tmp_path: Path) -> None:
        assert fetch(tmp_path / "none.mcpb").missing == "package"

    def test_attack_another_bundle_than_the_expected_one_is_detected(self, tmp_path: Path) -> None:
        artifact = fetch(packed(tmp_path), manifest_name="other-notes")
        assert codes(artifact) == ["mcpb_manifest_mismatch"]


class TestSignatureBlocks:
    """The official program takes the last block anywhere in a file; each of these would deceive it."""

    def refused(self, folder: Path, data: bytes) -> str:
        (folder / "a.mcpb").write_bytes(data)
        artifact = fetch(folder / "a.mcpb")
        assert (state(artifact), codes(artifact)) == ("invalid", ["mcpb_signature_invalid"])
        assert artifact.files[0].sha256 == Digest.of_bytes(data)
        assert artifact.files[0].content is None
        return artifact.problems[0].message

    def test_attack_two_blocks(self, tmp_path: Path) -> None:
        data = zipped([SERVER]) + block(b"one") + block(b"two")
        assert self.refused(tmp_path, data) == "the bundle has two signature blocks"

    def test_attack_a_block_in_the_middle(self, tmp_path: Path) -> None:
        data = zipped([SERVER]) + block(b"one") + zipped([("server/index.js", b"evil")])
        assert self.refused(tmp_path, data) == "the bundle has a signature block that is not at its end"

    @pytest.mark.parametrize("length", [0, 2, 4, 0xFFFFFFFF], ids=["zero", "short", "long", "enormous"])
    def test_attack_a_wrong_signature_length_is_refused(self, tmp_path: Path, length: int) -> None:
        data = zipped([SERVER]) + block(b"one", length)
        assert "no block of the stated length" in self.refused(tmp_path, data)

    def test_attack_a_footer_without_a_block(self, tmp_path: Path) -> None:
        assert "no block of the stated length" in self.refused(tmp_path, zipped([SERVER]) + FOOTER)

    def test_attack_a_block_within_the_block(self, tmp_path: Path) -> None:
        data = zipped([SERVER]) + block(b"one" + HEADER + b"two")
        assert self.refused(tmp_path, data) == "the bundle has a signature block that contains another one"

    def test_attack_a_whole_archive_within_the_block(self, tmp_path: Path) -> None:
        hidden = zipped([("server/index.js", b"evil")])
        data = zipped([SERVER]) + block(hidden)
        assert zipfile.ZipFile(io.BytesIO(data)).read("server/index.js") == b"evil"  # what other readers find
        assert self.refused(tmp_path, data) == "the bundle has a signature block that contains another one"

    def test_attack_a_truncated_block_leaves_an_archive_that_does_not_end(self, tmp_path: Path) -> None:
        data = zipped([SERVER]) + block(b"x" * 500)[:-5]
        (tmp_path / "a.mcpb").write_bytes(data)
        artifact = fetch(tmp_path / "a.mcpb")
        assert (state(artifact), codes(artifact)) == ("unsigned", ["mcpb_unsafe_archive"])

    def test_the_marks_as_text_of_a_file_are_no_block(self, tmp_path: Path) -> None:
        data = zipped([SERVER, ("about.txt", HEADER + b" and " + FOOTER)])
        (tmp_path / "a.mcpb").write_bytes(data)
        artifact = fetch(tmp_path / "a.mcpb")
        assert (state(artifact), artifact.problems) == ("unsigned", ())

    def test_an_end_record_that_counts_the_block_as_its_comment_is_read(self, tmp_path: Path) -> None:
        end = block(b"not a signature")
        data = zipped([SERVER])
        (tmp_path / "a.mcpb").write_bytes(data[:-2] + struct.pack("<H", len(end)) + end)
        assert codes(fetch(tmp_path / "a.mcpb")) == ["mcpb_signature_invalid"]


class TestUnsafeArchives:
    def problems(self, folder: Path, data: bytes) -> list[str]:
        (folder / "a.mcpb").write_bytes(data)
        return codes(fetch(folder / "a.mcpb"))

    @pytest.mark.parametrize(
        "name", ["../evil", "/etc/passwd", "a/../../b", "C:/x", "a\\b", "SERVER/index.js", "server/index.js/x"]
    )
    def test_attack_names_outside_the_bundle_or_with_duplicates_are_refused(self, tmp_path: Path, name: str) -> None:
        assert self.problems(tmp_path, zipped([SERVER, (name, b"")])) == ["mcpb_unsafe_archive"]

    def test_attack_a_second_manifest_in_other_capitals(self, tmp_path: Path) -> None:
        assert self.problems(tmp_path, zipped([SERVER, ("Manifest.json", b"{}")])) == ["mcpb_unsafe_archive"]

    def test_attack_bytes_before_the_archive(self, tmp_path: Path) -> None:
        assert self.problems(tmp_path, b"#!/bin/sh\n" + zipped([SERVER])) == ["mcpb_unsafe_archive"]

    def test_attack_a_comment_that_could_hold_another_end(self, tmp_path: Path) -> None:
        data = zipped([SERVER])
        assert self.problems(tmp_path, data[:-2] + b"\x16\x00" + bytes(22)) == ["mcpb_unsafe_archive"]
        assert self.problems(tmp_path, data[:-2] + b"\x16\x00") == ["mcpb_unsafe_archive"]

    def test_attack_bytes_between_directory_and_end(self, tmp_path: Path) -> None:
        data = zipped([SERVER])
        assert self.problems(tmp_path, data[:-22] + b"hidden" + data[-22:]) == ["mcpb_unsafe_archive"]
        # A directory of a smaller size than it has: the rest is read by some and not by others.
        size, count = int.from_bytes(data[-10:-6], "little"), data[-14:-10]
        shorter = data[:-10] + (size - 61).to_bytes(4, "little") + data[-6:]
        assert count == b"\x02\x00\x02\x00"
        assert self.problems(tmp_path, shorter) == ["mcpb_unsafe_archive"]

    def test_attack_a_member_that_only_some_readers_see(self, tmp_path: Path) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("manifest.json", json.dumps(manifest()))
            archive.writestr("hidden.js", b"evil")
            archive.writestr(*SERVER)
            archive.filelist = [each for each in archive.filelist if each.filename != "hidden.js"]
        assert self.problems(tmp_path, buffer.getvalue()) == ["mcpb_unsafe_archive"]

    def test_a_streamed_archive_has_sizes_behind_its_members_and_is_read(self, tmp_path: Path) -> None:
        class Pipe(io.RawIOBase):
            def __init__(self) -> None:
                self.data = b""

            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                self.data += bytes(data)
                return len(data)

        pipe = Pipe()
        with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("manifest.json", json.dumps(manifest()))
            archive.writestr(*SERVER)
        assert self.problems(tmp_path, pipe.data) == []

    def test_no_archive_at_all_is_a_problem_and_no_crash(self, tmp_path: Path) -> None:
        for data in (b"", b"PK", b"hello", b"PK\x05\x06" + b"\xff" * 18, b"\0" * 5000):
            assert self.problems(tmp_path, data) == ["mcpb_unsafe_archive"]

    def test_a_missing_manifest_or_entry_point_is_reported(self, tmp_path: Path) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("README", "no manifest")
        assert self.problems(tmp_path, buffer.getvalue()) == ["mcpb_manifest_invalid"]
        assert self.problems(tmp_path, zipped([])) == ["mcpb_manifest_invalid"]


class World:
    """A bundle in a store, and its environment."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        self.store = Store(folder / "store")
        self.digest = Digest.of_bytes(bundle.read_bytes())
        with self.store.open_incoming() as stream:
            stream.write(bundle.read_bytes())
            place = self.store.add_file(stream, self.digest)
        self.tree = environment.compute_bundle_digest(place)

    def built(self) -> Path:
        return self.store.build_environment(
            environment.compute_environment_key(self.digest),
            lambda fresh: environment.build(fresh, self.digest, self.tree, self.store),
            is_intact=lambda place: environment.audit(place, self.tree) is None,
        )

    def output(self, **settings: str | tuple[str, ...]) -> str:
        place = self.built()
        start = environment.build_start_command(place, RUNTIMES, settings, folders={"HOME": "/home/somebody"})
        done = subprocess.run(start.command, env=dict(start.env), capture_output=True, text=True, check=True)
        assert environment.audit(place, self.tree) is None
        return done.stdout


@needs_node
class TestEnvironment:
    def test_a_signed_bundle_unpacks_to_the_same_as_an_unsigned_one(
        self, tmp_path: Path, signed: tuple[bytes, Identity]
    ) -> None:
        content, _ = signature_in(signed[0])
        trees = []
        for number, data in enumerate((signed[0], content)):
            path = tmp_path / f"{number}.mcpb"
            path.write_bytes(data)
            trees.append(environment.compute_bundle_digest(path))
        assert trees[0] == trees[1]

    def test_a_node_server_starts_with_the_settings_of_its_user(self, tmp_path: Path) -> None:
        config = {
            "command": "node",
            "args": ["${__dirname}/server/index.js", "${user_config.folders}", "--key=${user_config.key}"],
        }
        world = World(
            tmp_path,
            packed(
                tmp_path,
                server={"type": "node", "entry_point": "server/index.js", "mcp_config": config},
                user_config={
                    "folders": {
                        "type": "directory",
                        "title": "Folders",
                        "description": "",
                        "multiple": True,
                        "default": ["${HOME}/Desktop"],
                    },
                    "key": {"type": "string", "title": "Key", "description": "", "sensitive": True, "required": True},
                },
            ),
        )
        assert world.output(key="s3cret") == "notes /home/somebody/Desktop,--key=s3cret\n"
        assert world.output(key="${HOME}", folders=("/a", "/b")) == "notes /a,/b,--key=${HOME}\n"
        with pytest.raises(PinwardenError) as caught:
            world.output()
        assert (caught.value.code, caught.value.data) == ("VARIABLE_MISSING", {"variable": "key"})
        shown = repr(
            environment.build_start_command(world.built(), RUNTIMES, {"key": "s3cret"}, folders={"HOME": "/h"})
        )
        assert "s3cret" not in shown

    def test_a_python_server_finds_its_libraries_and_leaves_no_trace(self, tmp_path: Path) -> None:
        config = {"command": "python", "args": ["${__dirname}/server/main.py"]}
        contents = {"server/main.py": "import notes; print(notes.WORD)\n", "server/lib/notes.py": "WORD = 'found'\n"}
        server = {"type": "python", "entry_point": "server/main.py", "mcp_config": config}
        assert World(tmp_path, packed(tmp_path, contents, server=server)).output() == "found\n"

    def test_a_binary_server_is_the_file_of_its_platform(self, tmp_path: Path) -> None:
        config = {
            "command": "server/notes.exe",
            "args": ["--quiet"],
            "platform_overrides": {"linux": {"command": "${__dirname}/server/notes"}},
        }
        contents = {"server/notes": '#!/bin/sh\necho "binary $1"\n', "server/notes.exe": "MZ"}
        server = {"type": "binary", "entry_point": "server/notes", "mcp_config": config}
        assert World(tmp_path, packed(tmp_path, contents, server=server)).output() == "binary --quiet\n"

    def test_a_uv_bundle_is_refused_because_it_would_fetch(self, tmp_path: Path) -> None:
        config = {"command": "uv", "args": ["run", "${__dirname}/server/main.py"]}
        server = {"type": "uv", "entry_point": "server/main.py", "mcp_config": config}
        world = World(tmp_path, packed(tmp_path, {"server/main.py": "1"}, manifest_version="0.4", server=server))
        with pytest.raises(PinwardenError) as caught:
            world.output()
        assert caught.value.code == "NOTHING_TO_RUN"
        assert "would download" in caught.value.message

    @pytest.mark.parametrize("command", ["npx", "/bin/sh", "bash", "../../bin/sh", "${__dirname}/../../x", "python"])
    def test_attack_a_program_of_this_machine_is_not_started(self, tmp_path: Path, command: str) -> None:
        config = {"command": command, "args": ["-c", "id"]}
        server = {"type": "node", "entry_point": "server/index.js", "mcp_config": config}
        (tmp_path / "a.mcpb").write_bytes(zipped([SERVER], server=server))
        with pytest.raises(PinwardenError) as caught:
            World(tmp_path, tmp_path / "a.mcpb").output()
        assert caught.value.code == "PROGRAM_UNKNOWN"

    def test_a_bundle_for_another_platform_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.mcpb").write_bytes(zipped([SERVER], compatibility={"platforms": ["darwin"]}))
        with pytest.raises(PinwardenError) as caught:
            World(tmp_path, tmp_path / "a.mcpb").output()
        assert caught.value.code == "NO_USABLE_FILE"

    def test_attack_a_changed_extra_or_missing_file_is_detected_and_rebuilt(self, tmp_path: Path) -> None:
        world = World(tmp_path, packed(tmp_path))
        script = world.built() / TREE / "server/index.js"
        script.chmod(0o644)
        script.write_text("console.log('evil')")
        assert environment.audit(
            world.store.get_environment_folder(environment.compute_environment_key(world.digest)), world.tree
        ) == ("server/index.js was changed")
        assert world.output() == "notes \n"
        (world.built() / TREE / "server/extra.js").write_text("")
        assert world.output() == "notes \n"
        assert not (world.built() / TREE / "server/extra.js").exists()

    def test_attack_another_bundle_under_the_locked_digest_is_not_unpacked(self, tmp_path: Path) -> None:
        world = World(tmp_path, packed(tmp_path))
        stored = world.store.find(world.digest)
        assert stored is not None
        stored.chmod(0o644)
        stored.write_bytes(zipped([SERVER]))
        with pytest.raises(PinwardenError) as caught:
            world.built()
        assert caught.value.code == "ARTIFACT_MISSING"

    def test_a_bundle_that_unpacks_to_something_else_is_refused(self, tmp_path: Path) -> None:
        world = World(tmp_path, packed(tmp_path))
        world.tree = Digest.of_bytes(b"something else")
        with pytest.raises(PinwardenError) as caught:
            world.built()
        assert caught.value.code == "ARTIFACT_MISMATCH"
        assert not world.store.get_environment_folder(environment.compute_environment_key(world.digest)).exists()
