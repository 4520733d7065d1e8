"""Responses to the gateway's own requests that arrive after the client opened the session with a handshake."""

from __future__ import annotations

import json
from typing import Any

from pinwarden.gateway.guard import Guard
from pinwarden.gateway.session.output import SessionOutput
from pinwarden.gateway.session.session import Session
from tests.gateway.session_harness import SEARCH, InMemoryApprovals
from tests.servers.turning import META, Turning

ABOUT = {f"{META}protocolVersion": "2026-07-28", f"{META}clientInfo": {"name": "c"}, f"{META}clientCapabilities": {}}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c"}}


def test_a_late_discovery_response_is_ignored_after_the_handshake() -> None:
    """A client tries the newest revision first, and then the handshake before the gateway's discovery is sent."""
    server = Turning({"states": [{"tools": [SEARCH]}], "eras": ["initialize"]})
    measure = InMemoryApprovals(None)
    session = Session(Guard("notes", measure), name="late")
    waiting: list[bytes] = []
    got: list[Any] = []

    def carry(step: SessionOutput, *, later: bool = False) -> None:
        got.extend(map(json.loads, step.to_client))
        frames = [*step.to_server]
        if later:
            waiting.extend(frames)
            return
        for frame in frames:
            for answer in server.answers(frame.decode()):
                carry(session.on_server_message(answer.encode(), 0.0))

    def ask(method: str, params: dict[str, Any], request_id: int) -> SessionOutput:
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        return session.on_client_message(json.dumps(message).encode(), 0.0)

    [discover] = ask("server/discover", {"_meta": ABOUT}, 1).to_server
    [unknown] = server.answers(discover.decode())
    carry(session.on_server_message(unknown.encode(), 0.0), later=True)
    carry(ask("initialize", HELLO, 2))
    for frame in waiting:
        for answer in server.answers(frame.decode()):
            carry(session.on_server_message(answer.encode(), 0.0))
    carry(session.on_client_message(b'{"jsonrpc":"2.0","method":"notifications/initialized"}', 0.0))
    carry(ask("tools/list", {}, 3))
    carry(ask("tools/call", {"name": "search_notes", "arguments": {}}, 4))
    assert measure.surface is not None
    assert measure.surface.server == server._server()
    assert [entry["method"] for entry in server.received if entry["method"].endswith("/list")] == ["tools/list"] * 2
    answers = {entry["id"]: entry for entry in got}
    assert answers[3]["result"]["tools"] == [SEARCH]
    assert "result" in answers[4]
