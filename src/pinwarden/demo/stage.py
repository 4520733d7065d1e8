"""Runs the demo's commands in a temporary folder and prints what matters of their output."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pinwarden.core.errors import PinwardenError

_LONGEST_COMMAND_SECONDS = 120
_LONGEST_STOP_SECONDS = 10
_LONGEST_LINE = 10_000
_FOREIGN_VARIABLES = ("PINWARDEN_", "UV_", "PIP_", "XDG_", "PYTHON", "VIRTUAL_ENV", "CLAUDE_", "CODEX_", "COLUMNS")


class Stage:
    """The folder and environment of the demo's commands, and where their output is printed."""

    def __init__(self, folder: Path, output: TextIO, *, variables: Mapping[str, str], columns: int) -> None:
        self.home = folder / "home"
        self.project = self.home / "project"
        self.project.mkdir(parents=True)
        self._output = output
        self._columns = columns
        self._bold = output.isatty() and "NO_COLOR" not in os.environ
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN_VARIABLES)}
        path = os.pathsep.join([str(Path(sys.executable).parent), self.variables.get("PATH", os.defpath)])
        self.variables |= {"PATH": path, "HOME": str(self.home), "COLUMNS": str(columns), "NO_COLOR": "1", **variables}

    def start_chapter(self, title: str, explanation: str) -> None:
        """Print the heading of a chapter and what happens in it."""
        self._print(f"\n\033[1m{title}\033[0m" if self._bold else f"\n{title}")
        self._print(explanation)

    def run(  # noqa: PLR0913
        self,
        command: str,
        *,
        exit_code: int = 0,
        keep: Sequence[str] = (".",),
        at_most: int = 14,
        stdin: str = "",
        expect: Sequence[str] = (),
    ) -> str:
        """Run ``pinwarden COMMAND`` in the project and print the output lines that match one of the patterns.

        Returns what it wrote to stdout. Raises ``DEMO_FAILED`` if it exits with another code, or if an expected text is
        not in its output.
        """
        self._print(f"$ pinwarden {command}")
        done = self._run(command, stdin, exit_code)
        printed = done.stdout + done.stderr
        for text in expect:
            if text not in printed:
                self._print(printed)
                raise PinwardenError("DEMO_FAILED", f"pinwarden {command} did not print {text!r}")
        lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
        kept = [line for line in lines if any(re.search(pattern, line) for pattern in keep)]
        for line in kept[:at_most]:
            self._print_output(line)
        if len(kept[:at_most]) < len(lines):
            self._print("  …")
        if exit_code:
            self._print(f"  (exit code {exit_code})")
        return done.stdout

    def query(self, command: str, *, stdin: str = "") -> str:
        """Run ``pinwarden COMMAND`` without printing anything, and return what it wrote to stdout."""
        return self._run(command, stdin, 0).stdout

    @contextmanager
    def serve(self, command: str, *, lines: int) -> Iterator[list[str]]:
        """Run a server, ``pinwarden COMMAND``, until the context ends. Yields the lines that it prints when ready."""
        self._print(f"$ pinwarden {command} &")
        log = self.home / "server.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(  # noqa: S603  this program itself, with the arguments of the story
                [sys.executable, "-m", "pinwarden", *shlex.split(command)],
                cwd=self.project,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        with process, _stopping(process):
            stdout = process.stdout or io.BytesIO()
            printed = [stdout.readline(_LONGEST_LINE).decode().strip() for _ in range(lines)]
            if not all(printed):
                self._print(log.read_text(encoding="utf-8"))
                raise PinwardenError("DEMO_FAILED", f"pinwarden {command} did not start")
            for line in printed:
                self._print_output(line)
            yield printed

    def edit(self, name: str, text: str) -> None:
        """Write a file of the project."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def say(self, line: str) -> None:
        """Print a line between commands."""
        self._print(line)

    def _run(self, command: str, stdin: str, exit_code: int) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(  # noqa: S603  this program itself, with the arguments of the story
            [sys.executable, "-m", "pinwarden", *shlex.split(command)],
            cwd=self.project,
            env=self.variables,
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=_LONGEST_COMMAND_SECONDS,
            check=False,
        )
        if done.returncode != exit_code:
            reason = f"exit code {done.returncode} instead of {exit_code}"
            self._print(f"{done.stdout}{done.stderr}")
            raise PinwardenError("DEMO_FAILED", f"pinwarden {command}: {reason}")
        return done

    def _print_output(self, line: str) -> None:
        self._print(shorten(f"  {line.replace(str(self.home), '~')}", self._columns))

    def _print(self, line: str) -> None:
        self._output.write(f"{line}\n")
        self._output.flush()


def shorten(line: str, columns: int) -> str:
    """Return the line, cut with an ellipsis if it is longer than the columns."""
    return line if len(line) <= columns else f"{line[: columns - 1]}…"


@contextmanager
def _stopping(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop a server when the context ends, however it ends."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_LONGEST_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
