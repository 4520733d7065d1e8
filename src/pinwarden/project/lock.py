"""Write the lock: add servers from a registry, record approved surfaces, and remove servers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.clients.command_line import parse_launch
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report, Row
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lock_store
from pinwarden.lock.entry import ToolPinScope
from pinwarden.lock.extension import (
    LockApproval,
    LockExtension,
    format_surface_path,
    keep_pinned_bytes,
    pin_surface,
    read_extension,
    with_extension,
)
from pinwarden.lock.install_plan import PlanOptions, build_install_plan
from pinwarden.lock.launch_choice import require_target
from pinwarden.lock.locked_launch import (
    describe_launch,
    find_enforced_launch,
    is_same_release,
    read_locked_launch,
)
from pinwarden.lock.lockfile import put_entries
from pinwarden.lock.server_entry import ServerEntry, parse_server_entry
from pinwarden.lock.target_verification import SKIPPED, ArtifactOutcome, LiveOutcome, verify_target
from pinwarden.lock.trust_explanation import check_metadata
from pinwarden.project.approval_candidate import (
    ApprovalCandidate,
    assign_surface_files,
    read_approved_surfaces,
    scan_for_approval,
)
from pinwarden.project.configured_servers import RELEASE_INDEX, identify_entry
from pinwarden.project.last_checked import record_entries_checked
from pinwarden.project.project import find_broken_rules
from pinwarden.surface.drift.changes import CRITICAL, build_change_row
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.interop import compute_api_surface_hash
from pinwarden.surface.surface import TOOL, Surface
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.fetch_context import FetchContext
    from pinwarden.project.project import Policies, Project
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.system.target import Target


class LockRequest(Record):
    """The server to lock, and the clients to lock it for."""

    name: str
    clients: tuple[str, ...]
    version: str | None = None
    scope: ToolPinScope = "project"
    source: str | None = None
    target: str | None = None
    """The type of target to lock: npm, pypi, oci, mcpb, nuget, cargo or remote. None for the default choice."""
    modern: bool = False
    """Whether to write the newer dialect of the clients' configuration."""
    verify: bool = False
    """Whether to verify the registry metadata and record the result, as ToolPin's ``--verify`` does."""


class Approver(Record):
    """The person who approves, and the reason."""

    by: str
    why: str
    approves_warnings: bool = False
    """Whether the approver saw the scan warnings and approves the surface with them."""
    default_reason: str = ""
    """The reason to record if the approver gives none, such as ``approved with --yes``."""
    identity: str = ""
    """Identifies the person at the issuer that authenticated them; empty if ``by`` is a typed name."""

    @property
    def reason(self) -> str:
        """The reason to record: the approver's own words, or the default."""
        return self.why.strip() or self.default_reason


class LockOptions(Record):
    """How to write lock entries."""

    now: str
    approver: Approver | None = None
    plain_v2: bool = False
    offline: bool = False
    probe: ProbeOptions | None = None
    """If given, Pinwarden probes the live server and approves its surface with the entry."""
    fetch_context: FetchContext | None = None
    """If given, and if the request has ``verify``, Pinwarden downloads and hashes the bytes."""


class RegistryLock(Record):
    """The lock entries of a server from a registry, not written yet."""

    entries: tuple[Entry, ...]
    candidate: ApprovalCandidate | None
    """The surface to approve with the entries."""
    report: Report
    """The report of ``pinwarden lock``. It fails if the surface has warnings that are not approved."""


def lock_from_registry(project: Project, request: LockRequest, policies: Policies, lock_options: LockOptions) -> Report:
    """Look a server up in a registry and write one lock entry per client, with the approved surface."""
    planned = plan_registry_lock(project, request, policies, lock_options)
    write_entries(project, planned.entries, planned.candidate, lock_options)
    return planned.report


