"""Questions that are not files: is it well, what is there."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from pinwarden.bundle.signatures import to_bytes
from pinwarden.registry.read_api import JSON
from pinwarden.registry.registry import Registry
from pinwarden.registry.search import search_tools
from pinwarden.registry.store import pointer_log


def health(registry: Registry, _request: Request, _body: bytes) -> Response:
    """Whether the database answers, and how long the log is."""
    with registry.database.transaction() as step:
        head = pointer_log.head_of(step)
    return _json({"status": "ok", "log_size": head.size if head else 0})


def search(registry: Registry, request: Request, _body: bytes) -> Response:
    """Tools whose name or description holds a text."""
    query = request.query_params
    return _json(search_tools(registry, query.get("q", "")[:200], query.get("after", "")[:214]))


def _json(value: object) -> Response:
    return Response(to_bytes(value), media_type=JSON, headers={"cache-control": "no-cache"})
