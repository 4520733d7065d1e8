"""``pinwarden run``: start a server and relay between it and the client that started this process.

Most imports are inside functions, so that the server starts before the rest of the gateway is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.project.server_start import ServerCommand, start_server

if TYPE_CHECKING:
    from pinwarden.gateway.audit.log import AuditLog, WhenUnavailable
    from pinwarden.gateway.fleet_client import FleetFollower
    from pinwarden.gateway.guard import ApprovedSource
    from pinwarden.gateway.session.session import Session
    from pinwarden.gateway.shared_approvals import SharedApprovals
    from pinwarden.gateway.shared_budgets import SharedBudgets
    from pinwarden.gateway.state import GatewayState
    from pinwarden.gateway.store.reviews import SightingRecorder
    from pinwarden.lock.gateway_policy import GatewayPolicy
    from pinwarden.project.project import Project
    from pinwarden.system.service_log import LogFormat, LogLevel

_GATHER_SECONDS = 1.0  # a single client needs only a few large commits; the journal keeps the events until the next one
_LOG_FLUSH_SECONDS = 2.0  # how long shutdown waits until the last log lines are written to stderr
_SWITCH_SECONDS = 0.0005  # Python's default of 5 ms would delay messages while the audit log's thread runs


class RunOptions(Record):
    """Options of ``pinwarden run``."""

    database: str | None = None
    when_unavailable: WhenUnavailable = "spool"
    response_seconds: float = 0.0
    """Timeout for a response of the server; 0 for none."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"


class GatedServer(Record):
    """A server to run behind the gateway, with its policy and options."""

    server: str
    """The server's name in approvals, the audit log and reviews."""
    command: ServerCommand
    has_approved_surface: bool
    """Whether the lock has an approved surface for the server. If not, its surface is trusted on first use."""
    policy: GatewayPolicy
    """The gateway policy, read before the server starts. `prepare_start` has read the same file for the sandbox."""
    options: RunOptions
    client: str | None = None
    """The client in the server's lock entry."""


def run_gated_server(project: Project, gated: GatedServer, print_line: Callable[[str], None]) -> int:
    """Start the server and relay messages until it ends. Returns its exit code.

    1. Start the server. The server loads while the gateway does steps 2 and 3.
    2. Open the gateway's state and the audit log.
    3. Create the guard, the session and the recorder.
    4. Relay, and record the start and the end of the server.
    """
    from pinwarden.gateway.inside_server import register_gateway

    process = start_server(gated.command)
    try:
        from pinwarden.gateway.audit.event import STARTED, STOPPED
        from pinwarden.gateway.audit.log import AuditLimits
        from pinwarden.gateway.guard import Guard
        from pinwarden.gateway.recorder import Recorder
        from pinwarden.gateway.session.session import Session
        from pinwarden.gateway.state import open_state
        from pinwarden.gateway.stdio import StdioRelay
        from pinwarden.system.service_log import ServiceLog

        sys.setswitchinterval(_SWITCH_SECONDS)
        state = open_state(project, gated.options.database)
        fleet = _find_fleet(state, project)
        policy = gated.policy if fleet is None else fleet.tighten(gated.policy)
        service_log = ServiceLog(print_line, level=gated.options.log_level, log_format=gated.options.log_format)
        if warning := policy.describe_unblocked_content():
            service_log.warning(warning)
        with (
            register_gateway(state.running_folder, client=os.getppid()),
            state.open_audit_log(
                gateway=f"stdio {os.getpid()}",
                when_unavailable=gated.options.when_unavailable,
                limits=AuditLimits(gather_seconds=_GATHER_SECONDS),
            ) as log,
        ):
            shared = _open_shared_approvals(project, gated, state, fleet)
            guard = Guard(gated.server, _open_source(project, gated, state, shared, fleet), policy)
            budgets = guard.budgets.reporter = state.open_shared_budgets(service_log.warning)
            session = Session(guard, name=os.urandom(12).hex(), response_seconds=gated.options.response_seconds)
            recorder = Recorder(log, lambda: _open_sighting_recorder(project, gated, state), service_log.error)
            try:
                relay = StdioRelay(session, recorder, process, service_log)
                for thread in (shared, budgets):
                    if thread is not None:
                        thread.start()
                if fleet is not None:
                    fleet.start(project, gated, guard, service_log.warning)
                _record_lifecycle(log, STARTED, session, "")
                code = relay.run()
                _record_lifecycle(log, STOPPED, session, f"{relay.ending or 'the server ended'} (exit code {code})")
                return code
            finally:
                _close_threads(shared, fleet, budgets)
                recorder.close()
                service_log.close(_LOG_FLUSH_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _open_shared_approvals(
    project: Project, gated: GatedServer, state: GatewayState, fleet: FleetFollower | None
) -> SharedApprovals | None:
    if not gated.has_approved_surface:
        return None
    return state.open_shared_approvals(project.lock, table=None if fleet is None else fleet.open_approvals)


def _open_sighting_recorder(project: Project, gated: GatedServer, state: GatewayState) -> SightingRecorder:
    from pinwarden.gateway.baselines import FIRST_USE, Baseline

    baseline = Baseline.of_lock(project.lock) if gated.has_approved_surface else FIRST_USE
    return state.open_sighting_recorder(gated.server, baseline)


def _close_threads(*threads: SharedApprovals | FleetFollower | SharedBudgets | None) -> None:
    for thread in threads:
        if thread is not None:
            thread.close()


def _find_fleet(state: GatewayState, project: Project) -> FleetFollower | None:
    """Return what makes this machine follow the company's gateway; None if it has not joined a fleet."""
    if not (state.folder / "fleet").is_dir():
        return None
    from pinwarden.gateway.fleet_client import FleetFollower

    return FleetFollower.find(state, project.variables)


def _record_lifecycle(log: AuditLog, kind: str, session: Session, reason: str) -> None:
    with suppress(PinwardenError):  # if the log fails, every message gets an error that says so
        log.record(session.build_lifecycle_event(kind, reason))


def _open_source(
    project: Project,
    gated: GatedServer,
    state: GatewayState,
    shared: SharedApprovals | None,
    fleet: FleetFollower | None,
) -> ApprovedSource:
    from pinwarden.gateway.approved_sources import FirstUseApprovals, LockApprovals

    source: ApprovedSource
    if gated.has_approved_surface:
        source = LockApprovals(project.lock, gated.server, gated.client, shared)
    else:
        source = FirstUseApprovals(gated.server, state.trusted_surfaces)
    return source if fleet is None else fleet.wrap(source)


def name_command(words: tuple[str, ...], cwd: str) -> str:
    """Return a name for a command without a lock entry: its program, and a digest of command line and folder.

    Secrets are masked before hashing, because a short secret could be guessed from the digest.
    """
    from pinwarden.core.canonical import canonicalize
    from pinwarden.core.digest import Digest
    from pinwarden.system.target import surely_has_no_secret

    masked = list(words)
    if not surely_has_no_secret(words):
        from pinwarden.system.masking import mask_words

        masked = mask_words(words)
    program = "".join(char for char in masked[0].rpartition("/")[2] if char.isalnum() or char in "._-")
    return f"{program[:40]}#{Digest.of_bytes(canonicalize([cwd, *masked])).hex[:16]}"
