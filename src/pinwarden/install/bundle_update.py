"""Update installed bundles. A new version is checked like a first install, and compared with the approved version.

Two hashes show whether the content and the tools changed; comparing the surfaces shows how the tools changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pinwarden.bundle.bundle_pin import BundlePin, find_bundle_pin
from pinwarden.bundle.environment import check_pinned_descriptor
from pinwarden.bundle.trust import InstallerPolicy
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import COULD_NOT_CHECK, Report, Row
from pinwarden.core.text import plural
from pinwarden.core.versions import compare_versions
from pinwarden.install.bundle_download import download_bundle
from pinwarden.install.decision import AcceptedBundle, InstallRequest
from pinwarden.install.install import InstallTarget, build_bundle_entries
from pinwarden.install.staging import StagedBundle, build_bundle_pin, compute_api_surface, stage_bundle
from pinwarden.lock import lock_store
from pinwarden.lock.entry import to_toolpin_scope
from pinwarden.lock.extension import read_extension
from pinwarden.lock.locked_launch import read_locked_launch
from pinwarden.project.approval_candidate import APPROVE_WARNINGS_OPTION, ApprovalCandidate, scan_for_approval
from pinwarden.project.installed_bundles import find_operator_actions, find_yank_reason
from pinwarden.project.lock import write_entries
from pinwarden.project.newer_releases import NOTHING_TO_LOOK_UP
from pinwarden.project.update import NOTHING_CHANGED
from pinwarden.surface import surface as surface_document
from pinwarden.surface.drift.changes import build_change_row
from pinwarden.surface.drift.compare import compare

if TYPE_CHECKING:
    from pathlib import Path

    from pinwarden.artifacts.environments.store import Store
    from pinwarden.bundle.trust import TrustStore
    from pinwarden.install.bundle_fetcher import RegistryBundleFetcher
    from pinwarden.install.registry_log import LogFollower
    from pinwarden.install.sources import BundleSource, Locations
    from pinwarden.lock.entry import Entry
    from pinwarden.project.lock import LockOptions
    from pinwarden.project.project import Policies, Project
    from pinwarden.surface.surface import Surface

BLOCK, WARN = "block", "warn"
_PERMISSION_ORDER = {"deny": 0, "read_only": 1, "read_write": 2, "allow": 2}
_REVOKED, _TAKEN_DOWN = "key_revoked", "version_taken_down"
_ABOUT_OLD_VERSION = (_REVOKED, _TAKEN_DOWN)  # reasons to leave the locked version, not to keep it


class UpdateContext(Record):
    """The project, the bundle sources and the options of an update."""

    project: Project
    locations: Locations
    fetcher: RegistryBundleFetcher
    follower: LogFollower
    log: str | None
    """The location of the registry's log, if it is not at the registry."""
    trusted: TrustStore
    trust_path: Path
    policy: InstallerPolicy
    store: Store
    policies: Policies
    lock_options: LockOptions
    now: str
    """The current time. Timestamps in the lock may differ from it (``SOURCE_DATE_EPOCH``)."""
    confirmed: bool
    """Whether to lock the new versions (``--yes``). Otherwise the update is only reported."""
    probe: bool | None
    """Whether to start the servers, in their sandboxes, to record their surfaces. None: if the registry did not."""
    literal: bool = False
    """Whether ``--literal`` was given. The option applies only to bundles that were installed with it."""
    on_drift: str = BLOCK
    """``block``: critical drift stops a confirmed update. ``warn``: critical drift is only reported."""


class BundleUpdate(Record):
    """The available update of one installed bundle, with the rows for the report."""

    entries: tuple[Entry, ...]
    pin: BundlePin
    staged: StagedBundle | None
    """The version to lock; None if the locked version is the newest, or if the check failed."""
    rows: tuple[Row, ...]
    candidate: ApprovalCandidate | None = None
    """The new surface, with the scan warnings about it."""


