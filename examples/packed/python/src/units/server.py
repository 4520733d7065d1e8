"""The server."""

from importlib.metadata import version

from mcp.server import MCPServer

from .temperature import to_fahrenheit

server = MCPServer("acme-units", version=version("acme-units"))


@server.tool()
def convert_temperature(celsius: float) -> str:
    """Convert a temperature from degrees Celsius to degrees Fahrenheit."""
    return f"{to_fahrenheit(celsius):.1f} °F"


if __name__ == "__main__":
    server.run()
