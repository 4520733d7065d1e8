"""Many clients on `/mcp` of one gateway process with five servers: no failed or mixed session, and bounded resources.

The full form (200 clients, one minute) is part of ``make soak``; it prints what a developer costs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.http_gateway import rpc, stateless_request
from tests.gateway.test_gateway_command import Project, Running, running
from tests.servers import stateless_witness, witness

STATELESS = ("alpha", "beta", "gamma", "delta")  # all clients share the process of each
HANDSHAKE = "echoing"  # has a process for each session
TOKENS = 10


class Usage:
    """Processes and memory of the gateway with its servers, at their peak."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.processes = self.gateway_bytes = self.all_bytes = 0

    def measure(self) -> None:
        children: dict[int, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:  # it ended
                continue
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
        tree, todo = [], [self._pid]
        while todo:
            tree.append(todo.pop())
            todo += children.get(tree[-1], [])
        self.processes = max(self.processes, len(tree) - 1)
        self.gateway_bytes = max(self.gateway_bytes, _proportional_bytes(self._pid))
        self.all_bytes = max(self.all_bytes, sum(map(_proportional_bytes, tree)))


def _proportional_bytes(pid: int) -> int:
    """The memory of a process, with its share of what it shares with others."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class Client:
    """One developer's client on `/mcp`: it lists all tools, then calls one of every server in turn."""

    def __init__(self, at: Running, number: int, token: str, seen: Counter[str]) -> None:
        self._at = at
        self._number = number
        self._token = token
        self._seen = seen
        self._session = ""
        self._nonces: set[str] = set()
        self.wrong: list[Any] = []

    async def run(self, until: float, least: int) -> None:
        reader, writer = await asyncio.open_connection(self._at.host, self._at.port)
        try:
            await self._work(reader, writer, until, least)
        except Exception as err:  # noqa: BLE001  whatever it is, this session failed
            self.wrong.append(f"client {self._number}: {type(err).__name__}: {err}")
        finally:
            writer.close()

    async def _work(self, reader: Any, writer: Any, until: float, least: int) -> None:
        if self._number % 2:
            await self._open_session(reader, writer)
        listed = await self._ask(reader, writer, "tools/list", {}, "list")
        names = {tool["name"].partition("__")[0] for tool in listed["result"]["tools"]}
        if names != {*STATELESS, HANDSHAKE}:
            self.wrong.append((self._number, sorted(names), listed["result"].get("_meta")))
        turn = 0
        while turn < least or time.monotonic() < until:
            server = (*STATELESS, HANDSHAKE)[turn % 5]
            secret = f"secret-{self._number}-{turn}"
            turn += 1
            params = {"name": f"{server}__echo", "arguments": {"secret": secret}}
            answer = await self._ask(reader, writer, "tools/call", params, turn)
            text = answer["result"]["content"][0]["text"] if "result" in answer else ""
            if answer.get("id") != turn or secret not in text.replace('"', " ").replace("}", " ").split():
                self.wrong.append((self._number, server, secret, answer))
                return
            if server == HANDSHAKE:
                self._nonces.add(text.split()[0])
            self._seen[server] += 1
        if len(self._nonces) > 1:
            self.wrong.append((self._number, "calls of one session went to several processes", self._nonces))

    async def _open_session(self, reader: Any, writer: Any) -> None:
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
        headers, _ = await self._post(reader, writer, json.dumps(rpc("initialize", about, 0)).encode(), {})
        self._session = headers["mcp-session-id"]
        await self._post(reader, writer, json.dumps(rpc("notifications/initialized", None, None)).encode(), {})

    async def _ask(self, reader: Any, writer: Any, method: str, params: dict[str, Any], request_id: Any) -> Any:
        if self._session:
            body, headers = json.dumps(rpc(method, params, request_id)).encode(), dict[str, str]()
        else:
            body, headers = stateless_request(method, params, request_id)
        return json.loads((await self._post(reader, writer, body, headers))[1])

    async def _post(self, reader: Any, writer: Any, body: bytes, more: dict[str, str]) -> tuple[dict[str, str], bytes]:
        lines = {
            "Host": "127.0.0.1",
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Content-Length": str(len(body)),
            **({"Mcp-Session-Id": self._session} if self._session else {}),
            **more,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
        status, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
        data = await reader.readexactly(int(headers.get("content-length", "0")))
        assert status.split()[1] in ("200", "202"), (status, data)
        return headers, data


def run_clients(root: Path, clients: int, seconds: float, least: int) -> None:
    """Run the clients against a new gateway; check and print what they saw and what they cost."""
    project = Project(root)
    modern = {"command": sys.executable, "args": ["-I", "-S", str(Path(stateless_witness.__file__))]}
    old = {"command": sys.executable, "args": ["-I", "-S", str(Path(witness.__file__)), str(root / "report")]}
    project.lock({**dict.fromkeys(STATELESS, modern), HANDSHAKE: old})
    tokens = [project("gateway", "token", "add", f"dev-{number}").out.strip() for number in range(min(TOKENS, clients))]
    seen: Counter[str] = Counter()
    with running(project, "--max-processes", "512") as at:
        usage, idle = Usage(at.process.pid), Usage(at.process.pid)
        idle.measure()
        made = [Client(at, number, tokens[number % len(tokens)], seen) for number in range(clients)]

        async def run() -> None:
            until = time.monotonic() + seconds
            work = asyncio.gather(*(client.run(until, least) for client in made))
            while not work.done():
                await asyncio.to_thread(usage.measure)
                await asyncio.wait({work}, timeout=0.5)
            await work

        asyncio.run(run())
    megabytes = 1 / 1_048_576
    sys.stdout.write(
        f"{clients} clients, {sum(seen.values())} calls; at most {usage.processes} processes, "
        f"{usage.processes / clients:.2f} for each client; gateway {idle.gateway_bytes * megabytes:.0f} MiB idle, "
        f"{usage.gateway_bytes * megabytes:.0f} MiB under load, "
        f"{(usage.gateway_bytes - idle.gateway_bytes) / clients / 1024:.0f} KiB for each client; "
        f"with servers {usage.all_bytes * megabytes:.0f} MiB\n"
    )
    assert [client.wrong for client in made if client.wrong] == []
    assert set(seen) == {*STATELESS, HANDSHAKE}
    # Half of the clients have a session, and those with one token and no session share a process of the old server.
    sessions = clients // 2 + len(tokens)
    assert usage.processes <= len(STATELESS) + sessions + 5, "a process for each session, and few for detection"
    assert usage.gateway_bytes < 200 * 1_048_576 + clients * 1_048_576


def test_thirty_clients_of_five_servers_get_their_own_responses(tmp_path: Path) -> None:
    run_clients(tmp_path, 30, 2, 20)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_two_hundred_clients_of_five_servers_get_their_own_responses_for_a_minute(tmp_path: Path) -> None:
    run_clients(tmp_path, 200, 60, 50)
