"""What the gateway adds to a call over stdio, beside two pipes (``cat``) and MCP Hangar with pins and its store.

Latency is measured on one core, so that the placement of processes does not matter: the client writes
a line and reads a line; the server does almost nothing. The same call is sent in every spelling of `SPELLINGS`, since
clients choose theirs: what the gateway adds is compared with what ``cat`` adds to a call in the same spelling.
Throughput is measured with a server of the official SDK, on all cores. With the minimal server it is shown without a
goal, because even two pipes take much of the time of a call. The gateway writes its audit log.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from uuid import UUID

from benchmarks import echo_server
from benchmarks.measure import Goal, Row, one_core, order, table

BIN = Path(sys.executable).parent
SERVER = [sys.executable, str(Path(echo_server.__file__))]
SDK_SERVER = [sys.executable, str(Path(echo_server.__file__).with_name("sdk_stdio_server.py"))]
ROUNDS, CALLS = 61, 60  # short ones: what else the machine does then is the same for all in one
COPIES = 3  # of each process: where its memory happens to lie makes a tenth of what one adds
SLOW_CALLS = 2  # of Hangar in a round: one of its calls takes as long as a thousand of the others
IN_FLIGHT, MANY = 32, 960
ADDED_AT_MOST, LESS_AT_LEAST, THROUGHPUT_AT_LEAST, START_AT_MOST = 2.5, 100, 0.8, 6
ADDED_IN_ANY_SPELLING = 3.5
SPELLING_ROUNDS, SPELLING_CALLS = 41, 40
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
OURS, CAT, DIRECT, HANGAR = "pinwarden run", "cat | server | cat", "directly", "mcp-hangar, pinned"


_PARAMS = {"name": "echo", "arguments": {"text": "12345678"}}
_REPORTED = {"text": echo_server.REPORT.decode()}
_NESTED = {"path": ["a", "b"], "filter": {"size": {"min": 1, "max": 2.5}, "kinds": ["x", "y", None, True]}}


def _compact(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _spaced(message: Mapping[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _call(request_id: int | str, params: Mapping[str, object] = _PARAMS) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def _with_token(number: int | str, arguments: Mapping[str, object] | None = None) -> dict[str, object]:
    token = {"progressToken": number}
    return {"name": "echo", "arguments": arguments or {"text": "12345678"}, "_meta": token}


Spelling = Callable[[int], bytes]
SPELLINGS: dict[str, Spelling] = {
    "compact": lambda number: _compact(_call(number)),
    "spaced": lambda number: _spaced(_call(number)),
    "string id": lambda number: _compact(_call(f"request-{number}")),
    "progress token": lambda number: _compact(_call(number, _with_token(number))),
    "progress token, reported once": lambda number: _compact(_call(number, _with_token(number, _REPORTED))),
    "UUID, spaced, progress token": lambda number: _spaced(_call(_uuid(number), _with_token(_uuid(number)))),
    "id last": lambda number: _compact(dict(reversed(_call(number).items()))),
    "unicode escapes": lambda number: _compact(_call(number, {"name": "echo", "arguments": {"text": "Grüße, 世界"}})),
    "nested arguments": lambda number: _compact(_call(number, {"name": "echo", "arguments": _NESTED})),
    "_meta": lambda number: _compact(_call(number, {**_PARAMS, "_meta": {"example.com/trace": "4bf92f35", "n": 1}})),
}
"""The same call as clients write it. The first is what the other tables use."""


def _uuid(number: int) -> str:
    return str(UUID(int=Random(number).getrandbits(128)))


class Target:
    """A client's end of a process that was opened as MCP wants it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.name = name
        self._in, self._out = process.stdin.fileno(), process.stdout.fileno()
        self._number = 0
        self._rest = b""

    def open(self) -> None:
        self.ask("initialize", HELLO)
        os.write(self._in, b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    def ask(self, method: str, params: Mapping[str, object]) -> bytes:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        os.write(self._in, json.dumps(message).encode() + b"\n")
        return self._line(b'"id":%d' % self._number, b'"id": %d' % self._number)

    def call(self) -> bytes:
        os.write(self._in, self._request())
        return self._read_line()

    def timed(self, spelling: Spelling, lines: int) -> float:
        """Median seconds until so many lines answer a call in a spelling. The calls are written out before."""
        requests = [spelling(self._number + place) for place in range(1, SPELLING_CALLS + 1)]
        self._number += SPELLING_CALLS
        times = []
        for request in requests:
            start = time.perf_counter()
            os.write(self._in, request)
            for _ in range(lines):
                self._read_line()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def many(self, count: int) -> None:
        """So many calls, always so many of them on their way."""
        os.write(self._in, b"".join(self._request() for _ in range(IN_FLIGHT)))
        sent, answered = IN_FLIGHT, 0
        while answered < count:
            found = os.read(self._out, 1 << 16).count(b"\n")
            answered += found
            more = min(found, count - sent)
            if more > 0:
                os.write(self._in, b"".join(self._request() for _ in range(more)))
                sent += more

    def _request(self) -> bytes:
        self._number += 1
        head = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call",' % self._number
        return head + b'"params":{"name":"echo","arguments":{"text":"12345678"}}}\n'

    def _line(self, *marks: bytes) -> bytes:
        while True:
            line = self._read_line()
            if any(mark in line for mark in marks):
                return line

    def _read_line(self) -> bytes:
        while b"\n" not in self._rest:
            chunk = os.read(self._out, 1 << 16)
            if not chunk:
                raise AssertionError(f"{self.name} ended")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def report() -> str:
    with TemporaryDirectory() as name:
        folder = Path(name)
        with one_core(), ExitStack() as stack:
            commands = _commands(SERVER, folder)
            targets = _all_started(commands, folder, stack)
            commands.pop(HANGAR, None)
            for _ in range(COPIES - 1):
                targets += _all_started(commands, folder, stack)
            latency = (*_latency(targets), _spellings([each for each in targets if each.name != HANGAR]))
        throughput = []
        for whose, server in (("of the official SDK", SDK_SERVER), ("that does nothing", SERVER)):
            with ExitStack() as stack:
                commands = _commands(server, folder)
                commands.pop(HANGAR, None)
                started = _all_started(commands, folder, stack)
                throughput.append(_throughput(started, whose, is_goal=server is SDK_SERVER))
        starting = _starting(folder)
    return "\n\n".join((*latency, *throughput, starting))


def _all_started(commands: dict[str, list[str]], folder: Path, stack: ExitStack) -> list[Target]:
    return [stack.enter_context(_started(name, command, folder)) for name, command in commands.items()]


def _commands(server: list[str], folder: Path) -> dict[str, list[str]]:
    commands = {
        DIRECT: server,
        CAT: ["/bin/sh", "-c", f"{_cat()} | {' '.join(server)} | {_cat()}"],
        OURS: [str(BIN / "pinwarden"), "run", "--", *server],
    }
    hangar = shutil.which("mcp-hangar", path=os.pathsep.join((str(BIN), os.environ.get("PATH", ""))))
    if hangar is not None:
        commands[HANGAR] = [hangar, "--config", str(_hangar_config(folder)), "serve", "--log-level", "ERROR"]
    return commands


def _cat() -> str:
    found = shutil.which("cat")
    assert found is not None
    return found


def _hangar_config(folder: Path) -> Path:
    from pinwarden import tool_digest

    pin = tool_digest(echo_server.TOOL, "hangar").hex
    config = {
        "mcp_servers": {"echo": {"mode": "subprocess", "command": SERVER, "tool_projection": {"pins": {"echo": pin}}}},
        "tool_access": {"mode": "front_door"},
        "auth": {"stdio": {"principal": {"id": "bench", "tenant_id": "bench", "roles": ["developer"]}}},
        "rate_limit": {"rps": 100_000, "burst": 100_000},
    }
    path = folder / "hangar.json"
    path.write_text(json.dumps(config))  # JSON is YAML
    return path


@contextmanager
def _started(name: str, command: list[str], folder: Path) -> Iterator[Target]:
    environment = {**os.environ, "PINWARDEN_STATE": str(folder / "state"), "HOME": str(folder)}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=folder,
        bufsize=0,
    )
    target = Target(name, process)
    target.open()
    if name == HANGAR:
        _wait_for_tool(target)
    else:
        target.ask("tools/list", {})
    for _ in range(20):
        target.call()
    try:
        yield target
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.terminate()
        process.wait(30)


