"""A server that speaks real MCP and does exactly what its script says, also what no honest server would do.

Over stdio: ``python scripted.py '<script as JSON>'`` or ``@<file>``. Over HTTP: see ``scripted_http.py``. It uses the
standard library only, so that it starts at once and so that what is on the wire is written here and nowhere else.

A script is an object with any of:

``eras``        which of ``discover`` and ``initialize`` are understood (both); ``silent_discover``: no answer to it
``version``     the version that ``initialize`` answers with (2025-11-25)
``server``      members of that answer: serverInfo, capabilities, instructions
``lists``       by member name, a list of pages, each a list of items; a string is the raw JSON text of an item
``cursors``     the cursor that leads to page 2, 3, … (``"2"``, ``"3"``, …)
``next_cursor`` a cursor that every page ends with: a loop
``endless``     every page ends with a fresh cursor
``errors``      by method, the error that answers it
``for_client``  by client name, lists that only this client gets
``sequence``    lists for the first, second, … reading of a list; the last one stays
``asks``        requests that are sent, and must be answered, before a list is
``notes``       messages that are sent before each list answer
``raw``         by method, the whole raw answer; ``{id}`` stands for the id, ``@<n>`` for n tools
``noise``       lines that are printed before anything else
``trouble``     stdio only: see ``_trouble``
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

META = "io.modelcontextprotocol/"
MEMBERS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


class Scripted:
    """The conversation, without any input or output. One instance serves one connection."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.script = script
        self.client = ""
        self.readings: dict[str, int] = {}
        self.waiting: list[str] = []

    def answers(self, message: dict[str, Any]) -> list[str]:
        """The raw messages that this one causes."""
        if "method" not in message:
            return self._after_reply(message)
        if "id" not in message:
            return []
        method, number = message["method"], message["id"]
        params = message.get("params", {})
        if method in self.script.get("raw", {}):
            return [_raw(self.script["raw"][method], number)]
        if method in self.script.get("errors", {}):
            return [_error(number, self.script["errors"][method])]
        if method == "server/discover":
            return self._discover(number, params)
        if method == "initialize":
            return self._initialize(number, params)
        if method in MEMBERS:
            return self._list(number, method, params)
        return [_error(number, {"code": -32601, "message": f"Method not found: {method}"})]

    def _discover(self, number: Any, params: dict[str, Any]) -> list[str]:
        if self.script.get("silent_discover"):
            return []
        if "discover" not in self.script.get("eras", ("discover", "initialize")):
            return [_error(number, {"code": -32601, "message": "Method not found"})]
        self.client = params["_meta"][f"{META}clientInfo"]["name"]
        server = dict(self._server())
        info = server.pop("serverInfo")
        result = {
            "supportedVersions": ["2026-07-28"],
            "resultType": "complete",
            "ttlMs": 86_400_000,
            "cacheScope": "public",
            "_meta": {f"{META}serverInfo": info},
            **server,
        }
        return [_result(number, result)]

    def _initialize(self, number: Any, params: dict[str, Any]) -> list[str]:
        if "initialize" not in self.script.get("eras", ("discover", "initialize")):
            data = {"supported": ["2026-07-28"], "requested": params.get("protocolVersion")}
            return [_error(number, {"code": -32022, "message": "Unsupported protocol version", "data": data})]
        self.client = params["clientInfo"]["name"]
        return [_result(number, {"protocolVersion": self.script.get("version", "2025-11-25"), **self._server()})]

    def _server(self) -> dict[str, Any]:
        offered = {"tools": "tools", "prompts": "prompts", "resources": "resources", "resourceTemplates": "resources"}
        given = {
            "serverInfo": {"name": "scripted", "version": "1"},
            "capabilities": {offered[member]: {} for member in self._lists(count=False)},
            **self.script.get("server", {}),
        }
        return {name: value for name, value in given.items() if value is not None}

    def _lists(self, *, count: bool) -> dict[str, Any]:
        if self.client in self.script.get("for_client", {}):
            return dict(self.script["for_client"][self.client])
        if "sequence" in self.script:
            steps = self.script["sequence"]
            place = self.readings.get("all", 0)
            if count:
                self.readings["all"] = place + 1
            return dict(steps[min(place, len(steps) - 1)])
        return dict(self.script.get("lists", {"tools": [[]]}))

    def _list(self, number: Any, method: str, params: dict[str, Any]) -> list[str]:
        member = MEMBERS[method]
        cursor = params.get("cursor")
        pages = self._lists(count=cursor is None).get(member, [[]])
        cursors = self.script.get("cursors", [str(place + 2) for place in range(len(pages) - 1)])
        place = 0
        following: str | None = cursors[0] if cursors else None
        if self.script.get("endless"):
            following = str(int(cursor or "0") + 1)
        elif "next_cursor" in self.script:
            following = self.script["next_cursor"]
        elif cursor is not None:
            place = cursors.index(cursor) + 1
            following = cursors[place] if place < len(cursors) else None
        items = ",".join(item if isinstance(item, str) else json.dumps(item) for item in pages[place])
        end = "" if following is None else f',"nextCursor":{json.dumps(following)}'
        answer = f'{{"jsonrpc":"2.0","id":{json.dumps(number)},"result":{{"{member}":[{items}]{end}}}}}'
        notes = [json.dumps(note) for note in self.script.get("notes", [])]
        asks = self.script.get("asks", [])
        if asks and not self.waiting:
            self.waiting = [json.dumps(ask) for ask in asks[1:]] + [answer]
            return [*notes, json.dumps(asks[0])]
        return [*notes, answer]

    def _after_reply(self, reply: dict[str, Any]) -> list[str]:
        """The client answered one of our requests: send the next one, or at last the list."""
        if not self.waiting or "jsonrpc" not in reply or not ("result" in reply or "error" in reply):
            return []
        return [self.waiting.pop(0)]


