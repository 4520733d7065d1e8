"""A tool that changed after its approval, from the client's view to ``status`` and back: nobody is left to guess."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from tests.cli.configured_world import POISON, SERVER, ConfiguredWorld, harmless
from tests.cli.run import pinwarden

CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
MESSAGES = (
    {"id": 1, "method": "initialize", "params": CLIENT},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list"},
    {"id": 3, "method": "tools/call", "params": {"name": "now", "arguments": {}}},
)


class Client:
    """A client that starts the server as its own file says."""

    def __init__(self, world: ConfiguredWorld) -> None:
        self._world = world

    def ask(self) -> tuple[list[str], Any]:
        """Start the server; return the names of its tools, and the response to a call of its tool ``now``."""
        entry = json.loads((self._world.root / ".mcp.json").read_text())["mcpServers"]["now"]
        assert Path(entry["command"]).name == "pinwarden"
        lines = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in MESSAGES).encode()
        outcome = pinwarden(*entry["args"], stdin=lines, cwd=self._world.root, env=self._world.environment)
        messages = [json.loads(line) for line in outcome.out.splitlines()]
        responses = {message["id"]: message for message in messages if "id" in message}
        return [tool["name"] for tool in responses[2]["result"]["tools"]], responses[3]


def test_a_blocked_tool_is_named_in_the_client_and_by_status_until_a_person_decides(tmp_path: Path) -> None:
    """Attack: change the description of an approved tool."""
    world = ConfiguredWorld(tmp_path)
    world.configure(now=harmless())
    done = world.run("setup", "--yes", "--allow-execute", "--enforce")
    assert done.code == 0, done.out
    client = Client(world)
    names, called = client.ask()
    assert (names, "error" in called) == (["now"], False)
    assert "Blocked" not in world.run("status").out

    (world.root / "server.py").write_text(SERVER.replace("sys.argv[2]", repr(POISON)))
    names, called = client.ask()
    assert names == []
    refusal = called["error"]["message"]
    assert refusal.startswith(
        "Pinwarden blocked tool 'now' of server 'now': The text now asks the model to hide something"
    )
    command = refusal.rpartition("a person can run in a terminal: ")[2]
    board = world.run("status").out
    assert "Blocked by the gateway, pending review:\n  now: tool now\n" in board
    assert board.endswith(f"Next: {command}\n")
    assert " pending, last seen now, approved in mcp-lock.json: The text now asks" in world.run("review", "list").out

    decided = world.run(*shlex.split(command)[1:], "--allow-execute", "--yes", "--approve-warnings", "--why", "a test")
    assert decided.code == 0, decided
    names, called = client.ask()
    assert (names, "error" in called) == (["now"], False)
    assert "Blocked" not in world.run("status").out
