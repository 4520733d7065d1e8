"""Metrics for Prometheus, health, readiness, and OpenTelemetry traces of relayed requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.http.connection import ClientConnections
from pinwarden.gateway.http.endpoint import Endpoint
from pinwarden.gateway.http.frames import NAMED_BY, Frame
from pinwarden.gateway.http.header_checks import Client
from pinwarden.gateway.http.open_requests import ResponseSink
from pinwarden.gateway.http.session_manager import SessionManager, Upstream

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
Sample = tuple[dict[str, str], float]


class Figures:
    """The pages about a running gateway."""

    def __init__(
        self, manager: SessionManager, endpoint: Endpoint, connections: ClientConnections, waiting: Callable[[], int]
    ) -> None:
        self._manager = manager
        self._endpoint = endpoint
        self._connections = connections
        self._waiting = waiting
        self.problems: list[Callable[[], str]] = []
        """Each returns why the gateway is not ready, or an empty string."""
        self.warnings: list[Callable[[], str]] = []
        """Each returns a warning although the gateway serves, or an empty string."""

    def health(self, _: Client | None) -> tuple[int, str, bytes]:
        """The process responds."""
        return 200, _JSON, b'{"status":"ok"}'

    def readiness(self, _: Client | None) -> tuple[int, str, bytes]:
        """Whether the gateway can serve requests."""
        found = [problem for each in self.problems if (problem := each())]
        if self._connections.draining:
            found.append("the gateway is shutting down")
        about = {
            "status": "unavailable" if found else "ready",
            "problems": found,
            "warnings": [warning for each in self.warnings if (warning := each())],
        }
        return (503 if found else 200), _JSON, orjson.dumps(about)

    def metrics(self, client: Client | None) -> tuple[int, str, bytes]:
        """Counters in Prometheus' text format, with those servers that the client may use."""
        seen = [each for each in self._manager.upstreams.values() if client is not None and client.sees(each.name)]
        return 200, _TEXT, "".join(self._lines(sorted(seen, key=lambda each: each.name))).encode()

    def _lines(self, servers: Sequence[Upstream]) -> Iterator[str]:
        sessions, conversations = self._manager.counts
        yield from _metric("http_requests_total", "counter", "Requests of clients.", [({}, self._endpoint.requests)])
        about = "Requests that the gateway itself could not answer."
        yield from _metric("http_failures_total", "counter", about, [({}, self._endpoint.failures)])
        yield from _metric(
            "http_refused_total",
            "counter",
            "Requests that were not HTTP as it is spoken here, or one connection too many.",
            [({}, self._connections.refused)],
        )
        denied: list[Sample] = [({}, float(self._endpoint.access.denied))]
        yield from _metric("http_denied_total", "counter", "Requests with a wrong host, origin or token.", denied)
        yield from _metric(
            "http_connections", "gauge", "Open connections of clients.", [({}, len(self._connections.open))]
        )
        yield from _metric(
            "http_cut_total",
            "counter",
            "Connections that were cut because they did not read.",
            [({}, self._connections.cut)],
        )
        yield from _metric(
            "http_unsent_bytes", "gauge", "Bytes that wait for slow readers.", [({}, self._connections.unsent)]
        )
        yield from _metric(
            "http_body_bytes", "gauge", "Bytes of large requests in work.", [({}, self._connections.bodies)]
        )
        budget = self._manager.budget
        about = "Bytes that wait for servers, for lists to be judged, and for the end of messages that servers began."
        yield from _metric("waiting_bytes", "gauge", about, [({}, budget.pending_bytes)])
        about = "Conversations that were ended because most of that waited in them."
        yield from _metric("waiting_ended_total", "counter", about, [({}, budget.overflows)])
        yield from _metric("sessions", "gauge", "Open sessions of the handshake era.", [({}, sessions)])
        yield from _metric("conversations", "gauge", "Open conversations with servers.", [({}, conversations)])
        yield from _metric(
            "audit_waiting", "gauge", "Events that the database has not got yet.", [({}, self._waiting())]
        )
        for name, about, value in (
            ("server_requests_total", "Requests to a server.", [each.requests for each in servers]),
            ("server_losses_total", "Conversations with a server that ended.", [each.losses for each in servers]),
            ("server_facts_total", "Steps that were recorded.", [each.recording.steps for each in servers]),
            ("server_refusals_total", "Steps with a refusal.", [each.recording.refusals for each in servers]),
        ):
            samples = [({"server": each.name}, float(count)) for each, count in zip(servers, value, strict=True)]
            yield from _metric(name, "counter", about, samples)
        kinds = [
            ({"server": each.name, "kind": kind}, float(count))
            for each in servers
            for kind, count in sorted(each.recording.kinds.items())
        ]
        yield from _metric("events_total", "counter", "What the gateway saw and did, by kind.", kinds)


