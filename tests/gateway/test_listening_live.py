"""The gateway's own subscription with a real server of the newest revision, behind both faces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.gateway.http_world import META, MODERN, Behind, Kept, Raw, guard
from tests.gateway.http_world import gateway as http_gateway
from tests.gateway.test_drift_sequences_stdio import gateway
from tests.servers import sdk_turning

SERVER = [sys.executable, str(Path(sdk_turning.__file__))]
SECONDS = 15  # far less than until the lists are asked for again anyway
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
    """Turn the server, and wait until its tool is refused; the code."""
    call = {"name": "weather", "arguments": {"city": "Ulm"}}
    assert "fine in Ulm" in json.dumps(ask("tools/call", call))
    assert "turned" in json.dumps(ask("tools/call", {"name": "turn", "arguments": {}}))
    until = monotonic() + SECONDS
    while "error" not in (answer := ask("tools/call", call)):
        assert monotonic() < until
    code: str = answer["error"]["data"]["pinwarden"]["code"]
    return code


def test_a_change_that_only_subscribers_are_told_of_is_seen_at_once_over_stdio(tmp_path: Path) -> None:
    """Attack: rug pull that keeps to the protocol, behind a client that never subscribed."""
    with gateway(tmp_path, *SERVER, "stdio", handshake=False) as (client, _):
        code = refused_in_time(lambda method, params: client.ask(method, {**params, **ABOUT}))
        lines = b"".join(client.lines)
    assert code == "new_exfiltration"
    assert b"subscription" not in lines


def test_a_change_that_only_subscribers_are_told_of_is_seen_at_once_over_http(remote: str) -> None:
    kept = Kept()
    behind = Behind(guard("turning"), url=remote)
    with http_gateway({"turning": behind}, kept) as made, Raw(made, "turning") as raw:
        assert refused_in_time(raw.ask) == "new_exfiltration"
        assert [fact.code for fact in kept.facts if fact.kind == "blocked"].count("answer_unasked") == 0
        assert not behind.guard.refuses_to_tell
