"""``pinwarden run``: start a server and relay between it and the client that started this process.

The module loads little, because the server starts while the rest is loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.gateway.inside_server import MARK

if TYPE_CHECKING:
    from pinwarden.gateway.audit.log import AuditLog, WhenAway
    from pinwarden.gateway.guard import ApprovedSource
    from pinwarden.gateway.log_output import LogFormat, LogLevel
    from pinwarden.gateway.session import Session
    from pinwarden.gateway.shared_approvals import SharedApprovals
    from pinwarden.gateway.state import GatewayState
    from pinwarden.lock.gateway_policy import GatewayPolicy
    from pinwarden.project.project import Project
    from pinwarden.project.server_start import PreparedStart

_GATHER = 1.0  # seconds: what is in the journal is safe, so few and large commits do for one client
_LOG_FLUSH_SECONDS = 2.0  # how long the end waits for somebody to read why
_SWITCH_SECONDS = 0.0005  # the log's thread holds up the others while it works; so they may interrupt it


class RunOptions(Record):
    """What the user chose."""

    database: str | None = None
    when_away: WhenAway = "spool"
    answer_seconds: float = 0.0
    """For a response from the server; 0 for no limit."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"


class GatedServer(Record):
    """What is put behind the gateway, and how it is judged."""

    server: str
    """The name under which it is judged, recorded and reviewed."""
    command: ServerCommand
    locked: bool
    """Whether the lock holds its approved surface. If not, its first use is trusted."""
    policy: GatewayPolicy
    """What the gateway enforces. It was read before the server is started."""
    options: RunOptions
    client: str | None = None
    """For which client it is locked."""


def run_gated_server(project: Project, behind: GatedServer, say: Callable[[str], None]) -> int:
    """Start the server and stay between it and the client until it ends; its exit code.

    1. Start the server: it takes its time, in which we get ready.
    2. Open the log and find what was approved.
    3. Relay.
    """
    from pinwarden.gateway.inside_server import running_gateway

    process = start_server(behind.command)
    try:
        from pinwarden.gateway.audit.event import STARTED, STOPPED
        from pinwarden.gateway.audit.log import AuditLimits
        from pinwarden.gateway.guard import Guard
        from pinwarden.gateway.log_output import GatewayLog
        from pinwarden.gateway.recorder import Recorder
        from pinwarden.gateway.session import Session
        from pinwarden.gateway.state import FIRST_USE, lock_baseline, open_state
        from pinwarden.gateway.stdio import StdioRelay

        sys.setswitchinterval(_SWITCH_SECONDS)
        state = open_state(project, behind.options.database)
        policy = behind.policy
        lines = GatewayLog(say, level=behind.options.log_level, log_format=behind.options.log_format)
        if passing := policy.lets_pass():
            lines.warning(passing)
        baseline = lock_baseline(project.lock) if behind.locked else FIRST_USE
        with (
            running_gateway(state.running, client=os.getppid()),
            state.audit_log(
                gateway=f"stdio {os.getpid()}", when_away=behind.options.when_away, limits=AuditLimits(gather=_GATHER)
            ) as log,
        ):
            shared = state.shared_approvals(project.lock) if behind.locked else None
            guard = Guard(behind.server, _source(project, behind, state, shared), policy)
            session = Session(guard, name=os.urandom(12).hex(), answer_seconds=behind.options.answer_seconds)
            recorder = Recorder(log, lambda: state.sightings(behind.server, baseline), lines.error)
            try:
                relay = StdioRelay(session, recorder, process, lines)
                if shared is not None:
                    shared.start()
                _record(log, STARTED, session, "")
                code = relay.run()
                _record(log, STOPPED, session, f"{relay.ending or 'the server ended'} (exit code {code})")
                return code
            finally:
                if shared is not None:
                    shared.close()
                recorder.close()
                lines.close(_LOG_FLUSH_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _record(log: AuditLog, kind: str, session: Session, why: str) -> None:
    from pinwarden.gateway.audit.event import AuditEvent

    fact = AuditEvent(kind=kind, server=session.guard.server, client=session.client, session=session.name, reason=why)
    with suppress(PinwardenError):  # a log that takes nothing lets no message pass either, and who sends one is told
        log.record(fact)


def _source(
    project: Project, behind: GatedServer, state: GatewayState, shared: SharedApprovals | None
) -> ApprovedSource:
    if behind.locked:
        from pinwarden.gateway.approved_sources import LockApprovals

        return LockApprovals(project.lock, behind.server, behind.client, shared)
    from pinwarden.gateway.approved_sources import FirstUseApprovals

    return FirstUseApprovals(behind.server, state.trusted)


def load_gateway_policy(project: Project) -> GatewayPolicy:
    """The gateway's part of the policy; the strictest if there is none."""
    from pinwarden.lock.gateway_policy import DEFAULT_POLICY
    from pinwarden.project.project import load_policies

    own = load_policies(project).own
    return (own.gateway if own is not None else None) or DEFAULT_POLICY


def command_name(words: tuple[str, ...], cwd: str) -> str:
    """The name of a command that no lock speaks of: its program, and a digest of the line and folder.

    Secrets are no part of it: who knows the rest of the line could find a short one out by its digest.
    """
    from pinwarden.core.canonical import canonicalize
    from pinwarden.core.digest import Digest
    from pinwarden.system.target import surely_has_no_secret

    shown = list(words)
    if not surely_has_no_secret(words):
        from pinwarden.system.masking import mask_words

        shown = mask_words(words)
    program = "".join(letter for letter in shown[0].rpartition("/")[2] if letter.isalnum() or letter in "._-")
    return f"{program[:40]}#{Digest.of_bytes(canonicalize([cwd, *shown])).hex[:16]}"


_PIPE = 1 << 20  # what a pipe is made to hold, where the system lets us


class ServerCommand(Record):
    """What to start, with everything filled in."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    cwd: str | None = None


def server_command(prepared: PreparedStart, server: str) -> ServerCommand:
    """The only way to a command: a start that was prepared. The server is marked as one that runs behind us."""
    marked = {**prepared.environment, MARK: server}
    return ServerCommand(words=prepared.words, environment=marked, cwd=prepared.cwd)


def start_server(command: ServerCommand, stderr: int | None = None) -> subprocess.Popen[bytes]:
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
