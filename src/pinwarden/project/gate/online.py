"""Checks that use the network or start servers: live surfaces, registry metadata, artifact bytes.

A live server is compared with the approved surface, which shows what changed. If the lock has no surface, the server is
compared with ToolPin's hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import CODES, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.report import COULD_NOT_CHECK, FindingKinds, Row, build_kind_table, get_error_row_code
from pinwarden.lock.entry import HASHED_MANIFEST_MEMBERS, Entry, rank_tier, to_toolpin_scope
from pinwarden.lock.extension import has_approved_tools, read_extension
from pinwarden.lock.locked_config import NON_REGISTRY_SOURCES
from pinwarden.lock.locked_launch import read_locked_launch
from pinwarden.lock.lockfile import Lock
from pinwarden.lock.toolpin_pins import compare_tool_hashes
from pinwarden.project.artifact_check import ArtifactCheck, check_artifact
from pinwarden.project.fetch_context import FetchContext, build_single_server_context
from pinwarden.project.gate.gate_report import build_nothing_to_check_row
from pinwarden.project.gate.integrity import report_unpinned_servers
from pinwarden.project.last_checked import record_entries_checked, record_entries_compared
from pinwarden.project.locked_servers import has_pinned_bytes
from pinwarden.project.next_step import ALLOW_EXECUTE, FETCH
from pinwarden.project.parallel import run_for_servers
from pinwarden.project.server_start import PreparedProbe, prepare_locked_probe, probe_prepared
from pinwarden.surface.drift.changes import build_change_row
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.surface import TOOL, Surface, parse_surface
from pinwarden.system.probe_budget import get_probe_stderr

if TYPE_CHECKING:
    from pinwarden.lock.launch_choice import LaunchTarget
    from pinwarden.lock.mcp_registry import Registries
    from pinwarden.lock.server_entry import ServerEntry
    from pinwarden.project.gate.check import GateOptions
    from pinwarden.project.project import Project
    from pinwarden.surface.probe.probe import ProbeOptions


_NEEDED = {"CONSENT_REQUIRED": ALLOW_EXECUTE, "ARTIFACT_MISSING": FETCH}
"""By error code, what is needed to probe a server."""


def check_live_servers(
    project: Project,
    lock: Lock,
    pinned_files: Mapping[str, bytes],
    options: ProbeOptions,
    not_to_start: Mapping[str, str],
) -> Iterator[Row]:
    """Probe every server with an approved surface, all at once, and report the differences.

    ``not_to_start`` are the names of servers that must not be started, with the reason.
    """
    if lock.entries and not any(map(has_approved_tools, lock.entries)):
        yield Row(code=COULD_NOT_CHECK, severity="review", entity="lock", name="", path="", message=_NOTHING_PINNED)
    yield from report_unpinned_servers(lock, has_approved_tools)
    checks: list[_LiveCheck] = []
    files = project.find_configs()
    for entry in lock.entries:
        if entry.name in not_to_start:
            if has_approved_tools(entry):
                yield _build_unchecked_row(entry, f"was not started: {not_to_start[entry.name]}")
            continue
        try:
            check = _prepare_live_check(
                entry, pinned_files, lambda locked: prepare_locked_probe(project, locked, files, options)
            )
        except PinwardenError as err:
            yield _build_failed_probe_row(entry, err)
            continue
        if check is not None:
            checks.append(check)
    outcomes = probe_prepared([check.prepared for check in checks])
    responses = zip(checks, outcomes, strict=True)
    record_entries_checked(
        project, (check.entry for check, outcome in responses if not isinstance(outcome, PinwardenError))
    )
    approved = list(_list_approved_surfaces(lock, pinned_files, checks))
    for check, outcome in zip(checks, outcomes, strict=True):
        if isinstance(outcome, PinwardenError) and outcome.code == "SECRET_REPEATED":
            yield _build_row(check.entry, "secret_repeated", outcome.message)
        elif isinstance(outcome, PinwardenError):
            yield replace(_build_failed_probe_row(check.entry, outcome), excerpt=get_probe_stderr(outcome))
        elif check.approved is not None:
            neighbours = [(name, surface) for name, surface in approved if name != check.entry.name]
            rows = list(_compare_surface(check.approved, outcome, neighbours))
            record_entries_compared(project, ((check.entry, rows),))
            yield from (replace(row, server=check.entry.name) for row in rows)
        else:
            yield from _compare_hashes(check.entry, outcome)


def check_registries(lock: Lock, registries: Registries, gate_options: GateOptions) -> Iterator[Row]:
    """Look up again every version that came from a registry, and report what changed in its metadata."""
    from pinwarden.lock.server_entry import parse_server_entry

    if (
        gate_options.registry_requested
        and lock.entries
        and all(entry.source in NON_REGISTRY_SOURCES for entry in lock.entries)
    ):
        yield build_nothing_to_check_row("--registry", _NOTHING_REGISTERED)
    for entry in lock.entries:
        if entry.source in NON_REGISTRY_SOURCES:
            continue
        try:
            current = parse_server_entry(registries.find(entry.name, entry.version, entry.source))
        except PinwardenError as err:
            if err.code == "SERVER_NOT_FOUND":
                message = f"version {entry.version} is no longer in any registry"
                yield _build_registry_row(entry, "version_gone", message)
            else:
                yield _build_registry_row(entry, COULD_NOT_CHECK, err.message)
            continue
        if current.status != "active":
            code = _STATUS_CODES[current.status]
            yield _build_registry_row(entry, code, f"the registry marks this version as {current.status}")
        yield from _compare_metadata(entry, current, gate_options.now)


class ByteCheck(Record):
    """The outcome of downloading and hashing the pinned artifacts again."""

    rows: tuple[Row, ...] = ()
    verified_evidence: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The codes of passed evidence, by entry key. Empty for a refused artifact."""


