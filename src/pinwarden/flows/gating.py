"""The gate: is everything still as it was approved? Frozen by default: nothing is resolved anew, nothing is contacted.

Each check adds rows; none of them stops the others, so that one run tells all there is to tell. What could not be
checked is never clean: it has its own rows and its own exit code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinwarden.adapters import lock_store
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.documents.lock import lockfile
from pinwarden.documents.lock.entry import EXTENSION, Entry
from pinwarden.documents.lock.lockfile import Lock
from pinwarden.documents.lock.seal import extension_of
from pinwarden.documents.lock.verification import verify, verify_surfaces
from pinwarden.flows.config.configured import SOURCE
from pinwarden.flows.policy.rules import broken_rules
from pinwarden.flows.report import Report, Row

if TYPE_CHECKING:
    from pinwarden.adapters.mcp_registry import Registries
    from pinwarden.adapters.probe.probe import ProbeOptions
    from pinwarden.flows.project import Policies, Project

_UNCHECKED = "could_not_check"
_TIERS = ("blocked", "unverified", "conditional", "verified")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a run checks beyond the lock, the surfaces, the configurations and the policy."""

    now: str
    registries: Registries | None = None
    """If given, each locked version is looked up again, and its metadata must still say what was approved."""
    probe: ProbeOptions | None = None
    """If given, the live servers are asked, and their surfaces compared with the approved ones."""
    configs: bool = True
    expect_digest: str | None = None
    require_extension: bool = False
    require_policy: bool = False


def check(project: Project, policies: Policies, gate: Gate) -> Report:
    """The report of ``pinwarden ci``.

    1. The lock itself, and the approved texts beside it.
    2. The digest that was stated out of band.
    3. Every client configuration that exists.
    4. The policies.
    5. The registry, if asked.
    6. The live servers, if asked.
    """
    lock, texts = lock_store.read_with_surfaces(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name} in {project.root.name or 'this folder'}")
    integrity = [
        *_lock_rows(project, lock, texts, gate),
        *_digest_rows(project, lock, gate),
        *_stripped_rows(project, lock),
    ]
    configs = list(_config_rows(project, lock)) if gate.configs else []
    refused = list(_policy_rows(lock, policies, gate))
    registry = list(_registry_rows(lock, gate)) if gate.registries else []
    live = list(_live_rows(project, lock, texts, gate)) if gate.probe else []
    return _report(
        project,
        lock,
        {"integrity": integrity, "configs": configs, "policy": refused, "registry": registry, "live": live},
        gate,
    )


# 1. The lock


def _lock_rows(project: Project, lock: Lock, texts: Mapping[str, bytes], gate: Gate) -> Iterator[Row]:
    problems = [*verify(lock, require_extension=gate.require_extension), *verify_surfaces(lock, texts)]
    places: dict[str, tuple[int, int]] = {}
    if problems:
        places = _places(project, [problem.path for problem in problems])
    for problem in problems:
        line, column = places.get(problem.path, (None, None))
        yield Row(
            code=problem.code,
            level="critical",
            entity="lock",
            name=problem.server or "",
            path=problem.path,
            message=problem.message,
            file=project.shown(project.lock),
            line=line,
            column=column,
        )