def plan_registry_lock(
    project: Project, request: LockRequest, policies: Policies, lock_options: LockOptions
) -> RegistryLock:
    """Look a server up in a registry and build one lock entry per client.

    1. Find the entry in a registry.
    2. Probe the live server, if requested. A surface with scan warnings needs approval of the warnings too.
    3. Build the install plan for each client.
    4. Check the plans against the policies, and build the entries.
    """
    entry = parse_server_entry(
        project.load_registries(offline=lock_options.offline).find(request.name, request.version, request.source)
    )
    candidate = build_approval_candidate(
        project, entry.name, _probe(project, entry, request, lock_options), lock_options
    )
    warnings = candidate.warnings if candidate is not None else ()
    if candidate is not None and candidate.is_blocked:
        candidate = None
    surface = candidate.surface if candidate is not None else None
    refused = bool(warnings) and surface is None
    artifact = _verify_bytes(entry, request, lock_options)
    plans = [_build_plan(entry, client, request, surface, artifact, lock_options.now) for client in request.clients]
    for plan in plans:
        refuse_policy_violations(policies, plan, lock_options.now, entry.published_at)
    entries = [_build_entry(plan, candidate, project, lock_options, entry.published_at) for plan in plans]
    findings = tuple(
        Row(code=issue.code, severity="review", entity="server", name=entry.name, path="", message=issue.message)
        for issue in check_metadata(entry)
    )
    report = Report(
        command="lock",
        subject=entry.name,
        summary=_summarize(entry, request, surface, refused=refused),
        exit_code=EXIT_REFUSED if refused else EXIT_CLEAN,
        rows=(*warnings, *findings),
        facts={
            "entries": [{"key": locked.key, "integrity": locked.integrity} for locked in entries],
            "tier": plans[0]["trust"]["tier"],
            "surface": str(surface.digest) if surface else None,
            "findings": [{"code": row.code, "message": row.message} for row in (*warnings, *findings)],
        },
    )
    return RegistryLock(entries=tuple(entries), candidate=candidate, report=report)


def build_approval_candidate(
    project: Project, name: str, seen: Surface | None, lock_options: LockOptions
) -> ApprovalCandidate | None:
    """Collect the warnings that a person must see before approving a probed surface.

    These are scan warnings and critical changes since the last approval. Returns None without a surface.
    """
    if seen is None:
        return None
    approves = lock_options.approver is not None and lock_options.approver.approves_warnings
    approved = read_approved_surfaces(project, name)
    candidate = scan_for_approval(name, seen, approved, warnings_approved=approves)
    if not approved or any(surface.digest == seen.digest for surface in approved):
        return candidate
    critical = (build_change_row(change) for change in compare(approved[0], seen) if change.severity == CRITICAL)
    rows = tuple(replace(row, server=name) for row in critical)
    return replace(candidate, warnings=(*rows, *candidate.warnings))


def refuse_policy_violations(
    policies: Policies, plan: Mapping[str, Any], now: str, published_at: str | None = None
) -> None:
    """Raise POLICY_REFUSED, with every broken rule, if a policy refuses the plan."""
    broken = [rule for rule in find_broken_rules(policies, plan, now, published_at=published_at) if rule.refuses]
    if broken:
        more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise PinwardenError(
            "POLICY_REFUSED",
            f"{broken[0].message} ({broken[0].code}){more}",
            data={"refusals": [{"code": rule.code, "message": rule.message} for rule in broken]},
        )


def write_entries(
    project: Project,
    entries: Sequence[lock_entry.Entry],
    candidate: ApprovalCandidate | None,
    lock_options: LockOptions,
) -> None:
    """Write entries into the lock. If nothing changes, the file keeps its exact bytes."""
    lock_store.update(project.lock, change_entries(entries, candidate, lock_options))