def update_bundles(names: Sequence[str], context: UpdateContext) -> list[BundleUpdate]:
    """Update the named bundles, or all bundles if no name is given.

    1. Group the lock's bundle entries by server.
    2. Check each bundle: stage the version that its channel points to now, and compare it with the approved one.
    3. If the update is confirmed, lock the new versions, except versions with blocked drift.
    """
    lock, lock_files = lock_store.read_with_files(context.project.lock)
    groups = _group_bundle_entries(lock.entries if lock else (), names)
    updates = [_prepare_update(entries, lock_files, context) for entries in groups]
    for update in updates:
        if context.confirmed and update.staged is not None and not _is_blocked(update, context.on_drift):
            _lock_update(update, update.staged, context)
    return updates


def merge_reports(report: Report, bundle_updates: Sequence[BundleUpdate], context: UpdateContext) -> Report:
    """Add the bundle updates to the report of ``pinwarden update``."""
    if not bundle_updates:
        return report
    available = [update for update in bundle_updates if update.staged is not None]
    blocked = [update for update in available if _is_blocked(update, context.on_drift)]
    rows = tuple(row for update in bundle_updates for row in update.rows)
    checked = tuple(row for row in rows if row.code != COULD_NOT_CHECK)
    failed = tuple(row for row in rows if row.code == COULD_NOT_CHECK)
    critical = any(row.severity == "critical" for row in checked) if context.on_drift == BLOCK else False
    warned = [update for update in available if _has_open_warnings(update)]
    refused = critical or bool(warned) or (bool(available) and not context.confirmed)
    code = EXIT_REFUSED if refused else EXIT_UNCHECKED if failed else EXIT_CLEAN
    codes = {report.exit_code, code}
    summary = f"{plural(len(bundle_updates), 'bundle')} checked, {plural(len(available), 'update')} available"
    notes = [f"{update.pin.tool} was not updated: the changes look like an attack" for update in blocked]
    notes += [
        f"the new tools of {update.pin.tool} are not approved because of scan warnings. Review them: pinwarden approve "
        f"{update.pin.tool} --allow-execute, or repeat with {APPROVE_WARNINGS_OPTION}"
        for update in warned
        if update not in blocked and context.confirmed
    ]
    if available and not context.confirmed and NOTHING_CHANGED not in report.notes:
        notes.append(NOTHING_CHANGED)
    facts = report.facts
    updates = [
        {"name": entry.name, "client": entry.client, "from": update.pin.version, "to": update.staged.pin.version}
        for update in available
        if update.staged is not None
        for entry in update.entries
    ]
    return replace(
        report,
        summary=summary if report.summary.endswith(NOTHING_TO_LOOK_UP) else f"{report.summary}; {summary}",
        exit_code=next(exit_code for exit_code in (EXIT_REFUSED, EXIT_UNCHECKED, EXIT_CLEAN) if exit_code in codes),
        rows=(*report.rows, *rows),
        notes=(*report.notes, *notes),
        facts={
            **facts,
            "updates": [*facts["updates"], *updates],
            "written": facts["written"] or (context.confirmed and len(blocked) < len(available)),
            "changes": [*facts["changes"], *({"code": r.code, "name": r.name, "message": r.message} for r in checked)],
            "unchecked": [*facts["unchecked"], *({"name": r.name, "message": r.message} for r in failed)],
        },
    )


# Steps