def _wait_for_tool(target: Target) -> None:
    end = time.monotonic() + 60
    while b'"echo"' not in target.ask("tools/list", {}):
        if time.monotonic() > end:
            raise AssertionError("Hangar does not list its tool")
        time.sleep(0.2)


def _latency(targets: list[Target]) -> tuple[str, str]:
    medians: dict[str, list[float]] = {target.name: [] for target in targets}
    for number in range(ROUNDS):
        of_round: dict[str, list[float]] = {name: [] for name in medians}
        for target in order(targets, number):
            times = []
            for _ in range(SLOW_CALLS if target.name == HANGAR else CALLS):
                start = time.perf_counter()
                target.call()
                times.append(time.perf_counter() - start)
            of_round[target.name].append(statistics.median(times))
        for name, found in of_round.items():
            medians[name].append(statistics.median(found))
    rows = [_row(name, times, medians[DIRECT]) for name, times in medians.items()]
    added = {
        f"what {name} adds": [a - b for a, b in zip(times, medians[DIRECT], strict=True)]
        for name, times in medians.items()
        if name != DIRECT
    }
    floor = [max(value, 1e-9) for value in added[f"what {CAT} adds"]]
    adds = [_row(name, times, floor) for name, times in added.items()]
    first = Goal(name=f"what {OURS} adds", against=f"what {CAT} adds", at_most=ADDED_AT_MOST)
    goals = [first]
    if HANGAR in medians:
        goals.append(Goal(name=f"what {OURS} adds", against=f"what {HANGAR} adds", at_most=1 / LESS_AT_LEAST))
    missing = "" if HANGAR in medians else "\n  mcp-hangar is not installed: NOT MET"
    return (
        table("One call of 100 bytes over stdio, one after the other, on one core", rows, 1, []),
        table("What each adds to such a call", adds, 1, goals) + missing,
    )


