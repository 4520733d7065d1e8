"""A minimal stdio server, so that a benchmark measures the proxy in front of it."""

from __future__ import annotations

import json
import os
import re

TOOL = {
    "name": "echo",
    "description": "Say it again.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
}
RESULTS = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "echo", "version": "1"},
    },
    "tools/list": {"tools": [TOOL]},
}
_ID = re.compile(rb'"id": ?([0-9]+|"[^"]*")')
_TOKEN = re.compile(rb'"progressToken": ?([0-9]+|"[^"]*")')
COMPACT = b'{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"hi"}]}}\n'
SPACED = b'{"jsonrpc": "2.0", "id": %s, "result": {"content": [{"type": "text", "text": "hi"}]}}\n'
PROGRESS = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}\n'
REPORT = b"report-progress"
"""If the arguments of a call contain this text, the server reports progress once before it responds."""


def _respond(line: bytes) -> bytes:
    """Respond in the encoding of the request, with minimal work for a call."""
    match = _ID.search(line)
    if match is not None and b'"tools/call"' in line:
        answer = (SPACED if b'", "' in line else COMPACT) % match[1]
        if REPORT in line and (token := _TOKEN.search(line)) is not None:
            os.write(1, PROGRESS % token[1])
        return answer
    message = json.loads(line)
    if "id" not in message:
        return b""
    result = RESULTS[message["method"]]
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n"


def main() -> None:
    """Respond until standard input ends."""
    rest = b""
    while chunk := os.read(0, 1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        answers = b"".join(_respond(line) for line in lines if line)
        if answers:
            os.write(1, answers)


if __name__ == "__main__":
    main()
