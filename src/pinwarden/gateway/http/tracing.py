"""OpenTelemetry traces of relayed requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Thread
from typing import TYPE_CHECKING, Any

from pinwarden.gateway.http.header_checks import ITEM_NAME_PARAMETERS
from pinwarden.gateway.http.open_requests import ResponseSink
from pinwarden.gateway.session.messages import ParsedMessage

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_TRACING_VARIABLES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP = "otlp"
_OTLP_EXPORTERS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_UNNAMED = "unknown_service"  # what the SDK's default for the service's name begins with
_CLOSE_SECONDS = 3.0
_MAX_MESSAGE = 500  # characters of a message of the SDK
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
    """Configure tracing by OpenTelemetry's environment variables; None if it is not configured or not installed.

    The SDK and its exporters read all variables that are not named here from the environment themselves.
    """
    if (
        not any(variables.get(name) for name in _TRACING_VARIABLES)
        or variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    ):
        return None
    names = [name for part in (variables.get("OTEL_TRACES_EXPORTER") or _OTLP).split(",") if (name := part.strip())]
    if names == ["none"]:
        return None
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        write_log('traces are disabled: the OpenTelemetry SDK is not installed (pip install ".[traces]")')
        return None
    exporters = []
    for name in names:
        try:
            exporters.append(_create_exporter(name, variables))
        except (LookupError, ImportError, ValueError) as err:
            write_log(f"traces are disabled: {err}")
            return None
    resource = Resource.create()  # with OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    if str(resource.attributes.get(SERVICE_NAME, _UNNAMED)).startswith(_UNNAMED):
        resource = resource.merge(Resource({SERVICE_NAME: "pinwarden"}))
    _redirect_messages(write_log)
    provider = TracerProvider(resource=resource)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))

    def close() -> None:
        # An exporter may retry for longer than the gateway may take to exit.
        thread = Thread(target=provider.shutdown, name="traces", daemon=True)
        thread.start()
        thread.join(_CLOSE_SECONDS)

    return Tracing(provider.get_tracer("pinwarden.gateway"), close)


def _create_exporter(name: str, variables: Mapping[str, str]) -> Any:
    """Create the exporter with a name of OTEL_TRACES_EXPORTER. Raises LookupError if it is not installed."""
    from importlib.metadata import entry_points

    known = name
    if name == _OTLP:
        protocol = next(filter(None, map(variables.get, _PROTOCOL_VARIABLES)), "http/protobuf").strip()
        if protocol not in _OTLP_EXPORTERS:
            raise LookupError(f"the protocol {protocol[:_MAX_NAME]!a} of OTLP is not supported")
        known = _OTLP_EXPORTERS[protocol]
    found = list(entry_points(group="opentelemetry_traces_exporter", name=known))
    if not found:
        raise LookupError(f"no OpenTelemetry exporter {known[:_MAX_NAME]!a} is installed")
    return found[0].load()()


def _redirect_messages(write_log: Callable[[str], None]) -> None:
    """Write the SDK's messages, such as those about a collector that is away, into the gateway's log."""
    import logging

    class LogHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            write_log(f"traces: {record.getMessage()[:_MAX_MESSAGE]}")

    logger = logging.getLogger("opentelemetry")
    logger.handlers = [LogHandler(logging.WARNING)]
    logger.propagate = False
