"""A small server of the official Python SDK, for the guide on contracts."""

from __future__ import annotations

from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("weather", version="1.0.0", instructions="Answer questions about the weather.")
NOTES = Path("weather-notes.txt")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def forecast(city: str, days: int = 3) -> str:
    """The forecast for a city."""
    return f"{city}: fine for {days} days"


@server.tool()
def remember(city: str) -> str:
    """Remember a city for next time."""
    with NOTES.open("a", encoding="utf-8") as notes:
        notes.write(f"{city}\n")
    return f"remembered {city}"


if __name__ == "__main__":
    server.run("stdio")
