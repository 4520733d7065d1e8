"""Bundles and container images: fetched by digest, kept in the store, started from there."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.artifact_world import User
from tests.servers.plain_http import Asked, PlainServer, Said, plain_server
from tests.support import images
from tests.support.bundles import Identity, Wish, authority, block, issue, packed, sign_with_cli, signature_in
from tests.support.needs import needs
from tests.support.registries import DockerRegistry, docker_registry, needs_registry

needs_node = needs("node", install="apt-get install nodejs")
NOTES = "io.github.acme/notes"
PLAIN = ("--allow-plain-http", "--allow-private")


# Bundles

SERVERS: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "node": (
        "server/index.js",
        b"console.log(JSON.stringify([process.argv.slice(2), process.env.NOTES_KEY || null]))",
        {"command": "node", "args": ["${__dirname}/server/index.js", "${user_config.folders}"]},
    ),
    "python": (
        "server/main.py",
        b"import json, os, sys\nprint(json.dumps([sys.argv[1:], os.environ.get('NOTES_KEY')]))",
        {"command": "python", "args": ["${__dirname}/server/main.py", "${user_config.folders}"]},
    ),
    "binary": (
        "server/notes",
        b'#!/bin/sh\nprintf \'[["%s", "%s"], "%s"]\\n\' "$1" "$2" "$NOTES_KEY"',
        {"command": "${__dirname}/server/notes", "args": ["${user_config.folders}"]},
    ),
}


def bundle(kind: str) -> bytes:
    path, code, start = SERVERS[kind]
    manifest = {
        "manifest_version": "0.3",
        "name": "notes",
        "version": "1.0.0",
        "description": "Notes.",
        "author": {"name": "Acme"},
        "server": {
            "type": kind,
            "entry_point": path,
            "mcp_config": {**start, "env": {"NOTES_KEY": "${user_config.api-key}"}},
        },
        "user_config": {
            "api-key": {"type": "string", "title": "Key", "description": "A key.", "sensitive": True},
            "folders": {"type": "directory", "title": "Folders", "description": "Where.", "multiple": True},
        },
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr(path, code)
    return buffer.getvalue()


@pytest.fixture
def shelf() -> Iterator[tuple[PlainServer, dict[str, bytes]]]:
    """A web server, and the files that it serves."""
    files: dict[str, bytes] = {}

    def answer(asked: Asked) -> Said:
        data = files.get(asked.path)
        return Said(status=404) if data is None else Said(body=data)

    with plain_server(answer) as running:
        yield running, files


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(folder=tmp_path)


def offer(user: User, url: str, **members: str) -> None:
    """Name the bundle in a registry that is a file."""
    (user.root / ".toolpin").mkdir(exist_ok=True)
    sources = {
        "registries": [{"id": "local", "url": "file://servers.json"}],
        "sources": {"official": {"enabled": False}},
    }
    (user.root / ".toolpin" / "registries.json").write_text(json.dumps(sources))
    package = {"registryType": "mcpb", "identifier": url, "transport": {"type": "stdio"}, **members}
    server = {"name": NOTES, "description": "Notes.", "version": "1.0.0", "packages": [package]}
    (user.root / "servers.json").write_text(json.dumps([server]))


@needs_node
@pytest.mark.parametrize("kind", SERVERS)
def test_a_locked_bundle_is_fetched_built_audited_and_started_with_settings_from_variables(
    user: User, shelf: tuple[PlainServer, dict[str, bytes]], kind: str
) -> None:
    server, files = shelf
    files["/notes.mcpb"] = bundle(kind)
    offer(user, f"{server.url}notes.mcpb")
    assert user.run("add", NOTES, "--by", "me").code == 0
    unproved = user.run("run", NOTES)
    assert (unproved.code, "[BYTES_NOT_LOCKED]" in unproved.err) == (1, True)
    code, report = user.ask("prove", *PLAIN)
    assert (code, report["findings"]) == (0, [])
    assert user.run("enforce", "--yes").code == 0

    user.without_store()
    evil, files["/notes.mcpb"] = files["/notes.mcpb"], bundle(kind) + b"\0"
    code, report = user.ask("fetch", "--frozen", *PLAIN)
    assert (code, [row["code"] for row in report["findings"]]) == (1, ["artifact_mismatch"])
    files["/notes.mcpb"] = evil
    code, report = user.ask("fetch", "--frozen", *PLAIN)
    assert (code, report["servers"][0]["packages"]) == (0, 1)
    files.clear()  # no server is contacted at start

    user.variables |= {"MCPB_USER_CONFIG_API_KEY": "k3y", "MCPB_USER_CONFIG_FOLDERS": "/a:/b", "SECRET": "no"}
    assert json.loads(user.run("run", NOTES, "--without-gateway").out) == [["/a", "/b"], "k3y"]
    assert "k3y" not in (user.root / "mcp-lock.json").read_text()

    [place] = (user.folder / "empty-store" / "environments").rglob(SERVERS[kind][0])
    place.chmod(0o755)
    place.write_bytes(b"evil")
    outcome = user.run("run", NOTES, "--without-gateway")
    assert (json.loads(outcome.out), "building it again" in outcome.err) == ([["/a", "/b"], "k3y"], True)
    other = user.run("run", NOTES, "--", "--more")
    assert (other.code, "[ARGUMENTS_CHANGED]" in other.err) == (1, True)


# What the policy demands of bundles


@pytest.fixture(scope="module")
def signed_bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Identity]:
    """A bundle that the official program packed and signed, and the authority that issued its certificate."""
    folder = tmp_path_factory.mktemp("signed-bundle")
    root = authority()
    path = packed(folder)
    sign_with_cli(path, issue(Wish(), root))
    return path.read_bytes(), root


class Shelved:
    """A user with a locked bundle in a file, and a policy for it."""

    def __init__(self, user: User, data: bytes) -> None:
        self.user = user
        place = user.folder / "notes.mcpb"
        place.write_bytes(data)
        offer(user, str(place), fileSha256=hashlib.sha256(data).hexdigest())
        assert user.run("add", NOTES, "--by", "me").code == 0

    def policy(self, *lines: str) -> None:
        """Write the policy's rule for the bundle."""
        text = "\n".join(("[[policy.mcpb]]", 'server = "io.github.acme/*"', *lines))
        (self.user.root / "pinwarden.toml").write_text(text + "\n")

    def trust(self, *anchors: Identity) -> None:
        """Write a policy that trusts these authorities."""
        self.policy("anchors = [", *(f"'''\n{anchor.pem.decode()}'''," for anchor in anchors), "]")

    def codes(self, *command: str) -> tuple[int, list[str]]:
        code, report = self.user.ask(*command)
        return code, [row["code"] for row in report["failures" if command[0] == "ci" else "findings"]]

    def signature(self) -> list[tuple[str, str]]:
        """What the lock records about the signature."""
        lock = json.loads((self.user.root / "mcp-lock.json").read_text())
        rows = [row for row in _evidence_in(lock) if row["code"] == "bundle_signature_verified"]
        return [(row["status"], row["message"]) for row in rows]


