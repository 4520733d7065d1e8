"""A small server written with FastMCP: ``python fastmcp_server.py stdio|http|sse``."""

from __future__ import annotations

import sys
from pathlib import Path

from fastmcp import FastMCP

server: FastMCP = FastMCP("fastmcp-sample", version="4.5.6", instructions="Add numbers only.")


@server.tool(tags={"math"}, annotations={"readOnlyHint": True})
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@server.prompt
def explain(topic: str) -> str:
    """Explain a topic."""
    return topic


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
        server.run("stdio", show_banner=False)
    else:
        sys.path.insert(0, str(Path(__file__).parent.parent.parent))
        from tests.servers.serve_http import serve

        serve(server.http_app("/mcp") if sys.argv[1] == "http" else server.http_app("/sse", transport="sse"))
