"""``pinwarden enforce`` and ``--undo`` in the file of every supported client, for a package and a remote address."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.several_clients import SeveralClients
from tests.cli.test_enforced_servers import release
from tests.cli.test_prove_fetch_run import PLAIN, needs_node
from tests.gateway.test_remote_bridge import INITIALIZE, INITIALIZED, sdk_server
from tests.servers.acme_packages import Package, release_answers
from tests.servers.plain_http import plain_server

pytestmark = needs_node

SECRET = "Bearer sk-live-0123456789abcdefghij"

JSON_FORM = """{{
  "{member}": {{
    "notes": {{"command": "npx", "args": ["-y", "acme-notes@1.0.0"], "env": {{"KEY": "${{KEY}}"}}}},
    "remote": {{ {kind}"{url}": "URL",   "headers": {{"Authorization": "SECRET"}} }}
  }},
  "other": [1,2]
}}
"""


def json_form(member: str = "mcpServers", kind: str = "", url: str = "url") -> str:
    return JSON_FORM.format(member=member, kind=kind, url=url)


CODEX = """# my settings
model = "x"

[mcp_servers.notes]  # mine
command = "npx"
args = ["-y", "acme-notes@1.0.0"]
env = { KEY = "k" }

[mcp_servers.remote]
url = "URL"
http_headers = { Authorization = "SECRET" }

[other]
a = 1
"""

GOOSE = """GOOSE_MODEL: x  # the model
extensions:
  developer:
    type: builtin
    enabled: true
  notes:
    # takes notes
    type: stdio
    enabled: true
    cmd: npx
    args:
      - -y
      - acme-notes@1.0.0
    envs:
      KEY: k
    timeout: 300
  remote:
    type: streamable_http
    enabled: true
    uri: URL
    headers:
      Authorization: SECRET
other: 1
"""

OPENCODE = """{
  // my servers
  "mcp": {
    "notes": {"type": "local", "command": ["npx", "-y", "acme-notes@1.0.0"], "enabled": true},
    "remote": {"type": "remote", "url": "URL", "headers": {"Authorization": "SECRET"}}
  },
}
"""

ZED = """{
  // my servers
  "context_servers": {
    "notes": {"source": "custom", "command": "npx", "args": ["-y", "acme-notes@1.0.0"], "env": {"KEY": "k"}},
    "remote": {"url": "URL", "headers": {"Authorization": "SECRET"}},
  },
  "theme": "One",
}
"""

CLIENTS = {
    "Claude Code": ("project", ".mcp.json", json_form(kind='"type": "http", ')),
    "Claude Code for a user": ("home", ".claude.json", json_form(kind='"type": "http", ')),
    "Claude Desktop": ("home", ".config/Claude/claude_desktop_config.json", json_form()),
    "Cursor": ("project", ".cursor/mcp.json", json_form()),
    "Cursor for a user": ("home", ".cursor/mcp.json", json_form()),
    "VS Code": ("project", ".vscode/mcp.json", json_form("servers", '"type": "http", ')),
    "VS Code for a user": ("home", ".config/Code/User/mcp.json", json_form("servers", '"type": "http", ')),
    "Windsurf": ("home", ".codeium/windsurf/mcp_config.json", json_form(url="serverUrl")),
    "Zed": ("home", ".config/zed/settings.json", ZED),
    "Codex": ("home", ".codex/config.toml", CODEX),
    "Codex in a project": ("project", ".codex/config.toml", CODEX),
    "Gemini CLI": ("home", ".gemini/settings.json", json_form(url="httpUrl")),
    "Goose": ("home", ".config/goose/config.yaml", GOOSE),
    "Cline": ("home", ".cline/mcp.json", json_form(kind='"type": "streamableHttp", ')),
    "opencode": ("project", "opencode.json", OPENCODE),
    "Crush": ("project", ".crush.json", json_form("mcp", '"type": "http", ')),
    "Amp": ("home", ".config/amp/settings.json", json_form("amp.mcpServers")),
    "Junie": ("project", ".junie/mcp/mcp.json", json_form()),
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with sdk_server("http") as url:
        yield url


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    packages: dict[str, list[Package]] = {"acme-notes": [release("1.0.0", "One.")]}
    with plain_server(lambda asked: release_answers(packages, asked)) as npm:
        yield npm.url


@pytest.fixture
def world(tmp_path: Path, registry: str) -> SeveralClients:
    variables = {"NPM_CONFIG_REGISTRY": registry, "KEY": "k", "XDG_CONFIG_HOME": ""}
    world = SeveralClients(folder=tmp_path, variables=variables)
    world.root.mkdir()
    (tmp_path / "home").mkdir()
    return world


def read_entries(path: Path) -> Any:
    """The two servers of a file, parsed by another parser than Pinwarden's."""
    text = path.read_text()
    if path.suffix == ".toml":
        return tomllib.loads(text)["mcp_servers"]
    if path.suffix == ".yaml":
        return yaml.safe_load(text)["extensions"]
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
    document = yaml.safe_load(lines)  # JSON with trailing commas is YAML
    return next(value for value in document.values() if isinstance(value, dict) and "notes" in value)


