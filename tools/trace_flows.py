"""Counts the modules of src/pinwarden that four real flows cross: how far a reader has to follow each of them.

    python -m tools.trace_flows               # a table of all flows with their goals
    python -m tools.trace_flows --list ci     # the modules of one flow, with the functions that ran

Each flow runs `pinwarden` in a process of its own under a profiler (threads too), against real servers and a real
registry. A module is crossed if code of one of its functions runs during the flow; functions that run while a module
is imported do not count. How many modules the process has imported by then is counted separately.

A call through the gateway is counted from the moment the client sends it until the response is there. Handshake and
listing come before that. What the gateway does from time to time (reload the lock, write the audit log to its database)
may fall into one call or the other, so several calls are traced, and what all of them crossed counts.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src" / "pinwarden"
NOTES_SERVER = REPOSITORY / "examples" / "notes_server.py"
CALLS = 12

_CONTROL = "PINWARDEN_TRACE_CONTROL"
_TRACED = [sys.executable, "-m", "tools.trace_flows", "--traced"]


class Trace(NamedTuple):
    """What one flow did, as paths below src/pinwarden."""

    crossed: dict[str, list[str]]
    """By module, the functions that ran."""
    imported: list[str]


class Flow(NamedTuple):
    """One flow, its goal, and how many modules it crossed before they were merged."""

    title: str
    goal: int
    before: int
    run: Callable[[Path], Trace]


def main() -> int:
    """Trace the flows and print a table; exit 1 if one misses its goal."""
    if sys.argv[1:2] == ["--traced"]:
        return run_traced(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m tools.trace_flows", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("flows", nargs="*", metavar="FLOW", help=f"trace only these: {', '.join(FLOWS)}")
    parser.add_argument("--list", choices=FLOWS, metavar="FLOW", help="list the modules and functions of one flow")
    options = parser.parse_args()
    if options.list:
        for module, functions in _trace(options.list).crossed.items():
            print(f"{module}: {', '.join(functions)}")
        return 0
    if unknown := sorted(set(options.flows) - set(FLOWS)):
        parser.error(f"no such flow: {', '.join(unknown)}")
    print(f"{'flow':<62}{'crossed':>8}{'goal':>6}{'before':>8}{'imported':>10}")
    missed = 0
    for name in options.flows or FLOWS:
        flow, trace = FLOWS[name], _trace(name)
        missed += len(trace.crossed) > flow.goal
        mark = "" if len(trace.crossed) <= flow.goal else "  over"
        title = f"{name}: {flow.title}"
        print(f"{title:<62}{len(trace.crossed):>8}{flow.goal:>6}{flow.before:>8}{len(trace.imported):>10}{mark}")
    return 1 if missed else 0


def _trace(name: str) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        return FLOWS[name].run(Path(folder))


# The flows


def trace_ci(folder: Path) -> Trace:
    """`ci` of a project with five servers that two clients use."""
    user = _User(folder)
    notes = {"command": "npx", "args": ["-y", "notes-mcp@1.4.0"]}
    servers = {
        "notes": notes,
        "weather": {"command": "uvx", "args": ["weather-mcp==2.0.1"]},
        "search": {"command": "docker", "args": ["run", "-i", "--rm", "acme/search@sha256:" + "5" * 64]},
        "issues": {"type": "http", "url": "https://issues.example/mcp", "headers": {"Authorization": "${TOKEN}"}},
        "local": {"command": sys.executable, "args": [str(NOTES_SERVER)]},
    }
    user.configure(servers)
    (user.project / ".cursor").mkdir()
    (user.project / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": {"notes": notes}}))
    user.pinwarden("init", "--accept-all", "--scope", "project", exit_codes=(0, 1))
    return user.trace("ci")


def trace_install(folder: Path) -> Trace:
    """`install` of a bundle from a registry's static export, over HTTP."""
    from pinwarden.registry.export import export_registry
    from tests.install.world import new_user
    from tests.registry.world import SERVER, Clock, bundle, open_world

    user = _User(folder)
    world = open_world(folder / "registry", probing="auto", clock=Clock(datetime.now(UTC)))
    trusting = new_user(world, folder)
    trusting.publish(bundle(content=SERVER))
    export_registry(world.registry, folder / "export")
    world.registry.database.close()
    user.environment["PINWARDEN_TRUST"] = str(trusting.trust)
    with _static_server(folder / "export") as address:
        options = ("--registry", address, "--allow-plain-http", "--client", "claude")
        return user.trace("install", "acme.notes", *options)


