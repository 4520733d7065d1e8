"""Traces of relayed calls for OpenTelemetry, where its SDK is installed and the environment says where they go.

A span carries the correlation id that the audit log has for the same call, and never arguments or results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pinwarden.gateway.http.messages import NAMED_BY, Frame
from pinwarden.gateway.http.response_sink import Waiting

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_WANTED = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_LONGEST = 200  # of a name that a client or server chose


class Tracing:
    """Makes a span for each request that is relayed."""

    def __init__(self, tracer: Tracer, close: Callable[[], None] = lambda: None) -> None:
        self._tracer = tracer
        self.close = close
        """Send what is left."""

    def traced(self, waiting: Waiting, frame: Frame, server: str, client: str, call: str) -> Traced:
        """Who waits for an answer, with the span of its request around it."""
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
    """Ends a span with the answer."""

    __slots__ = ("_span", "_waiting")

    def __init__(self, waiting: Waiting, span: Span) -> None:
        self._waiting = waiting
        self._span = span

    @property
    def open(self) -> bool:
        """Whether anybody still hears."""
        return self._waiting.open

    def message(self, frame: Frame) -> None:
        """A message before the answer."""
        self._waiting.message(frame)

    def answered(self, frame: Frame, status: int) -> None:
        """The answer."""
        error = frame.members.get("error")
        self._end(str(error.get("code")) if isinstance(error, dict) else "")
        self._waiting.answered(frame, status)

    def failed(self, code: int, why: str) -> None:
        """There will be no answer."""
        self._end(str(code))
        self._waiting.failed(code, why)

    def refused_unread(self, why: str) -> None:
        """There will be no answer in this session."""
        self._end("session_ended")
        self._waiting.refused_unread(why)

    def dropped(self) -> None:
        """There will be no answer, and nobody waits for one."""
        self._end("cancelled")
        self._waiting.dropped()

    def given_up(self) -> None:
        """Nobody waits any more."""
        self._end("cancelled")

    def _end(self, error: str) -> None:
        if error:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def tracing_of(variables: Mapping[str, str], say: Callable[[str], None]) -> Tracing | None:
    """Traces as OpenTelemetry's own variables ask for them; None if they do not, or if the SDK is not installed."""
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
        say("there will be no traces: the OpenTelemetry SDK is not installed")
        return None
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        say(f"there will be no traces: no OpenTelemetry exporter {name[:_LONGEST]!a} is installed")
        return None
    made: Any = found[0].load()
    provider = TracerProvider(resource=Resource.create({"service.name": "pinwarden"}))
    provider.add_span_processor(BatchSpanProcessor(made()))
    return Tracing(provider.get_tracer("pinwarden.gateway"), provider.shutdown)
