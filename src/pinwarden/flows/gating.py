"""The gate: is everything still as it was approved? Frozen by default: nothing is resolved anew, nothing is contacted.

Each check adds rows; none of them stops the others, so that one run tells all there is to tell. What could not be
checked is never clean: it has its own rows and its own exit code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.adapters import lock_store
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.documents.lock import lockfile
from pinwarden.documents.lock.configured import SOURCE
from pinwarden.documents.lock.entry import EXTENSION, HASHED_MANIFEST, Entry
from pinwarden.documents.lock.lockfile import Lock
from pinwarden.documents.lock.record import extension_of
from pinwarden.documents.lock.shape import TOOL_HASHES
from pinwarden.documents.lock.verification import PROBLEMS, verify, verify_files
from pinwarden.documents.tier import tier_rank
from pinwarden.flows.policy.rules import broken_rules
from pinwarden.flows.report import UNCHECKED, Report, Row, counted, is_grave, row_facts, weight

if TYPE_CHECKING:
    from pathlib import Path

    from pinwarden.adapters.mcp_registry import Registries
    from pinwarden.adapters.probe.probe import ProbeOptions
    from pinwarden.documents.server_entry import ServerEntry
    from pinwarden.flows.artifacts.closing import Workshop
    from pinwarden.flows.lock.signatures import SignatureCheck
    from pinwarden.flows.project import Policies, Project
    from pinwarden.rules.drift.changes import Change
    from pinwarden.rules.launch import LaunchTarget


class Gate(Record):
    """What a run checks beyond the lock, the surfaces, the configurations and the policy."""

    now: str
    registries: Registries | None = None
    """If given, each locked version is looked up again, and its metadata must still say what was approved."""
    probe: ProbeOptions | None = None
    """If given, the live servers are asked, and their surfaces compared with the approved ones."""
    configs: bool = True
    scope: str = "all"
    """Whose configurations: ``project``, ``global`` or ``all``."""
    expect_digest: str | None = None
    require_extension: bool = False
    require_policy: bool = False
    signatures: SignatureCheck | None = None
    """If given, the lock must be signed by these keys, under the policy that holds here."""
    workshop: Workshop | None = None
    """If given, the locked artifacts are fetched and hashed again."""
    osv: Path | None = None
    """If given, every locked package is looked up in this export of known vulnerabilities."""


def check(project: Project, policies: Policies, gate: Gate) -> Report:
    """The report of ``pinwarden ci``.

    1. The lock itself, and the approved texts beside it.
    2. The digest that was stated out of band.
    3. The signatures, if asked.
    4. Every client configuration that exists.
    5. The policies.
    6. The registry, if asked.
    7. The bytes of what was locked, if asked.
    8. The live servers, if asked.
    """
    lock, texts = lock_store.read_with_files(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name} in {project.root.name or 'this folder'}")
    integrity = [
        *_lock_rows(project, lock, texts, gate),
        *_digest_rows(project, lock, gate),
        *_stripped_rows(project, lock),
        *(_forged_rows(project, lock) if policies.any else ()),
    ]
    signed = _signature_rows(project, lock, policies, gate)
    configs = list(_config_rows(project, lock, gate.scope)) if gate.configs else []
    refused = list(_policy_rows(lock, policies, gate))
    registry = list(_registry_rows(lock, gate)) if gate.registries else []
    live = _live_rows(project, lock, texts, gate, _held(lock, (*integrity, *signed), refused))
    found = {
        "integrity": integrity,
        "signature": signed,
        "configs": configs,
        "policy": refused,
        "registry": registry,
        "bytes": _byte_rows(lock, gate),
        "advisories": _advisory_rows(lock, texts, gate, whole=not integrity),
        "live": live,
    }
    return _report(project, lock, found, gate, policies)


# 1. The lock


def _lock_rows(project: Project, lock: Lock, texts: Mapping[str, bytes], gate: Gate) -> Iterator[Row]:
    problems = [*verify(lock, require_extension=gate.require_extension), *verify_files(lock, texts)]
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


def _forged_rows(project: Project, lock: Lock) -> Iterator[Row]:
    from pinwarden.flows.config.claims import FORGED, forged_entries

    for entry in forged_entries(lock):
        yield Row(
            code="entry_inconsistent",
            level="critical",
            entity="lock",
            name=entry.name,
            path="",
            message=FORGED,
            file=project.shown(project.lock),
        )


# 3. The signatures


def _signature_rows(project: Project, lock: Lock, policies: Policies, gate: Gate) -> list[Row]:
    if gate.signatures is None:
        return []
    from pinwarden.flows.lock.signatures import signature_rows

    data = lock_store.read_bytes(project.lock)
    if lockfile.parse(data) != lock:
        raise PinwardenError("LOCK_BUSY", f"{project.lock.name} changed while it was being checked")
    policy = _policy_followed(policies) if gate.signatures.policy is None else None
    file = project.shown(project.lock)
    return [replace(row, file=file) for row in signature_rows(data, gate.signatures, policy)]


def _policy_followed(policies: Policies) -> str | None:
    """The digest of the policy that holds here, which is the one that a signature has to name."""
    stated = [policy for policy in (policies.own, policies.toolpin) if policy is not None]
    if len(stated) > 1:
        raise PinwardenError(
            "USAGE", "two policies hold here, and a signature names one", hint="Name it with --signed-policy."
        )
    return stated[0].digest.sri if stated else None


# 4. The configurations


def _config_rows(project: Project, lock: Lock, scope: str) -> Iterator[Row]:
    files = project.configs()
    if not files:
        return
    from pinwarden.flows.config.issues import config_issues, config_strangers
    from pinwarden.flows.config.view import view_of
    from pinwarden.rules.config.findings import file_findings

    entries = tuple(entry for entry in lock.entries if scope in ("all", entry.scope))
    view = view_of(project, entries, files, scope=scope)
    for issue in config_issues(project, view):
        # A locked server that is not configured starts nothing; doctor tells about it. A file that cannot be read is
        # told once, below, and not for every server that should be in it.
        for change in issue.changes if issue.kind == "drift" else ():
            yield _change_row(change, project.shown(issue.file))
    for stranger in config_strangers(project, view):
        yield _change_row(stranger.change, project.shown(stranger.server.path))
    for file in view.files:
        for finding in file_findings(file):
            yield _config_row(finding.code, finding.severity, finding.name, finding.message, project.shown(file.path))


# 5. The policies


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


# 6. The registry


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
                yield _registry_row(entry, UNCHECKED, "review", err.message)
            continue
        if found.status != "active":
            level = "critical" if found.status == "deleted" else "review"
            yield _registry_row(
                entry, f"entry_{found.status}", level, f"the registry calls this version {found.status}"
            )
        yield from _metadata_rows(entry, found, gate.now)


def _metadata_rows(entry: Entry, found: ServerEntry, now: str) -> Iterator[Row]:
    """What the same version says today, held against what was approved. In ToolPin's words where it has some."""
    from pinwarden.documents.lock.verification import same_json
    from pinwarden.rules.plan import Installation, install_plan

    approved = entry.selected_target
    target = _target_today(found, approved)
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
    old, new = entry.trust.get("tier"), plan["trust"]["tier"]
    # What we hash ourselves makes an entry verified; metadata alone never does, so one step down from there is no news.
    best_without_bytes = min(tier_rank(old), tier_rank("conditional"))
    if tier_rank(new) < best_without_bytes:
        yield _registry_row(entry, "tier_decreased", "critical", f"trust tier decreased {old} -> {new}")


