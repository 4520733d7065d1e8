"""Messages that arrive over HTTP while an event is being written to disk are neither lost nor reordered."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event, get_ident
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pinwarden.gateway.http.backend import Backend
from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.merged import MergedConversation
from pinwarden.gateway.http.open_requests import ToolCall
from pinwarden.gateway.http.session_manager import SessionManager
from pinwarden.gateway.http.upstream_pool import UpstreamPool
from pinwarden.gateway.http.upstreams import Permissions, UpstreamFactory
from pinwarden.gateway.recorder import Recorder
from pinwarden.gateway.session.messages import parse_client_message
from pinwarden.gateway.session.output import SessionOutput
from pinwarden.project.project import Project
from pinwarden.system.target import HttpTarget
from tests.gateway.http_gateway import RawClient, UpstreamServer, gateway, guard, rpc
from tests.gateway.session_harness import DELETE, SEARCH
from tests.gateway.test_http_attacks import RecordingSink, ScriptedSession
from tests.servers import talking
from tests.support.waiting import poll

NEW = {**DELETE, "name": "new_note"}


class BlockingRecorderSession(ScriptedSession):
    """A session whose recorder blocks as long as the test wants."""

    def __init__(self) -> None:
        super().__init__(HttpLimits())
        self.ready = Event()
        records = self.kept.record_durably

        def durably(step: SessionOutput) -> None:
            assert self.ready.wait(60)
            records(step)

        self.kept.record_durably = durably  # type: ignore[method-assign]

    def ask(self, method: str, params: dict[str, Any], request_id: int) -> RecordingSink:
        waits = RecordingSink()
        self.conversation.request(
            parse_client_message(json.dumps(rpc(method, params, request_id)).encode(), self.conversation._json), waits
        )
        return waits

    def notify(self, method: str, params: dict[str, Any]) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        self.conversation.notify(parse_client_message(json.dumps(message).encode(), self.conversation._json))

    async def written(self) -> None:
        """Let the recorder continue, and deliver what waited for it."""
        self.ready.set()
        async with asyncio.timeout(60):
            while self.conversation._refusals:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "cancel",
    [
        lambda talk: talk.notify("notifications/cancelled", {"requestId": 1}),
        lambda talk: talk.conversation.cancel((int, 1)),
    ],
    ids=["cancelled", "hung up"],
)
def test_a_call_cancelled_while_it_is_recorded_is_not_forwarded(
    cancel: Callable[[BlockingRecorderSession], None],
) -> None:
    async def scene() -> tuple[BlockingRecorderSession, RecordingSink]:
        talk = BlockingRecorderSession()
        talk.open()
        waits = talk.ask("tools/call", {"name": "search_notes", "arguments": {}}, 1)
        talk.server_sends(id=talk.wire.sent[-1]["id"], result={"tools": [SEARCH, DELETE, NEW]})
        assert [message["method"] for message in talk.wire.sent] == ["tools/list"], (
            "the refusal of the new call is not on disk"
        )
        cancel(talk)
        await talk.written()
        return talk, waits

    talk, waits = asyncio.run(scene())
    assert "tools/call" not in [message["method"] for message in talk.wire.sent]
    assert waits.got in ([], [None])
    assert talk.conversation.session.is_idle
    assert talk.conversation.is_idle


def test_a_response_being_recorded_when_its_server_ends_is_not_lost() -> None:
    async def scene() -> RecordingSink:
        talk = BlockingRecorderSession()
        talk.open()
        waits = talk.ask("tools/list", {}, 1)
        talk.server_sends(id=1, result={"tools": [SEARCH, DELETE, NEW]})
        assert waits.got == []
        talk.conversation.on_server_lost("the server ended")
        await talk.written()
        assert talk.conversation.closed
        return waits

    (answer,) = asyncio.run(scene()).got
    assert [tool["name"] for tool in answer["result"]["tools"]] == ["search_notes", "delete_note"]


def test_connections_to_a_server_with_a_new_url_are_closed_on_their_event_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another thread reads the lock and must not touch the connections."""
    ended_on: list[int] = []
    monkeypatch.setattr(UpstreamPool, "close", lambda _: ended_on.append(get_ident()))

    async def scene() -> None:
        project = cast(Project, SimpleNamespace(variables={}, home=tmp_path))
        locked = UpstreamFactory(project, Permissions(), HttpLimits(), lambda _: Recorder(None, None, print), print)
        for port in (1, 2):
            moved = HttpTarget(url=f"http://127.0.0.1:{port}/mcp")
            await asyncio.get_running_loop().run_in_executor(None, locked._build_remote_opener, "notes", moved)
        assert ended_on == []
        locked.close_replaced_pools()
        locked.close_replaced_pools()

    asyncio.run(scene())
    assert ended_on == [get_ident()]