def read_command(entry: Any) -> list[str]:
    words = entry.get("command", entry.get("cmd"))
    return [*words] if isinstance(words, list) else [words, *entry["args"]]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_package_and_a_remote_address_are_enforced_and_restored(
    world: SeveralClients, address: str, client: str
) -> None:
    folder, name, text = CLIENTS[client]
    path = (world.root if folder == "project" else world.folder / "home") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    before = text.replace("URL", address).replace("SECRET", SECRET).encode()
    path.write_bytes(before)
    world.run("init", "--allow-private")
    world.done("prove", *PLAIN)
    scope = "project" if folder == "project" else "user"
    lock = world.lock if scope == "project" else world.folder / "home" / ".config" / "pinwarden" / "mcp-lock.json"
    locked = lock.read_bytes()
    world.done("enforce", "--yes")
    entries = read_entries(path)
    for server in ("notes", "remote"):
        words = read_command(entries[server])
        assert Path(words[0]).name == "pinwarden"
        assert Path(words[0]).is_absolute() == (scope == "user")
        assert words[1:3] == ["run", server]
        assert not {"url", "uri", "serverUrl", "httpUrl", "headers", "http_headers"} & entries[server].keys()
    assert SECRET in json.dumps(entries["remote"])
    assert SECRET not in " ".join(read_command(entries["remote"]))
    assert b"sk-live" not in lock.read_bytes()
    record = json.loads(lock.read_text())["servers"]
    launches = {key.split(":")[0]: entry["capabilityManifest"]["pinwarden"]["launch"] for key, entry in record.items()}
    assert launches["remote"]["url"] == address
    assert launches["remote"]["headers"] == {"Authorization": "PINWARDEN_HEADER_AUTHORIZATION"}
    assert world.doctor_findings("--scope", scope) == []
    assert not world.run_json("enforce", "--dry-run")[1]["files"], "enforcing again changes nothing"
    enforced = path.read_bytes()
    path.write_bytes(before)
    issues = world.run_json("doctor", "--scope", scope)[1]["issues"]
    assert [change["kind"] for issue in issues for change in issue["changes"]] == ["started_directly"] * 2
    assert len(world.run_json("enforce", "--dry-run")[1]["files"]) == 1, "a file that was restored is enforced again"
    path.write_bytes(enforced)
    world.done("enforce", "--undo", "--yes")
    assert path.read_bytes() == before
    assert lock.read_bytes() == locked


def failures(world: SeveralClients, *options: str) -> list[str]:
    """What the gate finds, apart from the address of the test server, which is not encrypted."""
    report = world.run_json("ci", *options)[1]
    return [row["code"] for row in report["failures"] if row["code"] != "verdict_blocked"]


