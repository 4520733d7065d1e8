"""An unchanged server is relayed byte for byte over HTTP: recordings of both ends are compared."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinwarden.core.record import replace
from pinwarden.gateway.http.conversation import Conversation
from pinwarden.gateway.http.http_limits import HttpLimits
from tests.gateway.http_gateway import (
    OTHER_TOKEN,
    TOKEN,
    InMemoryRecorder,
    RawClient,
    RunningGateway,
    UpstreamServer,
    gateway,
    guard,
    messages,
    rpc,
    stateless_request,
)
from tests.gateway.test_stdio_streams import SERVER
from tests.servers import talking
from tests.support.waiting import poll

LIMITS = HttpLimits(reload_seconds=0.05, first_backoff_seconds=0.05)


class Scene:
    """A gateway with one process that records every line."""

    def __init__(self, gateway: RunningGateway, behind: UpstreamServer, record: Path) -> None:
        self.gateway = gateway
        self.behind = behind
        self._record = record

    def lines(self, mark: bytes) -> list[bytes]:
        """Return the lines that the server received (``<``) or sent (``>``)."""
        return [line[2:] for line in self._record.read_bytes().splitlines() if line[:1] == mark]

    def client(self, token: str = "") -> RawClient:
        return RawClient(self.gateway, "talking", token) if token else RawClient(self.gateway, "talking")


@contextmanager
def scene(tmp_path: Path, limits: HttpLimits = LIMITS, recorder: InMemoryRecorder | None = None) -> Iterator[Scene]:
    record = tmp_path / "record"
    record.touch()
    behind = UpstreamServer(guard("talking"), command=[sys.executable, str(Path(talking.__file__)), str(record)])
    with gateway({"talking": behind}, recorder, limits) as running:
        yield Scene(running, behind, record)


def call(name: str, arguments: dict[str, Any] | None = None, request_id: Any = 1, **meta: Any) -> bytes:
    params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
    if meta:
        params["_meta"] = meta
    return json.dumps(rpc("tools/call", params, request_id)).encode()


def data_of(headers: dict[str, str], body: bytes) -> list[bytes]:
    """Return the messages of a response as bytes."""
    if not headers["content-type"].startswith("text/event-stream"):
        return [body]
    return [line[6:] for line in body.split(b"\r\n") if line.startswith(b"data: ")]


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("relaying")) as running:
        yield running


@pytest.fixture
def raw(at: Scene) -> Iterator[RawClient]:
    with at.client() as made:
        made.initialize(capabilities={"sampling": {}, "elicitation": {}, "roots": {}})
        yield made
        made.send(b"", method="DELETE")


@pytest.mark.parametrize("name", ["echo", "odd", "blob", "pid"])
def test_a_call_and_its_response_are_relayed_byte_for_byte(at: Scene, raw: RawClient, name: str) -> None:
    params = b'{"arguments":{"a":"\\u00e9", "n":1.50}, "name":"%s"}' % name.encode()
    sent = b'{"params": ' + params + b',\t"id":7,"jsonrpc":"2.0","method":"tools/call"}'
    status, headers, got = raw.send(sent)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert sent in at.lines(b"<")
    assert got in at.lines(b">")


def test_progress_precedes_the_response_on_the_same_stream(at: Scene, raw: RawClient) -> None:
    sent = call("steps", {"count": 3}, 9, progressToken="t")
    _, headers, body = raw.send(sent)
    got = data_of(headers, body)
    assert [json.loads(message).get("method", "answer") for message in got] == ["notifications/progress"] * 3 + [
        "answer"
    ]
    assert at.lines(b">")[-4:] == got
    assert sent in at.lines(b"<")


@pytest.mark.parametrize(
    ("method", "params", "answer"),
    [
        ("sampling/createMessage", {"messages": [], "maxTokens": 5}, {"role": "assistant", "model": "m"}),
        ("elicitation/create", {"message": "Your name?", "requestedSchema": {}}, {"action": "decline"}),
        ("roots/list", {}, {"roots": []}),
    ],
)
def test_a_server_request_reaches_the_client_and_its_response_the_server(
    at: Scene, raw: RawClient, method: str, params: dict[str, Any], answer: dict[str, Any]
) -> None:
    lines: list[bytes] = []
    request_id = len(method)
    mine = f"server-{request_id}"

    def answering() -> None:
        poll(lambda: any(mine.encode() in line for line in at.lines(b">")))
        lines.extend(line for line in at.lines(b">") if b'"method": "' + method.encode() in line)
        body = json.dumps({"jsonrpc": "2.0", "id": mine, "result": answer}).encode()
        with at.client() as second:
            second.session = raw.session
            assert second.send(body)[0] == 202
        lines.append(body)

    thread = threading.Thread(target=answering)
    thread.start()
    _, headers, body = raw.send(call("ask", {"method": method, "params": params}, request_id))
    thread.join()
    question, reply = data_of(headers, body)
    assert question in lines
    assert lines[-1] in at.lines(b"<")
    assert json.loads(json.loads(reply)["result"]["content"][0]["text"]) == answer


@contextmanager
def listening(at: Scene, session: str) -> Iterator[socket.socket]:
    """Open the stream of a session."""
    with socket.create_connection((at.gateway.host, at.gateway.port), timeout=60) as stream:
        head = f"GET /mcp/talking HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        stream.sendall(f"{head}Mcp-Session-Id: {session}\r\nAccept: text/event-stream\r\n\r\n".encode())
        assert stream.recv(17) == b"HTTP/1.1 200 OK\r\n"
        yield stream


def test_messages_without_a_request_use_the_sessions_stream(at: Scene, raw: RawClient) -> None:
    with listening(at, raw.session) as stream:
        answer = raw.session_request("tools/call", {"name": "note"}, 4)
        got = b""
        while b"notifications/message" not in got:
            got += (more := stream.recv(65536))
            assert more
    assert answer["result"]["content"][0]["text"] == "told"
    assert any(line in got for line in at.lines(b">") if b"notifications/message" in line)


def posting(at: Scene, session: str, body: bytes) -> socket.socket:
    """Post a message without waiting for the response."""
    client = socket.create_connection((at.gateway.host, at.gateway.port), timeout=60)
    lines = {"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}", "Mcp-Session-Id": session}
    lines |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    client.sendall(f"POST /mcp/talking HTTP/1.1\r\n{head}\r\n".encode() + body)
    return client


def hang_up(at: Scene, client: socket.socket) -> None:
    """Close a connection, and wait until the gateway notices."""
    connections = at.gateway.serving.connections
    before = len(connections.open)
    client.close()
    poll(lambda: len(connections.open) < before)


def send_unsolicited(at: Scene, session: str, frame: bytes) -> None:
    """Make the server of a session send an unsolicited message."""
    conversation = at.gateway.manager._sessions[session].conversation
    assert isinstance(conversation, Conversation)
    at.gateway.call_on_loop(lambda: conversation.on_server_message(frame))


@pytest.mark.parametrize("token", [False, True], ids=["a call", "with a token for progress"])
@pytest.mark.parametrize("how", ["broken", "cancelled"])
def test_server_requests_skip_the_streams_of_abandoned_requests(
    at: Scene, raw: RawClient, how: str, *, token: bool
) -> None:
    """No stream is open, and the client of the oldest request would never see the server request."""
    raw.session_request("tools/call", {"name": "echo", "arguments": {}}, 80)
    meta = {"progressToken": f"{how}-81"} if token else {}
    hanging = posting(at, raw.session, call("hang", {"how": how, "token": token}, 81, **meta))
    mark = json.dumps({"how": how, "token": token}).encode()
    poll(lambda: any(mark in line for line in at.lines(b"<")))
    if how == "broken":
        hang_up(at, hanging)
    else:
        assert raw.send(json.dumps(rpc("notifications/cancelled", {"requestId": 81}, None)).encode())[0] == 202
    question = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
    asking = posting(at, raw.session, call("ask", question, 82))
    got = b""
    while b'"server-82"' not in got:
        got += (more := asking.recv(65536))
        assert more
    hanging.close()
    asking.close()


def test_a_server_request_without_an_open_stream_is_queued_until_one_opens(at: Scene, raw: RawClient) -> None:
    asking = posting(at, raw.session, call("hang", {"alone": 1}, 83))
    poll(lambda: any(b'{"alone": 1}' in line for line in at.lines(b"<")))
    hang_up(at, asking)
    question = b'{"jsonrpc":"2.0","id":"server-83","method":"ping"}'
    send_unsolicited(at, raw.session, question)
    with listening(at, raw.session) as stream:
        got = b""
        while question not in got:
            got += (more := stream.recv(65536))
            assert more


def test_progress_of_a_request_with_a_broken_connection_uses_the_sessions_stream(at: Scene, raw: RawClient) -> None:
    with listening(at, raw.session) as stream:
        hanging = posting(at, raw.session, call("hang", {"far": 1}, 84, progressToken="far"))
        poll(lambda: any(b'{"far": 1}' in line for line in at.lines(b"<")))
        hang_up(at, hanging)
        about = {"name": "steps", "arguments": {"count": 1}, "_meta": {"progressToken": "near"}}
        assert raw.session_request("tools/call", about, 85)["result"]
        note = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"far","progress":3}}'
        send_unsolicited(at, raw.session, note)
        got = b""
        while note not in got:
            got += (more := stream.recv(65536))
            assert more
    assert b'"near"' not in got


def test_a_stream_needs_a_session(at: Scene) -> None:
    with at.client() as raw:
        assert raw.send(b"", method="GET")[0] == 405
        raw.session = "unknown"
        assert raw.send(b"", method="GET")[0] == 404
        assert raw.send(b"", {"Accept": "application/json"}, method="GET")[0] == 406


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", {"uri": "note://one"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "v"}}),
        ("logging/setLevel", {"level": "debug"}),
        ("ping", None),
    ],
)
def test_other_requests_are_relayed_unchanged(
    at: Scene, raw: RawClient, method: str, params: dict[str, Any] | None
) -> None:
    sent = json.dumps(rpc(method, params, 5)).encode()
    _, _, got = raw.send(sent)
    assert sent in at.lines(b"<")
    assert got in at.lines(b">")


def test_cancelling_a_call_reaches_the_server(at: Scene, raw: RawClient) -> None:
    note = json.dumps(rpc("notifications/cancelled", {"requestId": 6, "reason": "enough"}, None)).encode()

    def cancelling() -> None:
        poll(lambda: any(b'"slow"' in line and b'"id": 6' in line for line in at.lines(b"<")))
        with at.client() as second:
            second.session = raw.session
            second.send(note)

    thread = threading.Thread(target=cancelling)
    thread.start()
    _, headers, body = raw.send(call("slow", request_id=6))
    thread.join()
    assert note in at.lines(b"<")
    assert messages(headers, body)[-1]["result"]["content"][0]["text"] == "cancelled"


def test_disconnecting_cancels_the_call_in_the_newest_revision(at: Scene) -> None:
    body, headers = stateless_request("tools/call", {"name": "slow", "arguments": {}}, 77)
    with at.client() as raw:
        raw.request("tools/list")
        connection = socket.create_connection((at.gateway.host, at.gateway.port), timeout=60)
        lines = {"Host": "127.0.0.1", "Authorization": "Bearer pwt_a-token-for-tests", **headers}
        lines |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        connection.sendall(f"POST /mcp/talking HTTP/1.1\r\n{head}\r\n".encode() + body)
        poll(lambda: body in at.lines(b"<"))
        connection.close()
        poll(lambda: any(b"notifications/cancelled" in line and b"77" in line for line in at.lines(b"<")))
        answer = raw.request("tools/call", {"name": "echo", "arguments": {"again": True}}, 77)
    assert json.loads(answer["result"]["content"][0]["text"]) == {"again": True}


def test_two_programs_of_one_client_can_use_the_same_id_and_token_at_once(at: Scene) -> None:
    """In the newest revision requests are independent, and one process serves them all."""
    got: dict[int, list[Any]] = {}

    def one(number: int) -> None:
        params = {"name": "steps", "arguments": {"count": 2}, "_meta": {"progressToken": "same"}}
        with at.client() as raw:
            for _ in range(10):
                _, headers, body = raw.send(*stateless_request("tools/call", params, 1))
                got.setdefault(number, []).append(messages(headers, body))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rounds in got.values():
        assert len(rounds) == 10
        for entry in rounds:
            assert [message.get("params", {}).get("progressToken") for message in entry] == ["same", "same", None]
            assert (entry[-1]["id"], entry[-1]["result"]["content"][0]["text"]) == (1, "done")


def test_a_result_of_fifty_megabytes_is_relayed_whole(at: Scene, raw: RawClient) -> None:
    size = 50_000_000
    _, _, got = raw.send(call("large", {"bytes": size}, 8))
    assert len(got) > size
    (line,) = [line for line in at.lines(b">") if len(line) > size]
    assert got[:60] + got[-60:] == line[:60] + line[-60:]
    assert got == line


def test_two_clients_never_share_a_process(at: Scene) -> None:
    with at.client() as one, at.client(OTHER_TOKEN) as other:
        answers = [client.request("tools/call", {"name": "pid", "arguments": {}}) for client in (one, other, one)]
    pids = [answer["result"]["content"][0]["text"] for answer in answers]
    assert pids[0] == pids[2] != pids[1]


# Servers that fail


def test_the_process_limit_is_enforced_and_freed_slots_are_reused(tmp_path: Path) -> None:
    with (
        scene(tmp_path, replace(LIMITS, max_processes=2, grace_seconds=0.2)) as running,
        running.client() as one,
        running.client() as two,
        running.client() as three,
    ):
        one.initialize()
        two.initialize()
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        error = three.session_request("initialize", hello)["error"]
        assert (error["code"], "server processes already, which is its limit" in error["message"]) == (-32000, True)
        assert running.behind.supervisor is not None
        assert (running.behind.supervisor.starts, running.behind.supervisor.early_exits) == (2, 0)
        assert one.session_request("tools/call", {"name": "echo", "arguments": {}}, 3)["result"]
        two.send(b"", method="DELETE")
        poll(lambda: running.behind.supervisor is not None and running.behind.supervisor.slots.occupied == 1)
        three.session = ""
        assert "result" in three.initialize()


def test_a_server_that_dies_is_reported_and_restarted(tmp_path: Path) -> None:
    with scene(tmp_path) as at, at.client() as raw:
        first = raw.request("tools/call", {"name": "pid", "arguments": {}})
        died = raw.request("tools/call", {"name": "die", "arguments": {}}, 2)
        again = raw.request("tools/call", {"name": "pid", "arguments": {}}, 3)
    assert died["error"]["code"] == -32000
    assert first["result"]["content"] != again["result"]["content"]


def test_a_conversation_is_a_loss_only_if_its_server_ended_it(tmp_path: Path) -> None:
    with scene(tmp_path) as at:
        upstream = at.gateway.manager.upstreams["talking"]
        with at.client() as raw:
            raw.initialize()
            assert raw.send(b"", method="DELETE")[0] == 200
            raw.session = ""
            raw.initialize()
            at.gateway.advance_clock(LIMITS.idle_seconds + 1)
            assert at.gateway.manager.open_counts == (0, 0), "the session was idle for too long"
            assert upstream.losses == 0
            raw.session = ""
            raw.initialize()
            assert raw.session_request("tools/call", {"name": "die"}, 2)["error"]["code"] == -32000
            poll(lambda: at.gateway.manager.open_counts[0] == 0)
            assert upstream.losses == 1


def test_a_server_that_closes_its_input_but_keeps_running_is_reported_and_replaced() -> None:
    behind = UpstreamServer(guard("s"), command=(sys.executable, "-c", SERVER))
    with gateway({"s": behind}) as scene, RawClient(scene, "s") as client:
        client.initialize()
        assert "result" in client.session_request("tools/call", {"name": "deaf", "arguments": {}}, 1)
        answer = client.session_request("tools/call", {"name": "echo", "arguments": {}}, 2)
        assert answer["error"]["message"] == "the server closed its input"
        client.session = ""
        client.initialize()
        assert "result" in client.session_request("tools/call", {"name": "echo", "arguments": {}}, 3)


def test_a_session_whose_server_died_ends_and_a_new_one_can_start(tmp_path: Path) -> None:
    with scene(tmp_path) as at, at.client() as raw:
        raw.initialize()
        assert raw.session_request("tools/call", {"name": "die"}, 2)["error"]["code"] == -32000
        raw.session_request("tools/list", None, 3)
        assert raw.status == 404
        raw.session = ""
        assert raw.initialize()["result"]["serverInfo"]["name"] == "talking"


def test_a_server_that_dies_at_start_is_restarted_with_increasing_delays(tmp_path: Path) -> None:
    limits = HttpLimits(reload_seconds=0.05, first_backoff_seconds=0.01, max_backoff_seconds=0.05)
    behind = UpstreamServer(guard("dead"), command=[sys.executable, "-c", "raise SystemExit(3)"])
    with gateway({"dead": behind}, limits=limits) as running, RawClient(running, "dead") as raw:
        for request_id in range(3):
            assert raw.request("tools/list", request_id=request_id)["error"]["code"] == -32000
        assert behind.supervisor is not None
        # The first start is tried with a handshake too: some servers exit if another request comes first.
        assert behind.supervisor.starts == behind.supervisor.early_exits == 4
    unknown = UpstreamServer(guard("none"), command=[str(tmp_path / "no-such-program")])
    with gateway({"none": unknown}, limits=limits) as running, RawClient(running, "none") as raw:
        assert "could not be started" in raw.request("tools/list")["error"]["message"]


def test_a_server_that_keeps_exiting_is_refused_at_once_with_the_pause_until_its_next_start() -> None:
    limits = HttpLimits(first_backoff_seconds=600, max_backoff_seconds=600)
    behind = UpstreamServer(guard("dead"), command=[sys.executable, "-c", "raise SystemExit(3)"])
    with gateway({"dead": behind}, limits=limits) as running, RawClient(running, "dead") as raw:
        messages = [raw.request("tools/list", request_id=request_id)["error"]["message"] for request_id in range(2)]
        assert behind.supervisor is not None
        assert behind.supervisor.starts == behind.supervisor.early_exits == 1
    assert "exited 1 time right after its start" in messages[1]
    assert "starts it again in 600 seconds" in messages[1]


def test_a_hanging_server_is_replaced(tmp_path: Path) -> None:
    with scene(tmp_path) as at, at.client() as raw:
        first = raw.request("tools/call", {"name": "pid", "arguments": {}})

        def waiting() -> None:
            poll(lambda: any(b'"hang"' in line and b"tools/call" in line for line in at.lines(b"<")))
            at.gateway.advance_clock(LIMITS.response_seconds)

        thread = threading.Thread(target=waiting)
        thread.start()
        hung = raw.request("tools/call", {"name": "hang", "arguments": {}}, 2)
        thread.join()
        again = raw.request("tools/call", {"name": "pid", "arguments": {}}, 3)
    assert "in time" in hung["error"]["message"]
    assert first["result"]["content"] != again["result"]["content"]


@pytest.mark.parametrize("token", [{}, {"progressToken": "t"}], ids=["plain", "with-progress"])
def test_a_cancelled_and_unanswered_call_does_not_end_the_session(tmp_path: Path, token: dict[str, Any]) -> None:
    """A server sends nothing more about a cancelled call until it gets another request."""
    with scene(tmp_path) as at, at.client() as raw:
        raw.initialize()
        pid = raw.session_request("tools/call", {"name": "pid", "arguments": {}}, 2)["result"]
        note = json.dumps(rpc("notifications/cancelled", {"requestId": 3}, None)).encode()

        def cancelling() -> None:
            poll(lambda: any(b'"hang"' in line for line in at.lines(b"<")))
            with at.client() as second:
                second.session = raw.session
                second.send(note)
            at.gateway.advance_clock(LIMITS.response_seconds)

        thread = threading.Thread(target=cancelling)
        thread.start()
        status, headers, body = raw.send(call("hang", request_id=3, **token))
        thread.join()
        assert (status, messages(headers, body)) == (200, [])
        poll(lambda: any(b"/ping" in line for line in at.lines(b">")))
        assert raw.session_request("tools/call", {"name": "pid", "arguments": {}}, 4)["result"] == pid
        assert note in at.lines(b"<")


def test_a_hanging_server_is_replaced_even_after_its_client_cancelled(tmp_path: Path) -> None:
    with scene(tmp_path) as at, at.client() as raw, at.client() as second:
        raw.initialize()
        second.session = raw.session
        raw.session_request("tools/call", {"name": "pid", "arguments": {}}, 2)

        def cancelling() -> None:
            poll(lambda: any(b'"stop"' in line for line in at.lines(b"<")))
            second.send(json.dumps(rpc("notifications/cancelled", {"requestId": 3}, None)).encode())
            at.gateway.advance_clock(LIMITS.response_seconds)

        thread = threading.Thread(target=cancelling)
        thread.start()
        _, headers, body = raw.send(call("stop", request_id=3))
        thread.join()
        assert messages(headers, body) == []
        assert at.behind.supervisor is not None
        assert at.behind.supervisor.running
        at.gateway.advance_clock(LIMITS.response_seconds)
        poll(lambda: at.behind.supervisor is not None and not at.behind.supervisor.running)


def test_a_message_above_the_size_limit_is_refused(tmp_path: Path) -> None:
    limits = HttpLimits(reload_seconds=0.05, max_server_message_bytes=1_000_000, first_backoff_seconds=0.01)
    with scene(tmp_path, limits) as at, at.client() as raw:
        raw.request("tools/list")
        answer = raw.request("tools/call", {"name": "large", "arguments": {"bytes": 2_000_000}}, 2)
        assert answer["error"]["code"] == -32000
        assert "result" in raw.request("tools/list", request_id=3)


def test_a_call_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    from pinwarden.core.errors import PinwardenError

    class Full(InMemoryRecorder):
        full = False

        def record(self, step: Any) -> None:
            if self.full:
                raise PinwardenError("AUDIT_UNAVAILABLE", "the disk is full")
            super().record(step)

    kept = Full()
    with scene(tmp_path, recorder=kept) as at, at.client() as raw:
        raw.request("tools/list")
        kept.full = True
        answer = raw.request("tools/call", {"name": "echo", "arguments": {"secret": 1}}, 2)
        assert answer["error"]["data"]["pinwarden"]["code"] == "AUDIT_UNAVAILABLE"
        assert not any(b'"echo"' in line and b"tools/call" in line for line in at.lines(b"<"))
        kept.full = False
        assert "result" in raw.request("tools/call", {"name": "echo", "arguments": {}}, 2)
