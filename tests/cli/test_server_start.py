"""Every start of a server: the policy first, then the sandbox that it demands, then the start."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.run import Outcome
from tests.gateway.test_gateway_command import Project, running
from tests.support.needs import needs

SERVER = """
import json, pathlib, sys
try:
    (pathlib.Path(__file__).parent / "started").touch()
except OSError:
    pass  # in the sandbox
tools = [{"name": "notes", "description": "Notes.", "inputSchema": {"type": "object"}}]
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        info = {"name": "notes", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    elif message.get("method") == "tools/list":
        result = {"tools": tools}
    elif "id" in message:
        error = {"code": -32601, "message": "unknown"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
        continue
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
RULE = '[policy]\nversion = 1\n[[policy.sandbox]]\nserver = "*"\nread = ["server"]\n'
BROKEN = "[policy]\nversion = 1\nsandbocks = true\n"


class World:
    """A project with one locked server that is a script of this machine, and notes that it was started."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder / "project")
        self.root = self.project.root
        self.script = self.root / "server/server.py"
        self.script.parent.mkdir(parents=True)
        self.script.write_text(SERVER)
        self.command = (sys.executable, str(self.script))
        self.project.lock({"notes": {"command": self.command[0], "args": [self.command[1]]}})
        self.started.unlink()

    @property
    def started(self) -> Path:
        """What the server creates where it may write."""
        return self.script.parent / "started"

    def policy(self, text: str) -> None:
        (self.root / "pinwarden.toml").write_text(text)

    def __call__(self, *words: str) -> Outcome:
        return self.project(*words)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


STARTS: dict[str, Callable[[World], Outcome]] = {
    "run --": lambda world: world("run", "--project", ".", "--", *world.command),
    "run --name": lambda world: world("run", "--project", ".", "--name", "notes", "--", *world.command),
    "run --without-gateway": lambda world: world("run", "--project", ".", "--without-gateway", "--", *world.command),
    "ci --live": lambda world: world("ci", "--live", "--allow-execute", "--scope", "project"),
    "inspect --": lambda world: world("inspect", "--allow-execute", "--", *world.command),
    "inspect NAME": lambda world: world("inspect", "--allow-execute", "notes"),
    "inspect twice": lambda world: world("inspect", "--allow-execute", "--compare-client", "x", "--", *world.command),
    "diff": lambda world: world("diff", "--allow-execute", "notes", "notes"),
    "scan": lambda world: world("scan", "--allow-execute", "--", *world.command),
    "approve": lambda world: world("approve", "notes", "--allow-execute", "--yes"),
    "init": lambda world: world("init", "--scope", "project", "--allow-execute"),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_broken_policy_is_an_error_before_any_server_is_started(
    world: World, start: Callable[[World], Outcome]
) -> None:
    world.policy(BROKEN)
    done = start(world)
    assert (done.code, world.started.exists()) == (3, False)
    assert "POLICY_INVALID" in done.err + done.out


@needs("bwrap", install="apt-get install bubblewrap")
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_the_sandbox_of_the_policy_applies_to_every_start(world: World, start: Callable[[World], Outcome]) -> None:
    start(world)
    assert world.started.exists()  # without a rule it can write
    world.started.unlink()
    world.policy(RULE)
    done = start(world)
    assert (done.code, world.started.exists()) == (0, False), done.err


@needs("bwrap", install="apt-get install bubblewrap")
def test_the_sandbox_of_the_policy_applies_to_configured_commands_that_the_gateway_starts(
    world: World,
) -> None:
    world.policy(RULE)
    with running(world.project) as gateway:
        assert gateway.names("notes", gateway.token) == ["notes"]
    assert not world.started.exists()


def test_the_gateway_serves_nothing_with_a_broken_policy(world: World) -> None:
    world.policy(BROKEN)
    done = world("gateway", "--listen", "127.0.0.1:0", "--allow-execute", "--check")
    assert (done.code, world.started.exists()) == (3, False)
    assert "POLICY_INVALID" in done.err


def test_a_policy_that_is_named_decides_about_the_sandbox_too(world: World) -> None:
    (world.root / "other.toml").write_text(RULE)
    shown = world("run", "--project", ".", "--policy", "other.toml", "--show", "--", *world.command)
    assert "--unshare-all" in shown.out.splitlines()
    missing = world("run", "--project", ".", "--policy", "missing.toml", "--", *world.command)
    assert (missing.code, world.started.exists()) == (3, False)