def trace_stdio_call(folder: Path) -> Trace:
    """A call through `pinwarden run` that the session decides on."""
    user = _User(folder)
    user.lock_notes()
    control = _Control(folder)
    command = [*_TRACED, "run", "--project", ".", "--name", "notes", "--", sys.executable, str(NOTES_SERVER)]
    with subprocess.Popen(
        command,
        cwd=user.project,
        env=user.environment | control.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:

        def ask(request_id: int | str, method: str, params: Mapping[str, Any]) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            while line := process.stdout.readline():
                if (response := json.loads(line)).get("id") == request_id:
                    return response
            raise AssertionError("the gateway ended")

        try:
            ask(1, "initialize", _HELLO)
            ask(2, "tools/list", {})
            control.trace_calls(lambda number: ask(f"{number}{_LONG_ID}", "tools/call", _CALL))
        finally:
            process.terminate()
    return control.trace


def trace_http_call(folder: Path) -> Trace:
    """A call through `pinwarden gateway`, to a server that it started, that the session decides on."""
    user = _User(folder)
    user.lock_notes()
    token = user.pinwarden("gateway", "token", "add", "tracer").strip()
    control = _Control(folder)
    command = [*_TRACED, "gateway", "--listen", "127.0.0.1:0", "--format", "json", "--allow-execute"]
    with subprocess.Popen(
        command,
        cwd=user.project,
        env=user.environment | control.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            address = urlsplit(_first_document(process)["merged"])
            with closing(http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)) as connection:
                headers = {
                    "Authorization": f"Bearer {token}",
                    "Content-Type": "application/json",
                    "Accept": "application/json, text/event-stream",
                }

                def post(message: Mapping[str, Any]) -> Any:
                    connection.request("POST", "/mcp/notes", json.dumps({"jsonrpc": "2.0", **message}), headers)
                    response = connection.getresponse()
                    if session := response.headers.get("mcp-session-id"):
                        headers["Mcp-Session-Id"] = session
                    return _response_message(response.read())

                hello = post({"id": 1, "method": "initialize", "params": _HELLO})
                headers["MCP-Protocol-Version"] = hello["result"]["protocolVersion"]
                post({"method": "notifications/initialized"})
                post({"id": 2, "method": "tools/list", "params": {}})
                control.trace_calls(
                    lambda number: post({"id": f"{number}{_LONG_ID}", "method": "tools/call", "params": _CALL})
                )
        finally:
            process.terminate()
    return control.trace


FLOWS = {
    "ci": Flow("a project with five servers", 45, 73, trace_ci),
    "stdio": Flow("a call on the general path of the gateway", 15, 30, trace_stdio_call),
    "http": Flow("a call on the general path of the gateway", 20, 42, trace_http_call),
    "install": Flow("a bundle from a registry", 85, 144, trace_install),
}

_HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tracer", "version": "1"}}
_CALL = {"name": "search_notes", "arguments": {"query": "apples"}}
_LONG_ID = " is longer than request ids on the fast path" * 8
"""Makes the session decide on a call, as it does about every one that is not on the fast path."""


# The user, the servers and the registry


class _User:
    """A user with a project, a home and nothing else of this machine's settings."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        (folder / "home").mkdir()
        self.project.mkdir()
        self._trace = folder / "trace.json"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(SOURCE.parent))),
            "PINWARDEN_APPROVER": "tracer",
            "PINWARDEN_STATE": str(folder / "state"),
            "PINWARDEN_STORE": str(folder / "store"),
        }

    def configure(self, servers: Mapping[str, Any]) -> None:
        (self.project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def lock_notes(self) -> None:
        self.configure({"notes": {"command": sys.executable, "args": [str(NOTES_SERVER)]}})
        self.pinwarden("init", "--scope", "project", "--allow-execute", exit_codes=(0, 1))

    def pinwarden(self, *arguments: str, exit_codes: tuple[int, ...] = (0,)) -> str:
        return self._run([sys.executable, "-m", "pinwarden", *arguments], self.environment, exit_codes)

    def trace(self, *arguments: str) -> Trace:
        """The trace of a whole command."""
        self._run([*_TRACED, *arguments], {**self.environment, _CONTROL: str(self._trace)}, (0,))
        return _read_trace(self._trace)

    def _run(self, command: list[str], environment: Mapping[str, str], exit_codes: tuple[int, ...]) -> str:
        done = subprocess.run(
            command, cwd=self.project, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        if done.returncode not in exit_codes:
            raise AssertionError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout


@contextmanager
def _static_server(folder: Path) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(60)


def _first_document(process: subprocess.Popen[str]) -> Any:
    """Return the JSON document that the gateway prints when it begins to serve."""
    assert process.stdout is not None
    text = ""
    while line := process.stdout.readline():
        text += line
        if line.rstrip() == "}":
            return json.loads(text)
    raise AssertionError(f"the gateway ended: {text}")


def _response_message(body: bytes) -> Any:
    """Return the message of a response, sent as JSON or as the last event of a stream."""
    text = body.decode()
    if not text.startswith("{"):
        text = next((line[5:] for line in reversed(text.splitlines()) if line.startswith("data:")), "null")
    return json.loads(text)


# Tracing: in the traced process


def run_traced(arguments: list[str]) -> int:
    """Run `pinwarden` with a profiler in every thread.

    With a file as the control, writes the trace of the whole process there at the end. With a pipe, every line that
    comes names a file: the trace since the line before is written there.
    """
    control = Path(os.environ.pop(_CONTROL))
    profiler = _Profiler()
    if control.is_fifo():
        threading.Thread(target=profiler.serve, args=(control,), daemon=True).start()
    threading.setprofile(profiler)
    sys.setprofile(profiler)
    from pinwarden.cli.main import main as pinwarden

    code = 1
    try:
        code = pinwarden(arguments)
    finally:
        sys.setprofile(None)
        if not control.is_fifo():
            profiler.write(control)
    return code


class _Profiler:
    """Remembers the functions of modules below src/pinwarden that run."""

    def __init__(self) -> None:
        self._prefix = f"{SOURCE}{os.sep}"
        self._codes: set[CodeType] = set()

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> None:
        code = frame.f_code
        if code in self._codes or not code.co_filename.startswith(self._prefix):
            return
        if _is_function(code) and not _importing(frame):
            self._codes.add(code)

    def serve(self, control: Path) -> None:
        with control.open() as lines:
            for line in lines:
                self.write(Path(line.rstrip()))
                self._codes.clear()

    def write(self, path: Path) -> None:
        names = [name for name in sys.modules if name.partition(".")[0] == "pinwarden"]
        files = {getattr(sys.modules[name], "__file__", None) for name in names}
        crossed: dict[str, set[str]] = {}
        for code in tuple(self._codes):
            crossed.setdefault(self._below(code.co_filename), set()).add(code.co_qualname)
        trace = {
            "crossed": {module: sorted(functions) for module, functions in sorted(crossed.items())},
            "imported": sorted(self._below(file) for file in files if file),
        }
        partly = path.with_suffix(".part")
        partly.write_text(json.dumps(trace))
        partly.replace(path)

    def _below(self, file: str) -> str:
        return file.removeprefix(self._prefix)


def _is_function(code: CodeType) -> bool:
    """Whether this is the code of a function, and not that of a module or class."""
    return bool(code.co_flags & 0x2)  # inspect.CO_NEWLOCALS


def _importing(frame: FrameType) -> bool:
    above: FrameType | None = frame
    while above is not None:
        if above.f_code.co_filename.startswith("<frozen importlib"):
            return True
        above = above.f_back
    return False


# Tracing: in this process


class _Control:
    """Begins and ends the trace in a process that goes on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pipe = folder / "control"
        os.mkfifo(self._pipe)
        self.environment = {_CONTROL: str(self._pipe)}
        self.trace = Trace({}, [])

    def trace_calls(self, call: Callable[[int], Any]) -> None:
        """Make some calls, and keep what each of them crossed."""
        traces = []
        with self._pipe.open("w") as pipe:
            for number in range(CALLS):
                self._cut(pipe, f"before-{number}.json")
                response = call(number)
                traces.append(_read_trace(self._cut(pipe, f"call-{number}.json")))
                if "apples" not in str(response.get("result")):
                    raise AssertionError(f"the call was not answered: {response}")
        always = set[str].intersection(*(set(trace.crossed) for trace in traces))
        crossed = {module: functions for module, functions in traces[-1].crossed.items() if module in always}
        self.trace = Trace(crossed, traces[-1].imported)

    def _cut(self, pipe: Any, name: str) -> Path:
        path = self._folder / name
        pipe.write(f"{path}\n")
        pipe.flush()
        end = time.monotonic() + 60
        while not path.exists():
            if time.monotonic() > end:
                raise AssertionError("the traced process does not answer")
            time.sleep(0.01)
        return path


def _read_trace(path: Path) -> Trace:
    return Trace(**json.loads(path.read_text()))


if __name__ == "__main__":
    sys.exit(main())