def test_a_slowly_starting_server_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the duplicate session and its process would stay until the gateway ends."""
    begun: list[str] = []
    now = 0.0

    class Slow(Backend):
        is_open = property(lambda backend: backend.slug == "quick")

        async def open(self, *_: Any, **__: Any) -> None:
            begun.append(self.slug)
            if self.slug == "slow":
                await asyncio.sleep(60)

    async def scene() -> None:
        nonlocal now
        limits = HttpLimits()
        upstreams = {name: SimpleNamespace(name=name, slug=name, failing=name == "slow") for name in ("slow", "quick")}
        manager = SimpleNamespace(limits=limits, clock=lambda: now, upstreams=upstreams)
        merged = MergedConversation(cast(SessionManager, manager), GatewayClient(name="tester"))
        for _ in range(3):
            for upstream in merged._find_visible_upstreams().values():
                merged._open_if_due(upstream)
            await merged._wait_for_first_attempts(*upstreams)
            await asyncio.sleep(0)
            now += limits.merged_retry_seconds
        merged.close("")

    monkeypatch.setattr("pinwarden.gateway.http.bridge.Backend", Slow)
    asyncio.run(scene())
    assert sorted(begun) == ["quick", "slow"]


def test_a_cancellation_does_not_overtake_its_long_call(tmp_path: Path) -> None:
    """The server answers when the call is cancelled, but only if it received the call before."""
    record, free = tmp_path / "record", Event()
    behind = UpstreamServer(guard("talking"), command=[sys.executable, str(Path(talking.__file__)), str(record)])
    cancelled = json.dumps(rpc("notifications/cancelled", {"requestId": 7}, None)).encode()
    with (
        gateway({"talking": behind}, limits=HttpLimits(max_bytes_at_once=1000)) as at,
        ThreadPoolExecutor(2) as threads,
        RawClient(at, "talking") as raw,
        RawClient(at, "talking") as other,
    ):
        raw.initialize()
        other.session = raw.session
        raw.session_request("tools/call", {"name": "echo", "arguments": {}})
        at.call_on_loop(lambda: at.manager.executor.submit("tester", lambda: free.wait(60)))
        slow = threads.submit(raw.session_request, "tools/call", {"name": "slow", "arguments": {"text": "x" * 2000}}, 7)
        poll(lambda: at.call_on_loop(lambda: at.manager.executor.count_queued("tester")) == 1)
        wait([threads.submit(other.send, cancelled)], 0.5)
        free.set()
        assert slow.result(20)["result"]["content"][0]["text"] == "cancelled"


@pytest.mark.parametrize("short", [False, True], ids=["long way", "short way"])
def test_attack_a_page_of_an_abandoned_list_does_not_answer_another_request_with_the_same_id(
    monkeypatch: pytest.MonkeyPatch, *, short: bool
) -> None:
    """Programs of one client share a session and can choose the same ids."""
    called = RecordingSink()
    monkeypatch.setattr(ToolCall, "respond", lambda _, frame, status: called.respond(frame, status))
    talk = BlockingRecorderSession()
    talk.open()
    talk.call(1)
    talk.server_sends(id=talk.wire.sent[-1]["id"], result={"tools": [SEARCH, DELETE]})
    talk.server_sends(id=1, result={"content": []})
    called.got.clear()
    talk.ask("prompts/list", {}, 7)
    talk.server_sends(id=7, result={"prompts": [], "nextCursor": "2"})
    rest = talk.wire.sent[-1]
    assert rest["method"] == "prompts/list"
    assert rest["id"] != 7, "the gateway requests the other pages itself, and the first page waits for them"
    talk.conversation.cancel((int, 7))
    if short:
        talk.call(7)
        assert talk.noted == [7]
    other = called if short else talk.ask("ping", {}, 7)
    talk.server_sends(id=rest["id"], result={"prompts": []})
    assert other.got == []


def test_attack_a_response_to_an_abandoned_call_does_not_answer_another_request_with_the_same_id() -> None:
    async def scene() -> tuple[RecordingSink, Any]:
        talk = BlockingRecorderSession()
        talk.open()
        talk.ask("tools/list", {}, 7)
        talk.server_sends(id=7, result={"tools": [SEARCH, DELETE, NEW]})
        talk.conversation.cancel((int, 7))
        other = talk.ask("ping", {}, 7)
        await talk.written()
        assert other.got == []
        talk.server_sends(id=talk.wire.sent[-1]["id"], result={})
        last = talk.ask("ping", {}, 7)
        assert talk.wire.sent[-1]["id"] == 7, "the id is free again"
        talk.server_sends(id=7, result={})
        return other, last

    assert [[message["id"] for message in waits.got] for waits in asyncio.run(scene())] == [[7], [7]]
