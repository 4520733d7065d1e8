"""Ask a live MCP server for its complete surface, over stdio, Streamable HTTP or SSE."""