def _evidence_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "code" in value and "status" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _evidence_in(item)


@needs_node
class TestPolicyForBundles:
    def test_a_signature_is_valid_under_a_certificate_that_the_policy_trusts(
        self, user: User, signed_bundle: tuple[bytes, Identity]
    ) -> None:
        data, root = signed_bundle
        shelved = Shelved(user, data)
        shelved.trust(authority("Another Root", 3), root)
        assert shelved.codes("prove") == (0, [])
        assert shelved.signature() == [("passed", "The signature of the bundle is valid. Signer: CN=Acme Notes.")]
        assert shelved.codes("ci", "--bytes") == (0, [])

    def test_attack_a_bundle_signed_by_another_authority_is_refused(
        self, user: User, signed_bundle: tuple[bytes, Identity]
    ) -> None:
        shelved = Shelved(user, signed_bundle[0])
        shelved.trust(authority("Another Root", 3))
        assert shelved.codes("prove") == (1, ["mcpb_signature_untrusted"])
        assert shelved.signature() == []

    def test_attack_a_bundle_whose_signature_was_removed_is_refused(
        self, user: User, signed_bundle: tuple[bytes, Identity]
    ) -> None:
        data, root = signed_bundle
        shelved = Shelved(user, signature_in(data)[0])
        shelved.trust(root)
        assert shelved.codes("prove") == (1, ["mcpb_signature_untrusted"])

    def test_attack_a_bundle_that_was_changed_after_signing_is_refused(
        self, user: User, signed_bundle: tuple[bytes, Identity]
    ) -> None:
        data, root = signed_bundle
        content, signature = signature_in(data)
        shelved = Shelved(user, content + b"\0" + block(signature))
        shelved.trust(root)
        code, codes = shelved.codes("prove")
        assert (code, "mcpb_signature_invalid" in codes) == (1, True)

    def test_attack_a_bundle_with_another_name_in_its_manifest_is_refused(self, user: User) -> None:
        shelved = Shelved(user, bundle("node"))
        shelved.policy('name = "acme-notes"')
        assert shelved.codes("prove") == (1, ["mcpb_manifest_mismatch"])
        shelved.policy('name = "notes"')
        assert shelved.codes("prove") == (0, [])
        shelved.policy('name = "acme-notes"')
        assert shelved.codes("ci", "--bytes") == (1, ["mcpb_manifest_mismatch"])
        code, report = user.ask("verify", NOTES)
        assert (code, "mcpb_manifest_mismatch" in json.dumps(report)) == (1, True)

    def test_a_certificate_that_cannot_be_read_is_an_error_of_the_policy(self, user: User) -> None:
        shelved = Shelved(user, bundle("node"))
        shelved.policy("anchors = ['-----BEGIN CERTIFICATE----- AAAA']")
        outcome = user.run("prove")
        assert (outcome.code, "policy.mcpb: anchors contains a malformed certificate" in outcome.out) == (3, True)


