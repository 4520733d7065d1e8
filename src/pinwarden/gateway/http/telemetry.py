"""Health and readiness pages, Prometheus metrics, and OpenTelemetry traces of relayed requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.http.connection import ClientConnections
from pinwarden.gateway.http.endpoint import Endpoint
from pinwarden.gateway.http.header_checks import ITEM_NAME_PARAMETERS, GatewayClient
from pinwarden.gateway.http.open_requests import ResponseSink
from pinwarden.gateway.http.session_manager import SessionManager, Upstream
from pinwarden.gateway.session.messages import ParsedMessage

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
Sample = tuple[dict[str, str], float]


class StatusPages:
    """The pages `/healthz`, `/readyz` and `/metrics`."""

    def __init__(
        self,
        manager: SessionManager,
        endpoint: Endpoint,
        connections: ClientConnections,
        count_waiting_events: Callable[[], int],
    ) -> None:
        self._manager = manager
        self._endpoint = endpoint
        self._connections = connections
        self._count_waiting_events = count_waiting_events
        self.problems: list[Callable[[], str]] = []
        """Functions that return why the gateway is not ready, or an empty string."""
        self.warnings: list[Callable[[], str]] = []
        """Functions that return a warning about a gateway that is ready, or an empty string."""

    def build_health_page(self, _: GatewayClient | None) -> tuple[int, str, bytes]:
        """Report that the process responds."""
        return 200, _JSON, b'{"status":"ok"}'

    def build_readiness_page(self, _: GatewayClient | None) -> tuple[int, str, bytes]:
        """Report whether the gateway can serve requests."""
        problems = [problem for check in self.problems if (problem := check())]
        if self._connections.draining:
            problems.append("the gateway is shutting down")
        body = {
            "status": "unavailable" if problems else "ready",
            "problems": problems,
            "warnings": [warning for check in self.warnings if (warning := check())],
        }
        return (503 if problems else 200), _JSON, orjson.dumps(body)

    def build_metrics_page(self, client: GatewayClient | None) -> tuple[int, str, bytes]:
        """Return metrics in Prometheus' text format, for the servers that the client may use."""
        upstreams = self._manager.upstreams.values()
        visible = [upstream for upstream in upstreams if client is not None and client.may_use(upstream.name)]
        return 200, _TEXT, "".join(self._format_metrics(sorted(visible, key=lambda upstream: upstream.name))).encode()

    def _format_metrics(self, upstreams: Sequence[Upstream]) -> Iterator[str]:
        sessions, conversations = self._manager.open_counts
        connections, endpoint, budget = self._connections, self._endpoint, self._manager.budget
        for name, kind, help_text, value in (
            ("http_requests_total", "counter", "HTTP requests of clients.", endpoint.requests),
            (
                "http_failures_total",
                "counter",
                "HTTP requests that failed because of an error in the gateway.",
                endpoint.failures,
            ),
            (
                "http_refused_total",
                "counter",
                "Malformed HTTP requests that were refused, and connections above the limit.",
                connections.refused,
            ),
            (
                "http_denied_total",
                "counter",
                "HTTP requests with an unknown host, origin or token.",
                endpoint.access.denied,
            ),
            ("http_connections", "gauge", "Open client connections.", len(connections.open)),
            (
                "http_cut_total",
                "counter",
                "Client connections that the gateway closed because the client read its responses too slowly.",
                connections.slow_disconnects,
            ),
            ("http_unsent_bytes", "gauge", "Bytes in write buffers of client connections.", connections.unsent_bytes),
            (
                "http_body_bytes",
                "gauge",
                "Bytes of large requests that have no response yet.",
                connections.large_body_bytes,
            ),
            (
                "waiting_bytes",
                "gauge",
                "Bytes queued for servers, waiting for a check, or in incomplete messages of servers.",
                budget.pending_bytes,
            ),
            (
                "waiting_ended_total",
                "counter",
                "Conversations that ended because their queued bytes exceeded the memory budget.",
                budget.overflows,
            ),
            ("sessions", "gauge", "Open sessions of clients with a handshake (before revision 2026-07-28).", sessions),
            ("conversations", "gauge", "Open conversations with servers.", conversations),
            (
                "audit_waiting",
                "gauge",
                "Events in the journal that the database does not have yet.",
                self._count_waiting_events(),
            ),
        ):
            yield from _format_metric(name, kind, help_text, [({}, value)])
        yield from _format_server_metrics(upstreams)


