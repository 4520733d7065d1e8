"""Shutdown takes bounded time, whatever servers, clients, threads and database do."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from pinwarden.gateway.http.listener import END_SECONDS
from tests.cli.run import pinwarden
from tests.gateway.http_gateway import stateless_request
from tests.gateway.test_gateway_command import Project, Running, running
from tests.servers import talking
from tests.support.postgres import Cluster
from tests.support.waiting import poll

STUBBORN = f"""
import runpy, signal
for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(signum, signal.SIG_IGN)
runpy.run_path({talking.__file__!r}, run_name="__main__")
while True:  # it stays when its input ends
    signal.pause()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("project")
    prepared = Project(root)
    prepared.lock(
        {
            "talking": {"command": sys.executable, "args": [str(Path(talking.__file__)), str(root / "record")]},
            "stubborn": {"command": sys.executable, "args": ["-c", STUBBORN, str(root / "stubborn")]},
        }
    )
    return prepared


def pid_of(at: Running, server: str) -> int:
    _, answer = at.ask(server, at.token, "tools/call", name="pid", arguments={})
    return int(answer["result"]["content"][0]["text"])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def begin_call(at: Running, server: str, name: str, **arguments: Any) -> socket.socket:
    """Send a call on a connection whose responses are not read."""
    body, headers = stateless_request("tools/call", {"name": name, "arguments": arguments})
    lines = {"Host": "127.0.0.1", "Authorization": f"Bearer {at.token}", "Content-Type": "application/json"}
    lines |= {**headers, "Content-Length": str(len(body))}
    head = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    made = socket.create_connection((at.host, at.port), timeout=60)
    made.sendall(f"POST /mcp/{server} HTTP/1.1\r\n{head}\r\n".encode() + body)
    return made


def has_read(project: Project, server: str, name: str) -> bool:
    path = project.root / {"talking": "record", "stubborn": "stubborn"}[server]
    return any(b'"' + name.encode() + b'"' in line for line in path.read_bytes().splitlines() if line[:1] == b"<")


def test_shutdown_takes_bounded_time_despite_open_calls_slow_clients_and_stuck_servers(
    project: Project,
) -> None:
    with running(project, "--drain-seconds", "0.5") as at:
        servers = [pid_of(at, "talking"), pid_of(at, "stubborn")]
        with (
            begin_call(at, "talking", "hang"),
            begin_call(at, "talking", "large", bytes=30_000_000),
            begin_call(at, "stubborn", "stop"),
        ):
            poll(lambda: has_read(project, "talking", "hang") and has_read(project, "stubborn", "stop"))
            poll(lambda: b'"large"' in (project.root / "record").read_bytes())
            begun = monotonic()
            at.process.send_signal(signal.SIGTERM)
            at.process.wait(60)
        assert monotonic() - begun < 0.5 + END_SECONDS + 10, "ten more seconds for a slow machine"
        assert "some open requests were ended" in at.said or "did not end in time" in at.said
        poll(lambda: not any(map(alive, servers)))


def test_a_second_sigterm_ends_the_drain_at_once(project: Project) -> None:
    with running(project, "--drain-seconds", "3600") as at:
        server = pid_of(at, "talking")
        with begin_call(at, "talking", "slow"):
            poll(lambda: has_read(project, "talking", "slow"))
            at.process.send_signal(signal.SIGTERM)
            poll(lambda: _refuses(at))
            assert at.process.poll() is None, "it waits for the call"
            at.process.send_signal(signal.SIGTERM)
            at.process.wait(60)
        assert "some open requests were ended" in at.said
        poll(lambda: not alive(server))


def _refuses(at: Running) -> bool:
    with suppress(OSError), socket.create_connection((at.host, at.port), timeout=60):
        return False
    return True


def test_a_hanging_database_does_not_prevent_shutdown(project: Project, cluster: Cluster) -> None:
    with running(project, "--audit", cluster.new_database(), "--drain-seconds", "0") as at:
        server = pid_of(at, "talking")
        with cluster.frozen():
            threading.Thread(target=_call_anyway, args=(at,), daemon=True).start()
            at.process.send_signal(signal.SIGTERM)
            at.process.wait(60)
        poll(lambda: not alive(server))


def _call_anyway(at: Running) -> None:
    with suppress(OSError, json.JSONDecodeError):
        at.ask("talking", at.token, "tools/call", name="echo", arguments={})


STUCK = """
import asyncio, sys, threading
from pinwarden.gateway.http import listener

listener.END_SECONDS = 0.3

async def run():
    listener.Shutdown(0.0, lambda text: print(text, file=sys.stderr, flush=True)).install()
    print("ready", flush=True)
    if sys.argv[1] == "loop":
        while True:
            pass
    await asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)

if sys.argv[2] == "uvloop":
    import uvloop
    uvloop.run(run())
else:
    asyncio.run(run())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("stuck", ["loop", "thread"])
def test_a_stuck_event_loop_or_thread_does_not_prevent_shutdown(stuck: str, loop: str) -> None:
    words = [sys.executable, "-c", STUCK, stuck, loop]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert process.returncode == 3
    assert log == "the gateway did not shut down in time, so it kills its servers and exits\n"


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "86401", "soon"])
def test_an_invalid_drain_time_is_rejected(seconds: str) -> None:
    done = pinwarden("gateway", f"--drain-seconds={seconds}")
    assert done.code == 2
    assert "is not a number of seconds from 0 to 86400" in done.err
