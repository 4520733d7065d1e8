"""Ask a live MCP server for everything it tells the model."""
