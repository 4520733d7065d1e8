"""Starting the command line hundreds of times without waiting for Python each time.

One process per test worker imports what commands import and then waits. For every command it makes a copy of itself
(a fork), which gets the arguments, folder, environment and streams of the caller, runs the command, and ends. So each
command has a process of its own, as a user's has; only the imports were done before. It is single-threaded, so forking
it is safe. Tests of the start itself start a new Python.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

_LOADED = (
    "pinwarden.cli.main",
    "pinwarden.cli.output",
    "pinwarden.cli.fetch_arguments",
    "pinwarden.system.net.fetch",
    "pinwarden.surface.probe.probe",
    "pinwarden.artifacts.provenance_check",
    "pinwarden.project.prove",
    "pinwarden.project.run",
    "pinwarden.project.doctor",
    "pinwarden.project.gate.check",
    "pinwarden.project.gate.online",
    "pinwarden.project.explain",
    "pinwarden.project.client_install",
    "pinwarden.project.lock",
    "pinwarden.project.lock_signatures",
    "pinwarden.project.update",
    "pinwarden.project.policy_commands",
    "pinwarden.project.surface_reports",
)
# Python reads these when it starts, so commands that are given them need a new process.
_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "COLUMNS")


def can_run(env: dict[str, str]) -> bool:
    """Whether a copy of the waiting process would do the same as a fresh one."""
    here = os.environ
    names = {name for name in (*env, *here) if name.startswith(_AT_START)}
    return hasattr(os, "fork") and all(env.get(name) == here.get(name) for name in names)


def run(arguments: tuple[str, ...], cwd: Path | None, env: dict[str, str], stdin: bytes) -> tuple[int, bytes, bytes]:
    """Run a command; its exit code, output and complaints."""
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        asked = {"arguments": arguments, "cwd": str(cwd or Path.cwd()), "env": env}
        code = _ask(asked, [given.fileno(), out.fileno(), err.fileno()])
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


def _ask(asked: dict[str, Any], streams: list[int]) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(240)
        connection.connect(_waiting())
        socket.send_fds(connection, [b"s"], streams)
        connection.sendall(json.dumps(asked).encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(100), b""))
    return int(answer)


@cache
def _waiting() -> str:
    """The address of the process that waits, which is started at the first use and ends with this one."""
    folder = TemporaryDirectory(prefix="pinwarden-zygote-")
    address = f"{folder.name}/socket"
    command = [sys.executable, "-m", "tests.cli.zygote", address]
    # A test may have gone into a folder of its own, where there is no package of this name.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    atexit.register(folder.cleanup)
    atexit.register(process.terminate)
    return address


# The process that waits


def _serve(address: str) -> None:
    for name in _LOADED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # processes that serve commands are not waited for
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        server.settimeout(5)
        os.write(1, b"ready\n")
        while os.getppid() == parent:
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                with connection:
                    if os.fork() == 0:
                        server.close()
                        _supervise(connection)


def _supervise(connection: socket.socket) -> None:
    """Have a copy run one command, and say how it ended."""
    code = 70
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.settimeout(None)
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        asked = json.loads(b"".join(iter(lambda: connection.recv(1 << 16), b"")))
        number = os.fork()
        if number == 0:
            connection.close()
            _become(asked, streams)
        for stream in streams:
            os.close(stream)
        code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        connection.sendall(str(code).encode())
    finally:
        os._exit(0)


def _become(asked: dict[str, Any], streams: list[int]) -> None:
    code: Any = 70
    try:
        os.setsid()
        os.chdir(asked["cwd"])
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(asked["env"])
        sys.argv = ["pinwarden", *asked["arguments"]]
        from pinwarden.cli.main import main

        code = main()
    except SystemExit as err:
        code = err.code
    except BaseException:  # noqa: BLE001  as the interpreter shows it
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    _serve(sys.argv[1])
