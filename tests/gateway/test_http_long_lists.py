"""Long lists are judged on an executor: other requests are answered meanwhile, and the order is kept."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinwarden.gateway.gates.verdict import Verdict
from pinwarden.gateway.guard import Guard, SessionClient, SessionLimits
from pinwarden.gateway.http.conversation import Conversation
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.recorder import LoopRecorder
from pinwarden.lock.gateway_policy import parse_gateway_policy
from pinwarden.surface.surface import Item, ItemKind, surface_from_listing
from pinwarden.system.fair_executor import FairExecutor
from tests.gateway.http_gateway import (
    OTHER_TOKEN,
    FixedApprovals,
    InMemoryRecorder,
    RawClient,
    RecordingStream,
    RunningGateway,
    UpstreamServer,
    gateway,
    guard,
    rpc,
)
from tests.gateway.session_harness import SessionHarness
from tests.gateway.test_hostile_messages import HONEST
from tests.gateway.test_http_remotes import as_events, as_json, world
from tests.servers import talking
from tests.support.waiting import poll

MANY = 20_000
SHOWN = {"serverInfo": talking.INFO, "capabilities": {"tools": {"listChanged": True}}}
LONG_SERVER = """
import json, sys
many, dies = int(sys.argv[1]), sys.argv[2] == "dies"
tools = [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(many)]
about = {"serverInfo": {"name": "talking", "version": "1"}, "capabilities": {"tools": {"listChanged": True}}}
for line in sys.stdin:
    message = json.loads(line)
    method, request_id = message["method"], message.get("id")
    if request_id is None:
        continue
    result = {"content": [{"type": "text", "text": "called"}]}
    if method == "initialize":
        result = {**about, "protocolVersion": message["params"]["protocolVersion"]}
    elif method == "tools/list":
        result = {"tools": tools}
    print(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}), flush=True)
    if method == "tools/list" and dies:
        break
