"""A stdio server as people write them: the official Python SDK, and one tool."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("echo", version="1", log_level="ERROR")


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


if __name__ == "__main__":
    server.run("stdio")
