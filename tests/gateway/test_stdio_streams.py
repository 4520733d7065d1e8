"""A stdio gateway whose client or server stops reading, closes a stream or exits never blocks for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import pytest

from pinwarden.gateway.stdio import LineWriter
from tests.support.waiting import poll

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t"}}
LARGE = 8_000_000
# A single-threaded server. `late` writes only when its input is full, and reads again only when all output is read;
# `deaf` closes its input and stays until its output is closed; `leave`, `detach` and `last` exit and leave a child that
# keeps the output open, `last` after a response; `flood` sends endless requests that are refused, and does not read the
# responses.
SERVER = """
import array, fcntl, json, os, select, subprocess, sys, termios, time

def say(message):
    rest = memoryview(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")
    while rest:
        rest = rest[os.write(1, rest):]

def text(request_id, text):
    say({"id": request_id, "result": {"content": [{"type": "text", "text": text}]}})

def waiting():
    count = array.array("i", [0])
    fcntl.ioctl(0, termios.FIONREAD, count)
    return count[0]

NAMES = ("echo", "late", "deaf", "leave", "detach", "flood", "last")
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]

def call(request_id, name, line):
    if name == "echo":
        text(request_id, str(len(line)))
    elif name == "late":
        while waiting() < fcntl.fcntl(0, fcntl.F_GETPIPE_SZ) - 4096:
            time.sleep(0.01)
        say({"method": "notifications/tools/list_changed"})
        text(request_id, "x" * LARGE)
    elif name == "deaf":
        os.close(0)
        text(request_id, "deaf")
        gone = select.poll()
        gone.register(1, 0)
        gone.poll()
        os._exit(0)
    elif name in ("leave", "detach", "last"):
        subprocess.Popen(["sleep", "90"], start_new_session=name != "leave", stderr=subprocess.DEVNULL)
        if name == "last":
            say({"id": request_id, "error": {"code": 5, "message": "last words"}})
        os._exit(4)
    else:
        count = 0
        while True:
            count += 1
            say({"id": count, "method": "no/such/method"})

for line in iter(sys.stdin.buffer.readline, b""):
    message = json.loads(line)
    request_id, method = message.get("id"), message.get("method")
    if method == "initialize":
        about = {"serverInfo": {"name": "s", "version": "1"}, "capabilities": {"tools": {"listChanged": True}}}
        say({"id": request_id, "result": {"protocolVersion": "2025-11-25", **about}})
    elif method == "tools/list":
        say({"id": request_id, "result": {"tools": TOOLS}})
    elif method == "tools/call":
        call(request_id, message["params"]["name"], line)
""".replace("LARGE", str(LARGE))
# The same, with its tools on two pages, and so slow that a client disconnects before the second page.
PAGED = SERVER.replace(
    '{"tools": TOOLS}',
    '{"tools": TOOLS[1:]} if "cursor" in message.get("params", {}) else {"tools": TOOLS[:1], "nextCursor": "2"}',
).replace('method == "tools/list":', 'method == "tools/list" and not time.sleep(0.5):')
# A gateway with a small backlog limit.
NARROW = """
import sys
from pinwarden.core.record import replace
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.guard import DEFAULT_SESSION_LIMITS
from pinwarden.gateway.recorder import Recorder
from pinwarden.project.server_start import ServerCommand, start_server
from pinwarden.gateway.session.session import Session
from pinwarden.system.service_log import ServiceLog
from pinwarden.gateway.stdio import StdioRelay
from tests.gateway.session_harness import InMemoryApprovals

def say(text):
    print(text, file=sys.stderr, flush=True)

limits = replace(DEFAULT_SESSION_LIMITS, max_unwritten_bytes=100_000)
guard = Guard("narrow", InMemoryApprovals(None), DEFAULT_GATEWAY_POLICY, limits)
process = start_server(ServerCommand(words=tuple(sys.argv[1:]), environment={}))
log = ServiceLog(say, max_per_second=10**6)
sys.exit(StdioRelay(Session(guard, name="narrow"), Recorder(None, None, say), process, log).run())
"""
# A gateway that pauses between allowing a call and writing it.
SLOW = """
import sys
from time import sleep
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.recorder import Recorder
from pinwarden.project.server_start import ServerCommand, start_server
from pinwarden.gateway.session.session import Session
from pinwarden.system.service_log import ServiceLog
from pinwarden.gateway.stdio import StdioRelay
from tests.gateway.session_harness import InMemoryApprovals

