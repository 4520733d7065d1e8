"""The paths of the official MCP registry API."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pinwarden.bundle.signatures import to_bytes
from pinwarden.core.errors import PinwardenError
from pinwarden.registry.official_api import Asked, list_servers, server_version, server_versions
from pinwarden.registry.read_api import JSON
from pinwarden.registry.registry import Registry

_MAX_SEARCH = 214


def servers(registry: Registry, request: Request, _body: bytes) -> Response:
    """One page of all servers."""
    query = request.query_params
    limit = query.get("limit", "30")
    if not limit.isdecimal() or len(limit) > 5:
        raise PinwardenError("USAGE", "limit is a number")
    asked = Asked(
        search=query.get("search", "")[:_MAX_SEARCH],
        cursor=query.get("cursor", "")[: _MAX_SEARCH + 20],
        limit=int(limit),
        latest=query.get("version") == "latest",
    )
    return _json(list_servers(registry, asked, _base(registry, request)))


def versions(registry: Registry, request: Request, _body: bytes) -> Response:
    """All versions of a server."""
    return _json(server_versions(registry, request.path_params["name"], _base(registry, request)))


def version(registry: Registry, request: Request, _body: bytes) -> Response:
    """One version of a server, or the latest."""
    given = request.path_params
    return _json(server_version(registry, given["name"], given["version"], _base(registry, request)))


def _base(registry: Registry, request: Request) -> str:
    """Where the files are that an entry names. Behind another web server only the operator knows."""
    return registry.public_url or str(request.base_url)


def _json(value: dict[str, Any] | None) -> Response:
    if value is None:
        raise PinwardenError("SERVER_NOT_FOUND", "no server of that name and version is published here")
    return Response(to_bytes(value), media_type=JSON, headers={"cache-control": "no-cache"})