def _group_bundle_entries(entries: Iterable[Entry], names: Sequence[str]) -> list[list[Entry]]:
    """Group the lock entries by installed bundle. A bundle has one entry for each client."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if (not names or entry.name in names) and find_bundle_pin(entry) is not None:
            groups.setdefault(entry.name, []).append(entry)
    return list(groups.values())


def _prepare_update(entries: list[Entry], lock_files: dict[str, bytes], context: UpdateContext) -> BundleUpdate:
    """Stage the newest version of an installed bundle, and compare it with the locked one. Failures become rows."""
    pin = find_bundle_pin(entries[0])
    if pin is None:
        raise TypeError("every entry of the group pins a bundle")
    unchanged = BundleUpdate(
        entries=tuple(entries), pin=pin, staged=None, rows=tuple(build_revoked_rows(pin, context.trusted))
    )
    try:
        staged = _stage_newest(pin, context)
    except PinwardenError as err:
        refused = err.exit_code == EXIT_REFUSED
        row = build_update_row(
            pin, err.code if refused else COULD_NOT_CHECK, "critical" if refused else "review", err.message
        )
        return replace(unchanged, rows=(*unchanged.rows, row, *build_yanked_rows(pin, context.trust_path)))
    unchanged = replace(unchanged, rows=(*unchanged.rows, *build_yanked_rows(pin, context.trust_path)))
    new_pin = staged.pin
    if (new_pin.root_cid, new_pin.descriptor_cid) == (pin.root_cid, pin.descriptor_cid):
        return unchanged
    approved = _read_approved_surface(entries[0], lock_files)
    rows = (
        *unchanged.rows,
        *build_registry_rows(pin, new_pin),
        *build_content_rows(pin, new_pin),
        *build_permission_rows(pin, new_pin),
        *_build_surface_rows(pin, approved, staged),
    )
    if staged.surface is None:
        return replace(unchanged, staged=staged, rows=rows)
    approver = context.lock_options.approver
    candidate = scan_for_approval(
        pin.tool,
        staged.surface,
        () if approved is None else (approved,),
        warnings_approved=approver is not None and approver.approves_warnings,
    )
    return replace(unchanged, staged=staged, rows=(*rows, *candidate.warnings), candidate=candidate)


def _stage_newest(pin: BundlePin, context: UpdateContext) -> StagedBundle:
    """Download, check and stage the version that the channel points to now. A refusal is raised with its code."""
    accepted, source = download_newest(pin, context)
    new_pin = build_bundle_pin(accepted, source, pin.floor, literal=pin.literal and context.literal)
    return stage_bundle(context.project, accepted, new_pin, context.store, source, probe=context.probe)


def download_newest(pin: BundlePin, context: UpdateContext) -> tuple[AcceptedBundle, BundleSource]:
    """Download and check the version that the channel points to now. A refusal is raised with its code."""
    location = context.fetcher.find_location(pin)
    source = context.locations.open_source(location, pin.channel, context.log)
    request = InstallRequest(
        tool=pin.tool,
        channel=pin.channel,
        floor=pin.floor,
        literal=pin.literal and context.literal,
        policy=_widen_policy(context.policy, pin, context.store),
        trusted=context.trusted,
        now=context.now,
    )
    decision = download_bundle(request, source, context.follower)
    if decision.accepted is None:
        refusal = decision.refusal
        if refusal is None:
            raise TypeError("a decision has an accepted bundle or a refusal")
        raise PinwardenError(refusal.code, refusal.what, hint=refusal.fix, data=dict(refusal.why))
    return decision.accepted, source


def _widen_policy(policy: InstallerPolicy, pin: BundlePin, store: Store) -> InstallerPolicy:
    """Add the permissions of the locked version to the user's policy, if that version is installed on this machine."""
    if not store.has(pin.descriptor):
        return policy
    check_pinned_descriptor(pin, store)
    return replace(
        policy,
        network=_select_wider_permission(policy.network, pin.policy.network),
        filesystem=_select_wider_permission(policy.filesystem, pin.policy.filesystem),
        exec=_select_wider_permission(policy.exec, pin.policy.exec),
    )


def _select_wider_permission(first: str, second: str) -> str:
    return first if _PERMISSION_ORDER[first] >= _PERMISSION_ORDER[second] else second


def _read_approved_surface(entry: Entry, lock_files: dict[str, bytes]) -> Surface | None:
    extension = read_extension(entry)
    pin = extension.surface if extension else None
    return surface_document.parse_surface(lock_files[pin.path]) if pin is not None and pin.path in lock_files else None


def _is_blocked(update: BundleUpdate, on_drift: str) -> bool:
    return on_drift == BLOCK and (
        _has_open_warnings(update)
        or any(row.severity == "critical" and row.code not in _ABOUT_OLD_VERSION for row in update.rows)
    )


def _has_open_warnings(update: BundleUpdate) -> bool:
    return update.candidate is not None and update.candidate.is_blocked


