"""Starting the command line hundreds of times without waiting for Python each time.

One process per test worker imports what commands import and then waits. For every command it makes a copy of itself
(a fork), which gets the arguments, folder, environment and streams of the caller, runs the command, and ends. So each
command has a process of its own, as a user's has; only the imports were done before. It is single-threaded, so forking
it is safe. Tests of the start itself start a new Python.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

_LOADED = (
    "pinwarden.artifacts.provenance_check",
    "pinwarden.cli.commands.approve",
    "pinwarden.cli.commands.enforce",
    "pinwarden.cli.commands.run",
    "pinwarden.cli.fetch_arguments",
    "pinwarden.cli.main",
    "pinwarden.cli.output",
    "pinwarden.cli.render.board",
    "pinwarden.cli.undo",
    "pinwarden.gateway.approved_sources",
    "pinwarden.gateway.audit.report",
    "pinwarden.gateway.gated_server",
    "pinwarden.gateway.recorder",
    "pinwarden.gateway.session.session",
    "pinwarden.gateway.state",
    "pinwarden.gateway.stdio",
    "pinwarden.gateway.store.approvals",
    "pinwarden.gateway.store.reviews",
    "pinwarden.project.authority",
    "pinwarden.project.client_install",
    "pinwarden.project.doctor",
    "pinwarden.project.enforce",
    "pinwarden.project.explain",
    "pinwarden.project.gate.check",
    "pinwarden.project.gate.online",
    "pinwarden.project.lock",
    "pinwarden.project.lock_signatures",
    "pinwarden.project.policy_commands",
    "pinwarden.project.prove",
    "pinwarden.project.run",
    "pinwarden.project.surface_reports",
    "pinwarden.project.update",
    "pinwarden.surface.probe.probe",
    "pinwarden.system.net.fetch",
)
_NUMBER = struct.Struct("!q")
# Python reads these when it starts, so commands that are given them need a new process.
_AT_START = ("PYTHON", "LANG", "LC_", "LD_")


def can_run(env: dict[str, str]) -> bool:
    """Whether a copy of the waiting process would do the same as a fresh one."""
    here = os.environ
    names = {name for name in (*env, *here) if name.startswith(_AT_START)}
    return hasattr(os, "fork") and all(env.get(name) == here.get(name) for name in names)


def run(arguments: Sequence[str], cwd: Path | None, env: dict[str, str], stdin: bytes) -> tuple[int, bytes, bytes]:
    """Run a command; its exit code, output and complaints."""
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        process = Process(arguments, cwd, env, (given.fileno(), out.fileno(), err.fileno()))
        code = process.wait(240)
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


class Process:
    """A command in a copy of the waiting process, with some of the methods of `subprocess.Popen`."""

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path | None,
        env: dict[str, str],
        streams: tuple[int, int, int],
        *,
        controls_terminal: bool = False,
    ) -> None:
        """Start the command. With ``controls_terminal``, stdin becomes the terminal that controls its session."""
        asked = {
            "arguments": list(arguments),
            "cwd": str(cwd or Path.cwd()),
            "env": env,
            "controls_terminal": controls_terminal,
        }
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_waiting())
        socket.send_fds(self._connection, [b"s"], streams)
        self._connection.sendall(json.dumps(asked).encode())
        self._connection.shutdown(socket.SHUT_WR)
        self.pid = self._read_number(240)

    def poll(self) -> int | None:
        """The exit code, if the command has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the command, and return its exit code."""
        if self.returncode is None:
            self.returncode = self._read_number(timeout)
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended in between
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_number(self, timeout: float | None) -> int:
        if not select.select([self._connection], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("pinwarden", timeout or 0)
        return _NUMBER.unpack(self._connection.recv(_NUMBER.size, socket.MSG_WAITALL))[0]  # type: ignore[no-any-return]


class PipedProcess(Process):
    """A command whose stdin and stdout are pipes to the caller."""

    def __init__(self, arguments: Sequence[str], cwd: Path, env: dict[str, str], stderr: int) -> None:
        (given, write), (read, out) = os.pipe(), os.pipe()
        self.stdin = os.fdopen(write, "wb")
        self.stdout = os.fdopen(read, "rb")
        try:
            super().__init__(arguments, cwd, env, (given, out, stderr))
        finally:
            os.close(given)
            os.close(out)


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
    gc.freeze()  # so that copies share the memory of what was imported
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
    """Have a copy run one command; send its process id and how it ended."""
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
        connection.sendall(_NUMBER.pack(number))
        connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])))
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
        if asked["controls_terminal"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        _open_streams()
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


def _open_streams() -> None:
    """Open stdin, stdout and stderr as Python does when it starts: what they can do depends on what they are now."""
    sys.stdin = open(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)  # noqa: SIM115
    for name, number in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        new = open(number, "w", encoding=old.encoding, errors=old.errors, newline="\n", closefd=False)  # noqa: SIM115
        new.reconfigure(line_buffering=number == 2 or new.isatty())
        setattr(sys, name, new)


if __name__ == "__main__":
    _serve(sys.argv[1])
