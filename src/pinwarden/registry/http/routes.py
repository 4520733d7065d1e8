"""Read-only routes for health, search and the official MCP registry API; and error responses."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pinwarden.bundle.document import encode_document
from pinwarden.core.errors import EXIT_REFUSED, EXIT_USAGE, PinwardenError
from pinwarden.registry.http.openapi import build_openapi
from pinwarden.registry.official_api import ServerQuery, find_server_version, list_server_versions, list_servers
from pinwarden.registry.read_api import JSON, describe_error
from pinwarden.registry.registry import Registry
from pinwarden.registry.search import read_page_number, search_to_json
from pinwarden.registry.store import pointer_log


def get_health(registry: Registry, _request: Request, _body: bytes) -> Response:
    """``GET /health``: whether the database responds, and the size of the log."""
    with registry.database.transaction() as transaction:
        head = pointer_log.load_head(transaction)
    return _build_json_response({"status": "ok", "log_size": head.size if head else 0})


def get_openapi(_registry: Registry, _request: Request, _body: bytes) -> Response:
    """``GET /openapi.json``: the description of this API."""
    return _build_json_response(build_openapi())


def get_search(registry: Registry, request: Request, _body: bytes) -> Response:
    """``GET /api/search``: one page of the bundles that match all words of a query."""
    query = request.query_params
    return _build_json_response(search_to_json(registry, query.get("q", ""), read_page_number(query.get("page", "1"))))


def _build_json_response(value: object) -> Response:
    return Response(encode_document(value), media_type=JSON, headers={"cache-control": "no-cache"})


_STATUS = {
    "PUBLISHER_UNKNOWN": 401,
    "NAMESPACE_REFUSED": 403,
    "SERVER_NOT_FOUND": 404,
    "ARTIFACT_MISSING": 404,
    "VERSION_EXISTS": 409,
    "VERSION_YANKED": 409,
    "VERSION_TAKEN_DOWN": 409,
    "RECOVERY_WAITING": 409,
    "RECOVERY_UNKNOWN": 409,
    "VERSION_OLDER": 409,
    "REQUEST_STALE": 409,
    "PUBLISH_LIMIT": 413,
    "INPUT_LIMIT": 422,
    "OVERLOADED": 503,
    "REGISTRY_KEY_MISMATCH": 503,
    "REGISTRY_LOG_BEHIND": 503,
    "LOG_STATE_CORRUPT": 500,
    "DATABASE_UNAVAILABLE": 503,
    "DATABASE_CORRUPT": 500,
    "DATABASE_NEWER": 500,
    "FETCH_FAILED": 503,
    "FILE_UNWRITABLE": 500,
    "FILE_UNREADABLE": 500,
    "INTERNAL": 500,
}


def choose_status_code(err: PinwardenError) -> int:
    """Return the HTTP status of an error: 4xx for unacceptable requests, 5xx for failures of the registry."""
    if err.data.get("reason") in ("rate", "queue"):
        return 429
    known = _STATUS.get(err.code)
    if known is not None:
        return known
    return 422 if err.exit_code in (EXIT_REFUSED, EXIT_USAGE) else 400


def refuse_nul_bytes(request: Request) -> None:
    """Refuse NUL bytes, which PostgreSQL would report as a server error."""
    parameters = (*request.path_params.values(), *request.query_params.values())
    if any("\0" in text for text in parameters):
        raise PinwardenError("USAGE", "NUL bytes are not allowed")


def build_error_response(err: PinwardenError) -> Response:
    """Return an error as a JSON response."""
    status = choose_status_code(err)
    body = encode_document({"error": {"code": err.code, "message": describe_error(err, status), "hint": err.hint}})
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    if status in (429, 503):
        headers["retry-after"] = "600" if err.data.get("reason") == "rate" else "1"
    return Response(body, status_code=status, media_type=JSON, headers=headers)


_MAX_SEARCH = 214


def get_servers(registry: Registry, request: Request, _body: bytes) -> Response:
    """``GET /v0.1/servers``: one page of servers."""
    query = request.query_params
    limit = query.get("limit", "30")
    if not limit.isdecimal() or len(limit) > 5:
        raise PinwardenError("USAGE", "limit must be a number")
    server_query = ServerQuery(
        search=query.get("search", "")[:_MAX_SEARCH],
        cursor=query.get("cursor", "")[: _MAX_SEARCH + 20],
        limit=int(limit),
        latest_only=query.get("version") == "latest",
    )
    return _build_json_or_404(list_servers(registry, server_query, find_base_url(registry, request)))


def get_versions(registry: Registry, request: Request, _body: bytes) -> Response:
    """``GET /v0.1/servers/{name}/versions``."""
    return _build_json_or_404(
        list_server_versions(registry, request.path_params["name"], find_base_url(registry, request))
    )


def get_version(registry: Registry, request: Request, _body: bytes) -> Response:
    """``GET /v0.1/servers/{name}/versions/{version}``."""
    parameters = request.path_params
    return _build_json_or_404(
        find_server_version(registry, parameters["name"], parameters["version"], find_base_url(registry, request))
    )


def find_base_url(registry: Registry, request: Request) -> str:
    """Return the base URL for links to files: the operator's ``--public-url``, or the address of the request."""
    return registry.public_url or str(request.base_url)


def _build_json_or_404(value: dict[str, Any] | None) -> Response:
    if value is None:
        raise PinwardenError("SERVER_NOT_FOUND", "no such server or version is published in this registry")
    return Response(encode_document(value), media_type=JSON, headers={"cache-control": "no-cache"})
