"""Provenance end to end (attack 13 of the field): a registry on loopback, attestations by a forged authority."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import Outcome, pinwarden
from tests.servers.npm_registry import package, version_document
from tests.servers.plain_http import Asked, Said, files, plain_server
from tests.support.forged_sigstore import Build, Forge, compact
from tests.support.needs import needs

SLSA = "https://slsa.dev/provenance/v1"
FORK = Build(repository="https://github.com/evil/slack-mcp", repository_id="6", owner_id="6")
pytestmark = needs("npm", install="apt-get install npm")


class World:
    """A project with one locked server, and the registry it comes from, whose attestations can be exchanged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.forge = Forge()
        self.manifest, self.archive = package("tool", repository="github:acme/slack-mcp", bin="index.js")
        self.builder: Build | None = Build()
        self.root = folder / "trusted_root.json"
        self.root.write_text(json.dumps(self.forge.trusted_root()))
        self.url = ""

    def answer(self, asked: Asked) -> Said:
        url = f"http://{asked.headers['host']}/tool/-/tool-1.0.0.tgz"
        claim = {} if self.builder is None else {"attestations": {"url": "x"}}
        version = version_document(self.manifest, self.archive, url, **claim)
        packument = {
            "name": "tool",
            "dist-tags": {"latest": "1.0.0"},
            "versions": {"1.0.0": version},
            "time": {"1.0.0": "2026-03-01T12:00:00Z"},
        }
        content = {"/tool": json.dumps(packument).encode(), "/tool/-/tool-1.0.0.tgz": self.archive}
        if self.builder is not None:
            rows = [{"predicateType": SLSA, "bundle": self.forge.statement_bundle(self._statement(), self.builder)}]
            content["/-/npm/v1/attestations/tool@1.0.0"] = json.dumps({"attestations": rows}).encode()
        return files(content)(asked)

    def _statement(self) -> bytes:
        digest = {"sha512": hashlib.sha512(self.archive).hexdigest()}
        subject = [{"name": "pkg:npm/tool@1.0.0", "digest": digest}]
        return compact(
            {
                "_type": "https://in-toto.io/Statement/v1",
                "subject": subject,
                "predicateType": SLSA,
                "predicate": {},
            }
        )

    def run(self, *arguments: str) -> Outcome:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return pinwarden(
            *arguments,
            *("--project", str(self.folder)),
            env={
                "HOME": str(home),
                "NPM_CONFIG_REGISTRY": self.url,
                "NPM_CONFIG_USERCONFIG": str(home / "npmrc"),
                "NPM_CONFIG_CACHE": str(home / "cache"),
                "PINWARDEN_STORE": str(self.folder / "store"),
            },
        )

    def check(self, *arguments: str) -> tuple[int, list[tuple[str, str]]]:
        outcome = self.run("ci", "--bytes", "--no-configs", "--format", "json", *arguments)
        report: dict[str, Any] = json.loads(outcome.out)
        rows = [*report["failures"], *report["unchecked"]]
        return outcome.code, sorted((row["code"], row["severity"]) for row in rows)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world in which everything was proved; tests work in copies of its folder."""
    folder = tmp_path_factory.mktemp("prepared")
    made = World(folder)
    command = {"command": "npx", "args": ["-y", "tool@1.0.0"]}
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"tool": command}}))
    with plain_server(made.answer) as server:
        made.url = server.url
        outcome = made.run("init", "--by", "ada")
        assert outcome.code == 0, outcome
        outcome = made.run("prove", "--trust-root", str(made.root))
        assert outcome.code == 0, outcome
        yield made


@pytest.fixture
def world(prepared: World, tmp_path: Path) -> Iterator[World]:
    before = dict(vars(prepared))
    prepared.folder = tmp_path / "world"
    shutil.copytree(before["folder"], prepared.folder)
    yield prepared
    vars(prepared).update(before)


def test_the_verified_builder_is_pinned_and_the_same_one_is_clean(world: World) -> None:
    lock = json.loads((world.folder / "mcp-lock.json").read_text())
    record = lock["servers"]["tool:claude"]["capabilityManifest"]["pinwarden"]
    assert record["provenance"]["repository"] == "https://github.com/acme/slack-mcp"
    codes = {(row["code"], row["status"]) for row in record["evidence"]}
    assert codes == {("npm_integrity_verified", "passed"), ("provenance_verified", "passed")}
    assert world.check("--trust-root", str(world.root)) == (0, [])


def test_the_same_bytes_attested_by_a_fork_are_critical(world: World) -> None:
    world.builder = FORK
    code, rows = world.check("--trust-root", str(world.root))
    assert code == 1
    assert ("provenance_changed", "critical") in rows


def test_provenance_that_vanished_is_critical(world: World) -> None:
    world.builder = None
    assert world.check("--trust-root", str(world.root)) == (1, [("provenance_vanished", "critical")])


def test_a_release_from_a_branch_where_a_tag_was_locked_is_weaker(world: World) -> None:
    world.builder = Build(ref="refs/heads/main")
    code, rows = world.check("--trust-root", str(world.root))
    assert code == 1
    assert {row for row, _ in rows} <= {"provenance_weaker", "provenance_changed"}
    assert "provenance_weaker" in {row for row, _ in rows}


def test_an_attestation_by_an_untrusted_authority_is_refused(world: World) -> None:
    """Without the trusted root of the test, the public one counts, and it knows nothing of the forged authority."""
    code, rows = world.check()
    assert code == 1
    assert ("provenance_weaker", "critical") in rows


def test_proving_again_does_not_replace_the_pinned_builder(world: World) -> None:
    before = (world.folder / "mcp-lock.json").read_bytes()
    world.builder = FORK
    assert world.run("prove", "--trust-root", str(world.root)).code == 1
    assert (world.folder / "mcp-lock.json").read_bytes() == before


def test_a_registry_that_is_gone_cannot_be_checked_and_is_not_clean(world: World) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    lock = world.folder / "mcp-lock.json"
    before = lock.read_bytes()
    world.url = f"http://127.0.0.1:{port}/"
    code, rows = world.check("--trust-root", str(world.root))
    assert code == 1  # another address is another registry, and is refused without contacting it
    assert rows == [("registry_changed", "critical")]
    assert lock.read_bytes() == before