def _raw(text: str, number: Any) -> str:
    if text.startswith("@"):
        tool = '{"name":"tool-%d","description":"one of many","inputSchema":{"type":"object","properties":{"x":{}}}}'
        tools = ",".join(tool % place for place in range(int(text[1:])))
        text = f'{{"jsonrpc":"2.0","id":{{id}},"result":{{"tools":[{tools}]}}}}'
    return text.replace("{id}", str(number))


def _result(number: Any, result: dict[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": result})


def _error(number: Any, error: dict[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "error": error})


# --- over stdio ---


def _trouble(name: str, scripted: Scripted) -> None:
    """What a server can do to its client."""
    if name == "hang":
        threading.Event().wait()
    elif name == "ignore-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif name == "flood-stderr":
        threading.Thread(target=_flood, daemon=True).start()
        threading.Event().wait()
    elif name == "chatty-stderr":
        sys.stderr.write("x" * 1_000_000)  # more than a pipe holds: a client that does not read it waits for ever
    elif name == "flood-stdout":
        while True:
            os.write(1, b"y" * 65536)
    elif name == "die-with-words":
        sys.stderr.write(f"fatal: \x1b[2Jno such token: {os.environ.get('TOKEN')}\n")
        sys.exit(3)
    elif name == "grandchild":
        _start_grandchild(scripted, new_session=False)
    elif name == "grandchild-in-own-session":
        _start_grandchild(scripted, new_session=True)
    elif name == "daemon":
        scripted.script["lists"] = {"tools": [[{"name": str(_detach())}]]}
    elif name == "show-environment":
        tools = [{"name": key, "description": value} for key, value in sorted(os.environ.items())]
        scripted.script["lists"] = {"tools": [tools]}
    elif name == "show-folder":
        tools = [{"name": name} for name in sorted(path.name for path in Path(sys.argv[2]).iterdir())]
        scripted.script["lists"] = {"tools": [tools]}
    elif name == "show-network":
        lines = Path("/proc/net/dev").read_text().splitlines()
        found = sorted(line.partition(":")[0].strip() for line in lines if ":" in line)
        scripted.script["lists"] = {"tools": [[{"name": interface} for interface in found]]}


def _flood() -> None:
    while True:
        os.write(2, b"x" * 65536)


def _detach() -> int:
    """A process without a parent, in a session of its own, that holds on to our streams."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writing, b"%d" % os.getpid())
            os.close(writing)
            signal.pause()
        os._exit(0)
    os.wait()
    os.close(writing)
    with os.fdopen(reading) as answer:
        return int(answer.read())


def _start_grandchild(scripted: Scripted, *, new_session: bool) -> None:
    """A process that outlives its parent if nobody ends it. Its number is told as the name of a tool."""
    sleeper = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
    child = subprocess.Popen(sleeper, start_new_session=new_session)
    sys.stderr.write(f"grandchild {child.pid}\n")
    scripted.script["lists"] = {"tools": [[{"name": str(child.pid)}]]}


def main(script: dict[str, Any]) -> None:
    scripted = Scripted(script)
    for line in script.get("noise", []):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    trouble = script.get("trouble", "")
    _trouble(trouble, scripted)
    for line in sys.stdin:
        message = json.loads(line)
        if trouble == "die-on-discover" and message.get("method") == "server/discover":
            sys.exit(1)
        for answer in scripted.answers(message):
            if trouble == "die-mid-answer" and "result" in answer and message.get("method") in MEMBERS:
                sys.stdout.write(answer[: len(answer) // 2])
                sys.stdout.flush()
                os._exit(9)
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    text = sys.argv[1]
    main(json.loads(Path(text[1:]).read_text() if text.startswith("@") else text))
