"""Running a program that does one thing and ends: bounded in time and output, with everything that it started."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.system.process_tree import ProcessTree

_KEPT_BYTES = 4096
_MAX_OUTPUT = 1 << 20


class Task(Record):
    """What a program is started for."""

    name: str
    """What people call it."""
    failure: str
    """The code of the error that its failure is."""
    seconds: float
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Words that are not to be repeated from what it says."""


def run_bounded(command: Sequence[str], folder: Path, environment: Mapping[str, str], task: Task) -> bytes:
    """What the program wrote to its standard output. Its failure has the end of what it complained about."""
    with TemporaryFile() as out, TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(  # noqa: S603  a program that the caller found
                list(command),
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=complaints,
                start_new_session=True,
            )
        except OSError as err:
            raise PinwardenError(task.failure, f"{task.name} could not be started: {err.strerror or err}") from err
        tree = ProcessTree(process)
        try:
            code = process.wait(task.seconds)
        except subprocess.TimeoutExpired as err:
            raise PinwardenError(task.failure, f"{task.name} did not finish within {task.seconds:g} seconds") from err
        finally:
            tree.end(1.0, at_once=True)
        if code != 0:
            said = _end_of(complaints, task.secrets)
            raise PinwardenError(task.failure, f"{task.name} failed with exit code {code}", data={"stderr": said})
        out.seek(0)
        return out.read(_MAX_OUTPUT)


def _end_of(stream: IO[bytes], secrets: Sequence[str]) -> str:
    stream.seek(0, 2)
    stream.seek(max(0, stream.tell() - _KEPT_BYTES))
    text = stream.read().decode("utf-8", "replace")
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text
