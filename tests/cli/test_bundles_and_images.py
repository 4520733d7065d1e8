"""Bundles and container images: fetched by digest, kept in the store, started from there."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import images
from tests.cli.artifact_world import User
from tests.needs import needs
from tests.registries import DockerRegistry, docker_registry, needs_registry
from tests.servers.plain_http import Asked, PlainServer, Said, plain_server

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


def offer(user: User, url: str) -> None:
    """Name the bundle in a registry that is a file."""
    (user.root / ".toolpin").mkdir(exist_ok=True)
    sources = {
        "registries": [{"id": "local", "url": "file://servers.json"}],
        "sources": {"official": {"enabled": False}},
    }
    (user.root / ".toolpin" / "registries.json").write_text(json.dumps(sources))
    package = {"registryType": "mcpb", "identifier": url, "transport": {"type": "stdio"}}
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
    assert user.run("enforce").code == 0

    user.without_store()
    evil, files["/notes.mcpb"] = files["/notes.mcpb"], bundle(kind) + b"\0"
    code, report = user.ask("fetch", "--frozen", *PLAIN)
    assert (code, [row["code"] for row in report["findings"]]) == (1, ["artifact_mismatch"])
    files["/notes.mcpb"] = evil
    code, report = user.ask("fetch", "--frozen", *PLAIN)
    assert (code, report["servers"][0]["packages"]) == (0, 1)
    files.clear()  # nobody is asked at start

    user.variables |= {"MCPB_USER_CONFIG_API_KEY": "k3y", "MCPB_USER_CONFIG_FOLDERS": "/a:/b", "SECRET": "no"}
    assert json.loads(user.run("run", NOTES, "--without-gateway").out) == [["/a", "/b"], "k3y"]
    assert "k3y" not in (user.root / "mcp-lock.json").read_text()

    [place] = (user.folder / "empty-store" / "environments").rglob(SERVERS[kind][0])
    place.chmod(0o755)
    place.write_bytes(b"evil")
    outcome = user.run("run", NOTES, "--without-gateway")
    assert (json.loads(outcome.out), "it is built anew" in outcome.err) == ([["/a", "/b"], "k3y"], True)
    other = user.run("run", NOTES, "--", "--more")
    assert (other.code, "[ARGUMENTS_CHANGED]" in other.err) == (1, True)


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
    assert "loaded into docker" in outcome.err
    assert user.run("run", "notes", "--without-gateway").err == ""  # the engine has it now

    # A blob that was changed is not loaded, and is fetched again.
    [layer] = built.layers
    blob = layout / "blobs" / "sha256" / layer.digest.hex
    blob.write_bytes(b"evil")
    shutil.rmtree(drawer)
    drawer.mkdir()
    outcome = user.run("run", "notes", "--without-gateway")
    assert outcome.out == f"started run -i --rm {oci.host}/acme/kept@{built.digest} --root /data\n"
    assert "not what was locked" in outcome.err
    assert list(drawer.iterdir()) == []
    assert user.run("fetch", "--frozen", "--allow-private").code == 0
    assert blob.read_bytes() == layer.data
