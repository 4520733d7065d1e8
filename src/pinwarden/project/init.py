"""Lock the servers that are already configured on this machine and in this repository. No registry is needed.

Each configured server becomes a lock entry with a copy of its configuration. Values of variables, headers and unknown
members are replaced by placeholders: the lock pins which variables a server receives, but never their values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from pinwarden.clients.command_line import parse_launch
from pinwarden.clients.config import ConfigFile, ConfiguredServer
from pinwarden.clients.findings import check_server, list_proposed_inputs
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import Report
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lock_store
from pinwarden.lock.extension import ConfigOrigin, LockExtension, format_surface_path, pin_surface
from pinwarden.lock.lockfile import put_entries, remove_entries
from pinwarden.project import approval_candidate as approval_reasons
from pinwarden.project.approval_candidate import ApprovalCandidate, assign_surface_files
from pinwarden.project.configs import is_only_started_directly
from pinwarden.project.configured_entry import build_config_fragment, build_entry, choose_entry_key
from pinwarden.project.init_decisions import AcceptedServers, ApprovedServers, DiscoveredServer, Discovery
from pinwarden.project.init_report import build_init_report
from pinwarden.project.lock import (
    build_approval,
    find_probed_release,
    find_unchanged_entry,
    keep_earlier_pins,
    with_approved_surface,
)
from pinwarden.project.next_step import quote_name
from pinwarden.project.policy_commands import write_default_policy
from pinwarden.surface.drift.changes import CRITICAL
from pinwarden.system.masking import MASK, is_secret_name, looks_secret, mask_url, mask_words
from pinwarden.system.redaction import iter_names, list_command_lines, list_urls
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.lock import Approver
    from pinwarden.project.project import Project
    from pinwarden.project.server_start import PreparedProbe
    from pinwarden.surface.probe.probe import ProbeOptions

_NOT_PROBED = "the server was not started. Repeat with --allow-execute to start it and record its tools"
_LITERAL = re.compile(r"<([^<>\s]*[a-z][^<>\s]*)>")
"""A word in angle brackets, such as ``<folder>``. It has lower-case letters, so it is not a variable's name."""


def discover_servers(project: Project, accepted: AcceptedServers) -> Discovery:
    """Find every configured server and compare it with the lock. Nothing is started or written.

    1. Read the configurations of all clients, and the lock if there is one.
    2. Leave out servers that cannot be locked, with the reason.
    3. Leave out servers with a critical finding, unless the user accepted them by name.
    4. Mark the remaining servers that are new or changed: the user must decide on them.
    """
    files = tuple(project.find_configs())
    lock, candidates = lock_store.read_with_files(project.lock)
    approved = ApprovedServers(project, lock, candidates, files)
    servers = tuple(_with_decision(server, accepted) for server in _choose_servers(files, approved))
    return Discovery(project=project, files=files, lock=lock, approved=approved, servers=servers)


def refuse_unknown_names(accepted: AcceptedServers, discoveries: Sequence[Discovery], skills: Set[str]) -> None:
    """Raise if a name that the user accepts is neither one of ``skills`` nor a server configured in some scope."""
    servers = [server for discovery in discoveries for server in discovery.servers]
    for name in accepted.names:
        if name not in skills and not any(name in (server.configured.name, server.key) for server in servers):
            raise PinwardenError("USAGE", f"no configured server is named {name[:120]!a}")


def probe_servers(
    discovery: Discovery, options: ProbeOptions | None, on_progress: Callable[[int, int], None] | None = None
) -> Discovery:
    """Probe the servers that may be locked, if allowed. A surface that differs from the approved one needs a decision.

    No server is started while a decision is missing, so that a malicious new entry does not run before it is accepted.
    """
    if discovery.undecided:
        return discovery
    servers = _probe_all(discovery, options, on_progress)
    return replace(discovery, servers=tuple(_with_surface_status(discovery.approved, server) for server in servers))


def lock_accepted(discovery: Discovery, key: str, *, now: str, approver: Approver) -> Discovery:
    """Accept one server that was shown on a terminal, and write its entry.

    The entry is written immediately, so that the answer is kept if the user cancels later questions.
    """
    discovery = discovery.accept(key)
    lock = write_approvals(
        discovery, [server for server in discovery.servers if server.key == key and server.confirmed], approver, now
    )
    return replace(discovery, lock=lock, written_keys=discovery.written_keys | {key})


