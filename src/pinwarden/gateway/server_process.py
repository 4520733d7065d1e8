"""Starting a server that the gateway stands before. It loads little: the server starts while the rest loads."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.gateway.inside_server import MARK

if TYPE_CHECKING:
    from pinwarden.project.server_start import PreparedStart

_PIPE = 1 << 20  # what a pipe is made to hold, where the system lets us


class Command(Record):
    """What to start, with everything filled in."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    cwd: str | None = None


def command_of(prepared: PreparedStart, server: str) -> Command:
    """The only way to a command: a start that was prepared. The server is marked as one that runs behind us."""
    marked = {**prepared.environment, MARK: server}
    return Command(words=prepared.words, environment=marked, cwd=prepared.cwd)


def start(command: Command, stderr: int | None = None) -> subprocess.Popen[bytes]:
    """Start the server. Its standard error stays ours, so that people see it as before, unless it is to be a pipe."""
    try:
        process = subprocess.Popen(  # noqa: S603  running it is what the user asked for; there is no shell
            list(command.words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=dict(command.environment),
            cwd=command.cwd,
            bufsize=0,
            start_new_session=True,
        )
    except (OSError, ValueError) as err:
        why = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise PinwardenError("PROGRAM_UNKNOWN", f"{command.words[0][:200]} could not be started: {why}") from err
    for stream in (process.stdin, process.stdout):
        with suppress(OSError, AttributeError, ImportError):
            import fcntl

            fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)  # type: ignore[union-attr]
    return process
