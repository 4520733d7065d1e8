"""The bridge between stdio and a remote server: real SDK servers, and a server that does what a test asks for."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import pinwarden
from tests.servers.listening import listening
from tests.support.waiting import poll

SERVERS = Path(__file__).parent.parent / "servers"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class Bridge:
    """A running bridge process."""

    def __init__(self, url: str, *options: str, env: dict[str, str] | None = None) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with the bridge
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pinwarden.gateway.remote_bridge", url, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **(env or {})},
        )
        self.received: list[Any] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.received.append(json.loads(line))

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Close the input, and return the exit code and stderr."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait(60)
        self._reader.join(60)
        self.process.stdout.close()
        with self._stderr:
            self._stderr.seek(0)
            return code, self._stderr.read().decode()

    def response(self, request_id: int | str) -> Any:
        """Wait for the response to a request."""
        poll(lambda: any(_is_response(message, request_id) for message in tuple(self.received)))
        return next(message for message in self.received if _is_response(message, request_id))

    def request(self, request_id: int, method: str, params: dict[str, Any] | None = None) -> Any:
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}})
        return self.response(request_id)

    def handshake(self) -> Any:
        self.send(INITIALIZE)
        opened = self.response(1)
        self.send(INITIALIZED)
        return opened


def _is_response(message: Any, request_id: int | str) -> bool:
    return "method" not in message and message["id"] == request_id


@contextmanager
def bridge(url: str, *options: str, env: dict[str, str] | None = None) -> Iterator[Bridge]:
    running = Bridge(url, *options, env=env)
    try:
        yield running
    finally:
        running.end()


@contextmanager
def sdk_server(transport: str) -> Iterator[str]:
    command = [sys.executable, str(SERVERS / "sdk_server.py"), transport]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().split()[1]
        try:
            yield f"http://127.0.0.1:{port}/{'mcp' if transport == 'http' else 'sse'}"
        finally:
            process.terminate()


class RemoteServer:
    """A server with a session, whose responses a test controls."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.status = 0
        """If not 0, the status of every response."""
        self.push = threading.Event()
        self.closed: list[str] = []
        self.stop = threading.Event()

    def methods(self) -> list[str]:
        return [message.get("method", "response") if message else verb for verb, _, message in self.requests]


def _handler(server: RemoteServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            server.requests.append(("GET", _lower(self.headers), None))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            server.push.wait(60)
            self.wfile.write(b'data: {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}\n\n')
            self.wfile.flush()
            server.stop.wait(60)

        def do_DELETE(self) -> None:
            server.requests.append(("DELETE", _lower(self.headers), None))
            self._reply(200, b"")

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.requests.append(("POST", _lower(self.headers), message))
            method = message.get("method")
            if server.status:
                self._reply(server.status, b"no")
            elif method == "initialize":
                result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x"}}
                body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}, indent=2).encode()
                self._reply(200, body, {"mcp-session-id": "s-1"})
            elif method == "hang":
                self.connection.recv(1)  # until the bridge closes the connection
                server.closed.append("hang")
            elif method == "hang up":
                self.close_connection = True
                self.connection.close()
            elif "id" in message and method:
                self._reply(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}).encode())
            else:
                self._reply(202, b"")

        def _reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json" if body.startswith(b"{") else "text/plain")
            self.send_header("content-length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@contextmanager
def remote_server() -> Iterator[tuple[RemoteServer, str]]:
    server = RemoteServer()
    with listening(_handler(server)) as port:
        try:
            yield server, f"http://127.0.0.1:{port}/mcp"
        finally:
            server.push.set()
            server.stop.set()


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_a_client_lists_and_calls_tools_of_a_published_sdk_server(transport: str) -> None:
    with sdk_server(transport) as url, bridge(url) as running:
        assert running.handshake()["result"]["serverInfo"]["name"] == "sdk-sample"
        tools = running.request(2, "tools/list")["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["weather"]
        called = running.request(3, "tools/call", {"name": "weather", "arguments": {"city": "Oslo"}})
        assert called["result"]["content"][0]["text"] == "fine in Oslo, 20 C"


def test_a_stateless_client_is_served_without_a_session() -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    with sdk_server("http") as url, bridge(url) as running:
        tools = running.request(1, "tools/list", {"_meta": meta})["result"]["tools"]
        params = {"name": "weather", "arguments": {"city": "Oslo"}, "_meta": meta}
        called = running.request(2, "tools/call", params)
        assert [tool["name"] for tool in tools] == ["weather"]
        assert called["result"]["content"][0]["text"] == "fine in Oslo, 20 C"


def test_requests_of_a_session_carry_its_id_and_revision_and_its_end_is_sent() -> None:
    with remote_server() as (server, url):
        with bridge(url) as running:
            running.handshake()
            running.request(2, "tools/list")
        poll(lambda: "DELETE" in server.methods())
        later = [headers for verb, headers, message in server.requests if (message or {}).get("id") != 1]
        assert {headers.get("mcp-session-id") for headers in later} == {"s-1"}
        assert {headers.get("mcp-protocol-version") for headers in later} == {"2025-06-18"}


def test_a_response_with_line_breaks_is_written_as_one_line() -> None:
    with remote_server() as (_, url), bridge(url) as running:
        assert running.handshake()["result"]["serverInfo"] == {"name": "x"}  # indented by the server


def test_notifications_of_the_server_reach_the_client() -> None:
    with remote_server() as (server, url), bridge(url) as running:
        running.handshake()
        server.push.set()
        poll(lambda: any(message.get("method") for message in running.received))
        assert running.received[-1]["method"] == "notifications/tools/list_changed"


def test_placeholders_in_headers_are_filled_in_from_the_environment_only() -> None:
    with (
        remote_server() as (server, url),
        bridge(url, "--header", "Authorization: Bearer ${TOKEN}", env={"TOKEN": "t-1"}) as running,
    ):
        running.handshake()
        assert {headers.get("authorization") for _, headers, _ in server.requests} == {"Bearer t-1"}


def test_a_missing_variable_ends_the_bridge_before_anything_is_sent() -> None:
    with remote_server() as (server, url):
        running = Bridge(url, "--header", "Authorization: Bearer ${MISSING_TOKEN}")
        assert running.process.wait(60) == 1
        assert running.end() == (1, "error: the variable MISSING_TOKEN is not set\n")
        assert server.requests == []


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            401,
            "the server requires authentication (HTTP status 401); connect it with pinwarden remote connect, or add "
            "its header to the client's entry",
        ),
        (500, "the server responded with HTTP status 500"),
    ],
)
def test_a_refused_request_gets_an_error_that_names_the_status(status: int, message: str) -> None:
    with remote_server() as (server, url), bridge(url) as running:
        server.status = status
        running.send(INITIALIZE)
        assert running.response(1)["error"]["message"] == message