def lock_new_servers(discovery: Discovery, *, now: str, approver: Approver) -> Discovery:
    """Accept and write the servers that are only new. Changed servers and look-alikes stay undecided."""
    new = [server for server in discovery.undecided if discovery.is_only_new(server)]
    if not new:
        return discovery
    servers = tuple(replace(server, accepted=True) if server in new else server for server in discovery.servers)
    lock = write_approvals(discovery, new, approver, now)
    return replace(discovery, servers=servers, lock=lock)


def lock_discovered(discovery: Discovery, *, now: str, approver: Approver) -> Report:
    """Write all entries and approved surfaces in one step, and report the findings.

    The first lock of a project gets a policy file next to it, unless the project has a policy.

    While a decision is missing, new and changed servers are not written.
    """
    servers = [server for server in discovery.servers if server.refused is None and server.status.state != "unchanged"]
    fresh = [] if discovery.undecided else servers
    if fresh or _list_refused_after_probe(discovery) or (discovery.lock is not None and not discovery.undecided):
        write_approvals(discovery, fresh, approver, now)
    is_first = bool(fresh) and discovery.lock is None and discovery.project.scope == "project"
    return build_init_report(discovery, write_default_policy(discovery.project) if is_first else None)


def _choose_approval_reason(server: DiscoveredServer) -> str:
    """Return the reason to record with the approval, if the user gives none."""
    if server.confirmed:
        return approval_reasons.CONFIRMED_ON_TERMINAL
    if server.named:
        return approval_reasons.NAMED_WITH_ACCEPT
    if server.status.state != "first":
        return approval_reasons.ACCEPTED_WITH_ALL
    return approval_reasons.CONFIGURED if server.surface is None else approval_reasons.CONFIGURED_AND_PROBED


def _with_decision(server: DiscoveredServer, accepted: AcceptedServers) -> DiscoveredServer:
    named = accepted.is_named(server.configured.name, server.key)
    server = replace(
        server, named=named, accepted=named or accepted.everything, warnings_approved=named and accepted.warnings
    )
    if accepted.direct_starts and server.accepted and is_only_started_directly(server.status.changes):
        server = replace(server, status=replace(server.status, state="changed"))
    if server.refused is not None or server.status.state == "unchanged" or named:
        return server
    critical = [finding for finding in check_server(server.configured) if finding.severity == CRITICAL]
    if not critical:
        return server
    command = f"pinwarden approve {quote_name(server.configured.name)}"
    return replace(server, refused=f"{critical[0].message} If that is intended: {command}")


def _with_surface_status(approved: ApprovedServers, server: DiscoveredServer) -> DiscoveredServer:
    """Compare the server's surface with the approved one. The user must accept scan warnings explicitly."""
    if server.surface is None or server.refused is not None:
        return server
    status = approved.with_surface(server.status, server.key, server.configured.name, server.surface)
    if status is server.status:
        return server
    server = replace(server, status=status)
    open_warnings = bool(status.scan_warnings) and not server.warnings_approved
    if open_warnings and status.state in ("first", "new"):
        command = f"pinwarden approve {quote_name(server.configured.name)}"
        reason = f"its surface looks like an attack. To review it: {command}"
        return replace(server, refused=reason)
    serious = status.scan_warnings or any(row.severity == CRITICAL for row in status.rows)
    return replace(server, accepted=server.named and not open_warnings if serious else server.accepted)


def _choose_servers(files: Sequence[ConfigFile], approved: ApprovedServers) -> list[DiscoveredServer]:
    chosen: dict[str, DiscoveredServer] = {}
    refused: list[DiscoveredServer] = []
    clients = approved.list_clients()
    for file in files:
        for server in file.servers:
            key = choose_entry_key(server, clients)
            clients.setdefault(key, server.client)
            reason, status = (
                _lock_problem(server) or _self_reference_problem(server, key, approved),
                approved.compare(server, key),
            )
            if reason is None and key in chosen:
                same = build_config_fragment(server) == build_config_fragment(chosen[key].configured)
                reason = None if same else f"another file configures {server.name!a} differently for the same client"
                if same and status.state != "unchanged":
                    continue
            if reason is None:
                chosen[key] = DiscoveredServer(configured=server, key=key, status=status)
            else:
                refused.append(DiscoveredServer(configured=server, key=key, status=status, refused=reason))
    return [*chosen.values(), *refused]