def change_entries(
    entries: Sequence[lock_entry.Entry], candidate: ApprovalCandidate | None, lock_options: LockOptions
) -> Callable[[Lock | None], lock_store.LockWrite]:
    """Return the change of a lock that adds or replaces entries, with the approved surface."""
    candidates: dict[str, ApprovalCandidate] = {}
    if candidate is not None and not lock_options.plain_v2:
        candidates = {entry.key: candidate for entry in entries}

    def change_lock(old: Lock | None) -> lock_store.LockWrite:
        made = entries if lock_options.plain_v2 else [keep_earlier_pins(old, entry) for entry in entries]
        made, files = assign_surface_files(old, made, candidates)
        return lock_store.LockWrite(
            lock=put_entries(old, made, lock_options.now, plain_v2=lock_options.plain_v2), files=files
        )

    return change_lock


def keep_earlier_pins(old: Lock | None, entry: lock_entry.Entry) -> lock_entry.Entry:
    """Copy the approved surface and the pinned bytes of the earlier entry into the new entry.

    Locking a server again without a probe keeps its approved surface; otherwise the gateway would trust a new release
    on first use. The entry then records the release that the surface was approved for. Pinned bytes are kept as long as
    the same release is started; otherwise locking again could pin different bytes under the same version.
    """
    before = next((known for known in old.entries if known.key == entry.key), None) if old else None
    known, fresh = (read_extension(before) if before else None), read_extension(entry)
    if before is None or known is None or fresh is None:
        return entry
    same = all(before.document.get(member) == entry.document.get(member) for member in ("selectedTarget", "config"))
    merged = _keep_earlier_surface(before, known, fresh, same=same or pins_probed_release(before, entry))
    launch = find_enforced_launch(before, entry)
    if (
        known.has_pinned_bytes
        and not fresh.has_pinned_bytes
        and (same or launch is not None or is_same_release(before, entry))
    ):
        merged = keep_pinned_bytes(known, merged, same_config=same)
    if launch is not None and not same:
        merged = replace(merged, launch=launch)
    return entry if merged is fresh else with_extension(entry, merged)


def approve_surfaces(
    project: Project, approved: Sequence[tuple[lock_entry.Entry, ApprovalCandidate]], approver: Approver, now: str
) -> list[lock_entry.Entry]:
    """Record the surfaces of several entries as approved, in one write to the lock.

    Each entry has its own surface file, because two clients may approve different surfaces of one server.

    Raises REVIEW_STALE if the approved surface of an entry changed since the review, and WARNINGS_NOT_APPROVED if a
    surface has scan warnings that were not approved. Other concurrent changes to an entry are kept.
    """
    candidates = {entry.key: candidate for entry, candidate in approved}
    written: list[lock_entry.Entry] = []

    def change_lock(old: Lock | None) -> lock_store.LockWrite:
        made = [
            with_approved_surface(project, find_unchanged_entry(old, entry), candidate, approver, now)
            for entry, candidate in approved
        ]
        assigned, files = assign_surface_files(old, made, candidates)
        written[:] = assigned
        return lock_store.LockWrite(lock=put_entries(old, assigned, now), files=files)

    lock_store.update(project.lock, change_lock)
    record_entries_checked(project, written)
    return written


def with_approved_surface(  # noqa: PLR0913  every part of an approval
    project: Project,
    entry: lock_entry.Entry,
    candidate: ApprovalCandidate,
    approver: Approver,
    now: str,
    *,
    partial: bool = False,
) -> lock_entry.Entry:
    """Return the entry with this surface as its approved one. ``assign_surface_files`` chooses the file for it.

    After a ``partial`` approval, the entry still says that the whole surface was approved for an earlier release.
    """
    surface = candidate.surface
    known = read_extension(entry) or LockExtension()
    folder = lock_store.surfaces_folder_name(project.lock)
    changed = replace(
        known,
        surface=pin_surface(surface, format_surface_path(entry.key, folder=folder)),
        api_surface=str(compute_api_surface_hash(_list_tools(surface))),
        api_surface_of=None,
        api_surface_unknown=None,
        approval=build_approval(approver, now, candidate),
        surface_of=known.surface_of if partial else None,
        probed_release=find_probed_release_of_entry(project, entry, surface),
    )
    return with_extension(entry, changed)


