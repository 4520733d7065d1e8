"""Following the advice for a secret in plain text: the server stays pinned and enforced, and gets its secret."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.configured_world import ConfiguredWorld
from tests.cli.run import pinwarden_in
from tests.cli.test_prove_fetch_run import TALK, needs_node
from tests.servers.acme_packages import Package, release_answers
from tests.servers.npm_registry import tarball
from tests.servers.plain_http import plain_server

pytestmark = needs_node

SECRET = "sk-live-0123456789abcdefghij"
SERVER = """#!/usr/bin/env node
require("fs").writeFileSync(process.env.HOME + "/seen", process.env.NOTES_KEY || "nothing");
const lines = require("readline").createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const asked = JSON.parse(line);
  if (asked.id === undefined) return;
  const first = { protocolVersion: "2025-06-18", capabilities: { tools: {} }, serverInfo: { name: "n", version: "1" } };
  const result = asked.method === "initialize" ? first : { tools: [{ name: "note", inputSchema: { type: "object" } }] };
  process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id: asked.id, result }) + "\\n");
});
"""
START = {"command": "npx", "args": ["-y", "acme-notes@1.0.0"]}
ENTRY = {**START, "env": {"NOTES_KEY": SECRET}}
CODEX = 'command = "npx"\nargs = ["-y", "acme-notes@1.0.0"]\n'


def write_json(member: str, **more: Any) -> str:
    return json.dumps({member: {"notes": {**ENTRY, **more}}}, indent=2)


FILES = {
    "claude-desktop": (".config/Claude/claude_desktop_config.json", write_json("mcpServers")),
    "claude": (".claude.json", write_json("mcpServers")),
    "cursor": (".cursor/mcp.json", write_json("mcpServers")),
    "vscode": (".config/Code/User/mcp.json", write_json("servers", type="stdio")),
    "zed": (".config/zed/settings.json", write_json("context_servers", source="custom")),
    "codex": (".codex/config.toml", f'[mcp_servers.notes]\n{CODEX}env = {{ NOTES_KEY = "{SECRET}" }}\n'),
    "goose": (
        ".config/goose/config.yaml",
        yaml.safe_dump(
            {
                "extensions": {
                    "notes": {
                        "type": "stdio",
                        "enabled": True,
                        "cmd": "npx",
                        "args": START["args"],
                        "envs": {"NOTES_KEY": SECRET},
                    }
                }
            }
        ),
    ),
}
"""By client, its file in the home folder and the text of the file, with a secret in plain text."""


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    manifest = {"name": "acme-notes", "version": "1.0.0", "bin": {"acme-notes": "server.js"}}
    files = {"package/package.json": json.dumps(manifest).encode(), "package/server.js": SERVER.encode()}
    packages: dict[str, list[Package]] = {"acme-notes": [(manifest, tarball(files))]}
    with plain_server(lambda asked: release_answers(packages, asked)) as npm:
        yield npm.url


class SecretWorld(ConfiguredWorld):
    """One client of a user, whose file has one server with a secret in plain text."""

    def __init__(self, folder: Path, registry: str, client: str) -> None:
        super().__init__(folder)
        self.client = client
        self.shell = {"NPM_CONFIG_REGISTRY": registry, "PINWARDEN_STORE": str(folder / "store")}
        name, text = FILES[client]
        self.file = self.home / name
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self.shell}

    def done(self, *arguments: str) -> None:
        outcome = self.run(*arguments)
        assert outcome.code == 0, outcome.out + outcome.err

    def status(self) -> Any:
        (row,) = self.run_json("status")[1]["servers"]
        return row

    def advice(self) -> str:
        (secret,) = self.run_json("status")[1]["secrets"]
        return str(secret["fix"])

    def follow(self, advice: str) -> None:
        """Edit the client's file, and set the variable where the advice says."""
        text = self.file.read_text()
        if self.client == "codex":
            (added,) = re.findall(r"write (env_vars = \[.*?\]);", advice)
            text = re.sub(r"(?m)^env = .*$", added, text.replace("[mcp_servers.notes.env]\n", "env = "))
        elif self.client == "goose":
            assert advice.startswith("Move NOTES_KEY from envs to env_keys")
            text = text.replace("envs:\n      NOTES_KEY: " + SECRET, "env_keys:\n      - NOTES_KEY")
        else:
            (written,) = re.findall(r"[Ww]rite (\$\{.*?\})", advice)
            text = text.replace(SECRET, written)
        if self.client == "vscode":
            declared = {"id": "notes_key", "type": "promptString", "password": True}
            text = json.dumps({"inputs": [declared], **json.loads(text)}, indent=2)
        assert SECRET not in text
        self.file.write_text(text)
        if line := re.search(r"put (\w+)=VALUE into ~/(\S+), ", advice):
            file = self.home / line[2]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"# secrets\n{line[1]}={SECRET}\n")
            file.chmod(0o600)
        else:
            self.shell["NOTES_KEY"] = SECRET

    def start_as_client(self) -> str:
        """Start the server as its client does, and return the secret that the server got."""
        command, env = self.read_entry()
        passed = (
            self.environment if self.client == "zed" else {"HOME": str(self.home), "PATH": self.environment["PATH"]}
        )
        store = {"PINWARDEN_STORE": self.shell["PINWARDEN_STORE"]}
        lines = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in TALK).encode()
        (self.home / "seen").unlink(missing_ok=True)
        outcome = pinwarden_in({**passed, **store, **env}, *command[1:], stdin=lines, cwd=self.root)
        assert '"note"' in outcome.out, outcome.out + outcome.err
        return (self.home / "seen").read_text()

    def read_entry(self) -> tuple[list[str], dict[str, str]]:
        """The command in the client's file, and the variables that this client passes to it."""
        text = self.file.read_text()
        if self.client == "codex":
            entry = tomllib.loads(text)["mcp_servers"]["notes"]
            env = dict.fromkeys(entry["env_vars"], SECRET)
        elif self.client == "goose":
            entry = yaml.safe_load(text)["extensions"]["notes"]
            env = dict.fromkeys(entry["env_keys"], SECRET)
            entry["command"] = entry["cmd"]
        else:
            (entry,) = next(value for value in json.loads(text).values() if "notes" in value).values()
            env = entry["env"]
            if self.client not in ("claude-desktop", "zed"):  # which pass the reference on as it is
                env = {name: re.sub(r"\$\{.*\}", SECRET, value) for name, value in env.items()}
        return [entry["command"], *entry["args"]], env