def _format_server_metrics(upstreams: Sequence[Upstream]) -> Iterator[str]:
    counters: tuple[tuple[str, str, Callable[[Upstream], int]], ...] = (
        ("server_requests_total", "Requests to a server.", lambda upstream: upstream.requests),
        ("server_losses_total", "Conversations that the server ended.", lambda upstream: upstream.losses),
        (
            "server_recorded_messages_total",
            "Messages with recorded events.",
            lambda upstream: upstream.recorder.outputs,
        ),
        ("server_refusals_total", "Messages with a refusal.", lambda upstream: upstream.recorder.refusals),
    )
    for name, help_text, count_of in counters:
        samples = [({"server": upstream.name}, float(count_of(upstream))) for upstream in upstreams]
        yield from _format_metric(name, "counter", help_text, samples)
    kinds = [
        ({"server": upstream.name, "kind": kind}, float(count))
        for upstream in upstreams
        for kind, count in sorted(upstream.recorder.kinds.items())
    ]
    yield from _format_metric("events_total", "counter", "Events in the audit log, by kind.", kinds)


def _format_metric(name: str, kind: str, help_text: str, samples: Sequence[Sample]) -> Iterator[str]:
    yield f"# HELP pinwarden_{name} {help_text}\n# TYPE pinwarden_{name} {kind}\n"
    for labels, value in samples:
        yield f"pinwarden_{name}{_format_labels(labels.items())} {value:g}\n"


def _format_labels(labels: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escape(value)}"' for name, value in labels)
    return f"{{{text}}}" if text else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def make_audit_check(problem: Callable[[], PinwardenError | None]) -> Callable[[], str]:
    """Make a readiness check that returns why the audit log cannot be written."""

    def describe() -> str:
        error = problem()
        return "" if error is None else f"the audit log cannot be written ({error.code})"

    return describe


_TRACING_VARIABLES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_MAX_NAME = 200  # characters of a name that a client or server chose


class Tracing:
    """Creates a span for each relayed request. Spans contain no arguments and no results."""

    def __init__(self, tracer: Tracer, close: Callable[[], None] = lambda: None) -> None:
        self._tracer = tracer
        self.close = close
        """Exports the remaining spans."""

    def trace(self, sink: ResponseSink, message: ParsedMessage, server: str, client: str, call: str) -> TracedSink:
        """Start a span for a request. Returns a sink that ends the span with the response."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {name: value for name, value in message.meta.items() if type(value) is str}
        method = message.method[:_MAX_NAME]
        attributes = {
            "mcp.method.name": method,
            "pinwarden.server": server[:_MAX_NAME],
            "pinwarden.client": client[:_MAX_NAME],
            "pinwarden.call": call[:_MAX_NAME],
        }
        name = message.params.get(ITEM_NAME_PARAMETERS.get(message.method, ""))
        if type(name) is str:
            attributes["gen_ai.tool.name" if message.method == "tools/call" else "mcp.item"] = name[:_MAX_NAME]
        span = self._tracer.start_span(
            f"{method} {server[:_MAX_NAME]}",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            attributes=attributes,
        )
        return TracedSink(sink, span)


class TracedSink:
    """Ends a span when its request ends, and forwards all calls to another sink."""

    __slots__ = ("_sink", "_span")

    def __init__(self, sink: ResponseSink, span: Span) -> None:
        self._sink = sink
        self._span = span

    @property
    def is_open(self) -> bool:
        """Whether messages can still be delivered."""
        return self._sink.is_open

    def send_message(self, message: ParsedMessage) -> None:
        """Forward a message that precedes the response."""
        self._sink.send_message(message)

    def respond(self, message: ParsedMessage, status: int) -> None:
        """End the span, and forward the response."""
        error = message.members.get("error")
        self._end(str(error.get("code")) if isinstance(error, dict) else "")
        self._sink.respond(message, status)

    def fail(self, code: int, reason: str) -> None:
        """End the span with the error code."""
        self._end(str(code))
        self._sink.fail(code, reason)

    def fail_not_executed(self, reason: str) -> None:
        """End the span, because the server ended the session."""
        self._end("session_ended")
        self._sink.fail_not_executed(reason)

    def drop(self) -> None:
        """End the span, because the client cancelled the request."""
        self._end("cancelled")
        self._sink.drop()

    def on_cancelled(self) -> None:
        """End the span, because the client disconnected."""
        self._end("cancelled")

    def _end(self, error: str) -> None:
        if error:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def configure_tracing(variables: Mapping[str, str], write_log: Callable[[str], None]) -> Tracing | None:
    """Configure tracing by OpenTelemetry's environment variables; None if it is not configured or not installed."""
    if (
        not any(variables.get(name) for name in _TRACING_VARIABLES)
        or variables.get("OTEL_SDK_DISABLED", "").lower() == "true"
    ):
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
        write_log("traces are disabled: the OpenTelemetry SDK is not installed")
        return None
    exporters = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not exporters:
        write_log(f"traces are disabled: no OpenTelemetry exporter {name[:_MAX_NAME]!a} is installed")
        return None
    exporter: Any = exporters[0].load()
    provider = TracerProvider(resource=Resource.create({"service.name": "pinwarden"}))
    provider.add_span_processor(BatchSpanProcessor(exporter()))
    return Tracing(provider.get_tracer("pinwarden.gateway"), provider.shutdown)