def _metric(name: str, kind: str, about: str, samples: Sequence[Sample]) -> Iterator[str]:
    yield f"# HELP pinwarden_{name} {about}\n# TYPE pinwarden_{name} {kind}\n"
    for labels, value in samples:
        yield f"pinwarden_{name}{_labels(labels.items())} {value:g}\n"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def audit_problem(problem: Callable[[], PinwardenError | None]) -> Callable[[], str]:
    """Why the audit log cannot be written."""

    def describe() -> str:
        found = problem()
        return "" if found is None else f"the audit log cannot be written ({found.code})"

    return describe


_WANTED = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_LONGEST = 200  # characters of a name that a client or server chose


class Tracing:
    """Creates a span for each relayed request. Spans contain no arguments and no results."""

    def __init__(self, tracer: Tracer, close: Callable[[], None] = lambda: None) -> None:
        self._tracer = tracer
        self.close = close
        """Export remaining spans."""

    def traced(self, waiting: ResponseSink, frame: Frame, server: str, client: str, call: str) -> Traced:
        """A response sink that ends the span of its request."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {name: value for name, value in frame.meta.items() if type(value) is str}
        method = frame.method[:_LONGEST]
        attributes = {
            "mcp.method.name": method,
            "pinwarden.server": server[:_LONGEST],
            "pinwarden.client": client[:_LONGEST],
            "pinwarden.call": call[:_LONGEST],
        }
        name = frame.params.get(NAMED_BY.get(frame.method, ""))
        if type(name) is str:
            attributes["gen_ai.tool.name" if frame.method == "tools/call" else "mcp.item"] = name[:_LONGEST]
        span = self._tracer.start_span(
            f"{method} {server[:_LONGEST]}",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            attributes=attributes,
        )
        return Traced(waiting, span)


class Traced:
    """Ends a span with the response."""

    __slots__ = ("_span", "_waiting")

    def __init__(self, waiting: ResponseSink, span: Span) -> None:
        self._waiting = waiting
        self._span = span

    @property
    def open(self) -> bool:
        """Whether messages can still be delivered."""
        return self._waiting.open

    def message(self, frame: Frame) -> None:
        """A message before the response."""
        self._waiting.message(frame)

    def answered(self, frame: Frame, status: int) -> None:
        """The response."""
        error = frame.members.get("error")
        self._end(str(error.get("code")) if isinstance(error, dict) else "")
        self._waiting.answered(frame, status)

    def failed(self, code: int, why: str) -> None:
        """There will be no response."""
        self._end(str(code))
        self._waiting.failed(code, why)

    def refused_unread(self, why: str) -> None:
        """There will be no response in this session."""
        self._end("session_ended")
        self._waiting.refused_unread(why)

    def dropped(self) -> None:
        """The request was cancelled."""
        self._end("cancelled")
        self._waiting.dropped()

    def given_up(self) -> None:
        """The client left."""
        self._end("cancelled")

    def _end(self, error: str) -> None:
        if error:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def tracing_of(variables: Mapping[str, str], say: Callable[[str], None]) -> Tracing | None:
    """Tracing as configured by OpenTelemetry's environment variables; None if not configured or not installed."""
    if not any(variables.get(name) for name in _WANTED) or variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    name = variables.get("OTEL_TRACES_EXPORTER") or "otlp"
    if name == "none":
        return None
    from importlib.metadata import entry_points

    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        say("traces are disabled: the OpenTelemetry SDK is not installed")
        return None
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        say(f"traces are disabled: no OpenTelemetry exporter {name[:_LONGEST]!a} is installed")
        return None
    made: Any = found[0].load()
    provider = TracerProvider(resource=Resource.create({"service.name": "pinwarden"}))
    provider.add_span_processor(BatchSpanProcessor(made()))
    return Tracing(provider.get_tracer("pinwarden.gateway"), provider.shutdown)
