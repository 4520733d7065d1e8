"""A server written with the official SDK that demands an access token: ``python protected_server.py ISSUER PORT LOG``.

It verifies tokens with the keys of the issuer, and appends the subject of each accepted request to LOG. The tool
``write`` needs the scope ``tools:call``. Tokens whose ``jti`` is in the file ``LOG.revoked`` are refused.
"""

from __future__ import annotations

import json
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import jwt
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer

ISSUER, PORT, LOG = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
RESOURCE = f"http://127.0.0.1:{PORT}/mcp"


class Verifier:
    """Verifies tokens of the issuer for this server."""

    async def verify_token(self, token: str) -> AccessToken | None:
        with urllib.request.urlopen(f"{ISSUER}/jwks", timeout=60) as response:
            keys = jwt.PyJWKSet.from_dict(json.load(response))
        try:
            key = keys[jwt.get_unverified_header(token)["kid"]]
            claims = jwt.decode(token, key.key, ["RS256"], audience=RESOURCE, issuer=ISSUER)
        except (jwt.PyJWTError, KeyError):
            return None
        revoked = LOG.with_suffix(".revoked")
        if revoked.exists() and claims["jti"] in revoked.read_text().split():
            return None
        with LOG.open("a") as log:
            log.write(f"{claims['sub']}\n")
        return AccessToken(
            token=token,
            client_id=claims["client_id"],
            scopes=claims["scope"].split(),
            expires_at=claims["exp"],
            resource=RESOURCE,
            subject=claims["sub"],
            claims=claims,
        )


server = MCPServer(
    "protected",
    version="1",
    log_level="ERROR",
    token_verifier=Verifier(),
    # From texts: an AnyHttpUrl would add a slash to the issuer.
    auth=AuthSettings.model_validate(
        {
            "issuer_url": ISSUER,
            "resource_server_url": RESOURCE,
            "required_scopes": ["tools:read"],
            "validate_token_resource": True,
        }
    ),
)


@server.tool()
def whoami() -> str:
    """Return whose token this is."""
    token = get_access_token()
    return "" if token is None or token.subject is None else token.subject


@server.tool()
def write() -> str:
    """Do something that needs another scope."""
    return whoami()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Refuse calls of ``write`` without its scope, as a server with scopes per tool does."""
    if scope["type"] != "http" or scope["method"] != "POST":
        await inner(scope, receive, send)
        return
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    body = b"".join(message.get("body", b"") for message in messages)
    token = dict(scope["headers"]).get(b"authorization", b"").decode().partition(" ")[2]
    held = jwt.decode(token, options={"verify_signature": False}).get("scope", "") if token else ""
    if b'"name":"write"' in body.replace(b": ", b":") and token and "tools:call" not in held.split():
        challenge = b'Bearer error="insufficient_scope", scope="tools:call"'
        await send({"type": "http.response.start", "status": 403, "headers": [(b"www-authenticate", challenge)]})
        await send({"type": "http.response.body", "body": b""})
        return

    async def replay() -> Any:
        return messages.pop(0) if messages else await receive()

    await inner(scope, replay, send)


inner: Any = server.streamable_http_app()

if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", PORT))
    sys.stdout.write(f"port {PORT}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)).run(sockets=[listener])
