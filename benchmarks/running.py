"""Starting published servers with ``pinwarden run``, directly, and with npx or uvx; fetching many files at once."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Goal, Row, compare, table
from pinwarden.artifacts.environments.store import Store
from pinwarden.core.digest import Digest
from pinwarden.lock.closure import Closure, ClosureFile, ClosurePackage
from pinwarden.project.fetch_context import FetchContext, PackageSources, fetch_files
from pinwarden.project.project import Project
from pinwarden.system.net.connections import ServiceEndpoint, SettingsSources
from pinwarden.system.net.fetch import Fetcher, FetchRules

BIN = Path(sys.executable).parent
ROUNDS = 7
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
MAX_ADDED = 8
MIN_SPEEDUP = 3
FILES, SIZE = 100, 200_000


@dataclass(frozen=True, kw_only=True)
class PublishedServer:
    """A server, and how a client starts it without Pinwarden."""

    name: str
    launcher: str
    arguments: tuple[str, ...]


SERVERS = (
    PublishedServer(
        name="filesystem", launcher="npx", arguments=("-y", "@modelcontextprotocol/server-filesystem@2026.8.31", ".")
    ),
    PublishedServer(name="time", launcher="uvx", arguments=("mcp-server-time==2026.8.18", "--local-timezone", "UTC")),
)


def starting_report() -> str:
    with TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        root.mkdir()
        environment = {
            **os.environ,
            "PATH": os.pathsep.join((str(BIN), os.environ.get("PATH", os.defpath))),
            "PINWARDEN_STORE": str(Path(folder) / "store"),
            "PINWARDEN_APPROVER": "bench",
        }
        servers = {server.name: {"command": server.launcher, "args": server.arguments} for server in SERVERS}
        (root / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
        for words in (("init", "--scope", "project"), ("prove",), ("fetch", "--frozen")):
            command = [str(BIN / "pinwarden"), *words]
            done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"Starting a server: pinwarden {words[0]} failed: {done.stderr[-500:] or done.stdout[-500:]}"
        return "\n\n".join(_starting(server, root, environment) for server in SERVERS)


def _starting(server: PublishedServer, root: Path, environment: dict[str, str]) -> str:
    ours = [str(BIN / "pinwarden"), "run", server.name]
    show_output = subprocess.run(
        [*ours, "--show"], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    launcher = shutil.which(server.launcher, path=environment["PATH"])
    commands = {"directly": show_output.stdout.splitlines(), "pinwarden run": ours}
    if launcher is not None:
        commands[server.launcher] = [launcher, *server.arguments]
    seconds: dict[str, list[float]] = {name: [] for name in ("python -c pass", *commands)}
    for number in range(ROUNDS + 1):  # the first round warms the caches and is not counted
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        times = {"python -c pass": time.perf_counter() - start}
        names = list(commands)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            times[name] = _time_to_response(commands[name], root, environment)
        for name, value in times.items() if number else ():
            seconds[name].append(value)
    interpreter = seconds["python -c pass"]
    for name in [command for command in commands if command != "directly"]:
        seconds[f"added by {name}"] = [
            total - direct for total, direct in zip(seconds[name], seconds["directly"], strict=True)
        ]
    rows = [_row(name, times, interpreter) for name, times in seconds.items()]
    goals = [Goal(name="added by pinwarden run", against="python -c pass", at_most=MAX_ADDED)]
    if launcher is not None:
        # Only the added time is compared: the server itself takes more than a third of the total time with npx and uvx.
        added = f"added by {server.launcher}"
        goals.append(Goal(name="added by pinwarden run", against=added, at_most=1 / MIN_SPEEDUP))
    return table(f"Starting {server.name} until it responds to initialize", rows, 1, goals)


def _row(name: str, times: list[float], interpreter: list[float]) -> Row:
    return Row(
        name=name,
        microseconds=statistics.median(times) * 1e6,
        ratio=statistics.median(value / unit for value, unit in zip(times, interpreter, strict=True)),
    )


def _time_to_response(command: list[str], root: Path, environment: dict[str, str]) -> float:
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        duration = time.perf_counter() - start
        if json.loads(line).get("id") != 1:
            raise AssertionError(f"{command[0]} answered {line[:200]!r}")
        process.stdin.close()
        process.terminate()
    return duration


# Many files at once


def fetching_report() -> str:
    curl = shutil.which("curl")
    if curl is None:
        return "Fetching many files: curl is not installed, so there is no baseline: NOT MET"
    with TemporaryDirectory() as name:
        folder = Path(name)
        digests = _write_files(folder / "files")
        with _file_server(folder / "files") as url:
            rows = compare(
                {
                    "curl --parallel": _fetch_with_curl(curl, url, folder),
                    "pinwarden": _fetch_with_pinwarden(url, digests, folder),
                },
                baseline="curl --parallel",
                rounds=9,
            )
    speeds = ", ".join(f"{row.name} {FILES * SIZE / row.microseconds:.0f} MB/s" for row in rows)
    title = f"Fetching, verifying and storing {FILES} files of {SIZE // 1000} kB ({speeds})"
    return table(title, rows, FILES, [])


def _write_files(folder: Path) -> list[Digest]:
    folder.mkdir()
    digests = []
    for number in range(FILES):
        data = number.to_bytes(4, "big") * (SIZE // 4)
        (folder / f"{number}.tgz").write_bytes(data)
        digests.append(Digest.of_bytes(data))
    return digests


@contextmanager
def _file_server(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.file_server", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
        process.communicate()


def _fetch_with_curl(curl: str, url: str, folder: Path) -> Callable[[], object]:
    target = folder / "curl"
    words = ["--parallel", "--parallel-max", "16", "--silent", "--fail", "--create-dirs", "--output-dir", str(target)]
    command = [curl, *words, "--remote-name-all", *(f"{url}{number}.tgz" for number in range(FILES))]

    def run() -> None:
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(command, stderr=subprocess.DEVNULL, check=True)

    return run


def _fetch_with_pinwarden(url: str, digests: list[Digest], folder: Path) -> Callable[[], object]:
    """Like ``pinwarden fetch``: several files in parallel, hashed while they arrive, stored by digest."""
    files = [
        ClosureFile(name=f"{index}.tgz", url=f"{url}{index}.tgz", digest=digest) for index, digest in enumerate(digests)
    ]
    package = ClosurePackage(name="bench", version="1", path="node_modules/bench", files=tuple(files))
    closure = Closure(ecosystem="npm", name="bench", version="1", resolver="", registry=url, packages=(package,))
    project = Project(root=folder, lock=folder / "mcp-lock.json", home=folder)
    sources = PackageSources(settings=SettingsSources(home=folder, project=None))
    sources._npm[""] = ServiceEndpoint(url=url, configured_by="argument")
    # One client for all rounds: reading the machine's certificates takes longer than fetching does.
    fetcher = Fetcher(FetchRules(allow_private=True, allow_plain_http=True))
    target = folder / "store"

    def run() -> None:
        shutil.rmtree(target, ignore_errors=True)
        fetch_files(
            closure, files, FetchContext(project=project, sources=sources, fetcher=fetcher, store=Store(target))
        )

    return run
