"""A refusal over HTTP is sent once it is on disk, and does not delay other requests."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator

import pytest

from pinwarden.gateway.session.output import SessionOutput
from tests.gateway.http_gateway import (
    TOKEN,
    InMemoryRecorder,
    RawClient,
    RunningGateway,
    UpstreamServer,
    gateway,
    guard,
    stateless_request,
)
from tests.gateway.session_harness import DELETE, POISONED, SEARCH, approved_surface
from tests.servers.turning_http import turning_http
from tests.support.waiting import poll


class Slow(InMemoryRecorder):
    """A recorder that blocks as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.ready = threading.Event()

    def record_durably(self, step: SessionOutput) -> None:
        self.writes += 1
        assert self.ready.wait(60)
        super().record_durably(step)


@pytest.fixture
def disk() -> Slow:
    return Slow()


@pytest.fixture
def at(disk: Slow) -> Iterator[RunningGateway]:
    judge = guard("notes", approved_surface({"tools": [SEARCH, DELETE]}))
    with (
        turning_http({"states": [{"tools": [POISONED, DELETE]}]}) as world,
        gateway({"notes": UpstreamServer(judge, url=world.url)}, disk) as running,
    ):
        yield running
        disk.ready.set()


def test_a_refusal_is_on_disk_before_its_response_and_does_not_delay_other_requests(
    at: RunningGateway, disk: Slow
) -> None:
    body, headers = stateless_request("tools/call", {"name": "search_notes", "arguments": {}}, 7)
    lines = {"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**lines, "Content-Length": str(len(body))}.items())
    disk.ready.set()
    with RawClient(at, "notes") as raw:
        assert "error" in raw.request("tools/call", {"name": "search_notes", "arguments": {}}), "a repeated refusal"
        disk.ready.clear()
        before = disk.writes
        with socket.create_connection((at.host, at.port), timeout=60) as waiting:
            waiting.sendall(f"POST /mcp/notes HTTP/1.1\r\n{head}\r\n".encode() + body)
            poll(lambda: disk.writes > before)
            for request_id in range(3):
                assert "result" in raw.request("tools/call", {"name": "delete_note", "arguments": {}}, request_id)
            assert select.select([waiting], [], [], 0)[0] == [], "no byte of a response"
            disk.ready.set()
            assert b"new_exfiltration" in waiting.recv(1 << 16)
    refusals = [fact for fact in disk.events if (fact.kind, fact.method) == ("blocked", "tools/call")]
    assert len(refusals) == 2