@pytest.mark.parametrize("client", FILES)
def test_the_advice_for_an_enforced_server_needs_at_most_one_review(tmp_path: Path, registry: str, client: str) -> None:
    world = SecretWorld(tmp_path, registry, client)
    world.done("setup", "--yes", "--allow-execute", "--enforce")
    row = world.status()
    assert (row["pinned"], row["approved"], row["verified"], row["enforced"]) == ("yes",) * 4
    world.follow(world.advice())
    if world.status()["next_step"] == "approve":
        world.done("approve", "notes", "--yes", "--allow-execute")
    row = world.status()
    assert (row["pinned"], row["approved"], row["verified"], row["enforced"]) == ("yes",) * 4, row
    assert row["secrets"] == []
    assert row["next_step"] is None
    world.done("ci", "--scope", "user", "--live", "--allow-execute")
    assert world.start_as_client() == SECRET


@pytest.mark.parametrize("client", ["claude-desktop", "cursor", "codex"])
def test_the_advice_can_be_followed_before_setup(tmp_path: Path, registry: str, client: str) -> None:
    world = SecretWorld(tmp_path, registry, client)
    world.follow(world.advice())
    world.done("setup", "--yes", "--allow-execute", "--enforce")
    row = world.status()
    assert (row["pinned"], row["approved"], row["verified"], row["enforced"]) == ("yes",) * 4, row
    assert row["secrets"] == []
    assert world.start_as_client() == SECRET


def test_a_file_of_secrets_that_others_can_read_is_refused(tmp_path: Path, registry: str) -> None:
    world = SecretWorld(tmp_path, registry, "zed")
    world.done("setup", "--yes", "--allow-execute", "--enforce")
    file = world.home / ".config" / "pinwarden" / "secrets.env"
    file.write_text(f"NOTES_KEY={SECRET}\n")
    file.chmod(0o644)
    refused = world.run("run", "notes", "--scope", "user", "--show")
    assert refused.code == 3
    assert "chmod 600 ~/.config/pinwarden/secrets.env" in refused.err
    file.write_text(f"NOTES_KEY={SECRET}\n{SECRET}\n")
    file.chmod(0o600)
    refused = world.run("run", "notes", "--scope", "user", "--show")
    assert "line 2 of ~/.config/pinwarden/secrets.env" in refused.err
    assert SECRET not in refused.err
