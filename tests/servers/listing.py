"""An MCP server over stdio that offers what a JSON file next to it lists, and nothing behind it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LISTING = json.loads(Path(__file__).with_name("listing.json").read_text("utf-8"))
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {kind: {} for kind in LISTING if kind != "instructions"},
    "serverInfo": {"name": "listing", "version": "1"},
    "instructions": LISTING.get("instructions", ""),
}


def answer(method: str) -> dict[str, Any]:
    kind = method.removesuffix("/list")
    if method == "initialize":
        return {"result": INITIALIZED}
    if kind in LISTING:
        return {"result": {kind: LISTING[kind]}}
    return {"error": {"code": -32601, "message": "unknown method"}}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer(request["method"])}) + "\n")
        sys.stdout.flush()
