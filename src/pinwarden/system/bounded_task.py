"""Run a program to its end, with a time limit, and describe how it failed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.system.processes import ProcessTree

_TAIL_BYTES = 4096
_MAX_OUTPUT = 1 << 20


class BoundedTask(Record):
    """How to run a program with limits."""

    name: str
    """The name of the program in errors."""
    error_code: str
    """The code of the error if it fails."""
    timeout_seconds: float
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Texts to mask in its output."""


def run_bounded(command: Sequence[str], folder: Path, environment: Mapping[str, str], task: BoundedTask) -> bytes:
    """Run a program and return its stdout. If it fails, the error has the end of its stderr."""
    with TemporaryFile() as out, TemporaryFile() as errors:
        try:
            process = subprocess.Popen(  # noqa: S603  a program that the caller found
                list(command),
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as err:
            raise PinwardenError(task.error_code, f"{task.name} could not be started: {err.strerror or err}") from err
        tree = ProcessTree(process)
        try:
            code = process.wait(task.timeout_seconds)
        except subprocess.TimeoutExpired as err:
            raise PinwardenError(
                task.error_code, f"{task.name} did not finish within {task.timeout_seconds:g} seconds"
            ) from err
        finally:
            tree.end(1.0, immediately=True)
        if code != 0:
            stderr_tail = _read_tail(errors, task.secrets)
            raise PinwardenError(
                task.error_code, f"{task.name} failed with exit code {code}", data={"stderr": stderr_tail}
            )
        out.seek(0)
        return out.read(_MAX_OUTPUT)


def _read_tail(stream: IO[bytes], secrets: Sequence[str]) -> str:
    stream.seek(0, 2)
    stream.seek(max(0, stream.tell() - _TAIL_BYTES))
    text = stream.read().decode("utf-8", "replace")
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text


_MAX_SHOWN_LINE = 240


def describe_failure(err: PinwardenError) -> str:
    """Return the message of an error, and the last line that the failed program wrote to stderr, if it wrote any."""
    lines = list_error_lines(err)
    return f"{err.message}. Its last line on stderr: {lines[-1]}" if lines else err.message


def list_error_lines(err: PinwardenError) -> list[str]:
    """Return the end of what a failed program wrote to stderr, safe to show: without secrets and blank lines.

    A hint of Pinwarden itself, started as a server, is left out: it follows the line with the error.
    """
    from pinwarden.core.text import show_invisible
    from pinwarden.system.masking import mask_text

    stderr = err.data.get("stderr")
    lines = stderr.splitlines() if isinstance(stderr, str) else []
    return [
        show_invisible(mask_text(line.strip()[:_MAX_SHOWN_LINE]))
        for line in lines
        if line.strip() and not line.startswith("hint: ")
    ]
