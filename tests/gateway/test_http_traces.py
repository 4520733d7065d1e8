"""Traces with the real OpenTelemetry SDK: one span per relayed call, linked to the audit log."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
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
from tests.gateway.test_gateway_command import Project, running
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
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "TRUE"}, []),
        (
            {"OTEL_TRACES_EXPORTER": "carrier-pigeon"},
            ["traces are disabled: no OpenTelemetry exporter 'carrier-pigeon' is installed"],
        ),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier/pigeon"},
            ["traces are disabled: the protocol 'carrier/pigeon' of OTLP is not supported"],
        ),
        (
            {"OTEL_TRACES_EXPORTER": "console,otlp", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            ["traces are disabled: no OpenTelemetry exporter 'otlp_proto_grpc' is installed"],
        ),
    ],
)
def test_without_an_endpoint_no_traces_are_recorded(variables: dict[str, str], said: list[str]) -> None:
    lines: list[str] = []
    assert configure_tracing(variables, lines.append) is None
    assert lines == said


def call_with(tmp_path: Path, **variables: str) -> str:
    """Make one call through a gateway in another process with these variables. Returns its stdout.

    The console exporter writes to the stdout that its process has when it is imported.
    """
    (tmp_path / "one_call.py").write_text(ONE_CALL)
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "one_call.py")], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


def test_the_console_exporter_prints_spans(tmp_path: Path) -> None:
    decoder = json.JSONDecoder()
    text, spans = call_with(tmp_path, OTEL_TRACES_EXPORTER="console").strip(), []
    while text:
        span, end = decoder.raw_decode(text)
        spans.append(span)
        text = text[end:].strip()
    named = [entry["attributes"].get("gen_ai.tool.name") for entry in spans]
    assert named == [None, "echo"], "the gateway detects the server's protocol era first"
    assert spans[0]["resource"]["attributes"]["service.name"] == "pinwarden"


def test_a_sampler_that_drops_everything_exports_nothing(tmp_path: Path) -> None:
    assert call_with(tmp_path, OTEL_TRACES_EXPORTER="console", OTEL_TRACES_SAMPLER="always_off") == ""


class Collector(ThreadingHTTPServer):
    """Takes traces as an OpenTelemetry collector does, and decodes them with the official protobuf package."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.requests: list[tuple[str, dict[str, str], ExportTraceServiceRequest]] = []
        self.answers = threading.Event()
        self.answers.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> list[Any]:
        groups = [group for _, _, request in self.requests for group in request.resource_spans]
        return [span for group in groups for scope in group.scope_spans for span in scope.spans]


class CollectorHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert isinstance(self.server, Collector)
        self.server.requests.append((self.path, headers, ExportTraceServiceRequest.FromString(body)))
        self.server.answers.wait(60)
        with suppress(OSError):  # the gateway may have exited
            self.send_response(200)
            self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield serving
        serving.answers.set()
        serving.shutdown()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("traced"))
    made.lock({"talking": {"command": sys.executable, "args": [str(Path(talking.__file__)), os.devnull]}})
    return made


def test_a_gateway_sends_traces_to_a_collector_as_opentelemetrys_variables_say(
    project: Project, collector: Collector
) -> None:
    project.environment |= {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=s3cret,tenant=acme%20corp",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_SERVICE_NAME": "mcp-gateway",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test,service.version=7",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    with running(project) as at:
        answer = at.ask("talking", at.token, "tools/call", name="echo", arguments={"secret": "hunter2"})[1]
        assert "result" in answer
        poll(lambda: any(span.name == "tools/call talking" for span in collector.spans()))
        said = at.said
    path, headers, request = collector.requests[-1]
    assert (path, headers["content-type"], headers["content-encoding"]) == (
        "/v1/traces",
        "application/x-protobuf",
        "gzip",
    )
    assert (headers["api-key"], headers["tenant"]) == ("s3cret", "acme corp")
    resource = {pair.key: pair.value.string_value for pair in request.resource_spans[0].resource.attributes}
    assert resource["service.name"] == "mcp-gateway"
    assert (resource["deployment.environment"], resource["service.version"]) == ("test", "7")
    (span,) = [span for span in collector.spans() if span.name == "tools/call talking"]
    attributes = {pair.key: pair.value.string_value for pair in span.attributes}
    assert (attributes["gen_ai.tool.name"], attributes["pinwarden.client"]) == ("echo", "local")
    everything = b"".join(request.SerializeToString() for _, _, request in collector.requests)
    assert b"hunter2" not in everything
    assert "s3cret" not in said


def test_a_collector_that_hangs_delays_neither_calls_nor_the_end_of_the_gateway(
    project: Project, collector: Collector
) -> None:
    project.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    collector.answers.clear()
    with running(project) as at:
        for _ in range(3):
            assert "result" in at.ask("talking", at.token, "tools/call", name="echo", arguments={})[1]
            poll(lambda: bool(collector.requests))
        at.process.terminate()
        assert at.process.wait(60) == 0
        assert "did not shut down in time" not in at.said


def test_a_collector_that_is_away_is_in_the_log_and_nothing_else_happens(project: Project) -> None:
    project.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with running(project) as at:
        assert "result" in at.ask("talking", at.token, "tools/call", name="echo", arguments={})[1]
        poll(lambda: "pinwarden: traces: " in at.said)
        assert "Traceback" not in at.said
        assert "result" in at.ask("talking", at.token, "tools/call", name="echo", arguments={})[1]
