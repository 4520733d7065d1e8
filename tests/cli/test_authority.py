"""Whose lock and policy apply to ``pinwarden run``: those of the place where the server is configured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pinwarden.clients.command_line import parse_run_command
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY, parse_gateway_policy, tighten
from tests.cli.run import Outcome, pinwarden
from tests.servers import turning

TOOL = {"name": "search", "description": "Search.", "inputSchema": {"type": "object"}}
OTHER = {**TOOL, "description": "Search everything."}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
LOOSE = '[policy.gateway]\nenforcement = "audit"\nunknown = "allow_degraded"\n'
STRICT = '[policy.gateway]\nblock-at = "info"\nsampling = "deny"\n'


class World:
    """A user with a server of their own, and a repository that they open."""

    def __init__(self, folder: Path) -> None:
        self.home, self.repository = folder / "home", folder / "repository"
        self.script = folder / "script.json"
        for path in (self.home, self.repository):
            path.mkdir()
        self.tells(TOOL)
        self.server = (sys.executable, str(Path(turning.__file__)), f"@{self.script}")

    @property
    def user_folder(self) -> Path:
        return self.home / ".config/pinwarden"

    def tells(self, *tools: Any) -> None:
        self.script.write_text(json.dumps({"states": [{"tools": tools}]}))

    def lock_in(self, folder: Path) -> None:
        """Lock the server as ``h``, as it is now."""
        folder.mkdir(parents=True, exist_ok=True)
        entry = {"command": self.server[0], "args": list(self.server[1:])}
        (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"h": entry}}))
        done = self.pinwarden("init", "--scope", "project", "--allow-execute", cwd=folder)
        assert done.code == 0, done.err
        (folder / ".mcp.json").unlink()

    def configure(self, file: Path, *words: str) -> None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"mcpServers": {"mine": {"command": "pinwarden", "args": list(words)}}}))

    def configure_for_user(self) -> None:
        self.configure(self.home / ".cursor/mcp.json", "run", "--name", "h", "--require-lock", "--", *self.server)

    def run(self, *options: str) -> Outcome:
        """Start the server in the repository, as a client does, and ask for its tools."""
        asked = [("initialize", HELLO), ("tools/list", {})]
        lines = [
            json.dumps({"jsonrpc": "2.0", "id": place, "method": method, "params": params}) + "\n"
            for place, (method, params) in enumerate(asked)
        ]
        words = ("run", "--name", "h", *options, "--", *self.server)
        return self.pinwarden(*words, cwd=self.repository, stdin="".join(lines).encode())

    def pinwarden(self, *words: str, cwd: Path, stdin: bytes = b"") -> Outcome:
        env = {"HOME": str(self.home), "PINWARDEN_STATE": str(self.home / "state"), "PINWARDEN_APPROVER": "me"}
        return pinwarden(*words, cwd=cwd, env={**env, "XDG_CONFIG_HOME": ""}, stdin=stdin)


def tools_in(done: Outcome) -> list[Any]:
    answers = {message["id"]: message for message in map(json.loads, done.out.splitlines()) if "id" in message}
    return list(answers[1]["result"]["tools"])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("options", [(), ("--require-lock",)])
@pytest.mark.parametrize("configured", [True, False], ids=["in a file of the user", "in a file that is not known"])
def test_attack_the_lock_of_a_hostile_repository_approves_nothing_for_the_users_servers(
    world: World, options: tuple[str, ...], configured: bool
) -> None:
    world.tells(OTHER)
    world.lock_in(world.repository)
    if configured:
        world.configure_for_user()
    done = world.run(*options)
    if configured and not options:
        assert (done.code, tools_in(done)) == (0, [OTHER])
        assert "First use" in done.err  # by the rules of the user, as if the repository had no lock
    else:
        assert (done.code, done.out) == (1, "")
        assert ("SERVER_NOT_LOCKED" if configured else "PROJECT_NOT_NAMED") in done.err
        assert "--project" in done.err


def test_attack_a_repository_that_configures_the_same_server_does_not_take_it_over(world: World) -> None:
    world.lock_in(world.repository)
    world.configure_for_user()
    world.configure(world.repository / ".mcp.json", "run", "--name", "h", "--require-lock", "--", *world.server)
    done = world.run("--require-lock")
    assert (done.code, done.out, "SERVER_NOT_LOCKED" in done.err) == (1, "", True)


@pytest.mark.parametrize("configured", [True, False], ids=["in a file of the user", "in a file that is not known"])
def test_attack_the_policy_of_a_hostile_repository_loosens_nothing_for_the_users_servers(
    world: World, configured: bool
) -> None:
    if configured:
        world.configure_for_user()
    assert tools_in(world.run()) == [TOOL]  # the first use
    world.tells(OTHER)
    (world.repository / "pinwarden.toml").write_text(LOOSE)
    done = world.run()
    assert tools_in(done) == []
    assert "the policy says enforcement" not in done.err


def test_the_users_lock_and_policy_apply_to_the_users_servers_in_every_folder(world: World) -> None:
    world.lock_in(world.user_folder)
    world.configure_for_user()
    assert tools_in(world.run("--require-lock")) == [TOOL]
    world.tells(OTHER)
    assert tools_in(world.run("--require-lock")) == []
    (world.user_folder / "pinwarden.toml").write_text(LOOSE)
    assert tools_in(world.run("--require-lock")) == [OTHER]


def test_the_projects_lock_applies_to_a_server_that_the_project_configures_or_that_names_the_project(
    world: World,
) -> None:
    world.lock_in(world.repository)
    assert tools_in(world.run("--project", ".", "--require-lock")) == [TOOL]
    world.configure(world.repository / ".mcp.json", "run", "--name", "h", "--require-lock", "--", *world.server)
    assert tools_in(world.run("--require-lock")) == [TOOL]


def test_show_says_which_lock_and_policy_apply(world: World) -> None:
    world.configure_for_user()
    (world.repository / "pinwarden.toml").write_text(STRICT)
    done = world.run("--show")
    assert f"lock: {world.user_folder / 'mcp-lock.json'} (there is none)" in done.err
    assert "policy: the default" in done.err
    assert f"made stricter by: {world.repository / 'pinwarden.toml'}" in done.err
    here = world.run("--show", "--project", ".")
    assert f"policy: {world.repository / 'pinwarden.toml'}" in here.err


def test_attack_a_user_level_run_by_name_does_not_use_the_lock_of_a_hostile_repository(world: World) -> None:
    world.lock_in(world.repository)
    world.configure(world.home / ".cursor/mcp.json", "run", "h", "--require-lock")
    done = world.pinwarden("run", "h", "--require-lock", cwd=world.repository)
    assert (done.code, done.out, "LOCK_MISSING" in done.err) == (3, "", True)
    assert str(world.user_folder) in done.err


def test_a_policy_is_made_stricter_and_never_looser() -> None:
    mine = parse_gateway_policy(
        {"enforcement": "warn", "url-hosts": ["a.example", "b.example"], "max-rounds": 5, "block-at": "critical"}
    )
    theirs = parse_gateway_policy(
        {
            "enforcement": "audit",
            "unknown": "allow_degraded",
            "sampling": "deny",
            "max-rounds": 900,
            "url-hosts": ["b.example", "evil.example"],
            "block-at": "review",
            "results": {"hidden-characters": "strip", "max-bytes": 10},
            "rules": [{"item": "x", "enforcement": "block"}, {"item": "y", "enforcement": "audit"}],
            "allow": [{"tool": "search", "digest": "0" * 64}],
        }
    )
    made = tighten(mine, theirs)
    item, request = made.get_item_policy("h", "search", "c"), made.get_server_request_policy("h", "c")
    assert (item.enforcement, item.unknown, item.block_at, item.allowlist) == ("warn", "block", "review", ())
    assert [made.get_item_policy("h", name, "c").enforcement for name in "xy"] == ["block", "warn"]
    assert (request.sampling, request.elicitation, request.max_rounds) == (False, True, 5)
    assert [host.text for host in request.url_hosts] == ["b.example"]
    assert (made.hidden_characters, made.max_result_bytes) == ("strip", 10)
    assert made.digest not in (mine.digest, theirs.digest)
    assert (
        tighten(DEFAULT_GATEWAY_POLICY, parse_gateway_policy({"enforcement": "audit"})).describe_unblocked_content()
        == ""
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pinwarden run h --require-lock", ("h", False, ())),
        ("/opt/bin/pinwarden run --name h -- npx x", ("h", False, ("npx", "x"))),
        ("python3 -m pinwarden run --name=h --project /p -- x", ("h", True, ("x",))),
        ("uvx --from pinwarden pinwarden run --client cursor h", ("h", False, ())),
        ("op run -- pinwarden run --name h -- npx x", ("h", False, ("npx", "x"))),
        ("env A=b pinwarden run -- npx x", (None, False, ("npx", "x"))),
        ("pinwarden gateway", None),
        ("npx x run h", None),
    ],
)
def test_pinwarden_run_is_recognised_whatever_program_starts_it(line: str, expected: object) -> None:
    parsed = parse_run_command(line.split())
    assert (parsed and (parsed.name, parsed.names_project, parsed.command)) == expected
