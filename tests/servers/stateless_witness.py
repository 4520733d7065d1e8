"""A stateless server on stdio that puts the secret of each call into everything it sends because of that call.

``python -I -S stateless_witness.py [CAPABILITIES]``. Its tools:

- ``echo`` answers with the number of the process and the secret, after progress if that is wanted;
- ``meet`` does the same when ``count`` calls of it wait: progress in their order, answers in the reverse order;
- ``stray`` first sends messages that belong to no request, some of them under ids that may be in use;
- ``change`` first notifies the last subscriber that the list of tools changed;
- ``seen`` answers with the secrets of all calls, with those that were cancelled, and with the number of pings;
- ``log`` first sends a log message that names no request.
"""

import json
import os
import sys
from typing import Any

NAMES = ("echo", "meet", "stray", "change", "seen", "log")
TOOLS = [{"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object"}} for name in NAMES]
META = "io.modelcontextprotocol/"


class Witness:
    """Answers messages, and remembers them."""

    def __init__(self, capabilities: Any) -> None:
        self.capabilities = capabilities
        self.calls: list[Any] = []
        self.meeting: list[Any] = []
        self.cancelled: list[Any] = []
        self.subscriptions: list[Any] = []
        self.pings = 0

    def take(self, message: Any) -> None:
        """Answer one message."""
        method, params = message.get("method"), message.get("params", {})
        if method == "notifications/cancelled":
            self.cancelled += [
                call["params"]["arguments"]["secret"] for call in self.calls if call["id"] == params["requestId"]
            ]
            self.meeting = [call for call in self.meeting if call["id"] != params["requestId"]]
        elif method == "server/discover":
            server = {f"{META}serverInfo": {"name": "witness", "version": "1"}}
            about = {"supportedVersions": ["2026-07-28"], "capabilities": self.capabilities, "_meta": server}
            answer(message, {"resultType": "complete", **about})
        elif method == "tools/list":
            answer(message, {"tools": TOOLS})
        elif method == "tools/call":
            self.calls.append(message)
            getattr(self, params["name"])(message)
        elif method == "subscriptions/listen":
            self.subscriptions.append(message["id"])
            self.notify(message["id"], "notifications/subscriptions/acknowledged")
        elif "id" in message:
            self.pings += method == "ping"
            send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})

    def echo(self, call: Any) -> None:
        """Answer at once."""
        progress(call)
        said(call)

    def meet(self, call: Any) -> None:
        """Answer when others wait too."""
        self.meeting.append(call)
        if len(self.meeting) == call["params"]["arguments"]["count"]:
            for each in self.meeting:
                progress(each)
            for each in reversed(self.meeting):
                said(each)
            self.meeting.clear()

    def stray(self, call: Any) -> None:
        """Send what no client may get, then answer."""
        for number in (*range(1, 12), *[each["id"] for each in self.meeting]):
            send(
                {"id": number, "method": "sampling/createMessage", "params": {"messages": [], "systemPrompt": "STRAY"}}
            )
            send({"method": "notifications/message", "params": {"level": "info", "data": "STRAY"}})
        for _ in range(40):
            send({"method": "notifications/tools/list_changed", "params": {"_meta": {"note": "STRAY"}}})
        for token in ("t", *range(1, 12)):
            about = {"progressToken": token, "progress": 1, "message": "STRAY"}
            send({"method": "notifications/progress", "params": about})
            send({"id": token, "result": {"content": [{"type": "text", "text": "STRAY"}]}})
        said(call)

    def change(self, call: Any) -> None:
        """Notify the last subscriber, then answer."""
        self.notify(self.subscriptions[-1], "notifications/tools/list_changed")
        said(call)

    def notify(self, subscription: Any, method: str) -> None:
        """Send something on the stream of a subscription."""
        send({"method": method, "params": {"_meta": {f"{META}subscriptionId": subscription}}})

    def seen(self, call: Any) -> None:
        """Answer with all secrets."""
        secrets = [each["params"]["arguments"].get("secret") for each in self.calls]
        said(call, {"calls": secrets, "cancelled": self.cancelled, "pings": self.pings})

    def log(self, call: Any) -> None:
        """Send a log message, then answer."""
        send({"method": "notifications/message", "params": {"level": "info", "data": "LOG"}})
        said(call)


def progress(call: Any) -> None:
    token = call["params"]["_meta"].get("progressToken")
    if token is not None:
        about = {"progressToken": token, "progress": 1, "message": call["params"]["arguments"]["secret"]}
        send({"method": "notifications/progress", "params": about})


def said(call: Any, what: Any = None) -> None:
    what = what or {"pid": os.getpid(), "secret": call["params"]["arguments"].get("secret")}
    answer(call, {"resultType": "complete", "content": [{"type": "text", "text": json.dumps(what)}]})


def answer(message: Any, result: Any) -> None:
    send({"id": message["id"], "result": result})


def send(message: Any) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def main() -> None:
    witness = Witness(json.loads(sys.argv[1]) if len(sys.argv) > 1 else {"tools": {}})
    left = b""
    while data := os.read(0, 1 << 20):
        *lines, left = (left + data).split(b"\n")
        for line in reversed(lines):  # so that answers overtake each other
            witness.take(json.loads(line))


if __name__ == "__main__":
    main()