def check_bytes(lock: Lock, context: FetchContext, now: str) -> ByteCheck:
    """Download and hash every pinned artifact again, each package once, several at a time."""
    rows: list[Row] = []
    entries_by_key: dict[tuple[str, tuple[str, ...]], list[Entry]] = {}
    for entry in filter(has_pinned_bytes, lock.entries):
        try:
            entries_by_key.setdefault((entry.name, read_locked_launch(entry).command), []).append(entry)
        except PinwardenError as err:
            rows.append(_build_failure_row(entry, err))
    servers = list(entries_by_key.values())
    each = build_single_server_context(context, len(servers))
    verified_evidence: dict[str, frozenset[str]] = {}

    def finish(index: int, check: ArtifactCheck | PinwardenError) -> None:
        if isinstance(check, PinwardenError):
            rows.append(_build_failure_row(servers[index][0], check))
            verified_evidence.update((entry.key, frozenset()) for entry in servers[index])
            return
        rows.extend(row for row in check.rows if row.severity != "info")
        passed = frozenset(str(row["code"]) for row in check.outcome.evidence if row["status"] == "passed")
        verified_evidence.update((entry.key, frozenset() if check.refused else passed) for entry in servers[index])

    run_for_servers(
        [entries[0].name for entries in servers],
        lambda index: check_artifact(servers[index][0], each, now),
        finish,
        context=context,
        on_progress=context.on_servers,
    )
    if lock.entries and not any(map(has_pinned_bytes, lock.entries)):
        why = "--bytes: no entry has pinned bytes, so there is nothing to hash; pin them with pinwarden prove"
        rows.append(Row(code=COULD_NOT_CHECK, severity="review", entity="lock", name="", path="", message=why))
    return ByteCheck(rows=tuple(rows), verified_evidence=verified_evidence)


class _LiveCheck(Record):
    """An entry whose server is probed. The approved surface is None if the lock has only ToolPin's hashes."""

    entry: Entry
    prepared: PreparedProbe
    approved: Surface | None


_NOTHING_PINNED = (
    "there is nothing to compare the live servers with: no entry has an approved surface. Approve one with "
    "pinwarden approve NAME, or all with pinwarden init --allow-execute"
)


def _prepare_live_check(
    entry: Entry, pinned_files: Mapping[str, bytes], start: Callable[[Entry], PreparedProbe]
) -> _LiveCheck | None:
    extension = read_extension(entry)
    pin = extension.surface if extension else None
    if pin is not None:
        if pin.path not in pinned_files:
            return None  # the missing file is reported with the lock
        return _LiveCheck(entry=entry, prepared=start(entry), approved=parse_surface(pinned_files[pin.path]))
    if not entry.has_tool_hashes:
        return None
    return _LiveCheck(entry=entry, prepared=start(entry), approved=None)


def _list_approved_surfaces(
    lock: Lock, pinned_files: Mapping[str, bytes], checks: Sequence[_LiveCheck]
) -> Iterator[tuple[str, Surface]]:
    """Yield the names and approved surfaces of all locked servers, also of those that were not started."""
    parsed = {check.entry.key: check.approved for check in checks if check.approved is not None}
    for entry in lock.entries:
        surface = parsed.get(entry.key)
        if surface is None:
            extension = read_extension(entry)
            pin = extension.surface if extension else None
            content = pinned_files.get(pin.path) if pin is not None else None
            surface = parse_surface(content) if content is not None else None
        if surface is not None:
            yield entry.name, surface


def _compare_surface(approved: Surface, seen: Surface, neighbours: Sequence[tuple[str, Surface]]) -> Iterator[Row]:
    return map(build_change_row, compare(approved, seen, neighbours))


def _compare_hashes(entry: Entry, seen: Surface) -> Iterator[Row]:
    tools: list[Any] = []
    for item in seen.items_of_kind(TOOL):
        if item.digest is None:
            message = f"{item.key[:120]!a} has no canonical form, so it cannot be an approved tool: {item.problem}"
            yield _build_row(entry, "tool_undigestable", message)
            return
        tools.append(item.value)
    try:
        findings = compare_tool_hashes(entry.manifest, tools)
    except PinwardenError as err:
        yield _build_row(entry, "tool_undigestable", err.message)
        return
    for finding in findings:
        if finding.is_conclusive:
            yield _build_row(
                entry, finding.code, f"{finding.message}; the lock has only a hash, so the change cannot be shown"
            )
        else:
            yield _build_unchecked_row(entry, f"could not be compared: {finding.message}")


