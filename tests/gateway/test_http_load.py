"""Many clients while servers are killed: correct responses, every refusal in the log, bounded memory.

The full load (200 clients, one minute) is part of ``make soak``; this is a short form.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinwarden.gateway.audit.chain import load_audit_schema, read_entries
from pinwarden.gateway.audit.event import BLOCKED
from pinwarden.gateway.audit.log import AuditLimits, AuditLog
from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.recorder import Recorder
from pinwarden.surface.surface import surface_from_listing
from pinwarden.system.database import open_database
from tests.gateway.http_gateway import RunningGateway, UpstreamServer, gateway, guard, stateless_request
from tests.servers import talking
from tests.support.audit import verify

TOOLS = [{**tool, "description": "Tells nothing."} if tool["name"] == "note" else tool for tool in talking.TOOLS]
APPROVED = surface_from_listing(
    {
        "serverInfo": talking.INFO,
        "capabilities": talking.CAPABILITIES,
        "tools": TOOLS,
        "prompts": talking.PROMPTS,
        "resources": talking.RESOURCES,
        "resourceTemplates": [],
    }
)
LIMITS = HttpLimits(reload_seconds=0.1, first_backoff_seconds=0.02, max_backoff_seconds=0.1, stable_seconds=0.5)


class Load:
    """What the clients saw."""

    def __init__(self) -> None:
        self.right = 0
        self.lost = 0
        self.killed = 0
        self.resident: list[int] = []
        """Memory of this process, which includes the gateway, at each kill after every client had a response."""
        self.heard: set[int] = set()
        """The clients that received a response."""
        self.refused: list[str] = []
        self.wrong: list[Any] = []

    @property
    def grown(self) -> int:
        """Return how far memory grew after every client was connected."""
        return max(self.resident) - self.resident[0]

    def enough(self, right: int, killed: int) -> bool:
        """Whether enough happened, or an error occurred."""
        return bool((self.right > right and self.killed >= killed and self.refused) or self.wrong)


async def _client(at: RunningGateway, number: int, token: str, load: Load, over: Callable[[], bool]) -> None:
    """Call an approved tool and sometimes a poisoned one; reconnect if the connection is closed."""
    turn = 0
    while not over():
        reader, writer = await asyncio.open_connection(at.host, at.port)
        try:
            while not over():
                turn += 1
                bad = turn % 10 == 0
                mark = f"{number}-{turn}"
                params = {"name": "note" if bad else "echo", "arguments": {"mark": mark}}
                answer = await _call(reader, writer, token, stateless_request("tools/call", params, turn % 3))
                load.heard.add(number)
                _judge(answer, bad, mark, turn % 3, load)
        except (ConnectionError, asyncio.IncompleteReadError):
            load.lost += 1
        finally:
            writer.close()


def _judge(answer: Any, bad: bool, mark: str, request_id: int, load: Load) -> None:
    code = answer.get("error", {}).get("code")
    if answer.get("id") != request_id:
        load.wrong.append(answer)
    elif code == -32000:
        load.lost += 1  # the server was killed, and the client gets an error
    elif bad:
        if code == -32602 and "pinwarden" in answer["error"].get("data", {}):
            load.refused.append(answer["error"]["data"]["pinwarden"].get("call", ""))
        else:
            load.wrong.append(answer)
    elif json.loads(answer["result"]["content"][0]["text"]) == {"mark": mark} if "result" in answer else False:
        load.right += 1
    else:
        load.wrong.append(answer)


async def _call(reader: Any, writer: Any, token: str, request: tuple[bytes, dict[str, str]]) -> Any:
    body, headers = request
    lines = {"Host": "127.0.0.1", "Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"POST /mcp/echo HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    fields = dict(line.lower().split(": ", 1) for line in answer.split("\r\n")[1:] if line)
    return json.loads(await reader.readexactly(int(fields["content-length"])))


async def _kill(behind: UpstreamServer, clients: int, every: float, load: Load, over: Callable[[], bool]) -> None:
    """Kill all servers repeatedly, each time after some correct responses, because servers start slowly."""
    answered = 0
    while not over():
        await asyncio.sleep(every)
        if load.right == answered or len(load.heard) < clients:
            continue
        answered = load.right
        load.resident.append(_resident())
        assert behind.supervisor is not None
        for link in tuple(behind.supervisor.running):
            if link.pid is not None:
                os.kill(link.pid, signal.SIGKILL)
                load.killed += 1


def _resident() -> int:
    """Return the memory in use now; the peak says nothing about leaks."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _run_load(
    tmp_path: Path, clients: int, seconds: float, every: float, *, right: int, killed: int
) -> tuple[Load, set[str]]:
    """Run the load; return it with the calls that the log has as blocked.

    Takes ``seconds``, or up to a minute on a machine that is too slow for enough calls in that time.
    """
    command = [sys.executable, str(Path(talking.__file__)), os.devnull]
    behind = UpstreamServer(guard("echo", APPROVED), command=command)
    database = tmp_path / "audit.sqlite"
    log = AuditLog(str(database), tmp_path / "journals", limits=AuditLimits(commit_seconds=60.0))
    tokens = {f"pwt_{number}": GatewayClient(name=f"client-{number}") for number in range(4)}
    load = Load()

    async def all_of_them(at: RunningGateway) -> None:
        start = time.monotonic()
        names = list(tokens)

        def over() -> bool:
            passed = time.monotonic() - start
            return passed >= seconds and (load.enough(right, killed) or passed >= seconds + 60)

        work = [_client(at, number, names[number % 4], load, over) for number in range(clients)]
        await asyncio.gather(*work, _kill(behind, clients, every, load, over))

    with gateway({"echo": behind}, Recorder(log, None, print), LIMITS, tokens, note=log.record_call) as at:
        asyncio.run(all_of_them(at))
    log.close()
    opened = open_database(database, load_audit_schema())
    assert verify(opened).breaks == ()
    blocked = {entry.event.call for entry in read_entries(opened) if entry.event.kind == BLOCKED}
    opened.close()
    return load, blocked


def test_forty_clients_get_no_wrong_answer_while_servers_are_killed(tmp_path: Path) -> None:
    load, blocked = _run_load(tmp_path, 40, 3, 0.8, right=200, killed=8)
    assert load.wrong == []
    assert load.killed >= 8
    assert load.right > 200
    assert load.refused
    assert set(load.refused) <= blocked, "every refusal that a client saw is in the log"
    assert load.grown < 20_000_000, "bytes"


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_two_hundred_clients_get_correct_answers_for_a_minute(tmp_path: Path) -> None:
    load, blocked = _run_load(tmp_path, 200, 60, 5, right=2000, killed=40)
    assert load.wrong == []
    assert load.killed >= 40
    assert load.right > 2000
    assert load.refused
    assert set(load.refused) <= blocked, "every refusal that a client saw is in the log"
    assert load.grown < 100_000_000, "bytes"
