"""A small server written with the official Python SDK: ``python sdk_server.py stdio|http|sse``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from mcp.server.mcpserver import MCPServer

server = MCPServer("sdk-sample", version="1.2.3", instructions="Ask for the weather only.", log_level="WARNING")


@server.tool()
def weather(city: str, unit: Literal["C", "F"] = "C") -> str:
    """The weather in a city."""
    return f"fine in {city}, 20 {unit}"


@server.prompt()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"


@server.resource("note://today")
def today() -> str:
    """Today's note."""
    return "nothing"


@server.resource("note://{day}")
def of_day(day: str) -> str:
    """The note of a day."""
    return day


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        sys.path.insert(0, str(Path(__file__).parent.parent.parent))
        from tests.servers.serve_http import serve

        serve(server.streamable_http_app() if sys.argv[1] == "http" else server.sse_app())
