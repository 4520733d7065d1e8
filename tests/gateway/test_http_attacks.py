"""Attacks of a client on the HTTP gateway: request smuggling, caches, mixed-up responses, memory."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pinwarden.gateway.guard import SessionClient
from pinwarden.gateway.http.backend import Backend
from pinwarden.gateway.http.connection import ClientConnection
from pinwarden.gateway.http.conversation import Conversation
from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.gateway.http.http1 import Reply, RequestReader
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.http.merged import MergedConversation, assign_slugs
from pinwarden.gateway.http.process_transport import LineReader
from pinwarden.gateway.http.remote_transport import RemoteServer, RemoteTransport
from pinwarden.gateway.http.session_manager import SessionManager
from pinwarden.gateway.http.upstream_pool import UpstreamPool
from pinwarden.gateway.http.upstream_transport import PostedRequest, TransportOwner
from pinwarden.gateway.recorder import LoopRecorder
from pinwarden.gateway.session.messages import ParsedMessage, RequestId, parse_client_message
from pinwarden.gateway.session.session import Session
from pinwarden.surface.probe.event_stream import EventParser
from pinwarden.surface.surface import surface_from_listing
from pinwarden.system.fair_executor import FairExecutor
from pinwarden.system.net.connections import NetworkRules
from pinwarden.system.target import HttpAddress
from tests.gateway.http_gateway import (
    META,
    MODERN,
    InMemoryRecorder,
    RawClient,
    RecordingStream,
    RunningGateway,
    UpstreamServer,
    gateway,
    guard,
    rpc,
    stateless_request,
)
from tests.gateway.session_harness import DELETE, SEARCH, approved_surface, policy, refusal_code
from tests.servers import talking
from tests.servers.talking import CAPABILITIES, INFO, TOOLS
from tests.servers.turning_http import TurningWorld, turning_http
from tests.support.waiting import poll

EVIL = {**SEARCH, "name": "evil"}
STATE: dict[str, Any] = {"tools": [SEARCH, DELETE, EVIL]}
APPROVED = approved_surface({"tools": [SEARCH, DELETE]})


class Scene:
    """A gateway with a remote server that has one unapproved tool."""

    def __init__(self, world: TurningWorld, gateway: RunningGateway, recorder: InMemoryRecorder) -> None:
        self.world = world
        self.gateway = gateway
        self.kept = recorder

    def allow_undefined_methods(self) -> None:
        """Allows undefined methods too."""
        self.gateway.manager.upstreams["notes"].guard.set_policy(policy(unknown="allow_degraded"))


@pytest.fixture
def at() -> Iterator[Scene]:
    recorder = InMemoryRecorder()
    with (
        turning_http({"states": [STATE]}) as world,
        gateway({"notes": UpstreamServer(guard("notes", APPROVED), url=world.url)}, recorder) as running,
    ):
        yield Scene(world, running, recorder)


def test_attack_request_smuggling_through_line_breaks_in_a_method_is_refused(at: Scene) -> None:
    """Attack: in a session, a message claims the newest revision, so that its method becomes a header.

    After a line break in the method follow a content length and a second call, which would be neither judged nor
    recorded.
    """
    call = json.dumps(rpc("tools/call", {"name": "evil"}, 9), separators=(",", ":"))
    method = f"x\r\ncontent-length: {len(call)}\r\n\r\n{call}"
    assert len(method) <= 100  # a longer one is refused
    at.allow_undefined_methods()
    with RawClient(at.gateway, "notes") as raw:
        raw.initialize()
        raw.send(json.dumps(rpc(method, {"_meta": {f"{META}protocolVersion": MODERN}}, 4)).encode())
        assert raw.session_request("tools/call", {"name": "search_notes", "arguments": {}}, 5)["result"]
    assert at.world.calls("evil") == 0
    assert [json.loads(body)["method"] for body in at.world.bodies if b"notifications/" not in body] == [
        *("initialize", method, "tools/list", "tools/call"),
    ]


def test_attack_a_call_without_a_name_is_refused_and_not_cached_for_the_fast_path(at: Scene) -> None:
    """Attack: a head without a tool name gets cached, and is then used for calls of any tool."""
    body, headers = stateless_request("tools/call", {"arguments": {}})
    unnamed = json.dumps(rpc("tools/call", {"name": "search_notes", "arguments": {}}, 7)).encode().ljust(len(body))
    with RawClient(at.gateway, "notes") as raw:
        status, _, answer = raw.send(body, headers)
        assert (status, json.loads(answer)["error"]["code"]) == (400, -32600)
        before = at.world.calls("search_notes")
        status, _, answer = raw.send(unnamed[: len(body)], headers)
    assert (status, json.loads(answer)["error"]["code"]) == (400, -32020)
    assert at.world.calls("search_notes") == before


def test_attack_long_names_are_not_cached(at: Scene) -> None:
    """Attack: request heads are cached, and the name of a prompt can be as long as a body."""
    at.allow_undefined_methods()
    with RawClient(at.gateway, "notes") as raw:
        raw.initialize()
        for number in range(3):
            params = {"name": f"x{number}" + "y" * 20_000, "_meta": {f"{META}protocolVersion": MODERN}}
            raw.send(json.dumps(rpc("prompts/get", params, 4 + number)).encode())
    links = [
        conversation.transport
        for conversation in at.gateway.manager.list_conversations()
        if isinstance(conversation, Conversation)
    ]
    heads = [head for link in links if isinstance(link, RemoteTransport) for head in link._heads.values()]
    assert len([body for body in at.world.bodies if b"prompts/get" in body]) == 3
    assert all(len(head) < 4096 for head in heads)


class Wire:
    """An upstream transport that keeps what was sent."""

    evicted = False
    shared = False
    has_single_client = True

    def check_hang(self, since: float) -> bool:
        """Do nothing: no other session uses it."""
        del since
        return False

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.cancelled: list[RequestId] = []

    def send(self, frame: ParsedMessage, param_headers: bytes) -> None:
        del param_headers
        self.sent.append(frame.value)

    def send_call(self, call: Any, body: bytes, message: Any, name: str) -> None:
        del call, body, name
        self.sent.append(message)

    def cancel(self, request_id: RequestId) -> None:
        self.cancelled.append(request_id)

    def expire(self, before: float, keep: Any) -> None:
        """Do nothing: there is no buffer."""

    def close(self) -> None:
        """Do nothing: there is no stream."""


class RecordingSink:
    """A client that waits for a response."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.is_open = True

    def send_message(self, frame: ParsedMessage) -> None:
        self.got.append(frame.value)

    def respond(self, frame: ParsedMessage, status: int) -> None:
        del status
        self.got.append(json.loads(frame.data))

    def fail(self, code: int, why: str) -> None:
        self.got.append((code, why))

    def fail_not_executed(self, why: str) -> None:
        self.got.append(why)

    def drop(self) -> None:
        self.got.append(None)