def _lock_problem(server: ConfiguredServer) -> str | None:
    if server.target is None:
        return server.problem or "its entry cannot be used"
    if not server.name or len(server.name) > 200:
        return "its name is empty or too long"
    launched = parse_launch(server.target)
    if not (launched.via or launched).identity:
        return "its command does not say what to run"
    if any(map(is_secret_name, (server.name, *iter_names(server.entry)))):
        return "the name of the server, a member or a variable looks like a secret; names are written into the lock"
    if _has_exposed_secret(server.entry):
        return "its arguments or address contain a secret, which every process can read; move it into a variable"
    return None


def _self_reference_problem(server: ConfiguredServer, key: str, approved: ApprovedServers) -> str | None:
    """Return why the ``pinwarden run`` command of a server cannot be locked; None if it can."""
    try:
        approved.find_started_entry(server, key)
    except PinwardenError as err:
        return err.message
    return None


def _has_exposed_secret(entry: Any) -> bool:
    """Whether an argument or an address contains a secret. The lock would store it in plain text."""
    for url in list_urls(entry):
        address, _, query = url.partition("?")
        if MASK in mask_url(address) or any(looks_secret(name, value) for name, value in parse_qsl(query)):
            return True
    lines = [[_LITERAL.sub(r"\1", word) for word in words] for words in list_command_lines(entry)]
    return any(mask_words(words) != words for words in lines)


def _probe_all(
    discovery: Discovery, options: ProbeOptions | None, on_progress: Callable[[int, int], None] | None
) -> list[DiscoveredServer]:
    servers = discovery.servers
    if options is None:
        return [
            replace(server, not_probed_reason=_NOT_PROBED) if server.refused is None else server for server in servers
        ]
    from pinwarden.project.project import load_policies
    from pinwarden.project.server_start import probe_prepared

    load_policies(discovery.project)  # report an unreadable policy once, not for each server
    enabled = [server for server in servers if server.refused is None and not server.configured.disabled]
    starts = {server.key: _prepare_probe(discovery, server, options) for server in enabled}
    probes = {key: start for key, start in starts.items() if not isinstance(start, PinwardenError)}
    outcomes = probe_prepared(
        list(probes.values()),
        on_progress=(lambda step: on_progress(step.done, step.total)) if on_progress else None,
    )
    outcomes_by_key = dict(zip(probes, outcomes, strict=True))
    outcomes_by_key |= {key: start for key, start in starts.items() if isinstance(start, PinwardenError)}
    result: list[DiscoveredServer] = []
    for server in servers:
        outcome = outcomes_by_key.get(server.key) if server.refused is None else None
        if isinstance(outcome, PinwardenError) and outcome.code == "SECRET_REPEATED":
            result.append(replace(server, refused=f"{outcome.message}; a lock must not hold it"))
        elif isinstance(outcome, PinwardenError):
            failure = None if outcome.code == "CONSENT_REQUIRED" else outcome
            result.append(replace(server, not_probed_reason=outcome.message, probe_error=failure))
        elif outcome is None:
            result.append(server if server.refused else replace(server, not_probed_reason="it is disabled"))
        elif outcome.digest is None:
            result.append(replace(server, refused=f"it cannot be digested: {outcome.problem}"))
        else:
            result.append(replace(server, surface=outcome))
    return result


def _prepare_probe(
    discovery: Discovery, server: DiscoveredServer, options: ProbeOptions
) -> PreparedProbe | PinwardenError:
    """Prepare the probe of one server. If its bytes are locked, the probe starts these bytes."""
    from pinwarden.project.server_start import prepare_probe

    if server.configured.target is None:
        return PinwardenError("CONFIG_INVALID", f"its entry cannot be used: {server.configured.problem}")
    try:
        entry = discovery.approved.entry(server.key)
        return prepare_probe(discovery.project, server.configured.name, server.configured.target, options, entry)
    except PinwardenError as err:
        return err