class TestRemote:
    """One remote address in Claude Code's file."""

    @pytest.fixture
    def enforced(self, world: SeveralClients, address: str) -> SeveralClients:
        entry = {"type": "http", "url": address, "headers": {"X-Token": "${TOKEN}"}}
        world.write("claude", remote=entry)
        world.variables["TOKEN"] = "t-1"
        world.done("init", "--allow-private", "--pass-env", "TOKEN")
        world.done("enforce", "--yes")
        return world

    def exchange(self, world: SeveralClients, **variables: str) -> tuple[int, str, list[Any]]:
        """Start the server as its client does, with the variables of its entry filled in."""
        import subprocess
        import sys

        entry = world.entry("claude", "remote")
        env = {name: value.replace("${TOKEN}", "t-1") for name, value in entry["env"].items()}
        process = subprocess.Popen(
            [sys.executable, "-m", "pinwarden", *entry["args"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=world.root,
            env={**world.whole_environment, **env, **variables},
        )
        received: list[Any] = []
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            listed = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
            for message in (INITIALIZE, INITIALIZED, listed):
                try:
                    process.stdin.write(json.dumps(message).encode() + b"\n")
                    process.stdin.flush()
                except BrokenPipeError:
                    break
                while "id" in message and (line := process.stdout.readline()):
                    received.append(json.loads(line))
                    if received[-1].get("id") == message["id"]:
                        break
            with contextlib.suppress(BrokenPipeError):  # the refused start may have closed its end
                process.stdin.close()
            err = process.stderr.read().decode()
        return process.returncode, err, received

    def test_the_new_command_relays_the_approved_tools(self, enforced: SeveralClients) -> None:
        entry = enforced.entry("claude", "remote")
        assert entry == {
            "type": "stdio",
            "command": "pinwarden",
            "args": ["run", "remote", "--require-lock", "--client", "claude"],
            "env": {"PINWARDEN_HEADER_X_TOKEN": "${TOKEN}"},
        }
        _, err, received = self.exchange(enforced)
        assert "weather" in [tool["name"] for tool in received[-1]["result"]["tools"]], err
        assert failures(enforced) == []
        assert failures(enforced, "--live", "--allow-private", "--pass-env", "TOKEN") == []
        enforced.done("doctor")
        enforced.done("init")

    def test_the_same_address_in_another_client_is_the_same_server(
        self, enforced: SeveralClients, address: str
    ) -> None:
        enforced.write("cursor", remote={"url": address, "headers": {"X-Token": "${env:TOKEN}"}})
        assert failures(enforced) == ["unlocked_entry"]

    def test_an_address_with_a_placeholder_stays_in_the_clients_file(self, world: SeveralClients, address: str) -> None:
        world.variables["TOKEN"] = "t-1"
        world.write("claude", remote={"type": "http", "url": f"{address}?key=${{TOKEN}}"})
        world.done("init", "--allow-private", "--pass-env", "TOKEN")
        before = world.files()
        world.done("enforce", "--yes")
        assert world.entry("claude", "remote")["env"] == {"PINWARDEN_ADDRESS": f"{address}?key=${{TOKEN}}"}
        _, err, received = self.exchange(world)
        assert "weather" in [tool["name"] for tool in received[-1]["result"]["tools"]], err
        assert failures(world) == []
        # Attack: another address in the variable.
        code, err, received = self.exchange(world, PINWARDEN_ADDRESS="http://127.0.0.1:1/mcp?key=x")
        assert (code, received, "[ARGUMENTS_CHANGED]" in err) == (1, [], True), err
        world.done("enforce", "--undo", "--yes")
        assert world.files() == before

    def test_attack_another_address_in_the_clients_file_is_found(self, enforced: SeveralClients) -> None:
        """Attack: put an address next to the enforced command, or a header variable that points elsewhere."""
        entry = enforced.entry("claude", "remote")
        for changed in (
            {**entry, "url": "https://evil.example/mcp"},
            {**entry, "args": [*entry["args"], "--file", "other.json"]},
            {**entry, "env": {"PINWARDEN_HEADER_X_TOKEN": "${TOKEN}", "PINWARDEN_ADDRESS": "https://evil.example"}},
        ):
            enforced.write("claude", remote=changed)
            assert failures(enforced), changed

    def test_an_address_that_the_client_signs_in_to_is_left_and_reported(
        self, world: SeveralClients, address: str
    ) -> None:
        world.write("claude", remote={"type": "http", "url": address, "oauth": {"clientId": "x"}})
        world.done("init", "--allow-private")
        before = world.files()
        outcome = world.done("enforce", "--yes")
        assert "Claude Code signs in to it (oauth)" in " ".join(outcome.out.split())
        assert world.files() == before