class Answered:
    """The connection of a client that makes plain calls and ignores the responses."""

    owner = SimpleNamespace(draining=False)

    def begin_response(self, reply: Any) -> None:
        """It waits."""

    def send_result(self, body: bytes) -> None:
        """The response on the fast path."""

    def write(self, data: bytes) -> None:
        """The response on the general path."""

    def ping_later(self, reply: Any) -> None:
        """The response became an event stream."""

    def finish_response(self, *, keep: bool) -> None:
        """The response is complete."""


class ManualExecutor(Executor):
    """An executor that runs its work when the test says so."""

    def __init__(self) -> None:
        self.work: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Any, /, *args: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self.work.append((done, lambda: work(*args, **options)))
        return done

    def run(self) -> None:
        for done, work in self.work:
            done.set_result(work())
        self.work.clear()


class ScriptedSession:
    """A session in which the test plays client and server."""

    def __init__(self, limits: HttpLimits, threads: Executor | None = None) -> None:
        self.kept = InMemoryRecorder()
        self.wire = Wire()
        self.now = 0.0
        self.noted: list[int | str] = []
        session = Session(guard("notes", APPROVED), name="talk", client=SessionClient(name="tester", has_token=True))
        recording = LoopRecorder(self.kept, lambda _, request_id: self.noted.append(request_id))
        executor = FairExecutor(pool=threads)
        self.conversation = Conversation(session, recording, limits, lambda: self.now, lambda _: None, executor)
        self.conversation.transport = self.wire

    def ping(self, request_id: int) -> tuple[RecordingSink, RequestId | None]:
        waits = RecordingSink()
        frame = parse_client_message(json.dumps(rpc("ping", None, request_id)).encode(), self.conversation._json)
        return waits, self.conversation.request(frame, waits)

    def open(self) -> None:
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        frame = parse_client_message(json.dumps(rpc("initialize", about, 0)).encode(), self.conversation._json)
        self.conversation.request(frame, RecordingSink())
        self.server_sends(id=0, result={**(APPROVED.server or {}), "protocolVersion": "2025-11-25"})
        self.wire.sent.clear()

    def call(self, request_id: int) -> None:
        message = rpc("tools/call", {"name": "search_notes", "arguments": {}}, request_id)
        body, connection = json.dumps(message).encode(), cast(ClientConnection, Answered())
        assert self.conversation.send_call(body, message, "search_notes", connection, stateless=False)

    def server_sends(self, **members: Any) -> None:
        self.conversation.on_server_message(json.dumps({"jsonrpc": "2.0", **members}).encode())


