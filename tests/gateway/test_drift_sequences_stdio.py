"""The drift cases that are sequences, through ``pinwarden run`` as a process between a client and a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from pinwarden.documents.surface import Surface, from_listing
from tests.conformance.test_drift_sequences_live import rounds_of, tool_sequences
from tests.servers import turning

SERVER = Path(turning.__file__)
INFO = {"serverInfo": {"name": "acme-notes", "version": "1.4.0"}, "capabilities": {"tools": {}}}


def script_of(case: dict[str, Any]) -> dict[str, Any]:
    """The case as a server that turns: from what was approved to what the case ends with."""
    _, rounds = rounds_of(case)
    announced = [step["notify"] for step in case["sequence"] if "notify" in step]
    states = [_state(pages) for pages in rounds]
    if len(rounds) == 1:
        states.insert(0, _state(rounds[0][:1]))
    states[-1]["announce"] = announced
    return {"states": states}


def _state(pages: list[dict[str, Any]]) -> dict[str, Any]:
    tools = [tool for page in pages for tool in page["tools"]]
    hints = {name: value for name, value in pages[0].items() if name not in ("tools", "nextCursor")}
    return {"tools": tools, "page": len(pages[0]["tools"]), "hints": hints}


def approved_of(script: dict[str, Any]) -> Surface:
    """What the first state shows."""
    return from_listing({**INFO, "tools": script["states"][0]["tools"]})


class Client:
    """A client that speaks lines, and waits for each answer."""

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

    def tell(self, method: str) -> None:
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
    """A client of a gateway that runs a command; what it says on standard error is in the file."""
    said = folder / "stderr"
    with said.open("ab") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "pinwarden", "run", *options, "--", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=folder,
            env={**os.environ, "PINWARDEN_STATE": str(folder / "state")},
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        client = Client(process.stdin, process.stdout)
        if handshake:
            about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t"}}
            client.ask("initialize", about)
            client.tell("notifications/initialized")
        yield client, said
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


@pytest.mark.parametrize("case", tool_sequences())
def test_a_sequence_is_stopped_on_stdio_exactly_if_the_case_says_so(case: dict[str, Any], tmp_path: Path) -> None:
    script = script_of(case)
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    before = [tool["name"] for tool in script["states"][0]["tools"]]
    changed = {name for _, name, _ in case["expect"]["changed"]}
    with gateway(tmp_path, sys.executable, str(SERVER), f"@{path}") as (client, said):
        assert client.names() == before
        assert all("result" in client.ask("tools/call", {"name": name}) for name in before)
        for _ in script["states"][1:]:
            client.tell(turning.TURN)
        after = client.names()
        outcomes = {name: "result" in client.ask("tools/call", {"name": name}) for name in sorted({*before, *changed})}
    if case["expect"]["must_block_by_default"]:
        assert after == [name for name in before if name not in changed]
        assert outcomes == {name: name not in changed for name in outcomes}
        assert all(f"blocked tool '{name}'" in said.read_text() for name in changed)
    else:
        assert after == before
        assert all(outcomes.values())
        assert "blocked" not in said.read_text()