"""


class WatchingGuard(Guard):
    """Judges until other clients made some progress, and records their progress."""

    def __init__(self, progress: list[Any], tools: int, others: int = 0) -> None:
        listing = {**SHOWN, "tools": [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(tools)]}
        seldom = parse_gateway_policy({"relist-seconds": 3600})  # it may take longer than the relist interval
        super().__init__(
            "long", FixedApprovals("long", surface_from_listing(listing)), seldom, SessionLimits(max_items=MANY)
        )
        self.progress = progress
        self._others = others
        self.judged: list[tuple[int, int]] = []
        """How many other requests were answered when judging began and when it ended."""
        self.on: list[str] = []
        """The thread of each judgement."""

    def check_list(
        self,
        kind: ItemKind,
        items: tuple[Item, ...],
        client: SessionClient,
        server: Mapping[str, Any] | None,
    ) -> tuple[Verdict, ...]:
        before = len(self.progress)
        verdicts = super().check_list(kind, items, client, server)
        if self._others:
            # How long it takes depends on the machine. If it blocks other clients, it waits in vain and fails.
            poll(lambda: len(self.progress) - before >= self._others)
        self.judged.append((before, len(self.progress)))
        self.on.append("judging" if threading.current_thread().name.startswith("pinwarden-check") else "loop")
        return verdicts


def _long(
    progress: list[Any], *, approved: int, listed: int, dies: bool = False, others: int = 0
) -> tuple[WatchingGuard, UpstreamServer]:
    judge = WatchingGuard(progress, approved, others)
    command = [sys.executable, "-c", LONG_SERVER, str(listed), "dies" if dies else ""]
    return judge, UpstreamServer(judge, command=command)


def _other(tmp_path: Path) -> UpstreamServer:
    shown = {**SHOWN, "capabilities": talking.CAPABILITIES, "tools": talking.TOOLS}
    command = [sys.executable, str(Path(talking.__file__)), str(tmp_path / "record")]
    return UpstreamServer(guard("other", surface_from_listing(shown)), command=command)


@contextmanager
def _calling(at: RunningGateway, progress: list[Any]) -> Iterator[None]:
    """Start a client that calls another server repeatedly, and wait until it has begun."""
    begun, end = threading.Event(), threading.Event()

    def run() -> None:
        with RawClient(at, "other") as client:
            while not end.is_set():
                request_id = len(progress)
                answer = client.request("tools/call", {"name": "echo", "arguments": {"n": request_id}}, request_id)
                progress.append(json.loads(answer["result"]["content"][0]["text"])["n"])
                begun.set()

    started = threading.Thread(target=run)
    started.start()
    try:
        assert begun.wait(60)
        yield
    finally:
        end.set()
        started.join(60)


def test_while_a_list_of_20_000_tools_is_judged_other_requests_are_answered(tmp_path: Path) -> None:
    """Attack: a server delays other clients with a list that takes long to judge."""
    progress: list[Any] = []
    judge, behind = _long(progress, approved=MANY - 1, listed=MANY, others=10)
    with (
        gateway({"long": behind, "other": _other(tmp_path)}) as at,
        RawClient(at, "long") as client,
        _calling(at, progress),
    ):
        client.initialize()
        names = [tool["name"] for tool in client.session_request("tools/list")["result"]["tools"]]
    assert names == [f"t{n}" for n in range(MANY - 1)], "unapproved items are hidden"
    assert [after - before >= 10 for before, after in judge.judged] == [True]
    assert judge.on == ["judging"]
    assert progress == list(range(len(progress)))


@pytest.mark.parametrize(("tools", "where"), [(20, "loop"), (100, "judging")])
def test_a_short_list_is_judged_on_the_event_loop_and_a_long_one_on_the_executor(tools: int, where: str) -> None:
    judge, behind = _long([], approved=tools, listed=tools)
    with gateway({"long": behind}) as at, RawClient(at, "long") as client:
        client.initialize()
        assert "result" in client.session_request("tools/call", {"name": "t7"}, 1)
        assert judge.on == [where], "a new list"
        judge.set_policy(parse_gateway_policy({"relist-seconds": 29}))
        assert "result" in client.session_request("tools/call", {"name": "t7"}, 2)
        assert judge.on == [where, where], "a cached list under another policy"


def test_a_long_list_reaches_the_client_even_if_the_server_ends_while_it_is_judged() -> None:
    judge, behind = _long([], approved=2000, listed=2000, dies=True)
    with gateway({"long": behind}) as at, RawClient(at, "long") as client:
        client.initialize()
        assert len(client.session_request("tools/list")["result"]["tools"]) == 2000
        assert client.session_request("tools/list", None, 2)["error"]["code"] in (-32000, -32600)
    assert judge.on == ["judging"]


def test_messages_queued_behind_a_long_one_keep_their_order() -> None:
    stream = RecordingStream()

    async def work() -> None:
        harness = SessionHarness(HONEST)
        harness.open()
        limits = HttpLimits()
        with ThreadPoolExecutor(1) as threads:
            conversation = Conversation(
                harness.session,
                LoopRecorder(InMemoryRecorder()),
                limits,
                lambda: 0.0,
                lambda _: None,
                FairExecutor(pool=threads),
            )
            conversation.listen(stream)
            for number in range(9):
                size = limits.max_bytes_at_once if number % 3 == 0 else 1
                params = {"n": number, "data": "x" * size}
                conversation.on_server_message(json.dumps(rpc("notifications/message", params, None)).encode())
            assert stream.messages == [], "all messages wait for the first one"
            async with asyncio.timeout(60):
                while len(stream.messages) < 9:
                    await asyncio.sleep(0.001)

    asyncio.run(work())
    assert [message["params"]["n"] for message in stream.messages] == list(range(9))


def test_attack_a_server_that_overfills_its_queue_while_its_list_is_judged_is_stopped() -> None:
    closed: list[str] = []

    async def work() -> None:
        harness = SessionHarness(HONEST)
        harness.open()
        limits = HttpLimits(max_unsent_bytes=200_000)
        with ThreadPoolExecutor(1) as threads:
            conversation = Conversation(
                harness.session,
                LoopRecorder(InMemoryRecorder()),
                limits,
                lambda: 0.0,
                closed.append,
                FairExecutor(pool=threads),
            )
            note = json.dumps(rpc("notifications/message", {"data": "x" * 70_000}, None)).encode()
            for _ in range(5):
                conversation.on_server_message(note)
            assert conversation.closed

    asyncio.run(work())
    assert closed == ["the server sends messages faster than the gateway can check them"]


@pytest.mark.parametrize("wrap", [as_json, as_events])
def test_a_long_message_instead_of_the_response_fails_the_request(
    wrap: Callable[[bytes], list[bytes]],
) -> None:
    long = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"' + b"x" * 100_000 + b'"}}'

    def instead(body: bytes) -> list[bytes]:
        return wrap(long if b'"big":' in body else body)

    with (
        world(instead) as there,
        gateway({"odd": UpstreamServer(guard("odd"), url=there.url)}) as running,
        RawClient(running, "odd") as raw,
    ):
        for request_id in (1, 2, 3):
            error = raw.request("tools/call", {"name": "odd", "arguments": {}}, request_id)["error"]
            assert (error["code"], error["message"]) == (-32000, "the response was empty")


def test_attack_parsing_a_long_message_of_one_client_does_not_block_other_clients() -> None:
    """Attack: consecutive bodies that take a second to parse."""
    command = [sys.executable, str(Path(talking.__file__)), os.devnull]
    read = threading.Event()
    with (
        gateway({"talking": UpstreamServer(guard("talking"), command=command)}) as at,
        RawClient(at, "talking") as large,
        RawClient(at, "talking", OTHER_TOKEN) as small,
        ThreadPoolExecutor(1) as waiting,
    ):
        at.call_on_loop(lambda: at.manager.executor.submit("tester", lambda: read.wait(60)))
        response = waiting.submit(large.request, "tools/call", {"name": "x", "arguments": {"long": "x" * 100_000}})
        for request_id in range(3):
            assert small.request("ping", None, request_id)["id"] == request_id
        assert not response.done()
        read.set()
        assert response.result(60)["id"] == 1
        large.initialize()
        assert large.session_request("ping", {"_meta": {"long": "x" * 100_000}}, 7)["id"] == 7
        status, _, body = large.send(b'{"a":' + b"[" * 100_000)
        assert (status, json.loads(body)["error"]["code"]) == (400, -32700)
        status, _, body = large.send(b"[" + b"1," * 100_000 + b"1]")
        assert (status, json.loads(body)["error"]["code"]) == (400, -32600)