# Images

ENGINE = """#!/bin/sh
# An engine with one drawer: what was loaded, known by the digest of its config.
drawer="{drawer}"
case "$1" in
image) grep -qs "$5" "$drawer/known" ;;
load)
  tar -xf "$4" -C "$drawer"
  grep -o 'sha256/[0-9a-f]*' "$drawer/manifest.json" | head -1 | tr / : > "$drawer/known" ;;
run) echo "started $*" ;;
esac
"""


@pytest.fixture(scope="module")
def oci(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with docker_registry(tmp_path_factory.mktemp("docker-registry")) as running:
        yield running


@needs_registry
def test_a_locked_image_is_kept_in_the_store_by_digest_and_started_from_there(oci: DockerRegistry, user: User) -> None:
    built = images.image("good")
    images.push(oci, "acme/kept", "v1", built)
    user.configure(notes=f"docker run -i --rm {oci.host}/acme/kept:v1 --root /data")
    user.lock()
    assert user.run("prove", "--allow-private").code == 0
    code, report = user.ask("fetch", "--frozen", "--allow-private")
    layout = user.folder / "store" / "images" / report["servers"][0]["environment"]
    assert (code, json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]) == (0, str(built.digest))

    # An engine that cannot load it fetches it by digest; it is never asked for a tag.
    assert user.run("run", "notes", "--show").out.split()[-3:] == [
        f"{oci.host}/acme/kept@{built.digest}",
        "--root",
        "/data",
    ]
    drawer = user.folder / "drawer"
    drawer.mkdir()
    (user.programs / "docker").write_text(ENGINE.format(drawer=drawer))
    outcome = user.run("run", "notes", "--without-gateway")
    assert outcome.out == f"started run -i --rm {built.config.digest} --root /data\n"
    assert "loading the image into docker" in outcome.err
    assert user.run("run", "notes", "--without-gateway").err == ""  # the engine has it now

    # A blob that was changed is not loaded, and is fetched again.
    [layer] = built.layers
    blob = layout / "blobs" / "sha256" / layer.digest.hex
    blob.write_bytes(b"evil")
    shutil.rmtree(drawer)
    drawer.mkdir()
    outcome = user.run("run", "notes", "--without-gateway")
    assert outcome.out == f"started run -i --rm {oci.host}/acme/kept@{built.digest} --root /data\n"
    assert "the image in the store differs from the lock" in outcome.err
    assert list(drawer.iterdir()) == []
    assert user.run("fetch", "--frozen", "--allow-private").code == 0
    assert blob.read_bytes() == layer.data


@needs_registry
def test_an_image_tag_is_pinned_to_the_digest_that_its_registry_has_now_and_back(
    oci: DockerRegistry, user: User
) -> None:
    first, second = images.image("first"), images.image("second")
    images.push(oci, "acme/moving", "v1", first)
    images.push(oci, "acme/moving", "latest", second)
    user.configure(
        tagged=f"docker run -i --rm {oci.host}/acme/moving:v1 --root /data",
        bare=f"docker run -i --rm {oci.host}/acme/moving",
        gone=f"docker run -i --rm {oci.host}/acme/moving:v9",
    )
    path = user.root / ".mcp.json"
    before = path.read_bytes()
    code, report = user.ask("pin", "--yes", "--allow-private")
    assert code == 3, "one tag could not be looked up"
    assert {pin["name"]: pin["to"] for pin in report["pins"]} == {
        "tagged": f"v1@{first.digest}",
        "bare": f"latest@{second.digest}",
    }
    assert [entry["name"] for entry in report["unpinned"]] == ["gone"]
    written = json.loads(path.read_text())["mcpServers"]
    assert f"{oci.host}/acme/moving:v1@{first.digest}" in written["tagged"]["args"]
    images.push(oci, "acme/moving", "v1", second)  # a tag that moves no longer changes what is started
    assert user.ask("pin", "tagged", "--allow-private")[1]["pins"] == []
    assert user.run("pin", "--undo", "--yes").code == 0
    assert path.read_bytes() == before
