"""Commands on a pseudo-terminal, with simulated typing."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.cli import zygote

_READY = "ready" + "-to-type"
_END = "end" + "-of-line"
_QUESTION_END = re.compile(r"\[q\]uit( \(Enter = \w+\))?: $")


def typed(shell: list[str], setup: str, line: str, folder: Path, seconds: float = 240) -> list[str]:
    """The words of a command line that was typed, TAB keys included, as the command ``pinwarden`` receives them."""
    shown = "pinwarden() { printf '<%s>' \"$@\"; printf '%s-of-line' end; }"
    (folder / ".setup").write_text(f"{setup}\n{shown}\nprintf '%s-to-type' ready\n")
    controller, terminal = pty.openpty()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TERM": "dumb",
        "INPUTRC": "/dev/null",
        "LANG": "C.UTF-8",
    }
    process = subprocess.Popen(
        shell, stdin=terminal, stdout=terminal, stderr=terminal, cwd=folder, env=environment, start_new_session=True
    )
    os.close(terminal)
    deadline = time.monotonic() + seconds
    try:
        os.write(controller, b". ./.setup\n")
        _until(controller, _READY, deadline)
        os.write(controller, line.encode() + b"\n")
        output = _until(controller, _END, deadline)
    finally:
        process.kill()
        process.wait()
        os.close(controller)
    answer = output[: output.rindex(_END)].rsplit("\n", 1)[-1]
    return answer.strip()[1:-1].split("><")


def _until(controller: int, mark: str, deadline: float) -> str:
    output = ""
    while mark not in output:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([controller], [], [], max(0.0, left))
        if not ready:
            raise AssertionError(f"the shell did not answer in time: {output[-2000:]!a}")
        output += os.read(controller, 65536).decode("utf-8", "replace")
    return output


class AtTerminal:
    """A command on its own pseudo-terminal: read its output, type, interrupt it."""

    INTERRUPT = "\x03"

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        env: dict[str, str],
        seconds: float = 60,
        columns: int = 80,
        lines: int = 24,
        program: str = "",
    ) -> None:
        """Start ``pinwarden`` with these arguments, or ``program``, which is Python code."""
        self._controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._process: subprocess.Popen[bytes] | zygote.Process
        if not program and zygote.can_run(env):
            streams = (terminal, terminal, terminal)
            self._process = zygote.Process(arguments, cwd, env, streams, controls_terminal=True)
        else:
            program = program or "from pinwarden.cli.main import main; sys.exit(main(sys.argv[1:]))"
            # Only the terminal that controls a session turns the key into a signal.
            code = f"import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {program}"
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )
        os.close(terminal)
        self._deadline = time.monotonic() + seconds
        self.shown = ""

    def __enter__(self) -> AtTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._controller)

    def until(self, text: str) -> str:
        """What is shown up to this text, which is waited for."""
        return _until(self._controller, text, self._deadline)

    def until_question(self, end: re.Pattern[str] = _QUESTION_END) -> str | None:
        """What is shown up to the next question; None if the command ended instead. `shown` has the rest."""
        start = len(self.shown)
        while not end.search(self.shown, start):
            left = self._deadline - time.monotonic()
            ready, _, _ = select.select([self._controller], [], [], max(0.0, left))
            if not ready:
                raise AssertionError(f"no question in time: {self.shown[-2000:]!a}")
            try:
                data = os.read(self._controller, 65536)
            except OSError:  # the other side of the terminal is closed
                return None
            if not data:
                return None
            self.shown += data.decode("utf-8", "replace")
        return self.shown[start:]

    def types(self, text: str) -> None:
        """Keys."""
        os.write(self._controller, text.encode())

    def ends(self) -> int:
        """Read what is left, wait for the end, and give the exit code."""
        while (left := self._deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self._controller], [], [], left)
            if not ready:
                break
            try:
                if not os.read(self._controller, 65536):
                    break
            except OSError:  # the other side of the terminal is closed
                break
        return self._process.wait(max(1.0, self._deadline - time.monotonic()))
