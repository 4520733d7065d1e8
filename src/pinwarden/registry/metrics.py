"""The metrics of a registry in the text format of Prometheus. For ``/metrics``."""

from __future__ import annotations

import shutil
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from threading import Lock

from pinwarden.core.errors import PinwardenError
from pinwarden.registry.registry import Registry
from pinwarden.registry.store import operators, pointer_log, publications

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)
_KINDS = ("api/blobs", "api/publish", "api/change", "api/attestations", "api/cosignatures", "api/", "blobs/", "log/")


class RequestMetrics:
    """Counts requests by kind, method and status, and measures their duration. Call it from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, float] = {}

    def record(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count a request."""
        kind = next((kind.rstrip("/") for kind in _KINDS if path.startswith(kind)), "other")
        known = method if method in ("GET", "HEAD", "POST", "PUT") else "other"
        with self._lock:
            self._requests[kind, known, status] += 1
            self._buckets[kind, bisect_left(_BUCKETS, seconds)] += 1
            self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds

    def render(self) -> Iterator[str]:
        """Yield the lines of these metrics."""
        with self._lock:
            requests, buckets, seconds = dict(self._requests), dict(self._buckets), dict(self._seconds)
        name = "pinwarden_registry_requests_total"
        yield from _render_header(name, "counter", "HTTP requests")
        for (kind, method, status), count in sorted(requests.items()):
            yield f'{name}{{kind="{kind}",method="{method}",status="{status}"}} {count}'
        name = "pinwarden_registry_request_seconds"
        yield from _render_header(name, "histogram", "duration of HTTP requests")
        for kind in sorted(seconds):
            total = 0
            for index, bound in enumerate((*_BUCKETS, "+Inf")):
                total += buckets.get((kind, index), 0)
                yield f'{name}_bucket{{kind="{kind}",le="{bound}"}} {total}'
            yield f'{name}_sum{{kind="{kind}"}} {seconds[kind]:.6f}'
            yield f'{name}_count{{kind="{kind}"}} {total}'


def render_metrics(registry: Registry, requests: RequestMetrics, problems: Iterable[dict[str, str]]) -> str:
    """Return the page ``/metrics``. Without a database, it lacks the metrics that are read from it."""
    lines = [*requests.render()]
    present = {problem["code"] for problem in problems}
    lines += _render_gauge("pinwarden_registry_ready", "whether /readyz reports no problem", int(not present))
    lines += _render_header("pinwarden_registry_problem", "gauge", "problems that /readyz reports, by code")
    lines += [f'pinwarden_registry_problem{{code="{code}"}} 1' for code in sorted(present)]
    if registry.checkpoint is not None and registry.checkpoint.parent.exists():
        free = shutil.disk_usage(registry.checkpoint.parent).free
        lines += _render_gauge("pinwarden_registry_disk_free_bytes", "free bytes in the data folder", free)
    with suppress(PinwardenError):  # /readyz reports it
        lines += _render_database(registry)
    return "\n".join(lines) + "\n"


def _render_database(registry: Registry) -> list[str]:
    with registry.database.transaction() as transaction:
        head = pointer_log.load_head(transaction)
        size = head.size if head else 0
        versions, tools = publications.count_versions(transaction)
        cosigned = len(pointer_log.list_cosignatures(transaction, size))
        waiting = len(operators.list_recoveries(transaction))
        takedowns = operators.count_takedowns(transaction)
    rows = (
        ("log_size", "entries of the log", size),
        ("versions", "published versions", versions),
        ("bundles", "published bundles", tools),
        ("takedowns", "takedowns in force", takedowns),
        ("recoveries_waiting", "recoveries of namespaces that wait", waiting),
        ("witnesses", "witnesses that this process knows", len(registry.witnesses)),
        ("cosignatures", "witnesses that cosigned the head of the log", cosigned),
    )
    return [line for name, text, value in rows for line in _render_gauge(f"pinwarden_registry_{name}", text, value)]


def _render_gauge(name: str, text: str, value: float) -> list[str]:
    return [*_render_header(name, "gauge", text), f"{name} {value}"]


def _render_header(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
