"""A simple proxy built on the SDK's sessions: a server that forwards calls through a client.

``python -m benchmarks.sdk_http_proxy <address of the server>`` prints its port.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from mcp.client import Client
from mcp.server.lowlevel import Server


def main(url: str) -> None:
    @contextlib.asynccontextmanager
    async def upstream(_: Any) -> AsyncIterator[Client]:
        async with Client(url, cache=None) as client:
            yield client

    async def list_tools(ctx: Any, params: Any) -> Any:
        del params
        return await ctx.lifespan_context.list_tools()

    async def call_tool(ctx: Any, params: Any) -> Any:
        return await ctx.lifespan_context.call_tool(params.name, params.arguments)

    server: Server[Client] = Server("sdk-proxy", lifespan=upstream, on_list_tools=list_tools, on_call_tool=call_tool)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    app = server.streamable_http_app(json_response=True, stateless_http=True)
    config = uvicorn.Config(app, log_level="error", access_log=False, timeout_keep_alive=600)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1])
