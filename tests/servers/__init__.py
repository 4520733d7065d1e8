"""MCP servers that the tests talk to."""