def _target_today(found: ServerEntry, approved: Mapping[str, Any]) -> LaunchTarget | None:
    """What would be launched now: what was approved if it is what comes first, else the first of its kind, else any."""
    from pinwarden.documents.lock.verification import same_json
    from pinwarden.rules.launch import choose_target, selected_target

    target = choose_target(found)
    if target is not None and same_json(selected_target(target), dict(approved)):
        return target
    try:
        return choose_target(found, "remote" if approved.get("kind") == "remote" else str(approved.get("registryType")))
    except PinwardenError:  # it offers nothing of that kind any more
        return target


def _lasting(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest without its time, and without what only a live server can tell."""
    return {name: manifest[name] for name in HASHED_MANIFEST if name in manifest}


# 7. The bytes


def _byte_rows(lock: Lock, gate: Gate) -> list[Row]:
    if gate.workshop is None:
        return []
    from pinwarden.flows.artifacts.gate import byte_rows

    return list(byte_rows(lock, gate.workshop, gate.now))


def _advisory_rows(lock: Lock, texts: Mapping[str, bytes], gate: Gate, *, whole: bool) -> list[Row]:
    """Known vulnerabilities. Of a lock that is not whole nobody can say which packages it holds."""
    if gate.osv is None or not whole:
        return []
    from pinwarden.adapters.osv_export import read_export
    from pinwarden.flows.artifacts.vulnerable import locked_packages, vulnerable_rows
    from pinwarden.rules.trust.vulnerabilities import vulnerable_packages

    packages = locked_packages(lock, texts)
    return list(vulnerable_rows(vulnerable_packages(read_export(gate.osv), packages), packages))


# 8. The live servers


def _held(lock: Lock, doubts: Iterable[Row], refused: Iterable[Row]) -> dict[str, str]:
    """Which servers are not asked, and why: consent to start servers is consent to start approved ones."""
    if any(map(is_grave, doubts)):
        return dict.fromkeys((entry.name for entry in lock.entries), "the lock is not the one that was approved")
    # Our own verdict blocks only addresses, where nothing is started.
    broken = (row for row in refused if row.level == "critical" and row.code != "verdict_blocked")
    return {row.name: "the policy refuses it" for row in broken}


def _live_rows(
    project: Project, lock: Lock, texts: Mapping[str, bytes], gate: Gate, held: Mapping[str, str]
) -> list[Row]:
    if gate.probe is None:
        return []
    from pinwarden.flows.live_gate import live_rows

    return list(live_rows(lock, texts, project.configs(), gate.probe, held))


# Rows and the report


def _registry_row(entry: Entry, code: str, level: str, message: str) -> Row:
    return Row(code=code, level=level, entity="registry", name=entry.name, path="", message=message)


def _config_row(code: str, level: str, name: str, message: str, file: str) -> Row:
    return Row(code=code, level=level, entity="config", name=name, path="", message=message, file=file)


def _change_row(change: Change, file: str) -> Row:
    from pinwarden.flows.rows import row_of

    return replace(row_of(change), file=file)


def _report(project: Project, lock: Lock, found: Mapping[str, Sequence[Row]], gate: Gate, policies: Policies) -> Report:
    rows = [row for group in found.values() for row in group]
    unchecked = [row for row in rows if row.code == UNCHECKED]
    drift = [row for row in rows if is_grave(row) and row.code != UNCHECKED]
    exit_code = EXIT_REFUSED if drift else EXIT_UNCHECKED if unchecked else EXIT_CLEAN
    nothing = _nothing_to_check(lock, gate, policies)
    notes = tuple(_not_looked_at(lock, gate))
    return Report(
        command="ci",
        subject=project.shown(project.lock),
        summary=_summary(lock, drift, unchecked, rows),
        exit_code=exit_code,
        rows=tuple(sorted(rows, key=weight)),
        notes=notes,
        facts={
            "ok": exit_code == EXIT_CLEAN,
            "checkedEntries": len(lock.entries),
            "checks": {name: _status(group, nothing.get(name)) for name, group in found.items()},
            "asked": _asked(lock, gate),
            "failures": [row_facts(row) for row in drift],
            "unchecked": [row_facts(row) for row in unchecked],
            "remarks": [row_facts(row) for row in rows if row.level in ("warning", "info")],
            "notes": list(notes),
        },
        rule_texts=_rule_texts(gate),
    )


def _rule_texts(gate: Gate) -> dict[str, str]:
    texts = dict(PROBLEMS)
    if gate.signatures is not None:
        from pinwarden.flows.lock.signatures import SIGNATURE_RULES

        texts.update(SIGNATURE_RULES)
    if gate.osv is not None:
        from pinwarden.flows.artifacts.vulnerable import RULES

        texts.update(RULES)
    if gate.workshop is not None:
        from pinwarden.rules.trust.artifact_drift import ARTIFACT_KINDS

        texts.update({kind: row.reason for kind, row in ARTIFACT_KINDS.items()})
    if gate.probe is not None:
        from pinwarden.rules.drift.toolpin_pins import PIN_FINDINGS

        texts.update(PIN_FINDINGS)
    return texts


def _status(rows: Iterable[Row], nothing: str | None) -> str:
    if any(map(is_grave, rows)):
        return "failed"
    return nothing or "ok"


def _nothing_to_check(lock: Lock, gate: Gate, policies: Policies) -> dict[str, str]:
    """The checks that cannot be ok: those that were ``skipped``, and those for which there was ``none`` to check."""
    off = {
        "signature": gate.signatures is None,
        "configs": not gate.configs,
        "registry": gate.registries is None,
        "bytes": gate.workshop is None,
        "advisories": gate.osv is None,
        "live": gate.probe is None,
    }
    empty = {"policy": not policies.any, **{name: count == 0 for name, count in _asked(lock, gate).items()}}
    return {name: "none" for name, nothing in empty.items() if nothing} | {
        name: "skipped" for name, skipped in off.items() if skipped
    }


def _asked(lock: Lock, gate: Gate) -> dict[str, int]:
    """Of how many entries the registries and the live servers were asked."""
    return {
        "registry": sum(entry.source != SOURCE for entry in lock.entries) if gate.registries is not None else 0,
        "bytes": sum(map(_has_bytes, lock.entries)) if gate.workshop is not None else 0,
        "live": sum(_has_live_pin(entry) for entry in lock.entries) if gate.probe is not None else 0,
    }


def _has_bytes(entry: Entry) -> bool:
    from pinwarden.flows.artifacts.gate import has_bytes

    return has_bytes(entry)


def _has_live_pin(entry: Entry) -> bool:
    extension = extension_of(entry)
    pinned = extension is not None and extension.surface is not None
    return pinned or any(member in entry.manifest for member in TOOL_HASHES)


def _not_looked_at(lock: Lock, gate: Gate) -> Iterator[str]:
    unpinned = hashed = 0
    for entry in lock.entries:
        extension = extension_of(entry)
        if extension is None or extension.surface is None:
            known = any(member in entry.manifest for member in TOOL_HASHES)
            hashed, unpinned = hashed + known, unpinned + (not known)
    entries = len(lock.entries)
    if unpinned:
        yield f"{unpinned} of {entries} entries have no approved surface: what their tools say is not pinned"
    if hashed:
        yield f"{hashed} of {entries} entries have only ToolPin's hashes of their tools, which leave much out"
    yield from _unseen_texts(lock)
    asked = _asked(lock, gate)
    if gate.registries is not None:
        yield f"--registry looked up {asked['registry']} of {counted(entries, 'entry', 'entries')}"
    if gate.workshop is not None:
        yield f"--bytes fetched and hashed the artifacts of {asked['bytes']} of {counted(entries, 'entry', 'entries')}"
    if gate.probe is None:
        yield "live servers were not asked (--live)"
    else:
        yield f"--live asked the servers of {asked['live']} of {counted(entries, 'entry', 'entries')}"


def _unseen_texts(lock: Lock) -> Iterator[str]:
    from pinwarden.documents.lock.configured import uncovered
    from pinwarden.documents.lock.locked_config import locked_config
    from pinwarden.rules.config.unseen import unseen_members

    for entry in lock.entries:
        unseen = unseen_members(locked_config(entry.key, entry.document).entry)
        if unseen:
            yield uncovered(entry.name, unseen)


def _summary(lock: Lock, drift: Sequence[Row], unchecked: Sequence[Row], rows: Sequence[Row]) -> str:
    entries = f"{counted(len(lock.entries), 'entry', 'entries')} checked"
    if drift:
        critical = sum(row.level == "critical" for row in drift)
        return f"{entries}: {counted(len(drift), 'finding')}, {critical} of them critical"
    if unchecked:
        return f"{entries}: {len(unchecked)} could not be checked"
    noted = f", {counted(len(rows), 'remark')}" if rows else ""
    return f"{entries}: everything is as approved{noted}"
