"""Newer releases of what is locked: which there are, and what would change. Nothing changes without a yes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pinwarden.adapters import lock_store
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.documents.lock.entry import Entry
from pinwarden.documents.server_entry import ServerEntry, from_value
from pinwarden.flows.config.configured import SOURCE
from pinwarden.flows.lock.locking import LockWriting, Wanted, lock_from_registry
from pinwarden.flows.report import Report, Row
from pinwarden.rules.versions import compare_versions

if TYPE_CHECKING:
    from pinwarden.flows.project import Policies, Project


@dataclass(frozen=True, slots=True, kw_only=True)
class Newer:
    """One entry, and the latest release that its registry has."""

    entry: Entry
    latest: ServerEntry | None
    problem: str | None = None

    @property
    def is_newer(self) -> bool:
        """Whether the latest release is not the locked one but a later one."""
        return self.latest is not None and compare_versions(self.latest.version or "", self.entry.version) > 0


def outdated(project: Project, *, offline: bool) -> Report:
    """The report of ``pinwarden outdated``."""
    found = _look_up(project, [], offline=offline)
    rows = [_row(each) for each in found if each.is_newer or each.problem]
    behind = sum(each.is_newer for each in found)
    failed = sum(each.problem is not None for each in found)
    return Report(
        command="outdated",
        subject=project.lock.name,
        summary=f"{len(found)} entries looked up, {behind} have a newer release"
        + (f", {failed} could not be looked up" if failed else ""),
        exit_code=EXIT_UNCHECKED if failed else EXIT_CLEAN,
        rows=tuple(rows),
        facts={
            "entries": [
                {
                    "name": each.entry.name,
                    "client": each.entry.client,
                    "locked": each.entry.version,
                    "latest": each.latest.version if each.latest else None,
                    "outdated": each.is_newer,
                    "problem": each.problem,
                }
                for each in found
            ]
        },
    )


def update(project: Project, names: Sequence[str], policies: Policies, writing: LockWriting, *, agreed: bool) -> Report:
    """Show what a newer release would change; write it if that was agreed to."""
    found = [each for each in _look_up(project, names, offline=writing.offline) if each.is_newer]
    rows = tuple(row for each in found for row in _differences(each, writing.now))
    report = Report(
        command="update",
        subject=project.lock.name,
        summary="everything is at its latest release" if not found else f"{len(found)} entries have a newer release",
        exit_code=EXIT_CLEAN if agreed or not found else EXIT_REFUSED,
        rows=rows,
        facts={
            "updates": [
                {"name": each.entry.name, "client": each.entry.client, "from": each.entry.version, "to": _version(each)}
                for each in found
            ],
            "written": agreed and bool(found),
            "changes": [{"code": row.code, "name": row.name, "message": row.message} for row in rows],
        },
    )
    if not agreed:
        return report if not found else replace(report, notes=("nothing was changed; add --yes to update the lock",))
    for each in found:
        wanted = Wanted(
            name=each.entry.name,
            clients=(each.entry.client,),
            version=_version(each),
            scope="global" if each.entry.scope == "global" else "project",
            source=each.entry.source,
        )
        lock_from_registry(project, wanted, policies, writing)
    return report


def _look_up(project: Project, names: Sequence[str], *, offline: bool) -> list[Newer]:
    lock = lock_store.read(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name} here")
    unknown = [name for name in names if not any(entry.name == name for entry in lock.entries)]
    if unknown:
        raise PinwardenError("SERVER_NOT_LOCKED", f"the lock has no entry for {unknown[0][:120]!a}")
    registries = project.registries(offline=offline)
    found: list[Newer] = []
    for entry in lock.entries:
        if entry.source == SOURCE or (names and entry.name not in names):
            continue
        try:
            latest = from_value(registries.find(entry.name, None, entry.source))
        except PinwardenError as err:
            found.append(Newer(entry=entry, latest=None, problem=err.message))
            continue
        found.append(Newer(entry=entry, latest=latest))
    return found


def _differences(each: Newer, now: str) -> list[Row]:
    """What the newer release says about itself that the locked one did not."""
    from pinwarden.rules.plan import install_plan

    if each.latest is None:
        return []
    plan: dict[str, Any] = install_plan(each.latest, each.entry.client, now=now)
    old = each.entry.document
    rows = [_row(each)]
    for member, what in (
        ("selectedTarget", "what is installed"),
        ("config", "the client configuration"),
        ("capabilityManifest", "secrets, hosts or transports"),
    ):
        before, after = _lasting(old.get(member)), _lasting(plan.get(member))
        if before != after:
            rows.append(
                Row(
                    code=f"{member}_changes",
                    level="review",
                    entity="server",
                    name=each.entry.name,
                    path=f"/{member}",
                    message=f"{what} would change",
                    before=_text(before),
                    after=_text(after),
                )
            )
    before_tier, after_tier = old["trust"]["tier"], plan["trust"]["tier"]
    if before_tier != after_tier:
        message = f"its tier would be {after_tier} instead of {before_tier}"
        rows.append(
            Row(code="tier_changes", level="review", entity="server", name=each.entry.name, path="", message=message)
        )
    return rows


def _row(each: Newer) -> Row:
    if each.problem:
        code, level, message = "could_not_check", "review", each.problem
    else:
        code, level = "newer_release", "info"
        message = f"{each.entry.version} is locked for {each.entry.client}, {_version(each)} is the latest"
    return Row(code=code, level=level, entity="server", name=each.entry.name, path="", message=message)


def _version(each: Newer) -> str:
    return (each.latest.version if each.latest else None) or "?"


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lasting(member) for name, member in value.items() if name not in ("generatedAt", "pinwarden")}
    return value


def _text(value: Any) -> str:
    from json import dumps

    return dumps(value, ensure_ascii=False, sort_keys=True)
