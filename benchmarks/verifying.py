"""Verifying ten servers with ``pinwarden prove`` from a registry that answers slowly, compared with the slowest one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Goal, compare, table
from tests.cli.artifact_world import npm_library, npm_server
from tests.servers.acme_packages import npm_answers
from tests.servers.plain_http import Asked, Said, plain_server

SERVERS = 10
MAX_DELAY = 3.0
"""Seconds that the slowest server's package document takes; the others take less."""
MAX_RATIO = 2.5
ROUNDS = 3


def report() -> str:
    names = [f"server-{number}" for number in range(SERVERS)]
    base = npm_library("base", says="base")
    packages = {name: npm_server(name, says=name, needs={"base": "^1.0.0"}) for name in names} | {"base": base}
    delays = {f"/{name}": MAX_DELAY * (number + 1) / SERVERS for number, name in enumerate(names)}

    def answer(asked: Asked) -> Said:
        time.sleep(delays.get(asked.path, 0.0))
        return npm_answers(packages, asked)

    with plain_server(answer) as registry, TemporaryDirectory() as temporary:
        folder = Path(temporary)
        project = _lock_all(folder, names, registry.url)
        slowest = names[-1]
        rows = compare(
            {
                "the slowest server": lambda: _prove(folder, project, registry.url, slowest),
                "all servers": lambda: _prove(folder, project, registry.url),
            },
            baseline="the slowest server",
            rounds=ROUNDS,
        )
    goal = Goal(name="all servers", against="the slowest server", at_most=MAX_RATIO)
    return table(f"Verifying {SERVERS} servers from a slow registry", rows, 1, [goal])


def _lock_all(folder: Path, names: list[str], registry: str) -> bytes:
    """Lock the servers, and return the lock without pinned bytes."""
    (folder / "project").mkdir()
    (folder / "home").mkdir()
    servers = {name: {"command": "npx", "args": ["-y", f"{name}@1.0.0"]} for name in names}
    (folder / "project" / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    _run(folder, registry, "init", "--scope", "project")
    return (folder / "project" / "mcp-lock.json").read_bytes()


def _prove(folder: Path, lock: bytes, registry: str, *names: str) -> None:
    (folder / "project" / "mcp-lock.json").write_bytes(lock)
    _run(folder, registry, "prove", "--scope", "project", *names)


def _run(folder: Path, registry: str, *words: str) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder / "home"),
        "NPM_CONFIG_REGISTRY": registry,
        "PINWARDEN_APPROVER": "bench",
        "PINWARDEN_STORE": str(folder / "store"),
    }
    command = [sys.executable, "-m", "pinwarden", *words]
    subprocess.run(command, cwd=folder / "project", env=environment, capture_output=True, check=True)
