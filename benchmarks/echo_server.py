"""A stdio server that does next to nothing, so that what stands before it is what is measured."""

from __future__ import annotations

import json
import os

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
PREFIX = b'{"jsonrpc":"2.0","id":'
ANSWER = b',"result":{"content":[{"type":"text","text":"hi"}]}}\n'


def _answer(line: bytes) -> bytes:
    if line.startswith(PREFIX) and b'"method":"tools/call"' in line:
        return PREFIX + line[len(PREFIX) : line.index(b",", len(PREFIX))] + ANSWER
    message = json.loads(line)
    if "id" not in message:
        return b""
    result = RESULTS.get(message["method"], {"content": [{"type": "text", "text": "hi"}]})
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n"


def main() -> None:
    """Answer until standard input ends."""
    rest = b""
    while chunk := os.read(0, 1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        answers = b"".join(_answer(line) for line in lines if line)
        if answers:
            os.write(1, answers)


if __name__ == "__main__":
    main()
