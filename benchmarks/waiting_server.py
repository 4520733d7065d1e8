"""A stdio server that waits a second before it responds, like a server that loads a framework or contacts a service."""

from __future__ import annotations

import json
import sys
import time

time.sleep(1)
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    answer: dict[str, object] = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] == "initialize":
        answer["result"] = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "waiting", "version": "1"},
        }
    elif request["method"] == "tools/list":
        answer["result"] = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    else:
        answer["error"] = {"code": -32601, "message": "Method not found"}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
