"""What browsers want to hear before a page may ask another site, and before it may read the answer (CORS).

Only pages of an origin that the user named are told anything. A browser asks first, without the page's token
(a preflight), so the answer to that is the same for every address, whether anything is there or not.
"""

from __future__ import annotations

import re

from pinwarden.gateway.http.request import Request

_METHODS = "GET, POST, DELETE"
_HEADERS = (
    *("authorization", "content-type", "accept", "last-event-id"),
    *("mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"),
)
_PARAMETER = re.compile(r"mcp-param-[a-z0-9_-]{1,200}")
_MOST_PARAMETERS = 100
_EXPOSED = "mcp-session-id, www-authenticate, retry-after"
_REMEMBERED_SECONDS = 600  # browsers keep the answer for at most some hours; a changed gateway should be heard sooner


def readable_by(origin: str) -> dict[str, str]:
    """The headers of an answer that a page of this origin may read."""
    return {"access-control-allow-origin": origin, "access-control-expose-headers": _EXPOSED, "vary": "origin"}


def is_preflight(request: Request) -> bool:
    """Whether a browser asks what a page may ask."""
    return request.method == "OPTIONS" and b"access-control-request-method" in request.headers


def preflight(request: Request) -> dict[str, str]:
    """What a page may ask: the methods and headers of MCP, and arguments that a tool wants as headers."""
    wanted = request.header(b"access-control-request-headers").lower().split(",", _MOST_PARAMETERS)
    parameters = sorted({each.strip() for each in wanted if _PARAMETER.fullmatch(each.strip())})
    return {
        "access-control-allow-methods": _METHODS,
        "access-control-allow-headers": ", ".join((*_HEADERS, *parameters)),
        "access-control-max-age": str(_REMEMBERED_SECONDS),
    }
