"""Synthetic servers for a census: small stdio servers, HTTP servers in this process, and hostile ones of every kind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("server.sh")
HOSTILE = ("crash", "hang", "flood", "huge", "lying")
TIMEOUT_SECONDS = 10
_HTTP_KINDS = ("fine", "lying", "crash")


class HttpServers:
    """Remote MCP servers at ``/NAME/KIND`` of one address."""

    def __init__(self, server: ThreadingHTTPServer, requests: Counter[str]) -> None:
        self._server = server
        self.requests = requests
        """How many requests each server got."""

    def address(self, name: str, kind: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{name}/{kind}"


@contextmanager
def http_servers() -> Iterator[HttpServers]:
    """Remote servers on loopback until the block ends."""
    requests: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            _, name, kind = self.path.split("/")
            requests[name] += 1
            if kind == "crash":
                self.close_connection = True
                return
            if "id" not in message:
                self._send(202, b"")
                return
            body = {"jsonrpc": "2.0", "id": message["id"], **_answer(message["method"], name, kind)}
            self._send(200, json.dumps(body).encode())

        def do_GET(self) -> None:
            self._send(405, b"")

        def do_DELETE(self) -> None:
            self._send(405, b"")

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield HttpServers(server, requests)
    finally:
        server.shutdown()
        server.server_close()


def _answer(method: str, name: str, kind: str) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": name, "version": "1.0.0"}
        return {"result": {"protocolVersion": "2025-06-18", "serverInfo": info, "capabilities": {"tools": {}}}}
    if method == "tools/list":
        schema = {"type": "object"}
        tools: Any = [{"name": f"fetch_{name}", "description": f"Fetch a page of {name}.", "inputSchema": schema}]
        return {"result": {"tools": "none" if kind == "lying" else tools}}
    return {"error": {"code": -32601, "message": "no such method"}}


def write_config(path: Path, count: int, servers: HttpServers, *, hostile_share: float = 0.05) -> dict[str, str]:
    """Write a client's file with this many servers, half of them remote. Returns the kind of each hostile server."""
    hostile = round(count * hostile_share)
    entries: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for index in range(count):
        name = f"server{index:04d}"
        kind = HOSTILE[index % len(HOSTILE)] if index < hostile else "fine"
        if index % 2 and kind in _HTTP_KINDS:
            entries[name] = {"url": servers.address(name, kind)}
        else:
            entries[name] = {"command": "/bin/sh", "args": [SCRIPT.name, name, kind]}
        if kind != "fine":
            kinds[name] = kind
    shutil.copy(SCRIPT, path.parent)
    path.write_text(json.dumps({"mcpServers": entries}))
    return kinds


WORKER_OPTIONS = (
    *("--allow-execute", "--allow-connect", "--allow-private", "--allow-plain-http"),
    *("--timeout", str(TIMEOUT_SECONDS), "--retry-after", "0.5", "--lost-after", "5", "--per-second", "1000"),
)


def start_worker(database: str, *options: str) -> subprocess.Popen[bytes]:
    """Start ``pinwarden census worker`` as a process of its own."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pinwarden",
            "census",
            "worker",
            "--database",
            database,
            "--log-level",
            "error",
            *WORKER_OPTIONS,
            *options,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def stop_workers(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        worker.kill()
        worker.wait(60)