def test_a_cancelled_request_is_closed_and_gets_no_response() -> None:
    with remote_server() as (server, url), bridge(url) as running:
        running.handshake()
        running.send({"jsonrpc": "2.0", "id": "h", "method": "hang"})
        poll(lambda: "hang" in server.methods())
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "h"}}
        running.send(cancelled)
        poll(lambda: server.closed == ["hang"])
        running.request(3, "ping")
        assert "notifications/cancelled" in server.methods()
        assert not any(message.get("id") == "h" for message in running.received)


def test_a_request_that_a_server_drops_is_sent_once_and_gets_an_error() -> None:
    """A second attempt could execute a call twice."""
    with remote_server() as (server, url), bridge(url) as running:
        running.handshake()
        running.request(2, "ping")  # leaves an idle connection to reuse
        response = running.request(3, "hang up")
        assert response["error"]["message"] == "the server closed the connection before it responded"
        assert server.methods().count("hang up") == 1


def test_the_bridge_ends_when_the_server_forgets_the_session() -> None:
    """The client then starts it again, and the gateway checks the surface of the new session."""
    with remote_server() as (server, url):
        running = Bridge(url)
        running.handshake()
        server.status = 404
        running.send({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        assert running.process.wait(60) == 1
        assert running.end() == (1, "error: the server ended the session\n")


def test_a_name_that_resolves_to_a_private_address_is_refused() -> None:
    with remote_server() as (server, url), bridge(url.replace("127.0.0.1", socket.gethostname())) as running:
        running.send(INITIALIZE)
        assert "error" in running.response(1)
        assert server.requests == []


def test_a_locked_remote_server_runs_behind_the_stdio_gateway(tmp_path: Path) -> None:
    """The gateway lists only approved tools of the remote server, and calls reach it."""
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    with sdk_server("http") as url:
        (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"remote": {"type": "http", "url": url}}}))
        env = {"HOME": str(home), "PINWARDEN_STATE": str(home / "state"), "PINWARDEN_APPROVER": "me"}
        locked = pinwarden("init", "--allow-private", cwd=project, env=env)
        assert locked.code == 0, locked
        process = subprocess.Popen(
            [sys.executable, "-m", "pinwarden", "run", "remote", "--require-lock", "--project", "."],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=project,
            env={**os.environ, **env},
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            call = {"name": "weather", "arguments": {"city": "Oslo"}}
            received: dict[int, Any] = {}
            for message in (
                INITIALIZE,
                INITIALIZED,
                {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
            ):
                process.stdin.write(json.dumps(message).encode() + b"\n")
                process.stdin.flush()
                while "id" in message and message["id"] not in received:
                    response = json.loads(process.stdout.readline())
                    received[response.get("id", 0)] = response
            process.stdin.close()
            assert received[2]["result"]["content"][0]["text"] == "fine in Oslo, 20 C"
