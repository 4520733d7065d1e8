"""A minimal relay on uvicorn: it forwards each request on a persistent connection, without any checks.

The time it adds to a call is the minimum for a gateway built on uvicorn; see decision 0018.
``python -m benchmarks.uvicorn_relay PORT`` prints its own port.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn

IDLE: list[Upstream] = []


class Upstream(asyncio.Protocol):
    """One persistent connection to the upstream, for one call at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.response: asyncio.Future[bytes] | None = None
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator or self.response is None:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self.received = b""
            self.response.set_result(body)

    async def call(self, head: bytes, body: bytes) -> bytes:
        self.response = asyncio.get_running_loop().create_future()
        self.transport.write(head + body)
        return await self.response


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    event = await receive()
    body = event["body"]
    while event.get("more_body"):
        event = await receive()
        body += event["body"]
    names = (b"content-type", b"accept", b"mcp-protocol-version", b"mcp-method", b"mcp-name")
    lines = [name + b": " + value for name, value in scope["headers"] if name in names]
    start = b"POST " + scope["raw_path"] + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    head = start + b"\r\n".join(lines) + b"\r\ncontent-length: %d\r\n\r\n" % len(body)
    upstream = IDLE.pop() if IDLE else await _connect()
    answer = await upstream.call(head, body)
    IDLE.append(upstream)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


async def _connect() -> Upstream:
    _, protocol = await asyncio.get_running_loop().create_connection(Upstream, "127.0.0.1", int(sys.argv[1]))
    return protocol


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="error", access_log=False, timeout_keep_alive=600)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