def _spellings(targets: list[Target]) -> str:
    """What we add to a call in each spelling, as a multiple of what ``cat`` adds to the same call."""
    medians: dict[str, dict[str, list[float]]] = {
        spelling: {name: [] for name in (DIRECT, CAT, OURS)} for spelling in SPELLINGS
    }
    for number in range(SPELLING_ROUNDS):
        for spelling in order(list(SPELLINGS), number):
            lines = 2 if "reported" in spelling else 1
            of_round: dict[str, list[float]] = {name: [] for name in medians[spelling]}
            for target in order(targets, number):
                of_round[target.name].append(target.timed(SPELLINGS[spelling], lines))
            for name, found in of_round.items():
                medians[spelling][name].append(statistics.median(found))
    width = max(map(len, SPELLINGS))
    shown = ["What a call costs by its spelling: microseconds, and what is added as a multiple of what cat adds"]
    shown.append(f"  {'':{width}}  {DIRECT:>10}  {'cat adds':>10}  {'we add':>10}  {'ratio':>7}")
    for spelling, times in medians.items():
        floor = [a - b for a, b in zip(times[CAT], times[DIRECT], strict=True)]
        added = [a - b for a, b in zip(times[OURS], times[DIRECT], strict=True)]
        ratio = statistics.median(ours / max(cat, 1e-9) for ours, cat in zip(added, floor, strict=True))
        figures = "  ".join(f"{statistics.median(each) * 1e6:10.2f}" for each in (times[DIRECT], floor, added))
        met = "met" if ratio <= ADDED_IN_ANY_SPELLING else "NOT MET"
        shown.append(f"  {spelling:{width}}  {figures}  {ratio:7.3f}  at most {ADDED_IN_ANY_SPELLING:g}x: {met}")
    return "\n".join(shown)


def _throughput(targets: list[Target], whose: str, *, is_goal: bool) -> str:
    seconds: dict[str, list[float]] = {target.name: [] for target in targets}
    for number in range(9):
        for target in order(targets, number):
            start = time.perf_counter()
            target.many(MANY)
            seconds[target.name].append(time.perf_counter() - start)
    rows = [_row(name, times, seconds[DIRECT]) for name, times in seconds.items()]
    shown = table(f"{IN_FLIGHT} calls on their way at once to a server {whose}, per call", rows, MANY, [])
    if not is_goal:
        return shown
    reached = 1 / next(row.ratio for row in rows if row.name == OURS)
    met = "met" if reached >= THROUGHPUT_AT_LEAST else "NOT MET"
    goal = f"throughput of {OURS}: {reached:.2f}x of directly (at least {THROUGHPUT_AT_LEAST:g}x)"
    return f"{shown}\n  goal: {goal}: {met}"


def _starting(folder: Path) -> str:
    """Until the first answer, without anything that the server itself takes."""
    seconds: dict[str, list[float]] = {"python -c pass": [], DIRECT: [], OURS: []}
    commands = {DIRECT: SERVER, OURS: [str(BIN / "pinwarden"), "run", "--", *SERVER]}
    for number in range(16):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        times = {"python -c pass": time.perf_counter() - start}
        for name, command in commands.items():
            start = time.perf_counter()
            with subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PINWARDEN_STATE": str(folder / "state")},
                bufsize=0,
            ) as process:
                Target(name, process).ask("initialize", HELLO)
                times[name] = time.perf_counter() - start
                assert process.stdin is not None
                process.stdin.close()
        for name, value in times.items() if number else ():
            seconds[name].append(value)
    seconds[f"what {OURS} adds"] = [a - b for a, b in zip(seconds[OURS], seconds[DIRECT], strict=True)]
    rows = [_row(name, times, seconds["python -c pass"]) for name, times in seconds.items()]
    goal = Goal(name=f"what {OURS} adds", against="python -c pass", at_most=START_AT_MOST)
    return table("Starting a server until it answers initialize, on all cores", rows, 1, [goal])


def _row(name: str, times: list[float], base: list[float]) -> Row:
    return Row(
        name=name,
        microseconds=statistics.median(times) * 1e6,
        ratio=statistics.median(value / unit for value, unit in zip(times, base, strict=True)),
    )


if __name__ == "__main__":
    print(report())