def say(text):
    print(text, file=sys.stderr, flush=True)

class Slow(Session):
    def on_server_message(self, frame, now, message=None):
        step = super().on_server_message(frame, now, message)
        if any(b"tools/call" in frame for frame in step.to_server):
            say("released")
            sleep(1)
        return step

guard = Guard("slow", InMemoryApprovals(None), DEFAULT_GATEWAY_POLICY)
process = start_server(ServerCommand(words=tuple(sys.argv[1:]), environment={}))
log = ServiceLog(say, max_per_second=10**6)
sys.exit(StdioRelay(Slow(guard, name="slow"), Recorder(None, None, say), process, log).run())
"""
# A gateway whose recorder takes longer for a response than the gateway waits after its server exited.
BUSY = """
import sys
from time import sleep
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY
from pinwarden.gateway import stdio
from pinwarden.system.service_log import ServiceLog
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.recorder import Recorder
from pinwarden.project.server_start import ServerCommand, start_server
from pinwarden.gateway.session.session import Session
from tests.gateway.session_harness import InMemoryApprovals

def say(text):
    print(text, file=sys.stderr, flush=True)

class Busy(Session):
    def on_server_message(self, frame, now, message=None):
        step = super().on_server_message(frame, now, message)
        sleep(4 if b"last words" in frame else 0)
        return step

stdio._FINAL_OUTPUT_SECONDS = 0.1
guard = Guard("busy", InMemoryApprovals(None), DEFAULT_GATEWAY_POLICY)
process = start_server(ServerCommand(words=tuple(sys.argv[1:]), environment={}))
log = ServiceLog(say, max_per_second=10**6)
sys.exit(stdio.StdioRelay(Busy(guard, name="busy"), Recorder(None, None, say), process, log).run())
"""


class Client:
    """Writes from a separate thread, so that it can always read."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self.stdin, self._out, self._said = process, process.stdin, process.stdout, said
        self.last = 0

    @property
    def said(self) -> str:
        return self._said.read_text()

    def request(self, method: str, params: Any = None, *, end: bytes = b"\n") -> int:
        self.last += 1
        message = {"jsonrpc": "2.0", "id": self.last, "method": method, "params": params or {}}
        self.write(json.dumps(message, separators=(",", ":")).encode() + end)
        return self.last

    def call(self, name: str, size: int = 0, *, end: bytes = b"\n") -> int:
        return self.request("tools/call", {"name": name, "arguments": {"a": "y" * size}}, end=end)

    def write(self, data: bytes) -> None:
        Thread(target=self._write, args=(data,), daemon=True).start() if len(data) > 4096 else self._write(data)

    def _write(self, data: bytes) -> None:
        self.stdin.write(data)
        self.stdin.flush()

    def answer(self, request_id: int) -> Any:
        while line := self._out.readline():
            message = json.loads(line)
            if message.get("id") == request_id and "method" not in message:
                return message
        raise AssertionError("the gateway ended")

    def rest(self) -> bytes:
        return self._out.read()

    def ask(self, name: str) -> Any:
        return self.answer(self.call(name))


@contextmanager
def running(folder: Path, *before: str, greet: bool = True, server: str = SERVER) -> Iterator[Client]:
    said = folder / "stderr"
    with said.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, *(before or ("-m", "pinwarden", "run", "--")), sys.executable, "-c", server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=None if before else folder,
            env={**os.environ, "PINWARDEN_STATE": str(folder / "state")},
        )
    client = Client(process, said)
    try:
        client.answer(client.request("initialize", HELLO))
        if greet:
            client.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
            assert "result" in client.ask("echo")
        yield client
    finally:
        process.kill()
        process.wait(60)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()


def test_a_server_that_writes_before_it_reads_a_large_call_causes_no_deadlock(tmp_path: Path) -> None:
    """The server sends list-changed while its input is full, and the gateway wants to request the list."""
    with running(tmp_path) as client:
        late = client.call("late")
        large = client.call("echo", LARGE)
        assert len(client.answer(late)["result"]["content"][0]["text"]) == LARGE
        assert int(client.answer(large)["result"]["content"][0]["text"]) > LARGE
        assert "result" in client.ask("echo")


