"""The time that the gateway adds to a call over HTTP, compared with nginx and with a proxy built on the SDK's sessions.

Everything runs on one core, so that the placement of processes does not matter. The client is a plain socket; the
server answers 100-byte calls as JSON. The gateway writes its audit log.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Goal, Row, one_core, shuffled, table

BIN = Path(sys.executable).parent
ROUNDS, CALLS = 41, 30  # short rounds, so that other load on the machine affects all candidates of a round alike
IN_FLIGHT, PIPELINED_CALLS = 32, 1500
VERSION = "2026-07-28"
META = "io.modelcontextprotocol/"
MAX_ADDED, MIN_LESS_THAN_SDK, MIN_THROUGHPUT = 2.5, 20, 0.5


class Target:
    """A server or proxy that calls are sent to."""

    def __init__(self, name: str, port: int, path: str = "/mcp", token: str = "") -> None:
        self.name = name
        self.port = port
        meta = {f"{META}protocolVersion": VERSION, f"{META}clientCapabilities": {}}
        params = {"name": "echo", "arguments": {"text": "x" * 40}, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Content-Type: application/json",
            "Accept: application/json, text/event-stream",
            f"MCP-Protocol-Version: {VERSION}",
            "Mcp-Method: tools/call",
            "Mcp-Name: echo",
            f"Content-Length: {len(body)}",
            *([f"Authorization: Bearer {token}"] if token else []),
        ]
        self.request = ("\r\n".join(lines) + "\r\n\r\n").encode() + body

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def call(self, connection: socket.socket) -> bytes:
        connection.sendall(self.request)
        response = connection.recv(65536)
        while not _is_complete(response):
            chunk = connection.recv(65536)
            if not chunk:
                raise AssertionError(f"{self.name} closed the connection: {response[:300]!r}")
            response += chunk
        return response


def _is_complete(data: bytes) -> bool:
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        return False
    lower = head.lower()
    position = lower.find(b"content-length:")
    if position >= 0:
        return len(body) >= int(lower[position + 15 :].partition(b"\r\n")[0])
    return body.endswith(b"0\r\n\r\n")


def report() -> str:
    nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if nginx is None:
        return "Relaying over HTTP: nginx is not installed, so there is no baseline: NOT MET"
    with one_core(), TemporaryDirectory() as folder, _targets(Path(folder), nginx) as targets:
        return "\n\n".join((_latency(targets), _throughput(targets)))


def measure_calls(targets: list[Target]) -> dict[str, list[float]]:
    """Return the median seconds of a call in each round, by target. The targets take turns in every round."""
    connections = {target.name: target.connect() for target in targets}
    for target in targets:
        answer = [target.call(connections[target.name]) for _ in range(CALLS)][-1]
        if b'"content":[{' not in answer.replace(b" ", b""):
            raise AssertionError(f"{target.name} answered {answer[:500]!r}")
    medians: dict[str, list[float]] = {target.name: [] for target in targets}
    for number in range(ROUNDS):
        for target in shuffled(targets, number):
            connection = connections[target.name]
            times = []
            for _ in range(CALLS):
                start = time.perf_counter()
                target.call(connection)
                times.append(time.perf_counter() - start)
            medians[target.name].append(statistics.median(times))
    for connection in connections.values():
        connection.close()
    return medians


def _latency(targets: list[Target]) -> str:
    medians = measure_calls(targets)
    direct = medians["direct"]
    added = {
        f"added by {name}": [whole - direct_time for whole, direct_time in zip(times, direct, strict=True)]
        for name, times in medians.items()
        if name != "direct"
    }
    floor = added["added by nginx"]
    rows = [
        Row(
            name=name,
            microseconds=statistics.median(times) * 1e6,
            ratio=statistics.median(value / unit for value, unit in zip(times, floor, strict=True)),
        )
        for name, times in {"direct": direct, **added}.items()
    ]
    ours = "added by pinwarden gateway"
    goals = [
        Goal(name=ours, against="added by nginx", at_most=MAX_ADDED),
        Goal(name=ours, against="added by the SDK proxy", at_most=1 / MIN_LESS_THAN_SDK),
    ]
    return table(f"A call of 100 bytes over HTTP, one core, {ROUNDS} rounds of {CALLS}", rows, 1, goals)


def _throughput(targets: list[Target]) -> str:
    compared = [target for target in targets if target.name != "the SDK proxy"]
    seconds: dict[str, list[float]] = {target.name: [] for target in compared}
    for number in range(9):
        for target in shuffled(compared, number):
            seconds[target.name].append(_time_pipelined_calls(target))
    direct = seconds["direct"]
    rows = [
        Row(
            name=name,
            microseconds=statistics.median(times) * 1e6,
            ratio=statistics.median(value / unit for value, unit in zip(times, direct, strict=True)),
        )
        for name, times in seconds.items()
    ]
    goals = [Goal(name="pinwarden gateway", against="direct", at_most=1 / MIN_THROUGHPUT)]
    title = f"Time per call with {IN_FLIGHT} in flight over HTTP, one core (0.5x the throughput is 2x the time)"
    return table(title, rows, PIPELINED_CALLS, goals)


def _time_pipelined_calls(target: Target) -> float:
    """Measure the seconds for ``PIPELINED_CALLS`` calls on ``IN_FLIGHT`` connections."""
    selector = selectors.DefaultSelector()
    connections = [target.connect() for _ in range(IN_FLIGHT)]
    for connection in connections:
        target.call(connection)
        selector.register(connection, selectors.EVENT_READ)
    by_descriptor = {connection.fileno(): connection for connection in connections}
    sent = done = 0
    parts: dict[int, bytes] = {}
    start = time.perf_counter()
    for connection in connections:
        connection.sendall(target.request)
        sent += 1
    while done < PIPELINED_CALLS:
        for key, _ in selector.select(30):
            connection = by_descriptor[key.fd]
            data = parts.pop(key.fd, b"") + connection.recv(65536)
            if not _is_complete(data):
                parts[key.fd] = data
                continue
            done += 1
            if sent < PIPELINED_CALLS:
                connection.sendall(target.request)
                sent += 1
    duration = time.perf_counter() - start
    selector.close()
    for connection in connections:
        connection.close()
    return duration


@contextmanager
def _targets(folder: Path, nginx: str) -> Iterator[list[Target]]:
    with ExitStack() as stack:
        upstream = stack.enter_context(start_upstream())
        floor = stack.enter_context(_nginx(folder, nginx, upstream))
        url = f"http://127.0.0.1:{upstream}/mcp"
        sdk_proxy = stack.enter_context(_start_server([sys.executable, "-m", "benchmarks.sdk_http_proxy", url]))
        uvicorn_relay = stack.enter_context(
            _start_server([sys.executable, "-m", "benchmarks.uvicorn_relay", str(upstream)])
        )
        port, token = stack.enter_context(start_gateway(folder, url))
        yield [
            Target("direct", upstream),
            Target("nginx", floor),
            Target("the SDK proxy", sdk_proxy),
            Target("a bare uvicorn relay", uvicorn_relay),
            Target("pinwarden gateway", port, "/mcp/bench", token),
        ]


def start_upstream() -> AbstractContextManager[int]:
    """Start the server that all targets relay to. Yields its port."""
    return _start_server([sys.executable, "-m", "benchmarks.http_upstream"])


@contextmanager
def _start_server(command: list[str]) -> Iterator[int]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


@contextmanager
def _nginx(folder: Path, nginx: str, upstream: int) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "nginx.conf"
    config.write_text(
        f"""daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr crit;
        events {{ worker_connections 512; }}
        http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
          fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
          keepalive_requests 1000000; keepalive_timeout 600;
          upstream up {{ server 127.0.0.1:{upstream}; keepalive 64; keepalive_requests 1000000; }}
          server {{ listen 127.0.0.1:{port};
            location / {{ proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; }} }} }}"""
    )
    with subprocess.Popen([nginx, "-p", str(folder), "-c", str(config)], stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until_listening(port)
            yield port
        finally:
            process.terminate()


def _wait_until_listening(port: int) -> None:
    end = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return


@contextmanager
def start_gateway(folder: Path, url: str, settings: str = "", database: str = "") -> Iterator[tuple[int, str]]:
    """Start the gateway as a user does, with a locked server and an audit log. Yields its port and a token.

    ``settings`` is the content of its ``pinwarden.toml``, ``database`` the address of a PostgreSQL database.
    """
    root = folder / "project"
    root.mkdir()
    (root / ".mcp.json").write_text(json.dumps({"mcpServers": {"bench": {"type": "http", "url": url}}}))
    environment = {**os.environ, "PINWARDEN_APPROVER": "bench", "PINWARDEN_STATE": str(folder / "state")}
    if database:
        environment["PINWARDEN_DATABASE"] = database
    ours = [str(BIN / "pinwarden")]
    for words in (("init", "--scope", "project", "--allow-execute", "--allow-private"),):
        done = subprocess.run(
            [*ours, *words], cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode not in (0, 1):
            raise AssertionError(f"pinwarden {words[0]}: {done.stderr[-500:]}")
    if settings:
        (root / "pinwarden.toml").write_text(settings)
    token_command = subprocess.run(
        [*ours, "gateway", "token", "add", "bench"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    command = [*ours, "gateway", "--listen", "127.0.0.1:0", "--format", "json"]
    with subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline()]
            while lines[-1] and not lines[-1].startswith(b"}"):
                lines.append(process.stdout.readline())
            merged = json.loads(b"".join(lines))["merged"]
            yield int(merged.rpartition(":")[2].partition("/")[0]), token_command.stdout.strip()
        finally:
            process.terminate()
