"""Figures for Prometheus, health and readiness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import orjson

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.http.access import Client
from pinwarden.gateway.http.connection import Connections
from pinwarden.gateway.http.endpoint import Endpoint
from pinwarden.gateway.http.session_manager import Hub, Upstream

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
Sample = tuple[dict[str, str], float]


class Figures:
    """What is known about a running gateway."""

    def __init__(self, hub: Hub, endpoint: Endpoint, connections: Connections, waiting: Callable[[], int]) -> None:
        self._hub = hub
        self._endpoint = endpoint
        self._connections = connections
        self._waiting = waiting
        self.problems: list[Callable[[], str]] = []
        """Each says why the gateway cannot do its work, or nothing."""
        self.warnings: list[Callable[[], str]] = []
        """Each says what is not well although the gateway serves, or nothing."""

    def health(self, _: Client | None) -> tuple[int, str, bytes]:
        """The process runs and answers."""
        return 200, _JSON, b'{"status":"ok"}'

    def readiness(self, _: Client | None) -> tuple[int, str, bytes]:
        """Whether requests should be sent here."""
        found = [problem for each in self.problems if (problem := each())]
        if self._connections.draining:
            found.append("the gateway is ending")
        about = {
            "status": "unavailable" if found else "ready",
            "problems": found,
            "warnings": [warning for each in self.warnings if (warning := each())],
        }
        return (503 if found else 200), _JSON, orjson.dumps(about)

    def metrics(self, client: Client | None) -> tuple[int, str, bytes]:
        """What is counted, in the text format of Prometheus; of servers only those that the client may see."""
        seen = [each for each in self._hub.upstreams.values() if client is not None and client.sees(each.name)]
        return 200, _TEXT, "".join(self._lines(sorted(seen, key=lambda each: each.name))).encode()

    def _lines(self, servers: Sequence[Upstream]) -> Iterator[str]:
        sessions, conversations = self._hub.counts
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
        room = self._hub.room
        about = "Bytes that wait for servers, for lists to be judged, and for the end of messages that servers began."
        yield from _metric("waiting_bytes", "gauge", about, [({}, room.waiting)])
        about = "Conversations that were ended because most of that waited in them."
        yield from _metric("waiting_ended_total", "counter", about, [({}, room.overflows)])
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

    def told() -> str:
        found = problem()
        return "" if found is None else f"the audit log cannot be written ({found.code})"

    return told
