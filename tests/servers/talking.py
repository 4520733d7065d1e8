"""A server on stdio that does what real ones do between a call and its answer, exactly as the call says.

``python talking.py RECORD``: every line that it gets and sends goes to the file too, so that both ends can be compared.
Its tools: ``echo`` (answers its arguments), ``steps`` (progress, then the answer), ``ask`` (asks the client first),
``large`` (so many bytes), ``blob`` (binary content), ``hang`` (never), ``stop`` (never, nor anything after it),
``die`` (ends), ``pid``, ``note`` (tells something that belongs to no call), ``odd`` (JSON with its own spacing and
escapes), ``slow`` (answers when it is cancelled).
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

NAMES = ("echo", "steps", "ask", "large", "blob", "hang", "stop", "die", "pid", "note", "odd", "slow")
TOOLS = [{"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object"}} for name in NAMES]
INFO = {"name": "talking", "version": "1"}
CAPABILITIES: dict[str, Any] = {"tools": {}, "logging": {}, "completions": {}, "resources": {}, "prompts": {}}
PROMPTS = [{"name": "p", "arguments": [{"name": "a"}]}]
RESOURCES = [{"name": "one", "uri": "note://one"}]


class Talking:
    """The conversation, and where it is written down."""

    def __init__(self, record: str) -> None:
        self.record = Path(record).open("ab", buffering=0)  # noqa: SIM115 - as long as the process
        self.waiting: dict[Any, Any] = {}
        self.slow: dict[Any, Any] = {}

    def say(self, message: Any) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        line = text.encode() + b"\n"
        self.record.write(b"> " + line)
        os.write(1, line) if len(line) < 60_000 else self._all(line)

    def _all(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(1, rest) :]

    def result(self, number: Any, result: dict[str, Any]) -> None:
        self.say({"jsonrpc": "2.0", "id": number, "result": {**result, "resultType": "complete"}})

    def take(self, line: bytes) -> None:
        self.record.write(b"< " + line)
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        params = message.get("params", {})
        if method is None:
            self._answered(message)
        elif method == "initialize":
            about = {"serverInfo": INFO, "capabilities": CAPABILITIES, "protocolVersion": params["protocolVersion"]}
            self.say({"jsonrpc": "2.0", "id": number, "result": about})
        elif method == "server/discover":
            meta = {"io.modelcontextprotocol/serverInfo": INFO}
            hints = {"ttlMs": 0, "cacheScope": "private", "supportedVersions": ["2026-07-28"]}
            self.result(number, {"capabilities": CAPABILITIES, "_meta": meta, **hints})
        elif method == "tools/list":
            self.result(number, {"tools": TOOLS, "ttlMs": 0, "cacheScope": "private"})
        elif method == "resources/list":
            self.result(number, {"resources": RESOURCES, "ttlMs": 0, "cacheScope": "private"})
        elif method == "prompts/list":
            self.result(number, {"prompts": PROMPTS, "ttlMs": 0, "cacheScope": "private"})
        elif method == "resources/templates/list":
            self.result(number, {"resourceTemplates": [], "ttlMs": 0, "cacheScope": "private"})
        elif method == "resources/read":
            self.result(number, {"contents": [{"uri": params["uri"], "text": "one"}]})
        elif method == "completion/complete":
            self.result(number, {"completion": {"values": [params["argument"]["value"] + "!"]}})
        elif method in ("logging/setLevel", "ping"):
            self.result(number, {})
        elif method == "notifications/cancelled" and params.get("requestId") in self.slow:
            self._text(self.slow.pop(params["requestId"]), "cancelled")
        elif method == "tools/call":
            getattr(self, f"_{params['name']}")(number, params.get("arguments", {}), params.get("_meta", {}))
        elif number is not None:
            error = {"code": -32601, "message": f"Method not found: {method}"}
            self.say({"jsonrpc": "2.0", "id": number, "error": error})

    def _text(self, number: Any, text: str) -> None:
        self.result(number, {"content": [{"type": "text", "text": text}]})

    def _echo(self, number: Any, arguments: Any, _: Any) -> None:
        self._text(number, json.dumps(arguments))

    def _pid(self, number: Any, _: Any, __: Any) -> None:
        self._text(number, str(os.getpid()))

    def _steps(self, number: Any, arguments: Any, meta: Any) -> None:
        for step in range(arguments["count"]):
            about = {"progressToken": meta["progressToken"], "progress": step, "message": f"step {step}"}
            self.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": about})
        self._text(number, "done")

    def _ask(self, number: Any, arguments: Any, _: Any) -> None:
        mine = f"server-{number}"
        self.waiting[mine] = number
        self.say({"jsonrpc": "2.0", "id": mine, "method": arguments["method"], "params": arguments["params"]})

    def _answered(self, message: Any) -> None:
        number = self.waiting.pop(message["id"], None)
        if number is not None:
            self._text(number, json.dumps(message.get("result", message.get("error"))))

    def _large(self, number: Any, arguments: Any, _: Any) -> None:
        self._text(number, "x" * arguments["bytes"])

    def _blob(self, number: Any, _: Any, __: Any) -> None:
        data = base64.b64encode(bytes(range(256)) * 8).decode()
        self.result(number, {"content": [{"type": "image", "data": data, "mimeType": "image/png"}]})

    def _odd(self, number: Any, _: Any, __: Any) -> None:
        text = '{ "result" : {"content":[ {"type" :"text","text":"\\u00e9\\/ \\ud83d\\ude00 1.0e2"}],"x":1.50, "big":'
        self.say(text + f'123456789012345678901234567890 }}\t, "id":{json.dumps(number)} , "jsonrpc":"2.0" }}')

    def _note(self, number: Any, _: Any, __: Any) -> None:
        about = {"level": "info", "logger": "talking", "data": {"heard": True}}
        self.say({"jsonrpc": "2.0", "method": "notifications/message", "params": about})
        self._text(number, "told")

    def _hang(self, number: Any, _: Any, __: Any) -> None:
        pass

    def _stop(self, _: Any, __: Any, ___: Any) -> None:
        while True:
            signal.pause()

    def _slow(self, number: Any, _: Any, __: Any) -> None:
        self.slow[number] = number

    def _die(self, _: Any, __: Any, ___: Any) -> None:
        os._exit(7)


def main() -> None:
    talking = Talking(sys.argv[1])
    for line in sys.stdin.buffer:
        talking.take(line)


if __name__ == "__main__":
    main()