def test_attack_a_late_response_does_not_answer_a_newer_request_with_the_same_id() -> None:
    """Independent of how many abandoned requests were never answered."""
    talk = ScriptedSession(HttpLimits(max_in_flight=5))
    for request_id in range(20):
        talk.conversation.cancel(talk.ping(request_id)[1])
    _, given_up = talk.ping(77)
    talk.conversation.cancel(given_up)
    waits, sent = talk.ping(77)
    talk.server_sends(id=77, result={"of": "the first"})
    assert waits.got == []
    assert sent is not None
    talk.server_sends(id=sent[1], result={"of": "the second"})
    assert [message["result"] for message in waits.got] == [{"of": "the second"}]
    assert len(talk.conversation._open_requests.abandoned) <= 5


def test_a_client_that_disconnects_does_not_count_as_a_server_failure() -> None:
    """An abandoned request is closed; the log gets no unmatched response, in whatever order messages arrive."""
    talk = ScriptedSession(HttpLimits())
    _, request_id = talk.ping(1)
    talk.conversation.cancel(request_id)
    talk.server_sends(id=1, result={})
    assert request_id is not None
    talk.conversation._cancel_upstream(request_id)  # as after the response was judged
    assert talk.kept.events == []
    assert talk.conversation._open_requests.abandoned == {}
    assert talk.wire.cancelled == [request_id]
    assert talk.conversation.session.is_idle


def test_attack_a_call_does_not_overtake_a_list_changed_notification() -> None:
    """Attack: the server sends a long message and then list-changed; a call arrives while the long one is parsed."""

    async def scene() -> ScriptedSession:
        threads = ManualExecutor()
        talk = ScriptedSession(HttpLimits(max_bytes_at_once=1000), threads)
        talk.open()
        talk.call(1)
        talk.server_sends(id=talk.wire.sent[-1]["id"], result={"tools": [SEARCH, DELETE]})
        talk.server_sends(id=1, result={"content": []})
        talk.call(2)
        assert talk.noted == [2]  # the fast path is open
        talk.server_sends(method="notifications/message", params={"level": "info", "data": "x" * 2000})
        talk.server_sends(method="notifications/tools/list_changed")
        talk.call(3)
        await asyncio.sleep(0)  # the long message is submitted
        threads.run()
        for _ in range(20):
            await asyncio.sleep(0)
        return talk

    talk = asyncio.run(scene())
    sent = [(message["method"], message["id"]) for message in talk.wire.sent]
    assert sent == [
        ("tools/list", "pinwarden/talk/1"),
        *[("tools/call", item) for item in (1, 2)],
        ("tools/list", "pinwarden/talk/2"),
    ]


MANY = 1 << 17


