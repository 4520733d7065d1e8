"""A trivial MCP server over HTTP for the benchmark: newest revision, JSON responses, one tool that echoes its argument.

``python -m benchmarks.http_upstream`` prints its port.
"""

from __future__ import annotations

import json
import socket
from typing import Any

import uvicorn

TOOL = {"name": "echo", "description": "Say it again.", "inputSchema": {"type": "object"}}
HINTS = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
INFO = {"name": "bench-upstream", "version": "1"}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "tools/call":
        return {"resultType": "complete", "content": [{"type": "text", "text": params["arguments"]["text"]}]}
    if method == "tools/list":
        return {"tools": [TOOL], **HINTS}
    capabilities: dict[str, Any] = {"capabilities": {"tools": {}}}
    if method == "server/discover":
        meta = {"io.modelcontextprotocol/serverInfo": INFO}
        return {"supportedVersions": ["2026-07-28"], **capabilities, **HINTS, "_meta": meta}
    if method == "initialize":
        return {"protocolVersion": "2025-11-25", "serverInfo": INFO, **capabilities}
    return None


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body = b""
    while True:
        event = await receive()
        body += event.get("body", b"")
        if not event.get("more_body"):
            break
    message = json.loads(body or b"{}")
    answer = b""
    status = 202
    if "id" in message:
        result = result_of(message["method"], message.get("params", {}))
        outcome = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no such method"}}
        answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}, separators=(",", ":")).encode()
        status = 200
    elif scope["method"] != "POST":
        status = 405
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="error", access_log=False, timeout_keep_alive=600)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
