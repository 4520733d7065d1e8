"""The time that the gateway adds to a call over stdio, compared with two pipes (``cat``) and with MCP Hangar.

Latency is measured on one core, so that the placement of processes does not matter: the client writes
a line and reads a line; the server does almost nothing. The same call is sent in every encoding of `ENCODINGS`, because
clients encode JSON differently, and is compared with ``cat`` in the same encoding.
Throughput is measured with a server of the official SDK, on all cores. With the minimal server it is printed without
a goal, because even two pipes take much of the time of a call. The gateway writes its audit log.
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
from benchmarks.measure import Goal, Row, one_core, shuffled, table

BIN = Path(sys.executable).parent
SERVER = [sys.executable, str(Path(echo_server.__file__))]
SDK_SERVER = [sys.executable, str(Path(echo_server.__file__).with_name("sdk_stdio_server.py"))]
ROUNDS, CALLS = 61, 60  # short rounds, so that other load on the machine affects all candidates of a round alike
COPIES = 3  # of each process, because its memory layout changes the added time by a tenth
SLOW_CALLS = 2  # calls to Hangar per round: one takes as long as a thousand calls of the others
IN_FLIGHT, PIPELINED_CALLS = 32, 960
MAX_ADDED, MIN_LESS_THAN_HANGAR, MIN_THROUGHPUT, MAX_START = 2.5, 100, 0.8, 6
MAX_ADDED_PER_ENCODING = 3.5
ENCODING_ROUNDS, ENCODING_CALLS = 41, 40
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


def _params_with_token(number: int | str, arguments: Mapping[str, object] | None = None) -> dict[str, object]:
    token = {"progressToken": number}
    return {"name": "echo", "arguments": arguments or {"text": "12345678"}, "_meta": token}


Encoding = Callable[[int], bytes]
ENCODINGS: dict[str, Encoding] = {
    "compact": lambda number: _compact(_call(number)),
    "spaced": lambda number: _spaced(_call(number)),
    "string id": lambda number: _compact(_call(f"request-{number}")),
    "progress token": lambda number: _compact(_call(number, _params_with_token(number))),
    "progress token, reported once": lambda number: _compact(_call(number, _params_with_token(number, _REPORTED))),
    "UUID, spaced, progress token": lambda number: _spaced(_call(_uuid(number), _params_with_token(_uuid(number)))),
    "id last": lambda number: _compact(dict(reversed(_call(number).items()))),
    "unicode escapes": lambda number: _compact(_call(number, {"name": "echo", "arguments": {"text": "Grüße, 世界"}})),
    "nested arguments": lambda number: _compact(_call(number, {"name": "echo", "arguments": _NESTED})),
    "_meta": lambda number: _compact(_call(number, {**_PARAMS, "_meta": {"example.com/trace": "4bf92f35", "n": 1}})),
}
"""The same call as different clients encode it. The other tables use the first."""


def _uuid(number: int) -> str:
    return str(UUID(int=Random(number).getrandbits(128)))


class Target:
    """The client's side of a process with an open MCP session."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.name = name
        self._in, self._out = process.stdin.fileno(), process.stdout.fileno()
        self._last_id = 0
        self._buffer = b""

    def open(self) -> None:
        self.request("initialize", HELLO)
        os.write(self._in, b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    def request(self, method: str, params: Mapping[str, object]) -> bytes:
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        os.write(self._in, json.dumps(message).encode() + b"\n")
        return self._read_matching_line(b'"id":%d' % self._last_id, b'"id": %d' % self._last_id)

    def call(self) -> bytes:
        os.write(self._in, self._call_line())
        return self._read_line()

    def measure_call(self, encoding: Encoding, lines: int) -> float:
        """Median seconds from a call in this encoding to its last response line."""
        requests = [encoding(self._last_id + offset) for offset in range(1, ENCODING_CALLS + 1)]
        self._last_id += ENCODING_CALLS
        times = []
        for request in requests:
            start = time.perf_counter()
            os.write(self._in, request)
            for _ in range(lines):
                self._read_line()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def run_pipelined(self, count: int) -> None:
        """Make ``count`` calls, with ``IN_FLIGHT`` of them pending at a time."""
        os.write(self._in, b"".join(self._call_line() for _ in range(IN_FLIGHT)))
        sent, answered = IN_FLIGHT, 0
        while answered < count:
            lines = os.read(self._out, 1 << 16).count(b"\n")
            answered += lines
            next_batch = min(lines, count - sent)
            if next_batch > 0:
                os.write(self._in, b"".join(self._call_line() for _ in range(next_batch)))
                sent += next_batch

    def _call_line(self) -> bytes:
        self._last_id += 1
        head = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call",' % self._last_id
        return head + b'"params":{"name":"echo","arguments":{"text":"12345678"}}}\n'

    def _read_matching_line(self, *marks: bytes) -> bytes:
        while True:
            line = self._read_line()
            if any(mark in line for mark in marks):
                return line

    def _read_line(self) -> bytes:
        while b"\n" not in self._buffer:
            chunk = os.read(self._out, 1 << 16)
            if not chunk:
                raise AssertionError(f"{self.name} ended")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def report() -> str:
    with TemporaryDirectory() as name:
        folder = Path(name)
        with one_core(), ExitStack() as stack:
            commands = _commands(SERVER, folder)
            targets = _start_all(commands, folder, stack)
            commands.pop(HANGAR, None)
            for _ in range(COPIES - 1):
                targets += _start_all(commands, folder, stack)
            latency = (*_latency(targets), _encodings_report([target for target in targets if target.name != HANGAR]))
        throughput = []
        for server_kind, server in (("of the official SDK", SDK_SERVER), ("that does nothing", SERVER)):
            with ExitStack() as stack:
                commands = _commands(server, folder)
                commands.pop(HANGAR, None)
                started = _start_all(commands, folder, stack)
                throughput.append(_throughput(started, server_kind, is_goal=server is SDK_SERVER))
        starting = _starting(folder)
    return "\n\n".join((*latency, *throughput, starting))


def _start_all(commands: dict[str, list[str]], folder: Path, stack: ExitStack) -> list[Target]:
    return [stack.enter_context(_start(name, command, folder)) for name, command in commands.items()]


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
    program = shutil.which("cat")
    assert program is not None
    return program


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
def _start(name: str, command: list[str], folder: Path) -> Iterator[Target]:
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
        target.request("tools/list", {})
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
    while b'"echo"' not in target.request("tools/list", {}):
        if time.monotonic() > end:
            raise AssertionError("Hangar does not list its tool")
        time.sleep(0.2)


def _latency(targets: list[Target]) -> tuple[str, str]:
    medians: dict[str, list[float]] = {target.name: [] for target in targets}
    for number in range(ROUNDS):
        round_times: dict[str, list[float]] = {name: [] for name in medians}
        for target in shuffled(targets, number):
            times = []
            for _ in range(SLOW_CALLS if target.name == HANGAR else CALLS):
                start = time.perf_counter()
                target.call()
                times.append(time.perf_counter() - start)
            round_times[target.name].append(statistics.median(times))
        for name, times in round_times.items():
            medians[name].append(statistics.median(times))
    rows = [_row(name, times, medians[DIRECT]) for name, times in medians.items()]
    added = {
        f"added by {name}": [a - b for a, b in zip(times, medians[DIRECT], strict=True)]
        for name, times in medians.items()
        if name != DIRECT
    }
    floor = [max(value, 1e-9) for value in added[f"added by {CAT}"]]
    adds = [_row(name, times, floor) for name, times in added.items()]
    first = Goal(name=f"added by {OURS}", against=f"added by {CAT}", at_most=MAX_ADDED)
    goals = [first]
    if HANGAR in medians:
        goals.append(Goal(name=f"added by {OURS}", against=f"added by {HANGAR}", at_most=1 / MIN_LESS_THAN_HANGAR))
    missing = "" if HANGAR in medians else "\n  mcp-hangar is not installed: NOT MET"
    return (
        table("Sequential calls of 100 bytes over stdio, on one core", rows, 1, []),
        table("Time added to such a call", adds, 1, goals) + missing,
    )


def _encodings_report(targets: list[Target]) -> str:
    """Return the time that the gateway adds to a call in each encoding, as a multiple of the time that ``cat`` adds."""
    medians: dict[str, dict[str, list[float]]] = {
        encoding: {name: [] for name in (DIRECT, CAT, OURS)} for encoding in ENCODINGS
    }
    for number in range(ENCODING_ROUNDS):
        for encoding in shuffled(list(ENCODINGS), number):
            line_count = 2 if "reported" in encoding else 1
            round_times: dict[str, list[float]] = {name: [] for name in medians[encoding]}
            for target in shuffled(targets, number):
                round_times[target.name].append(target.measure_call(ENCODINGS[encoding], line_count))
            for name, durations in round_times.items():
                medians[encoding][name].append(statistics.median(durations))
    width = max(map(len, ENCODINGS))
    lines = ["Time of a call by its encoding: microseconds, and the added time as a multiple of the time that cat adds"]
    lines.append(f"  {'':{width}}  {DIRECT:>10}  {'cat adds':>10}  {'we add':>10}  {'ratio':>7}")
    for encoding, times in medians.items():
        floor = [a - b for a, b in zip(times[CAT], times[DIRECT], strict=True)]
        added = [a - b for a, b in zip(times[OURS], times[DIRECT], strict=True)]
        ratio = statistics.median(ours / max(cat, 1e-9) for ours, cat in zip(added, floor, strict=True))
        figures = "  ".join(f"{statistics.median(values) * 1e6:10.2f}" for values in (times[DIRECT], floor, added))
        met = "met" if ratio <= MAX_ADDED_PER_ENCODING else "NOT MET"
        lines.append(f"  {encoding:{width}}  {figures}  {ratio:7.3f}  at most {MAX_ADDED_PER_ENCODING:g}x: {met}")
    return "\n".join(lines)


def _throughput(targets: list[Target], server_kind: str, *, is_goal: bool) -> str:
    seconds: dict[str, list[float]] = {target.name: [] for target in targets}
    for number in range(9):
        for target in shuffled(targets, number):
            start = time.perf_counter()
            target.run_pipelined(PIPELINED_CALLS)
            seconds[target.name].append(time.perf_counter() - start)
    rows = [_row(name, times, seconds[DIRECT]) for name, times in seconds.items()]
    report_text = table(f"{IN_FLIGHT} concurrent calls to a server {server_kind}, per call", rows, PIPELINED_CALLS, [])
    if not is_goal:
        return report_text
    throughput = 1 / next(row.ratio for row in rows if row.name == OURS)
    met = "met" if throughput >= MIN_THROUGHPUT else "NOT MET"
    goal = f"throughput of {OURS}: {throughput:.2f}x of directly (at least {MIN_THROUGHPUT:g}x)"
    return f"{report_text}\n  goal: {goal}: {met}"


def _starting(folder: Path) -> str:
    """Measure the time to the first response, without the time that the server itself needs."""
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
                Target(name, process).request("initialize", HELLO)
                times[name] = time.perf_counter() - start
                assert process.stdin is not None
                process.stdin.close()
        for name, value in times.items() if number else ():
            seconds[name].append(value)
    seconds[f"added by {OURS}"] = [a - b for a, b in zip(seconds[OURS], seconds[DIRECT], strict=True)]
    rows = [_row(name, times, seconds["python -c pass"]) for name, times in seconds.items()]
    goal = Goal(name=f"added by {OURS}", against="python -c pass", at_most=MAX_START)
    return table("Starting a server until it responds to initialize, on all cores", rows, 1, [goal])


def _row(name: str, times: list[float], base: list[float]) -> Row:
    return Row(
        name=name,
        microseconds=statistics.median(times) * 1e6,
        ratio=statistics.median(value / unit for value, unit in zip(times, base, strict=True)),
    )


if __name__ == "__main__":
    print(report())