def _build_row(entry: Entry, code: str, message: str) -> Row:
    return Row(code=code, severity="critical", entity="server", name=entry.name, path="", message=message)


def _build_failed_probe_row(entry: Entry, err: PinwardenError) -> Row:
    needed = _NEEDED.get(err.code)
    is_special = err.hint != CODES[err.code].hint
    advice = f" ({needed})" if needed else f"; {err.hint}" if is_special and err.hint else ""
    return replace(_build_unchecked_row(entry, f"could not be probed: {err.message}{advice}"), needs=needed)


def _build_unchecked_row(entry: Entry, why: str) -> Row:
    return Row(code=COULD_NOT_CHECK, severity="review", entity="server", name=entry.name, path="", message=why)


REGISTRY_KINDS: FindingKinds = build_kind_table(
    critical=(
        ("version_gone", "The locked version is no longer in any registry."),
        ("entry_deleted", "The registry marks the locked version as deleted."),
        ("no_install_target", "The locked version no longer declares anything that can be installed."),
        ("target_changed", "The locked version names another package or address than was approved."),
        ("config_changed", "The locked version would be configured differently than was approved."),
        ("manifest_changed", "The locked version declares other secrets, hosts or transports than were approved."),
        ("tier_decreased", "The locked version has a lower trust tier than when it was approved."),
    ),
    review=(
        ("entry_deprecated", "The registry marks the locked version as deprecated."),
        ("score_decreased", "The locked version has a lower trust score than when it was approved."),
    ),
)


_STATUS_CODES = {"deprecated": "entry_deprecated", "deleted": "entry_deleted"}
_NOTHING_REGISTERED = (
    "no entry is from a registry of servers, so there is nothing to look up; --bytes checks the packages that "
    "configurations name"
)


def _compare_metadata(entry: Entry, current: ServerEntry, now: str) -> Iterator[Row]:
    """Compare the current metadata of a version with the approved metadata. Some messages are ToolPin's."""
    from pinwarden.lock.install_plan import PlanOptions, build_install_plan
    from pinwarden.lock.lockfile import is_same_json

    approved = entry.selected_target
    target = _find_current_target(current, approved)
    try:
        how = PlanOptions(scope=to_toolpin_scope(entry.scope), target=target)
        plan = build_install_plan(current, entry.client, now=now, options=how)
    except PinwardenError as err:
        yield _build_registry_row(entry, "no_install_target", err.message)
        return
    if not is_same_json(plan["selectedTarget"], dict(approved)):
        yield _build_registry_row(entry, "target_changed", "selected install target changed")
    if not is_same_json(plan["config"], entry.config):
        yield _build_registry_row(entry, "config_changed", "client config changed")
    if not is_same_json(
        _select_comparable_members(plan["capabilityManifest"]), _select_comparable_members(entry.manifest)
    ):
        yield _build_registry_row(entry, "manifest_changed", "capability manifest changed")
    before, after = entry.trust.get("score"), plan["trust"]["score"]
    if isinstance(before, int) and after < before:
        yield _build_registry_row(entry, "score_decreased", f"trust score decreased {before} -> {after}")
    old, new = entry.trust.get("tier"), plan["trust"]["tier"]
    # An entry is `verified` because of hashed bytes. Metadata alone cannot reach that, so one tier lower is expected.
    best_without_bytes = min(rank_tier(old), rank_tier("conditional"))
    if rank_tier(new) < best_without_bytes:
        yield _build_registry_row(entry, "tier_decreased", f"trust tier decreased {old} -> {new}")


def _find_current_target(current: ServerEntry, approved: Mapping[str, Any]) -> LaunchTarget | None:
    """Return the target to compare with the approved target.

    This is the approved target if it still comes first, otherwise the first target of its kind, otherwise the first.
    """
    from pinwarden.lock.launch_choice import choose_target, target_to_json
    from pinwarden.lock.lockfile import is_same_json

    target = choose_target(current)
    if target is not None and is_same_json(target_to_json(target), dict(approved)):
        return target
    try:
        return choose_target(
            current, "remote" if approved.get("kind") == "remote" else str(approved.get("registryType"))
        )
    except PinwardenError:  # it no longer has such a target
        return target


def _select_comparable_members(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest without its timestamp and without members that only a live server can provide."""
    return {name: manifest[name] for name in HASHED_MANIFEST_MEMBERS if name in manifest}


def _build_registry_row(entry: Entry, code: str, message: str) -> Row:
    level = "review" if code == COULD_NOT_CHECK else REGISTRY_KINDS[code].severity
    return Row(code=code, severity=level, entity="registry", name=entry.name, path="", message=message)


def _build_failure_row(entry: Entry, err: PinwardenError) -> Row:
    refused = err.exit_code == EXIT_REFUSED
    return Row(
        code=get_error_row_code(err) if refused else COULD_NOT_CHECK,
        severity="critical" if refused else "review",
        entity="artifact",
        name=entry.name,
        path="",
        message=err.message,
    )