def build_probe_target(entry: ServerEntry, kind: str | None = None) -> Target:
    """Build the target that the default configuration of a server starts or contacts."""
    from pinwarden.clients.config import parse_configured_server
    from pinwarden.clients.documents import find_entry
    from pinwarden.clients.table import CLIENTS, GENERIC_CLIENT
    from pinwarden.lock.install_plan import build_fragment

    generic = CLIENTS[GENERIC_CLIENT]
    config = build_fragment(entry, GENERIC_CLIENT, target=require_target(entry, kind), dialect="modern")
    server = parse_configured_server(entry.name, find_entry(config.config, generic, entry.name), generic)
    if server.target is None:
        raise PinwardenError(
            "NO_INSTALL_TARGET", f"{entry.name[:120]} cannot be started or contacted: {server.problem}"
        )
    return server.target


def build_extension(
    candidate: ApprovalCandidate | None, project: Project, name: str, lock_options: LockOptions
) -> LockExtension:
    """Build the extension fields of a new entry: the approved surface, and who approved it."""
    surface = None if candidate is None else candidate.surface
    return LockExtension(
        surface=None if surface is None else pin_surface(surface, build_surface_path(project, name)),
        api_surface=None if surface is None else str(compute_api_surface_hash(_list_tools(surface))),
        approval=None
        if lock_options.approver is None
        else build_approval(lock_options.approver, lock_options.now, candidate),
    )


def build_approval(approver: Approver, now: str, candidate: ApprovalCandidate | None = None) -> LockApproval:
    """Build the record of an approval: who, when and why, with the approved scan warnings."""
    return LockApproval(
        by=approver.by, at=now, why=approver.reason if candidate is None else candidate.build_reason(approver.reason)
    )


def build_surface_path(project: Project, name: str) -> str:
    """Build the path of a server's surface file, relative to the lock."""
    return format_surface_path(name, folder=lock_store.surfaces_folder_name(project.lock))


def find_probed_release(project: Project, command: Sequence[str], surface: Surface) -> str | None:
    """Find the release of a probed server whose command names no exact release. Returns None if it is unknown.

    For npx this is the release that npx installed. For other launchers it is the version in ``serverInfo``.
    """
    runs = parse_launch(StdioTarget(command=tuple(command)))
    package = runs.via or runs
    if package.pinned or package.kind not in ("npm", "pypi"):
        return None
    release = None
    if package.runner == "npx":
        from pinwarden.artifacts.endpoints.npm import find_npx_release

        spec = f"{package.identity}@{package.version}" if package.version else package.identity
        release = find_npx_release(spec, package.identity, project.root, project.home, project.variables)
    release = release or _read_stated_version(surface)
    return release[:200] if release else None


def find_probed_release_of_entry(project: Project, entry: Entry, surface: Surface) -> str | None:
    """Find the release of a probed lock entry; None for a remote server."""
    try:
        return find_probed_release(project, read_locked_launch(entry).command, surface)
    except PinwardenError:
        return None


def pins_probed_release(before: Entry, entry: Entry) -> bool:
    """Whether an entry differs from the earlier one only in naming the exact release that was probed."""
    extension = read_extension(before)
    release = extension.probed_release if extension is not None else None
    was, now = identify_entry(before), identify_entry(entry)
    if release is None or was is None or now is None or len(was.launch_parts) <= RELEASE_INDEX:
        return False
    launch_parts = (*was.launch_parts[:RELEASE_INDEX], release, *was.launch_parts[RELEASE_INDEX + 1 :])
    return replace(was, launch_parts=launch_parts) == now


