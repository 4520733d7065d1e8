"""Read the complete surface of a live MCP server over stdio, Streamable HTTP or SSE. Start with ``probe.py``."""
