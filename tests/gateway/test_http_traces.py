"""Traces with the real OpenTelemetry SDK: one span per relayed call, linked to the audit log."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from pinwarden.gateway.http.tracing import Tracing, configure_tracing
from tests.gateway.http_gateway import (
    TOKEN,
    InMemoryRecorder,
    RawClient,
    RunningGateway,
    UpstreamServer,
    gateway,
    guard,
    stateless_request,
)
from tests.servers import talking
from tests.support.waiting import poll

ROOT = Path(__file__).parents[2]
ONE_CALL = """
import os, sys
from pathlib import Path
from pinwarden.gateway.http.tracing import configure_tracing
from tests.gateway.http_gateway import UpstreamServer, RawClient, gateway, guard
from tests.servers import talking

tracing = configure_tracing(os.environ, lambda said: sys.exit(said))
behind = UpstreamServer(guard("talking"), command=[sys.executable, str(Path(talking.__file__)), os.devnull])
with gateway({"talking": behind}, tracing=tracing) as running, RawClient(running, "talking") as raw:
    assert "result" in raw.request("tools/call", {"name": "echo", "arguments": {}}, 1)
tracing.close()
"""
TRACE = "0af7651916cd43dd8448eb211c80319c"


class Scene:
    def __init__(
        self, gateway: RunningGateway, recorder: InMemoryRecorder, spans: InMemorySpanExporter, record: Path
    ) -> None:
        self.gateway = gateway
        self.kept = recorder
        self._spans = spans
        self.record = record

    def calls(self) -> list[ReadableSpan]:
        """The spans of calls."""
        spans = self._spans.get_finished_spans()
        return [span for span in spans if (span.attributes or {}).get("mcp.method.name") == "tools/call"]


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Scene]:
    spans, kept, provider = InMemorySpanExporter(), InMemoryRecorder(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    record = tmp_path / "record"
    behind = UpstreamServer(guard("talking"), command=[sys.executable, str(Path(talking.__file__)), str(record)])
    with gateway({"talking": behind}, kept, tracing=Tracing(provider.get_tracer("test"))) as running:
        yield Scene(running, kept, spans, record)
    provider.shutdown()


def test_a_calls_span_has_the_id_of_its_audit_event(at: Scene) -> None:
    parent: dict[str, Any] = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    with RawClient(at.gateway, "talking") as raw:
        for request_id in (1, 2):
            params = {"name": "echo", "arguments": {"secret": "hunter2"}, "_meta": parent}
            assert "result" in raw.request("tools/call", params, request_id)
        assert "error" in raw.request("tools/call", {"name": "unknown", "arguments": {}}, 3)
    poll(lambda: len(at.calls()) == 3)
    spans = at.calls()
    facts = {fact.call: fact for fact in at.kept.events if fact.method == "tools/call"}
    assert [facts[str((span.attributes or {})["pinwarden.call"])].item for span in spans] == ["echo", "echo", "unknown"]
    assert [span.status.status_code for span in spans] == [StatusCode.UNSET, StatusCode.UNSET, StatusCode.ERROR]
    assert [f"{span.context.trace_id:032x}" == TRACE for span in spans if span.context] == [True, True, False]
    assert dict(spans[0].attributes or {}) == {
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": "echo",
        "pinwarden.server": "talking",
        "pinwarden.client": "tester",
        "pinwarden.call": next(iter(facts)),
    }
    assert "hunter2" not in "".join(span.to_json() for span in spans)


def test_the_span_of_an_abandoned_call_ends_as_cancelled(at: Scene) -> None:
    body, headers = stateless_request("tools/call", {"name": "slow", "arguments": {}}, 8)
    lines = {"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}", **headers, "Content-Type": "application/json"}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**lines, "Content-Length": str(len(body))}.items())
    with socket.create_connection((at.gateway.host, at.gateway.port), timeout=60) as connection:
        connection.sendall(f"POST /mcp/talking HTTP/1.1\r\n{head}\r\n".encode() + body)
        poll(lambda: at.record.exists() and body in at.record.read_bytes())
    poll(lambda: len(at.calls()) == 1)
    assert (at.calls()[0].attributes or {})["error.type"] == "cancelled"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, []),
        ({"OTEL_TRACES_EXPORTER": "none"}, []),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}, []),
        (
            {"OTEL_TRACES_EXPORTER": "carrier-pigeon"},
            ["traces are disabled: no OpenTelemetry exporter 'carrier-pigeon' is installed"],
        ),
    ],
)
def test_without_an_endpoint_no_traces_are_recorded(variables: dict[str, str], said: list[str]) -> None:
    lines: list[str] = []
    assert configure_tracing(variables, lines.append) is None
    assert lines == said


def test_opentelemetry_variables_set_where_traces_are_sent(tmp_path: Path) -> None:
    """The console exporter writes to the stdout that its process has when it is imported."""
    (tmp_path / "one_call.py").write_text(ONE_CALL)
    variables = {**os.environ, "OTEL_TRACES_EXPORTER": "console", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "one_call.py")], capture_output=True, text=True, check=True, env=variables
    )
    decoder = json.JSONDecoder()
    text, spans = done.stdout.strip(), []
    while text:
        span, end = decoder.raw_decode(text)
        spans.append(span)
        text = text[end:].strip()
    named = [entry["attributes"].get("gen_ai.tool.name") for entry in spans]
    assert named == [None, "echo"], "the gateway detects the server's protocol era first"