def _places(project: Project, paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    from pinwarden.adapters.files import read_file
    from pinwarden.core.json_places import places
    from pinwarden.documents.lock.entry import LOCK_LIMITS

    return places(read_file(project.lock, LOCK_LIMITS.max_bytes), paths)


# 2. The digest


def _digest_rows(project: Project, lock: Lock, gate: Gate) -> Iterator[Row]:
    """A digest that was kept elsewhere. Of a sealed file only the seal covers what we record: texts, approvals."""
    if gate.expect_digest is None:
        return
    seal = lock.seal.get("integrity") if lock.seal is not None else None
    digest = lockfile.digest(lock)
    if gate.expect_digest in ((seal,) if seal else (digest,)):
        return
    code, message = "digest_mismatch", f"the lock's digest is {seal or digest}, expected {gate.expect_digest[:100]}"
    if gate.expect_digest == digest:
        code = "digest_partial"
        message = (
            "this digest covers only lockfileVersion 2, not the approved texts; expect that of lock digest --sealed"
        )
    yield Row(
        code=code,
        level="critical",
        entity="lock",
        name="",
        path="",
        message=message,
        file=project.shown(project.lock),
    )


def _stripped_rows(project: Project, lock: Lock) -> Iterator[Row]:
    """Entries that came from a configuration are always ours; without our record something took it away."""
    for entry in lock.entries:
        if entry.source == SOURCE and EXTENSION not in entry.manifest:
            yield Row(
                code="record_stripped",
                level="critical",
                entity="lock",
                name=entry.name,
                path="",
                message="our record of this entry is gone: who approved it, where it is configured, what it says",
                file=project.shown(project.lock),
            )


# 3. The configurations


def _config_rows(project: Project, lock: Lock) -> Iterator[Row]:
    files = project.configs()
    if not files:
        return
    from pinwarden.flows.config.issues import config_issues, config_strangers
    from pinwarden.flows.config.view import view_of
    from pinwarden.rules.config.findings import file_findings

    view = view_of(project, lock.entries, files)
    for issue in config_issues(project, view):
        if issue.kind == "drift":
            for change in issue.changes:
                yield _change_row(change, project.shown(issue.file))
        elif issue.kind == "unreadable":
            yield _config_row("config_unreadable", "critical", issue.name, issue.message, project.shown(issue.file))
        # A locked server that is not configured starts nothing; doctor tells about it.
    for stranger in config_strangers(project, view):
        yield _change_row(stranger.change, project.shown(stranger.server.path))
    for file in view.files:
        for finding in file_findings(file):
            yield _config_row(finding.code, finding.severity, finding.name, finding.message, project.shown(file.path))


# 4. The policies


def _policy_rows(lock: Lock, policies: Policies, gate: Gate) -> Iterator[Row]:
    if gate.require_policy and not policies.any:
        yield Row(
            code="policy_missing",
            level="critical",
            entity="policy",
            name="",
            path="",
            message="there is no policy here",
        )
    for entry in lock.entries:
        for rule in broken_rules(policies, entry.document, gate.now):
            level = "critical" if rule.refuses else "info"
            yield Row(code=rule.code, level=level, entity="policy", name=entry.name, path="", message=rule.message)


# 5. The registry


def _registry_rows(lock: Lock, gate: Gate) -> Iterator[Row]:
    from pinwarden.documents.server_entry import from_value

    registries = gate.registries
    if registries is None:
        return
    for entry in lock.entries:
        if entry.source == SOURCE:
            continue
        try:
            found = from_value(registries.find(entry.name, entry.version, entry.source))
        except PinwardenError as err:
            if err.code == "SERVER_NOT_FOUND":
                message = f"no registry has version {entry.version} any more"
                yield _registry_row(entry, "version_gone", "critical", message)
            else:
                yield _registry_row(entry, _UNCHECKED, "review", err.message)
            continue
        if found.status != "active":
            level = "critical" if found.status == "deleted" else "review"
            yield _registry_row(
                entry, f"entry_{found.status}", level, f"the registry calls this version {found.status}"
            )
        yield from _metadata_rows(entry, found, gate.now)


def _metadata_rows(entry: Entry, found: Any, now: str) -> Iterator[Row]:
    """What the same version says today, held against what was approved. In ToolPin's words where it has some."""
    from pinwarden.documents.lock.verification import same_json
    from pinwarden.rules.launch import choose_target, selected_target
    from pinwarden.rules.plan import Installation, install_plan

    target = choose_target(found)
    approved = entry.selected_target
    if target is None or not same_json(selected_target(target), dict(approved)):
        kind = "remote" if approved.get("kind") == "remote" else str(approved.get("registryType"))
        target = choose_target(found, kind) or target
    try:
        how = Installation(scope="global" if entry.scope == "global" else "project", target=target)
        plan = install_plan(found, entry.client, now=now, how=how)
    except PinwardenError as err:
        yield _registry_row(entry, "no_install_target", "critical", err.message)
        return
    if not same_json(plan["selectedTarget"], dict(approved)):
        yield _registry_row(entry, "target_changed", "critical", "selected install target changed")
    if not same_json(plan["config"], entry.config):
        yield _registry_row(entry, "config_changed", "critical", "client config changed")
    if not same_json(_lasting(plan["capabilityManifest"]), _lasting(entry.manifest)):
        yield _registry_row(entry, "manifest_changed", "critical", "capability manifest changed")
    before, after = entry.trust.get("score"), plan["trust"]["score"]
    if isinstance(before, int) and after < before:
        yield _registry_row(entry, "score_decreased", "review", f"trust score decreased {before} -> {after}")
    old, new = str(entry.trust.get("tier")), plan["trust"]["tier"]
    if old in _TIERS and old != "verified" and _TIERS.index(new) < _TIERS.index(old):
        yield _registry_row(entry, "tier_decreased", "critical", f"trust tier decreased {old} -> {new}")


def _lasting(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest without its time, and without what only a live server can tell."""
    names = (
        "version",
        "serverName",
        "serverVersion",
        "registrySource",
        "packageTypes",
        "transports",
        "remoteHosts",
        "secrets",
    )
    return {name: manifest[name] for name in names if name in manifest}


# 6. The live servers


def _live_rows(project: Project, lock: Lock, texts: Mapping[str, bytes], gate: Gate) -> Iterator[Row]:
    from pinwarden.adapters.probe.probe import probe_all
    from pinwarden.documents.surface import parse
    from pinwarden.flows.live_targets import live_target
    from pinwarden.flows.rows import row_of
    from pinwarden.rules.drift.surface import compare

    files = project.configs()
    asked: list[tuple[Entry, Any, Any]] = []
    for entry in lock.entries:
        extension = extension_of(entry)
        pin = extension.surface if extension else None
        if pin is None or pin.path not in texts:
            continue
        try:
            asked.append((entry, live_target(entry, files), parse(texts[pin.path])))
        except PinwardenError as err:
            yield _live_row(entry, err.message)
    outcomes = probe_all([target for _, target, _ in asked], gate.probe)
    for (entry, _, approved), seen in zip(asked, outcomes, strict=True):
        if isinstance(seen, PinwardenError):
            yield _live_row(entry, seen.message)
            continue
        for change in compare(approved, seen):
            row = row_of(change)
            yield Row(
                code=row.code,
                level=row.level,
                entity=f"{entry.name}: {row.entity}",
                name=row.name,
                path=row.path,
                message=row.message,
                before=row.before,
                after=row.after,
            )


# Rows and the report


def _live_row(entry: Entry, why: str) -> Row:
    return Row(
        code=_UNCHECKED, level="review", entity="server", name=entry.name, path="", message=f"could not be asked: {why}"
    )


def _registry_row(entry: Entry, code: str, level: str, message: str) -> Row:
    return Row(code=code, level=level, entity="registry", name=entry.name, path="", message=message)


def _config_row(code: str, level: str, name: str, message: str, file: str) -> Row:
    return Row(code=code, level=level, entity="config", name=name, path="", message=message, file=file)


def _change_row(change: Any, file: str) -> Row:
    from dataclasses import replace

    from pinwarden.flows.rows import row_of

    return replace(row_of(change), file=file)


def _report(project: Project, lock: Lock, found: Mapping[str, Sequence[Row]], gate: Gate) -> Report:
    rows = [row for group in found.values() for row in group]
    unchecked = [row for row in rows if row.code == _UNCHECKED]
    drift = [row for row in rows if row.level in ("critical", "review") and row.code != _UNCHECKED]
    exit_code = EXIT_REFUSED if drift else EXIT_UNCHECKED if unchecked else EXIT_CLEAN
    return Report(
        command="ci",
        subject=project.shown(project.lock),
        summary=_summary(lock, drift, unchecked, rows),
        exit_code=exit_code,
        rows=tuple(sorted(rows, key=_weight)),
        notes=tuple(_not_looked_at(lock, gate)),
        facts={
            "ok": exit_code == EXIT_CLEAN,
            "checkedEntries": len(lock.entries),
            "checks": {name: _status(name, group, gate) for name, group in found.items()},
            "failures": [_facts(row) for row in drift],
            "unchecked": [_facts(row) for row in unchecked],
            "notes": [_facts(row) for row in rows if row.level == "info"],
        },
    )


def _weight(row: Row) -> int:
    return ("critical", "review", "warning", "info").index(row.level)


def _status(name: str, rows: Iterable[Row], gate: Gate) -> str:
    off = {"configs": not gate.configs, "registry": gate.registries is None, "live": gate.probe is None}
    if off.get(name):
        return "skipped"
    return "failed" if any(row.level in ("critical", "review") for row in rows) else "ok"


def _facts(row: Row) -> dict[str, Any]:
    facts = {
        "code": row.code,
        "severity": row.level,
        "entity": row.entity,
        "name": row.name,
        "path": row.path,
        "message": row.message,
        "file": row.file,
        "line": row.line,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _not_looked_at(lock: Lock, gate: Gate) -> Iterator[str]:
    unpinned = 0
    for entry in lock.entries:
        extension = extension_of(entry)
        unpinned += extension is None or extension.surface is None
    if unpinned:
        yield f"{unpinned} of {len(lock.entries)} entries have no approved surface: what their tools say is not pinned"
    if gate.probe is None:
        yield "live servers were not asked (--live)"


def _summary(lock: Lock, drift: Sequence[Row], unchecked: Sequence[Row], rows: Sequence[Row]) -> str:
    entries = f"{len(lock.entries)} entr{'y' if len(lock.entries) == 1 else 'ies'} checked"
    if drift:
        critical = sum(row.level == "critical" for row in drift)
        return f"{entries}: {len(drift)} findings, {critical} of them critical"
    if unchecked:
        return f"{entries}: {len(unchecked)} could not be checked"
    noted = f", {len(rows)} notes" if rows else ""
    return f"{entries}: everything is as approved{noted}"