def write_approvals(  # noqa: PLR0913  every part of an approval
    discovery: Discovery,
    servers: Sequence[DiscoveredServer],
    approver: Approver,
    now: str,
    surfaces: Sequence[tuple[lock_entry.Entry, ApprovalCandidate]] = (),
    *,
    partial: bool = False,
) -> Lock:
    """Write the approved servers and surfaces into the lock, in one step.

    Each of ``servers`` gets an entry as it is configured now. ``surfaces`` are lock entries that keep their
    configuration, each with the surface to approve for it; ``partial`` means that more changes are left to approve.
    Raises LOCK_BUSY if an entry of ``servers`` changed in the meantime, and REVIEW_STALE if the approved surface of an
    entry in ``surfaces`` changed.
    """
    project = discovery.project
    candidates = {server.key: candidate for server in servers if (candidate := _build_candidate(server)) is not None}
    entries = [
        _build_approved_entry(discovery, server, candidates.get(server.key), approver, now) for server in servers
    ]
    candidates |= {entry.key: candidate for entry, candidate in surfaces}

    def change(old: Lock | None) -> lock_store.LockWrite:
        _refuse_changed_entries(discovery, old, servers)
        made = [keep_earlier_pins(old, entry) for entry in entries]
        made += [
            with_approved_surface(project, find_unchanged_entry(old, entry), candidate, approver, now, partial=partial)
            for entry, candidate in surfaces
        ]
        assigned, files = assign_surface_files(old, made, candidates)
        lock = put_entries(_remove_refused_entries(discovery, old, now), assigned, now)
        return lock_store.LockWrite(lock=lock, files=files)

    return lock_store.update(project.lock, change)


def _build_candidate(server: DiscoveredServer) -> ApprovalCandidate | None:
    if server.surface is None:
        return None
    return ApprovalCandidate(
        server=server.configured.name,
        surface=server.surface,
        warnings=server.status.scan_warnings,
        warnings_approved=server.warnings_approved,
    )


def _build_approved_entry(
    discovery: Discovery, server: DiscoveredServer, candidate: ApprovalCandidate | None, approver: Approver, now: str
) -> lock_entry.Entry:
    project = discovery.project
    path = format_surface_path(server.key, folder=lock_store.surfaces_folder_name(project.lock))
    reason = approver.default_reason or _choose_approval_reason(server)
    extension = LockExtension(
        surface=None if server.surface is None else pin_surface(server.surface, path),
        approval=build_approval(replace(approver, default_reason=reason), now, candidate),
        configured_in=ConfigOrigin(
            client=server.configured.client,
            scope=server.configured.scope,
            file=project.display_path(server.configured.path),
            answers=_find_input_answers(discovery.files, server.configured),
        ),
        probed_release=_find_probed_release(discovery, server),
    )
    started_entry = discovery.approved.find_started_entry(server.configured, server.key)
    return build_entry(server.configured, server.key, started_entry, extension, now)


def _refuse_changed_entries(discovery: Discovery, old: Lock | None, servers: Sequence[DiscoveredServer]) -> None:
    """Raise LOCK_BUSY if the entry of a server is not the one that was compared. Other entries may change."""
    compared = _map_entries(discovery.lock)
    present = _map_entries(old)
    if any(compared.get(server.key) != present.get(server.key) for server in servers):
        raise PinwardenError("LOCK_BUSY", f"{discovery.project.lock.name} changed in the meantime")


def _map_entries(lock: Lock | None) -> dict[str, lock_entry.Entry]:
    return {} if lock is None else {entry.key: entry for entry in lock.entries}


def _remove_refused_entries(discovery: Discovery, old: Lock | None, now: str) -> Lock | None:
    """Restore the earlier entries of servers that the user accepted and that were refused after the probe."""
    refused_keys = _list_refused_after_probe(discovery)
    if old is None or not refused_keys:
        return old
    earlier = [entry for key in refused_keys if (entry := discovery.approved.entry(key)) is not None]
    return put_entries(remove_entries(old, refused_keys, now), earlier, now)


def _list_refused_after_probe(discovery: Discovery) -> list[str]:
    return [
        server.key
        for server in discovery.servers
        if server.refused is not None and server.key in discovery.written_keys
    ]


def _find_probed_release(discovery: Discovery, server: DiscoveredServer) -> str | None:
    if server.surface is None or not isinstance(server.configured.target, StdioTarget):
        return None
    return find_probed_release(discovery.project, server.configured.target.command, server.surface)


def _find_input_answers(files: Sequence[ConfigFile], server: ConfiguredServer) -> dict[str, Any]:
    inputs = [declared for file in files if file.path == server.path for declared in file.inputs]
    return list_proposed_inputs(server, inputs)
