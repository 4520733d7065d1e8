"""Drift sequences through ``pinwarden run`` as a process between a client and a real server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.cli import zygote
from tests.cli.run import pinwarden
from tests.conformance.sequences import Play, perform, play_of, sequences
from tests.servers import turning

SERVER = Path(turning.__file__)


class Client:
    """A line-based client that waits for each response."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._in = stdin
        self._out = stdout
        self._last = 0
        self.lines: list[bytes] = []

    def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        self._last += 1
        self._send({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params or {}})
        while line := self._out.readline():
            self.lines.append(line)
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == self._last and "method" not in message:
                return message
        raise AssertionError("the gateway ended")

    def initialize(self) -> dict[str, Any]:
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t"}}
        answer = self.ask("initialize", about)
        self.notify("notifications/initialized")
        return answer

    def notify(self, method: str) -> None:
        self._send({"jsonrpc": "2.0", "method": method})

    def names(self) -> list[str]:
        names: list[str] = []
        cursor: dict[str, Any] = {}
        while True:
            result = self.ask("tools/list", cursor)["result"]
            names += [tool["name"] for tool in result["tools"]]
            if "nextCursor" not in result:
                return names
            cursor = {"cursor": result["nextCursor"]}

    def _send(self, message: dict[str, Any]) -> None:
        self._in.write(json.dumps(message).encode() + b"\n")
        self._in.flush()


@contextmanager
def gateway(
    folder: Path, *command: str, options: tuple[str, ...] = (), handshake: bool = True
) -> Iterator[tuple[Client, Path]]:
    """Start a gateway for a command, and return a client of it; the file gets its stderr."""
    said = folder / "stderr"
    words = ("run", "--project", ".", *options, "--", *command)
    environment = {**os.environ, "PINWARDEN_STATE": str(folder / "state")}
    with said.open("ab") as stderr:
        process = zygote.PipedProcess(words, folder, environment, stderr.fileno())
    try:
        client = Client(process.stdin, process.stdout)
        if handshake:
            client.initialize()
        yield client, said
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


class Stage:
    """Plays a sequence through ``pinwarden run``; every session is a new process."""

    def __init__(self, play: Play, folder: Path, *, stack: ExitStack) -> None:
        self._folder = folder
        self._place = folder / "place"
        self._script = folder / "script.json"
        self._script.write_text(json.dumps({**play.script, "place": str(self._place)}))
        self._stack = stack
        self._client: Client | None = None

    def open(self, place: int) -> dict[str, Any]:
        self._stack.close()
        self._place.write_text(str(place))
        command = (sys.executable, str(SERVER), f"@{self._script}")
        self._client, _ = self._stack.enter_context(gateway(self._folder, *command, handshake=False))
        return self._client.initialize()

    def turn(self) -> None:
        assert self._client is not None
        self._client.notify(turning.TURN)

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert self._client is not None
        return self._client.ask(method, params)


@pytest.mark.parametrize("case", sequences())
def test_a_drift_sequence_is_blocked_on_stdio_exactly_as_expected(case: dict[str, Any], tmp_path: Path) -> None:
    """Trust the server's first state on first use."""
    (tmp_path / "pinwarden.toml").write_text("[policy.gateway]\nrelist-calls = 1\n")
    play = play_of(case)
    with ExitStack() as stack:
        blocked = perform(case, play, Stage(play, tmp_path, stack=stack))
    exported = pinwarden("audit", "export", cwd=tmp_path, env={"PINWARDEN_STATE": str(tmp_path / "state")}).out
    facts = [json.loads(line)["fact"] for line in exported.splitlines()]
    assert {(fact["item_kind"], fact["item"]) for fact in facts if fact["kind"] == "blocked"} == blocked