def test_queueing_a_line_does_not_wait_for_a_blocked_write() -> None:
    reads, writes = os.pipe()
    writer = LineWriter(writes, 1000, lambda: None)
    with writer.lock:  # as during a blocked write
        writer.write_later((b"one", b"two"))
        writer.close_later()
    with os.fdopen(reads, "rb") as stream:
        assert stream.read() == b"one\ntwo\n"


def test_the_backlog_of_a_side_that_does_not_read_is_limited_and_queued_lines_are_written() -> None:
    reads, writes = os.pipe()
    full: list[str] = []
    writer = LineWriter(writes, 1000, lambda: full.append("full"))
    with writer.lock:
        writer.write_later((b"x" * 700,))
        assert full == []
        writer.write_later((b"y" * 700,))
        assert full == ["full"]
        writer.close_later()
    with os.fdopen(reads, "rb") as stream:
        assert stream.read() == b"x" * 700 + b"\n"


def test_lines_that_cannot_be_written_are_returned() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    back: list[bytes] = []
    third = Event()

    def on_not_delivered(frames: Any) -> None:
        back.extend(frames)
        if b"three" in frames:
            third.set()

    writer = LineWriter(writes, 1000, lambda: None, on_not_delivered)
    writer.write((b"one",))
    writer.write((b"two",))
    writer.write_later((b"three",))
    assert third.wait(60)
    assert back == [b"one", b"two", b"three"]
    os.close(writes)


def test_attack_a_server_that_floods_requests_and_reads_nothing_is_stopped_and_its_call_answered(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "-c", NARROW) as client:
        assert client.ask("flood")["error"]["code"] == -32000
        assert client.process.wait(60) != 0
        assert "the gateway stopped the server: the server does not read its input" in client.said


def test_a_call_released_just_as_the_client_disconnects_is_answered(tmp_path: Path) -> None:
    with running(tmp_path, "-c", SLOW, greet=False) as client:
        call = client.call("echo")  # the list is unknown, so the call is deferred
        poll(lambda: "released" in client.said)
        client.stdin.close()
        assert "result" in client.answer(call)
        assert client.process.wait(60) == 0


def test_a_list_page_is_answered_although_the_client_disconnected_before_the_other_pages(tmp_path: Path) -> None:
    with running(tmp_path, greet=False, server=PAGED) as client:
        listed = client.request("tools/list")
        client.stdin.close()
        assert [tool["name"] for tool in client.answer(listed)["result"]["tools"]] == ["echo"]
        assert client.process.wait(60) == 0


@pytest.mark.parametrize("short", [False, True], ids=["long way", "short way"])
def test_a_call_that_the_server_no_longer_reads_gets_an_error(tmp_path: Path, *, short: bool) -> None:
    with running(tmp_path) as client:
        end = monotonic() + (0.7 if short else 0)  # by then it is certainly open
        while monotonic() < end:
            client.ask("echo")
        assert client.ask("deaf")["result"]["content"][0]["text"] == "deaf"
        for _ in range(3):
            error = client.ask("echo")["error"]
            assert (error["code"], error["message"]) == (-32000, "pinwarden: the server accepts no more messages")
        assert client.answer(client.request("ping"))["error"]["code"] == -32000
        assert client.process.poll() is None
        poll(lambda: "the server closed its input" in client.said)  # reported by a separate thread
        assert client.said.count("the server closed its input") == 1


@pytest.mark.parametrize("how", ["leave", "detach"])
def test_a_call_is_answered_when_its_server_ended_although_a_child_keeps_its_output_open(
    tmp_path: Path, how: str
) -> None:
    with running(tmp_path) as client:
        error = client.ask(how)["error"]
        assert (error["code"], error["message"]) == (
            -32000,
            "pinwarden: the server closed the connection before it sent a response",
        )
        assert client.process.wait(60) == 4


def test_a_response_still_being_judged_when_its_server_ends_is_not_lost(tmp_path: Path) -> None:
    with running(tmp_path, "-c", BUSY) as client:
        assert client.ask("last")["error"]["message"] == "last words"
        assert client.process.wait(60) == 4


def test_the_last_line_of_a_client_needs_no_line_break(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        request_id = client.call("echo", end=b"")
        client.stdin.close()
        assert "result" in client.answer(request_id)
        assert client.process.wait(60) == 0


def test_a_truncated_message_at_the_end_of_input_is_not_forwarded(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.write(b'{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"echo"}')
        client.stdin.close()
        assert client.process.wait(60) == 0
        assert client.rest() == b""
        assert "blocked t" not in client.said