def weight_of(feed: Callable[[bytes], Any], part: bytes) -> int:
    """Return the memory used after receiving many small parts."""
    tracemalloc.start()
    try:
        for _ in range(MANY // len(part)):
            feed(part)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_attack_a_body_in_tiny_parts_uses_no_more_memory_than_its_size() -> None:
    """Attack: limits count bytes, but a part of two bytes would occupy fifty."""
    reader = RequestReader(HttpLimits())
    reader.feed(b"POST /mcp HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    assert weight_of(reader.feed, b"2\r\n{}\r\n" * 100) < 2 * MANY
    (request,) = reader.feed(b"1\r\n!\r\n0\r\n\r\n")
    assert request.body == b"{}" * (MANY // 700 * 100) + b"!"


def test_attack_a_line_or_event_in_tiny_parts_uses_no_more_memory_than_its_size() -> None:
    lines: list[bytes] = []
    child = LineReader(lines.append, lambda: None, None, 1 << 30, HttpLimits())
    assert weight_of(child.data_received, b"ab") < 2 * MANY
    child.data_received(b"c\nd")
    assert lines == [b"ab" * (MANY // 2) + b"c"]
    events = EventParser(1 << 30)
    assert weight_of(events.feed, b"data:ab\n") < 2 * MANY
    (event,) = events.feed(b"data: c\n\n")
    assert event.data == b"ab\n" * (MANY // 8) + b"c"


class Pipe:
    """The asyncio transport of a process's output."""

    def __init__(self) -> None:
        self.paused: list[bool] = []

    def pause_reading(self) -> None:
        self.paused.append(True)

    def resume_reading(self) -> None:
        self.paused.append(False)


@pytest.mark.parametrize("line", [b"[]", b"", b"noise", b'{"jsonrpc":"2.0","method":"notifications/message"}'])
def test_attack_a_flood_of_lines_is_processed_in_batches_while_reading_is_paused(line: bytes) -> None:
    """Attack: a process prints tens of thousands of lines at once, so that other clients wait until all are judged."""

    async def flood() -> None:
        taken: list[bytes] = []
        pipe = Pipe()
        lines = LineReader(taken.append, lambda: None, None, 1 << 20, HttpLimits(max_messages_at_once=4))
        lines.connection_made(cast(asyncio.BaseTransport, pipe))
        lines.data_received((line + b"\n") * 50 + b"[1")
        for turn in range(1, 13):
            assert (taken, pipe.paused) == ([line] * (4 * turn) if line else [], [True])
            await asyncio.sleep(0)
        assert (taken, pipe.paused) == ([line] * 50 if line else [], [True, False])
        lines.data_received(b"2]\n")
        assert taken[-1] == b"[12]"

    asyncio.run(flood())


def test_attack_long_lines_are_processed_in_batches() -> None:
    async def flood() -> None:
        taken: list[bytes] = []
        lines = LineReader(taken.append, lambda: None, None, 1 << 20, HttpLimits(max_bytes_at_once=1000))
        lines.connection_made(cast(asyncio.BaseTransport, Pipe()))
        lines.data_received((b"x" * 600 + b"\n") * 5)
        assert len(taken) == 2
        await asyncio.sleep(0)
        assert len(taken) == 4
        await asyncio.sleep(0)
        assert len(taken) == 5

    asyncio.run(flood())


def test_unprocessed_output_is_dropped_when_its_process_ends() -> None:
    async def flood() -> None:
        taken: list[bytes] = []
        ended: list[bool] = []
        lines = LineReader(taken.append, lambda: ended.append(True), None, 1 << 20, HttpLimits(max_messages_at_once=4))
        lines.connection_made(cast(asyncio.BaseTransport, Pipe()))
        lines.data_received(b"[]\n" * 50)
        lines.connection_lost(None)
        await asyncio.sleep(0)
        assert (len(taken), ended) == (4, [True])

    asyncio.run(flood())


def test_attack_a_server_cannot_take_another_servers_path_by_its_name() -> None:
    """Attack: a server's name equals the slug that another server's name is converted to."""
    shared = assign_slugs(["x.y", "x-y"])["x.y"]
    for planted in (shared, shared.upper()):
        slugs = assign_slugs(["x.y", "x-y", planted, "plain"])
        assert len({slug.lower() for slug in slugs.values()}) == 4
        assert slugs["plain"] == "plain"


def test_attack_many_slow_shutdowns_do_not_delay_the_recording_of_refusals() -> None:
    """Attack: a client ends many sessions at once whose servers shut down slowly."""
    end, limits = threading.Event(), HttpLimits(max_processes=40, reload_seconds=0.05)
    with (
        turning_http({"states": [STATE]}) as world,
        gateway({"notes": UpstreamServer(guard("notes", APPROVED), url=world.url)}, limits=limits) as running,
        RawClient(running, "notes") as raw,
    ):
        try:
            for _ in range(limits.max_processes):
                running.call_on_loop(lambda: running.loop.run_in_executor(None, end.wait, 60) and None)
            answer = raw.request("tools/call", {"name": "evil", "arguments": {}})
            assert not end.is_set()
        finally:
            end.set()
    assert refusal_code(answer) == "item_added"


def test_attack_requests_of_a_disconnected_client_count_toward_the_body_budget_until_they_end(tmp_path: Path) -> None:
    """Attack: disconnecting cancels nothing in a session, so abandoned requests pile up in memory."""
    limits = HttpLimits(max_all_body_bytes=300_000, reload_seconds=0.05)
    surface = surface_from_listing({"serverInfo": INFO, "capabilities": CAPABILITIES, "tools": TOOLS})
    command = [sys.executable, str(Path(talking.__file__)), str(tmp_path / "record")]
    call = rpc("tools/call", {"name": "hang", "arguments": {"text": "x" * 200_000}}, 5)
    with (
        gateway({"a": UpstreamServer(guard("a", surface), command=command)}, limits=limits) as running,
        RawClient(running, "a") as raw,
    ):
        raw.initialize()
        connections = running.serving.connections
        with RawClient(running, "a") as gone:
            gone.session = raw.session
            threading.Thread(target=_request_until_disconnected, args=(gone, json.dumps(call).encode())).start()
            poll(lambda: b'"hang"' in (tmp_path / "record").read_bytes())
            gone._connection.sock.shutdown(socket.SHUT_RDWR)
        poll(lambda: running.call_on_loop(lambda: len(connections.open)) == 1)
        assert running.call_on_loop(lambda: connections.large_body_bytes) > 200_000
        assert raw.send(json.dumps(call).encode())[0] == 503
        with RawClient(running, "a") as other:
            other.session = raw.session
            assert other.send(b"", method="DELETE")[0] == 200
        poll(lambda: running.call_on_loop(lambda: connections.large_body_bytes) == 0)


def _request_until_disconnected(raw: RawClient, body: bytes) -> None:
    with suppress(OSError, http.client.HTTPException):
        raw.send(body)


def test_attack_a_server_that_does_not_read_notifications_is_dropped_before_memory_fills() -> None:
    """Attack: a client sends endless notifications to a server that does not answer."""

    lost: list[str] = []

    class Owner:
        budget = MemoryBudget(1_000_000)
        client = "tester"

        def on_server_lost(self, why: str) -> None:
            lost.append(why)

    async def scene() -> tuple[Any, ...]:
        with socket.create_server(("127.0.0.1", 0)) as unresponsive:
            limits = HttpLimits(max_unsent_bytes=100_000)
            address = HttpAddress.parse(f"http://127.0.0.1:{unresponsive.getsockname()[1]}/mcp")
            pool = UpstreamPool(address, NetworkRules(allow_private=True), limits)
            link = RemoteTransport(RemoteServer.create(pool, address, {}), cast(TransportOwner, Owner()), limits)
            notification = rpc("notifications/x", {"text": "x" * 10_000}, None)
            sent = 0
            while not lost and sent < 50:
                link.send(ParsedMessage(json.dumps(notification).encode(), notification), b"")
                sent += 1
            waiting = link.pending_bytes
            link.expire(link._clock() + 1, ())
            pool.close()
            return sent, waiting, link.pending_bytes

    sent, waiting, afterwards = asyncio.run(scene())
    assert (sent, lost, afterwards) == (10, ["the server does not read its input"], 0)
    assert 0 < waiting <= 100_000


class Broken:
    """A session whose timer raises."""

    closed = False
    is_idle = False
    used = 0.0
    ticks = 0

    def tick(self) -> None:
        self.ticks += 1
        raise ValueError("an unexpected error")

    def close(self, why: str) -> None:
        del why
        self.closed = True

    def end_stream(self) -> None:
        """It has none."""


def test_attack_a_session_that_raises_does_not_stop_the_timers_of_other_sessions(at: Scene) -> None:
    """Attack: a revoked client stays connected because the timer that checks tokens stopped."""
    broken, errors = Broken(), []
    at.gateway.call_on_loop(
        lambda: at.gateway.loop.set_exception_handler(lambda _, about: errors.append(about["exception"]))
    )
    at.gateway.call_on_loop(lambda: at.gateway.manager._conversations.add(cast(Any, broken)))
    poll(lambda: broken.closed)
    assert (broken.ticks, [str(error) for error in errors]) == (1, ["an unexpected error"])
    looked = threading.Event()

    async def look() -> None:
        looked.set()

    at.gateway.serving.periodic.append(look)
    assert looked.wait(60)


class HandshakeServer:
    """A server of the handshake era behind the merged endpoint."""

    slug = "a"
    stateless = False

    def __init__(self) -> None:
        self.received: list[Any] = []

    def notify(self, frame: ParsedMessage) -> None:
        self.received.append(json.loads(frame.data))


def test_attack_undeliverable_and_unanswered_server_requests_do_not_accumulate() -> None:
    """Attack: on the merged endpoint a server sends endless requests, and each is remembered."""
    manager = SessionManager({}, HttpLimits(max_in_flight=5), lambda: 0.0)
    merged, server, stream = (
        MergedConversation(manager, GatewayClient(name="tester")),
        HandshakeServer(),
        RecordingStream(),
    )
    hear = partial(merged._on_server_message, cast(Backend, server))
    question = rpc("roots/list", None, "q")
    hear(ParsedMessage(json.dumps(question).encode(), question))
    assert [(message["id"], message["error"]["message"]) for message in server.received] == [
        ("q", "the client has no stream open")
    ]
    assert len(merged._server_requests) == 0
    merged.listen(cast(Reply, stream))
    for request_id in range(20):
        question = rpc("roots/list", None, request_id)
        hear(ParsedMessage(json.dumps(question).encode(), question))
    assert len(merged._server_requests) == 5
    for request in stream.messages[-2:]:
        answer = {"jsonrpc": "2.0", "id": request["id"], "result": {"roots": []}}
        merged.notify(ParsedMessage(json.dumps(answer).encode(), answer))
    assert [message["id"] for message in server.received[1:]] == [18, 19]


def test_a_response_stream_that_ends_late_does_not_fail_a_newer_request_with_the_same_id() -> None:
    talk = ScriptedSession(HttpLimits())
    first, _ = talk.ping(1)
    posted = PostedRequest((int, 1))
    talk.conversation.on_server_message(b'{"jsonrpc":"2.0","id":1,"result":{}}', posted)
    second, _ = talk.ping(1)
    talk.conversation.on_response_ended(posted, "the response was empty")
    assert [message.get("result") for message in first.got] == [{}]
    assert second.got == []


@pytest.mark.parametrize("params", [{}, {"_meta": {"progressToken": "pinwarden-talk-1"}}])
def test_attack_malformed_progress_does_not_complete_a_pending_request(params: dict[str, Any]) -> None:
    """Attack: a server sends progress without a token for a request whose id was rewritten."""
    talk = ScriptedSession(HttpLimits())
    talk.ping(1)
    waits, sent = talk.ping(1)
    assert sent == (str, "pinwarden-talk-1")
    progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
    talk.conversation.on_server_message(json.dumps(progress).encode(), PostedRequest(sent))
    talk.server_sends(id=sent[1], result={})
    assert [message.get("result") for message in waits.got] == [None, {}]
