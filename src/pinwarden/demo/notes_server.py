"""A small MCP server over stdio that keeps notes in memory. The demo's package index serves it as a package."""

from __future__ import annotations

import json
import sys
from typing import Any


def _describe_tool(name: str, description: str, argument: str, *, read_only: bool) -> dict[str, Any]:
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    annotations = {"readOnlyHint": read_only, "destructiveHint": False}
    return {"name": name, "description": description, "inputSchema": schema, "annotations": annotations}


TOOLS = [
    _describe_tool("search_notes", "Full-text search over the user's notes.", "query", read_only=True),
    _describe_tool("write_note", "Keep a note and return its id.", "text", read_only=False),
]


class Notes:
    """The notes, in the order in which they were written."""

    def __init__(self) -> None:
        self._texts = ["Groceries: apples, bread", "Water the garden on Friday"]

    def call(self, name: str, arguments: dict[str, str]) -> str:
        """Run one tool and return its text."""
        if name == "write_note":
            self._texts.append(arguments["text"])
            return f"note-{len(self._texts)}"
        query = arguments["query"].casefold()
        return "\n".join(text for text in self._texts if query in text.casefold()) or "No note matches."


def answer(notes: Notes, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request, or None if there is no such method or tool."""
    if method == "initialize":
        return {
            "protocolVersion": params.get("protocolVersion", "2025-11-25"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "notes", "version": "1.0.0"},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call" and params.get("name") in {tool["name"] for tool in TOOLS}:
        return {"content": [{"type": "text", "text": notes.call(params["name"], params.get("arguments", {}))}]}
    return None


def main() -> None:
    """Answer the requests on stdin until it is closed."""
    notes = Notes()
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        response: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        result = answer(notes, message.get("method", ""), message.get("params", {}))
        if result is None:
            response["error"] = {"code": -32601, "message": "Method not found"}
        else:
            response["result"] = result
        sys.stdout.write(json.dumps(response) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
