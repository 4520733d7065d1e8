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
    from pinwarden.gateway.audit.log import AuditLog, WhenUnavailable
    from pinwarden.gateway.guard import ApprovedSource
    from pinwarden.gateway.session.session import Session
    from pinwarden.gateway.shared_approvals import SharedApprovals
    from pinwarden.gateway.state import GatewayState
    from pinwarden.lock.gateway_policy import GatewayPolicy
    from pinwarden.project.project import Project
    from pinwarden.project.server_start import PreparedStart
    from pinwarden.system.service_log import LogFormat, LogLevel

_GATHER_SECONDS = 1.0  # few large commits suffice for one client; events are safe in the journal
_LOG_FLUSH_SECONDS = 2.0  # how long shutdown waits for stderr to be read
_SWITCH_SECONDS = 0.0005  # lets relaying threads interrupt the log's thread


class RunOptions(Record):
    """Options of ``pinwarden run``."""

    database: str | None = None
    when_unavailable: WhenUnavailable = "spool"
    answer_seconds: float = 0.0
    """Timeout for a response of the server; 0 for none."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"


class GatedServer(Record):
    """A server behind the gateway, and the policy for it."""

    server: str
    """Its name in approvals, the audit log and reviews."""
    command: ServerCommand
    locked: bool
    """Whether the lock has its approved surface. If not, it is trusted on first use."""
    policy: GatewayPolicy
    """The gateway policy, read before the server starts."""
    options: RunOptions
    client: str | None = None
    """The client of its lock entry."""


def run_gated_server(project: Project, gated: GatedServer, say: Callable[[str], None]) -> int:
    """Start the server and relay messages until it ends. Returns its exit code.

    1. Start the server, which loads while the gateway opens the log.
    2. Open the audit log and read the approvals.
    3. Relay.
    """
    from pinwarden.gateway.inside_server import running_gateway

    process = start_server(gated.command)
    try:
        from pinwarden.gateway.audit.event import STARTED, STOPPED
        from pinwarden.gateway.audit.log import AuditLimits
        from pinwarden.gateway.guard import Guard
        from pinwarden.gateway.recorder import Recorder
        from pinwarden.gateway.session.session import Session
        from pinwarden.gateway.state import FIRST_USE, lock_baseline, open_state
        from pinwarden.gateway.stdio import StdioRelay
        from pinwarden.system.service_log import ServiceLog

        sys.setswitchinterval(_SWITCH_SECONDS)
        state = open_state(project, gated.options.database)
        policy = gated.policy
        lines = ServiceLog(say, level=gated.options.log_level, log_format=gated.options.log_format)
        if passing := policy.lets_pass():
            lines.warning(passing)
        baseline = lock_baseline(project.lock) if gated.locked else FIRST_USE
        with (
            running_gateway(state.running, client=os.getppid()),
            state.audit_log(
                gateway=f"stdio {os.getpid()}",
                when_unavailable=gated.options.when_unavailable,
                limits=AuditLimits(gather=_GATHER_SECONDS),
            ) as log,
        ):
            shared = state.shared_approvals(project.lock) if gated.locked else None
            guard = Guard(gated.server, _source(project, gated, state, shared), policy)
            session = Session(guard, name=os.urandom(12).hex(), answer_seconds=gated.options.answer_seconds)
            recorder = Recorder(log, lambda: state.sightings(gated.server, baseline), lines.error)
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

    event = AuditEvent(kind=kind, server=session.guard.server, client=session.client, session=session.name, reason=why)
    with suppress(PinwardenError):  # the log refuses messages too, and their senders get the error
        log.record(event)


def _source(
    project: Project, gated: GatedServer, state: GatewayState, shared: SharedApprovals | None
) -> ApprovedSource:
    if gated.locked:
        from pinwarden.gateway.approved_sources import LockApprovals

        return LockApprovals(project.lock, gated.server, gated.client, shared)
    from pinwarden.gateway.approved_sources import FirstUseApprovals

    return FirstUseApprovals(gated.server, state.trusted)


def load_gateway_policy(project: Project) -> GatewayPolicy:
    """The gateway's part of the policy; the strictest if there is none."""
    from pinwarden.lock.gateway_policy import DEFAULT_POLICY
    from pinwarden.project.project import load_policies

    own = load_policies(project).own
    return (own.gateway if own is not None else None) or DEFAULT_POLICY


def command_name(words: tuple[str, ...], cwd: str) -> str:
    """A name for a command without a lock entry: its program and a digest of the command line and folder.

    Secrets are masked before hashing, because a short one could be guessed from the digest.
    """
    from pinwarden.core.canonical import canonicalize
    from pinwarden.core.digest import Digest
    from pinwarden.system.target import surely_has_no_secret

    masked = list(words)
    if not surely_has_no_secret(words):
        from pinwarden.system.masking import mask_words

        masked = mask_words(words)
    program = "".join(letter for letter in masked[0].rpartition("/")[2] if letter.isalnum() or letter in "._-")
    return f"{program[:40]}#{Digest.of_bytes(canonicalize([cwd, *masked])).hex[:16]}"


_PIPE_BYTES = 1 << 20  # requested capacity of pipes


class ServerCommand(Record):
    """A command to start, with its complete environment."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    cwd: str | None = None


def server_command(prepared: PreparedStart, server: str) -> ServerCommand:
    """The command of a prepared start. Its environment marks the server, see `inside_server`."""
    environment = {**prepared.environment, MARK: server}
    return ServerCommand(words=prepared.words, environment=environment, cwd=prepared.cwd)


def start_server(command: ServerCommand, stderr: int | None = None) -> subprocess.Popen[bytes]:
    """Start the server. It inherits our stderr unless ``stderr`` is given."""
    try:
        process = subprocess.Popen(  # noqa: S603  the user runs this command; there is no shell
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

            fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # type: ignore[union-attr]
    return process