def _keep_earlier_surface(
    before: lock_entry.Entry, known: LockExtension, fresh: LockExtension, *, same: bool
) -> LockExtension:
    """Copy the earlier approved surface, unless the new entry has an approved surface of its own."""
    if fresh.surface is not None:
        return fresh
    if known.surface is None:  # the hash of other bytes is kept, so that prove compares that of the new ones
        return replace(fresh, api_surface=known.api_surface, api_surface_of=known.api_surface_of)
    return replace(
        fresh,
        surface=known.surface,
        api_surface=known.api_surface,
        surface_of=known.surface_of or (None if same else describe_launch(before)),
        probed_release=(known.probed_release if same else None) or fresh.probed_release,
    )


def find_unchanged_entry(lock: Lock | None, seen: lock_entry.Entry) -> lock_entry.Entry:
    """Find the current entry in the lock. Raises REVIEW_STALE if its approved surface changed since the review."""
    present = next((entry for entry in (lock.entries if lock else ()) if entry.key == seen.key), None)
    if present is None or _find_surface_digest(present) != _find_surface_digest(seen):
        raise PinwardenError("REVIEW_STALE", f"the approval of {seen.name[:120]!a} changed in the meantime")
    return present


def _find_surface_digest(entry: lock_entry.Entry) -> str:
    extension = read_extension(entry)
    return str(extension.surface.digest) if extension is not None and extension.surface is not None else ""


def _probe(project: Project, entry: ServerEntry, request: LockRequest, lock_options: LockOptions) -> Surface | None:
    if lock_options.probe is None:
        return None
    from pinwarden.project.server_start import prepare_probe, probe_server

    return probe_server(
        prepare_probe(project, entry.name, build_probe_target(entry, request.target), lock_options.probe)
    )


def _verify_bytes(entry: ServerEntry, request: LockRequest, lock_options: LockOptions) -> ArtifactOutcome | None:
    if not request.verify or lock_options.fetch_context is None:
        return None
    from pinwarden.project.artifact_check import verify_declared_artifact

    return verify_declared_artifact(
        entry.name, require_target(entry, request.target), lock_options.fetch_context, lock_options.now
    )


def _build_plan(  # noqa: PLR0913, PLR0917  every input of a plan
    entry: ServerEntry,
    client: str,
    request: LockRequest,
    surface: Surface | None,
    artifact: ArtifactOutcome | None,
    now: str,
) -> dict[str, Any]:
    target = require_target(entry, request.target)
    installation = PlanOptions(scope=request.scope, target=target, dialect="modern" if request.modern else "toolpin")
    verification = None
    if request.verify or surface is not None:
        live = SKIPPED if surface is None else LiveOutcome(state="listed", tools=tuple(_list_tools(surface)))
        verification = verify_target(entry, now=now, live=live, target=target, artifact=artifact)
    return build_install_plan(entry, client, now=now, verification=verification, options=installation)


def _build_entry(
    plan: dict[str, Any],
    candidate: ApprovalCandidate | None,
    project: Project,
    lock_options: LockOptions,
    published_at: str | None,
) -> lock_entry.Entry:
    key = lock_entry.build_entry_key(plan["name"], plan["client"])
    entry = lock_entry.with_integrity(lock_entry.Entry(key=key, document=plan))
    if lock_options.plain_v2:
        return entry
    extension = build_extension(candidate, project, plan["name"], lock_options)
    return with_extension(entry, replace(extension, published_at=published_at or None))


def _list_tools(surface: Surface) -> list[Any]:
    return [item.value for item in surface.items_of_kind(TOOL)]


def _summarize(entry: ServerEntry, request: LockRequest, surface: Surface | None, *, refused: bool) -> str:
    pinned = f", surface {surface.digest}" if surface else ", surface not approved yet"
    if refused:
        pinned = (
            ", but its surface has scan warnings and is not approved; after reading it, run: "
            f"pinwarden approve {shlex.quote(entry.name)}"
        )
    return f"locked {entry.name} {entry.version} for {', '.join(request.clients)}{pinned}"


def _read_stated_version(surface: Surface) -> str | None:
    about = surface.server.get("serverInfo") if surface.server is not None else None
    version = about.get("version") if isinstance(about, dict) else None
    return version if isinstance(version, str) else None
