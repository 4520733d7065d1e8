"""The gateway's own subscription with a real server of the newest revision, on stdio and over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest

from pinwarden.gateway.http.conversation import Conversation
from pinwarden.lock.gateway_policy import parse_gateway_policy
from tests.gateway.http_gateway import (
    META,
    MODERN,
    TOKEN,
    InMemoryRecorder,
    RawClient,
    UpstreamServer,
    guard,
    stateless_request,
)
from tests.gateway.http_gateway import gateway as http_gateway
from tests.gateway.session_harness import SEARCH, approved_surface
from tests.gateway.test_drift_sequences_stdio import gateway
from tests.servers.turning_http import turning_http

SERVER = [sys.executable, str(Path(__file__).parents[1] / "servers" / "sdk_turning.py")]
SECONDS = 60  # far less than the relist interval
SELDOM = 3600
ABOUT = {
    "_meta": {
        f"{META}protocolVersion": MODERN,
        f"{META}clientInfo": {"name": "t", "version": "1"},
        f"{META}clientCapabilities": {},
    }
}
Ask = Callable[[str, dict[str, Any]], dict[str, Any]]


@pytest.fixture
def remote() -> Iterator[str]:
    with subprocess.Popen([*SERVER, "http"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[1])
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


def refused_in_time(ask: Ask) -> str:
    """Change the server, wait until its tool is refused, and return the code."""
    call = {"name": "weather", "arguments": {"city": "Ulm"}}
    assert "fine in Ulm" in json.dumps(ask("tools/call", call))
    assert "turned" in json.dumps(ask("tools/call", {"name": "turn", "arguments": {}}))
    until = monotonic() + SECONDS
    while "error" not in (answer := ask("tools/call", call)):
        assert monotonic() < until
    code: str = answer["error"]["data"]["pinwarden"]["code"]
    return code


def test_a_change_announced_only_to_subscribers_is_detected_at_once_over_stdio(tmp_path: Path) -> None:
    """Attack: rug pull within the protocol, behind a client that did not subscribe."""
    (tmp_path / "pinwarden.toml").write_text(f"[policy.gateway]\nrelist-seconds = {SELDOM}\n")
    with gateway(tmp_path, *SERVER, "stdio", handshake=False) as (client, _):
        code = refused_in_time(lambda method, params: client.ask(method, {**params, **ABOUT}))
        lines = b"".join(client.lines)
    assert code == "new_exfiltration"
    assert b"subscription" not in lines


def test_a_change_announced_only_to_subscribers_is_detected_at_once_over_http(remote: str) -> None:
    recorder = InMemoryRecorder()
    behind = UpstreamServer(guard("turning", policy=parse_gateway_policy({"relist-seconds": SELDOM})), url=remote)
    with http_gateway({"turning": behind}, recorder) as running, RawClient(running, "turning") as raw:
        assert refused_in_time(raw.request) == "new_exfiltration"
        assert [fact.code for fact in recorder.events if fact.kind == "blocked"].count("answer_unasked") == 0
        assert not behind.guard.refuses_subscriptions


def test_an_idle_subscription_stays_open() -> None:
    """Applies to the client's and the gateway's subscription: the response comes when it ends."""
    tells = {"capabilities": {"tools": {"listChanged": True}}}
    state = {"tools": [SEARCH], "server": tells, "deaf": ["subscriptions/listen"]}
    with turning_http({"states": [state], "version": "2026-07-28"}) as there:
        behind = UpstreamServer(guard("notes", approved_surface(state)), url=there.url)
        with http_gateway({"notes": behind}) as running, RawClient(running, "notes") as raw, socket.socket() as client:
            assert "result" in raw.request("server/discover")
            (conversation,) = running.call_on_loop(lambda: list(running.manager.list_conversations()))
            assert isinstance(conversation, Conversation)
            body, headers = stateless_request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, 77)
            client.connect((running.host, running.port))
            lines = [f"{name}: {value}" for name, value in {**headers, "Authorization": f"Bearer {TOKEN}"}.items()]
            head = [f"POST /mcp/notes HTTP/1.1\r\nHost: 127.0.0.1:{running.port}", "Content-Type: application/json"]
            head += ["Accept: application/json, text/event-stream", *lines, f"Content-Length: {len(body)}\r\n\r\n"]
            client.sendall("\r\n".join(head).encode() + body)
            until = monotonic() + SECONDS
            while (
                len([message for message in there.server.received if message["method"] == "subscriptions/listen"]) < 2
            ):
                assert monotonic() < until
                Event().wait(0.02)

            def late() -> tuple[int, int]:
                conversation._clock = lambda: 1e12
                conversation.tick()
                return len(conversation._open_requests.by_id), len(conversation.transport._posts)  # type: ignore[union-attr]

            assert running.call_on_loop(late) == (1, 2)
