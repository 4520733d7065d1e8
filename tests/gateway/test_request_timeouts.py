"""A call that the server does not answer in time gets an error and is cancelled, on stdio and over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pinwarden.gateway.session.deferred import RequestTimeouts
from pinwarden.gateway.session.messages import OpenRequest
from tests.cli.run import pinwarden
from tests.gateway.http_gateway import RawClient
from tests.gateway.session_harness import SEARCH, SessionHarness
from tests.gateway.test_http_relaying import LIMITS, scene
from tests.servers import talking
from tests.support.waiting import poll

DEAF: dict[str, Any] = {"tools": [SEARCH], "deaf": ["tools/call"]}
ODD_IDS = ["x" * 1025, "x" * 2000, "9" * 5000, "", " ", "\x00", "a\nb", "\u00e9" * 600, "pinwarden/own/1", -1, 2**64]
NO_IDS: list[Any] = [1.5, True, None, [], {}, [1], 10**4000]


def late(seconds: float = 300.0) -> SessionHarness:
    harness = SessionHarness(DEAF, response_seconds=seconds)
    harness.open()
    assert harness.list_names() == ["search_notes"]
    return harness


def cancelled(harness: SessionHarness) -> list[Any]:
    return [
        message["params"]["requestId"]
        for message in harness.server.received
        if message["method"] == "notifications/cancelled"
    ]


def pass_time(harness: SessionHarness, seconds: int) -> None:
    for _ in range(seconds):
        harness.tick(1)


class OpenCalls(dict[Any, OpenRequest]):
    """Open requests. One that is looked at gets its result right after that, on the thread of the fast path."""

    def __init__(self, calls: dict[Any, OpenRequest]) -> None:
        super().__init__(calls)
        self.answered: list[Any] = []

    def get(self, request_id: Any, default: Any = None) -> Any:
        request = super().get(request_id, default)
        if super().pop(request_id, None) is not None:
            self.answered.append(request_id)
        return request


def test_a_call_that_gets_its_result_during_the_check_for_timeouts_is_not_opened_again() -> None:
    timeouts, calls = RequestTimeouts(300), OpenCalls({1: "search_notes", 2: "search_notes"})
    assert timeouts.find_overdue(calls, 0.0) == []
    del calls[2]
    assert timeouts.find_overdue(calls, 1.0) == []
    assert set(calls).isdisjoint((*calls.answered, 2))
    overdue = timeouts.find_overdue(calls, 301.0)
    assert [request.request_id for request in overdue] == [1]


def test_an_unanswered_stdio_call_times_out_with_an_error_and_is_cancelled_at_the_server() -> None:
    harness = late()
    assert harness.call_tool("search_notes") == {}
    request_id = harness._last
    pass_time(harness, 299)
    assert harness.response_to(request_id) == {}
    assert cancelled(harness) == []
    pass_time(harness, 3)
    error = harness.response_to(request_id)["error"]
    assert (error["code"], error["message"]) == (-32000, "pinwarden: the server did not respond within 300 seconds")
    assert cancelled(harness) == [request_id]
    facts = len(harness.events)
    harness.server_sends({"jsonrpc": "2.0", "id": request_id, "result": {"content": []}})
    assert "error" in harness.response_to(request_id), "a late response is not forwarded"
    assert len(harness.events) == facts


def test_progress_and_server_requests_restart_the_timeout_of_a_call() -> None:
    harness = late()
    assert harness.call_tool("search_notes") == {}
    request_id = harness._last
    for _ in range(4):
        pass_time(harness, 200)
        harness.server_sends(
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}
        )
    harness.server_sends({"jsonrpc": "2.0", "id": "ask", "method": "ping"})
    pass_time(harness, 250)
    assert harness.response_to(request_id) == {}
    pass_time(harness, 310)
    assert harness.response_to(request_id) == {}, "the client has not answered yet"
    harness.client_sends({"jsonrpc": "2.0", "id": "ask", "result": {}})
    pass_time(harness, 302)
    assert "error" in harness.response_to(request_id)


def test_consecutive_calls_with_the_same_id_do_not_time_out_as_one_long_call() -> None:
    harness = SessionHarness({"tools": [SEARCH]}, response_seconds=3.0)
    harness.open()
    harness.list_names()
    for _ in range(10):
        frame = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"search_notes","arguments":{}}}'
        step = harness.session.on_client_message(frame, harness.now)
        harness.tick(1)
        harness.deliver(step)
    assert [message["id"] for message in harness.client_messages() if "error" in message] == []


def test_a_response_before_the_timeout_is_forwarded_unchanged() -> None:
    harness = late()
    assert harness.call_tool("search_notes") == {}
    pass_time(harness, 10)
    answer = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"found"}]}}' % harness._last
    harness.server_sends(answer)
    assert harness.to_client[-1] == answer
    pass_time(harness, 600)
    assert cancelled(harness) == []


def test_run_answers_a_timed_out_call_with_an_error_and_forwards_the_next_call(tmp_path: Path) -> None:
    record = tmp_path / "record"
    server = [sys.executable, str(Path(talking.__file__)), str(record)]
    words = [sys.executable, "-m", "pinwarden", "run", "--response-seconds", "1", "--name", "talking", "--", *server]
    environment = {**os.environ, "PINWARDEN_STATE": str(tmp_path / "state")}
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(request_id: int, method: str, params: dict[str, Any]) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        assert "result" in ask(1, "initialize", hello)
        process.stdin.write('{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        assert "result" in ask(2, "tools/list", {})
        assert "did not respond within 1 seconds" in ask(3, "tools/call", {"name": "hang"})["error"]["message"]
        assert "result" in ask(4, "tools/call", {"name": "echo"})
        process.stdin.close()
        assert process.wait(60) == 0
    got = [json.loads(line[2:]) for line in record.read_bytes().splitlines() if line[:1] == b"<"]
    assert [entry["params"]["requestId"] for entry in got if entry["method"] == "notifications/cancelled"] == [3]


@pytest.mark.parametrize("era", ["newest", "handshake"])
@pytest.mark.parametrize("server", ["talking", ""])
def test_an_unanswered_http_call_times_out_with_an_error_and_is_cancelled_at_the_server(
    server: str, era: str, tmp_path: Path
) -> None:
    with (
        scene(tmp_path) as running,
        RawClient(running.gateway, server) as raw,
        RawClient(running.gateway, server) as other,
    ):
        if era == "handshake":
            raw.initialize()
            other.session = raw.session
        ask, ask_other = (
            (raw.session_request, other.session_request) if era == "handshake" else (raw.request, other.request)
        )
        prefix = "" if server else "talking__"
        assert "result" in ask("tools/list")
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(ask, "tools/call", {"name": f"{prefix}hang", "arguments": {}}, 7)
            poll(lambda: any(b'"hang"' in line for line in running.lines(b"<")))
            # It answers something else meanwhile, so it does not count as hanging.
            assert "result" in ask_other("tools/call", {"name": f"{prefix}echo", "arguments": {}}, 8)
            running.gateway.advance_clock(LIMITS.response_seconds + 1)
            answer = waiting.result(60)
        assert (answer["id"], answer["error"]["code"]) == (7, -32000)
        assert "did not respond in time" in answer["error"]["message"]
        poll(lambda: any(b"notifications/cancelled" in line for line in running.lines(b"<")))
        assert "result" in ask_other("tools/call", {"name": f"{prefix}echo", "arguments": {}}, 9)


@pytest.mark.parametrize("era", ["newest", "handshake"])
def test_an_http_request_with_any_id_gets_a_response(era: str, tmp_path: Path) -> None:
    from tests.gateway.http_gateway import rpc, stateless_request

    with scene(tmp_path) as running:
        for server, name in (("talking", "echo"), ("", "talking__echo")):
            with RawClient(running.gateway, server) as raw:
                if era == "handshake":
                    raw.initialize()
                for request_id in (*ODD_IDS, *NO_IDS):
                    params = {"name": name, "arguments": {}}
                    headers: dict[str, str] = {}
                    message = rpc("tools/call", params, 1)
                    if era == "newest":
                        body, headers = stateless_request("tools/call", params, 1)
                        message = json.loads(body)
                    status, _, body = raw.send(json.dumps({**message, "id": request_id}).encode(), headers)
                    answer = json.loads(body)
                    assert status in (200, 400)
                    assert ("error" in answer) or (answer["id"] == request_id and request_id in ODD_IDS), request_id
                    if type(request_id) is str and len(request_id) > 1024:
                        assert (answer["id"], answer["error"]["code"]) == (request_id, -32600)


@pytest.mark.parametrize("command", ["run", "gateway"])
def test_an_invalid_response_timeout_is_rejected(command: str) -> None:
    done = pinwarden(command, "--response-seconds=-1")
    assert done.code == 2
    assert "is not a number of seconds from 0 to 86400" in done.err
