"""Health, readiness and metrics: the pages for operators, and the handler of their own listener."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from ipaddress import ip_address
from itertools import accumulate

import orjson

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.http.connection import CallRoute, ClientConnections
from pinwarden.gateway.http.endpoint import Endpoint, Page
from pinwarden.gateway.http.header_checks import BadRequest, GatewayClient, parse_host
from pinwarden.gateway.http.http1 import Reply, Request
from pinwarden.gateway.http.session_manager import SessionManager, Upstream
from pinwarden.gateway.recorder import BUCKETS, ClientCounters
from pinwarden.system.metrics import format_metric, format_metric_header, format_sample

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"


class StatusPages:
    """The pages `/healthz`, `/readyz` and `/metrics`."""

    def __init__(
        self,
        manager: SessionManager,
        endpoint: Endpoint,
        connections: ClientConnections,
        count_waiting_events: Callable[[], int],
        clients: ClientCounters,
    ) -> None:
        self._manager = manager
        self._endpoint = endpoint
        self._connections = connections
        self._count_waiting_events = count_waiting_events
        self._clients = clients
        self.problems: list[Callable[[], str]] = []
        """Functions that return why the gateway is not ready, or an empty string."""
        self.warnings: list[Callable[[], str]] = []
        """Functions that return a warning about a gateway that is ready, or an empty string."""
        self.pending_reviews: Mapping[str, int] | None = None
        """The number of changes that are pending review, by severity; None if it is unknown."""

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
        visible.sort(key=lambda upstream: upstream.name)
        lines = [*self._format_gateway_metrics(), *self._format_review_metrics(), *_format_server_metrics(visible)]
        if client is not None and not client.servers:
            lines += self._format_client_metrics()
        return 200, _TEXT, "".join(lines).encode()

    def _format_gateway_metrics(self) -> Iterator[str]:
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
            yield from format_metric(name, kind, help_text, [({}, value)])

    def _format_review_metrics(self) -> Iterator[str]:
        if self.pending_reviews is not None:
            samples = [({"level": level}, count) for level, count in sorted(self.pending_reviews.items())]
            yield from format_metric("reviews_pending", "gauge", "Changes pending review, by severity.", samples)

    def _format_client_metrics(self) -> Iterator[str]:
        for name, help_text, counts in (
            ("client_uses_total", "Tools, prompts and resources that a client used.", self._clients.uses),
            ("client_refusals_total", "Messages of a client with a refusal.", self._clients.refusals),
        ):
            samples = [({"client": client}, count) for client, count in sorted(counts.items())]
            yield from format_metric(name, "counter", help_text, samples)


def _format_server_metrics(upstreams: Sequence[Upstream]) -> Iterator[str]:
    counters: tuple[tuple[str, str, Callable[[Upstream], int]], ...] = (
        ("server_requests_total", "Requests to a server.", lambda upstream: upstream.requests),
        (
            "server_losses_total",
            "Conversations that ended because the server exited, closed the connection or hung.",
            lambda upstream: upstream.losses,
        ),
        (
            "server_recorded_messages_total",
            "Messages with recorded events.",
            lambda upstream: upstream.recorder.outputs,
        ),
        ("server_refusals_total", "Messages with a refusal.", lambda upstream: upstream.recorder.refusals),
    )
    for name, help_text, count_of in counters:
        samples = [({"server": upstream.name}, count_of(upstream)) for upstream in upstreams]
        yield from format_metric(name, "counter", help_text, samples)
    kinds = [
        ({"server": upstream.name, "kind": kind}, count)
        for upstream in upstreams
        for kind, count in sorted(upstream.recorder.kinds.items())
    ]
    yield from format_metric("events_total", "counter", "Events in the audit log, by kind.", kinds)
    durations = [
        ({"server": upstream.name, "class": request_class}, histogram)
        for upstream in upstreams
        for request_class, histogram in sorted(upstream.recorder.durations.items())
    ]
    failures = [(labels, histogram.failures) for labels, histogram in durations]
    yield from format_metric("server_failures_total", "counter", "Requests that got an error or timed out.", failures)
    name = "request_duration_seconds"
    yield format_metric_header(name, "histogram", "Time from a request to its response.")
    for labels, histogram in durations:
        totals = list(accumulate(histogram.counts))
        for bound, total in zip((*map(str, BUCKETS), "+Inf"), totals, strict=True):
            yield format_sample(f"{name}_bucket", {**labels, "le": bound}, total)
        yield format_sample(f"{name}_sum", labels, histogram.seconds)
        yield format_sample(f"{name}_count", labels, totals[-1])


def make_audit_check(problem: Callable[[], PinwardenError | None]) -> Callable[[], str]:
    """Make a readiness check that returns why the audit log cannot be written."""

    def describe() -> str:
        error = problem()
        return "" if error is None else f"the audit log cannot be written ({error.code})"

    return describe


_OPERATOR = GatewayClient(name="operator")
_NO_ROUTES: Mapping[bytes, CallRoute] = {}


class OperatorEndpoint:
    """Serves pages without tokens, on a listener of their own.

    A web page that rebinds its DNS name to this address could read them, so the host must be an IP address, which no
    such page has, or one of the known names.
    """

    routes = _NO_ROUTES

    def __init__(self, pages: Mapping[str, Page], hosts: Collection[str]) -> None:
        self._pages = dict(pages)
        self._hosts = frozenset(host.lower() for host in hosts)

    def handle_request(self, request: Request, reply: Reply) -> None:
        """Respond with a page."""
        page = self._pages.get(request.path)
        if not self._is_known_host(request.get_header(b"host")):
            reply.send(421)
        elif page is None or request.method not in ("GET", "HEAD"):
            reply.send(405 if page else 404)
        else:
            status, content_type, body = page(_OPERATOR)
            reply.send(status, body, content_type=content_type)

    def authenticate(self, headers: dict[bytes, bytes], path: str) -> str:
        """Refuse large bodies: no page has a use for one."""
        del headers, path
        raise BadRequest(413, "The body is too long.")

    def _is_known_host(self, header: str) -> bool:
        host = parse_host(header)
        if host is None or host in self._hosts:
            return host is not None
        try:
            ip_address(host)
        except ValueError:
            return False
        return True