def _lock_update(update: BundleUpdate, staged: StagedBundle, context: UpdateContext) -> None:
    """Lock the new version. If its surface has open warnings, the approval of the old surface stays."""
    candidate = None if _has_open_warnings(update) else update.candidate
    for entry in update.entries:
        target = InstallTarget(
            clients=(entry.client,),
            scope=to_toolpin_scope(entry.scope),
            variables=read_locked_launch(entry).variables,
        )
        entries = build_bundle_entries(
            context.project, staged, candidate, target, context.policies, context.lock_options
        )
        write_entries(context.project, entries, candidate, context.lock_options)


# Report rows


def build_revoked_rows(pin: BundlePin, trusted: TrustStore) -> Iterator[Row]:
    """Report attesters of the locked version whose keys were revoked."""
    for key_id in dict.fromkeys(pin.provenance.get("attestations_used", ())):
        revoked = trusted.find_revoked_key(key_id)
        if revoked is not None:
            message = f"the key of {revoked.name or key_id}, who attested this version, was revoked: {revoked.why}"
            yield build_update_row(pin, _REVOKED, "critical", message)


def build_yanked_rows(pin: BundlePin, trust_path: Path) -> Iterator[Row]:
    """Report a locked version that was yanked or taken down, according to the saved log state."""
    why = find_yank_reason(pin, trust_path)
    if why is not None:
        yield build_update_row(pin, "version_yanked", "review", why)
    for code, message in find_operator_actions(pin, trust_path):
        yield build_update_row(pin, code, "critical" if code == _TAKEN_DOWN else "review", message)


def build_registry_rows(old: BundlePin, new: BundlePin) -> Iterator[Row]:
    """Report an update from another registry, because two registries may use one name for different bundles."""
    if old.log_id not in (None, new.log_id):
        message = f"the update is from another registry: {new.log_id or 'one without a log'} instead of {old.log_id}"
        yield build_update_row(old, "registry_changes", "critical", message, (str(old.log_id), str(new.log_id)))


def build_content_rows(old: BundlePin, new: BundlePin) -> Iterator[Row]:
    """Report another version or other content."""
    direction = compare_versions(new.version, old.version)
    if direction > 0:
        message = f"{old.version} is locked; the channel {old.channel} is at {new.version}"
        yield build_update_row(old, "newer_release", "info", message, (old.version, new.version))
    elif direction < 0:
        message = f"the channel {old.channel} went back from {old.version} to {new.version}"
        yield build_update_row(old, "older_release", "review", message, (old.version, new.version))
    else:
        message = f"the content of {new.version} differs from the locked content"
        yield build_update_row(old, "content_replaced", "critical", message, (str(old.archive), str(new.archive)))
        return
    yield build_update_row(
        old, "content_changes", "info", "the content hash changes", (str(old.archive), str(new.archive))
    )


def build_permission_rows(old: BundlePin, new: BundlePin) -> Iterator[Row]:
    """Report other permissions."""
    for name in ("network", "filesystem", "exec"):
        before, after = getattr(old.policy, name), getattr(new.policy, name)
        if before != after:
            wider = _PERMISSION_ORDER[after] > _PERMISSION_ORDER[before]
            message = (
                f"the update requests {'more' if wider else 'fewer'} permissions: {name} {after} instead of {before}"
            )
            yield build_update_row(old, "permission_changes", "review" if wider else "info", message, (before, after))


def _build_surface_rows(old: BundlePin, approved: Surface | None, staged: StagedBundle) -> Iterator[Row]:
    if approved is None or staged.surface is None:
        why = "the locked version has no approved tools" if approved is None else staged.surface_problem
        yield build_update_row(old, "surface_unknown", "review", f"the new tools cannot be compared: {why}")
        return
    before, after = compute_api_surface(approved), compute_api_surface(staged.surface)
    if before != after:
        yield build_update_row(old, "api_surface_changes", "review", "the API surface hash changes", (before, after))
    for change in compare(approved, staged.surface):
        yield replace(build_change_row(change), server=old.tool)


def build_update_row(
    pin: BundlePin, code: str, severity: str, message: str, before_after: tuple[str, str] | None = None
) -> Row:
    """Build a row about an installed bundle."""
    before, after = before_after or (None, None)
    return Row(
        code=code,
        severity=severity,
        entity="bundle",
        name=pin.tool,
        path="",
        message=message,
        before=before,
        after=after,
    )
