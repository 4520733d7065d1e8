"""Newer releases of what is locked: which there are, and what would change. Nothing changes without a yes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.adapters import lock_store
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.documents.lock.configured import SOURCE, UNLISTED
from pinwarden.documents.lock.entry import Entry
from pinwarden.documents.server_entry import ServerEntry, from_value
from pinwarden.flows.lock.locking import LockWriting, Wanted, lock_from_registry
from pinwarden.flows.report import UNCHECKED, Report, Row, counted
from pinwarden.rules.finding_kinds import Kinds, kind_table
from pinwarden.rules.versions import compare_versions

if TYPE_CHECKING:
    from pinwarden.flows.artifacts.closing import Workshop
    from pinwarden.flows.artifacts.renewing import Renewal
    from pinwarden.flows.project import Policies, Project

NOTHING_TO_LOOK_UP = "there is nothing to look up"
NOTHING_CHANGED = "nothing was changed; add --yes to update the lock"


UPDATE_KINDS: Kinds = kind_table(
    review=(
        ("selectedTarget_changes", "A newer release would install something else."),
        ("config_changes", "A newer release would be configured otherwise."),
        ("capabilityManifest_changes", "A newer release declares other secrets, hosts or transports."),
        ("tier_changes", "A newer release has another tier."),
    ),
    info=(("newer_release", "There is a newer release than the locked one."),),
)


class Newer(Record):
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
    looked = _look_up(project, [], offline=offline)
    found = looked.entries
    rows = [_row(each) for each in found if each.is_newer or each.problem]
    behind = sum(each.is_newer for each in found)
    failed = len(looked.failed)
    return Report(
        command="outdated",
        subject=project.lock.name,
        summary=looked.in_words(f"{behind} with a newer release"),
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


class Wish(Record):
    """What is to be updated, and whether somebody agreed to it."""

    names: Sequence[str]
    """In the lock; none means all."""
    agreed: bool
    shop: Workshop | None
    """If given, the bytes that are pinned are looked at, too."""


def update(project: Project, wish: Wish, policies: Policies, writing: LockWriting) -> Report:
    """Show what newer releases, newer dependencies and moved tags would change; write it if that was agreed to."""
    agreed = wish.agreed
    looked = _look_up(project, wish.names, offline=writing.offline)
    found = [each for each in looked.entries if each.is_newer]
    rows = tuple(row for each in found for row in _differences(each, writing.now))
    failed = tuple(_row(each) for each in looked.failed)
    renewed = _renewals(project, wish, found, writing.now)
    releases = tuple(_release_rows(wish, found, writing.now))
    bytes_rows = (*(row for each in renewed for row in each.rows), *releases)
    failed += tuple(row for row in bytes_rows if row.code == UNCHECKED)
    rows += tuple(row for row in bytes_rows if row.code != UNCHECKED)
    bad = {row.name for row in releases if row.level == "critical"}
    offered = [each for each in renewed if each.offered]
    critical = any(row.level == "critical" for row in bytes_rows)
    refused = critical or (bool(found or offered) and not agreed)
    report = Report(
        command="update",
        subject=project.lock.name,
        summary=looked.in_words(f"{len(found)} with a newer release" if found else "each at its latest release"),
        exit_code=EXIT_REFUSED if refused else EXIT_UNCHECKED if failed else EXIT_CLEAN,
        rows=(*failed, *rows),
        notes=tuple(_untold(looked, renewed)),
        facts={
            "updates": [
                {"name": each.entry.name, "client": each.entry.client, "from": each.entry.version, "to": _version(each)}
                for each in found
            ],
            "renewals": [each.entry.name for each in offered],
            "written": agreed and bool(offered or any(each.entry.name not in bad for each in found)),
            "changes": [{"code": row.code, "name": row.name, "message": row.message} for row in rows],
            "unchecked": [{"name": row.name, "message": row.message} for row in failed],
        },
    )
    if not agreed:
        nothing = (NOTHING_CHANGED,) if found or offered else ()
        return replace(report, notes=(*report.notes, *nothing))
    left = _write_releases(project, [each for each in found if each.entry.name not in bad], wish, policies, writing)
    if offered:
        from pinwarden.flows.artifacts.renewing import write_renewal

        for renewal in offered:
            write_renewal(project, renewal, writing.now)
    if not left:
        return report
    facts = {**report.facts, "configs": [{"name": row.name, "message": row.message} for row in left]}
    return replace(report, rows=(*report.rows, *left), facts=facts, exit_code=EXIT_REFUSED)


def _untold(looked: _Looked, renewed: Sequence[Renewal]) -> Iterator[str]:
    """What was looked at beside registries, and what was not."""
    same = sum(not each.rows for each in renewed)
    if same:
        yield f"the pinned bytes of {counted(same, 'server')} are what they would be today, with all dependencies"
    if looked.configured:
        yield "a configured server stays at the version in its configuration; write another, then run pinwarden init"


def _write_releases(
    project: Project, found: Sequence[Newer], wish: Wish, policies: Policies, writing: LockWriting
) -> list[Row]:
    """Lock the newer releases, and let the clients' configurations follow; tells where that was not possible.

    What is not found here is not written: the bytes of some are not what anybody says they are.
    """
    if not found:
        return []
    from pinwarden.flows.lock.reinstalling import Installed

    installed = Installed(project, [each.entry for each in found])
    left: list[Row] = []
    for each in found:
        wanted = Wanted(
            name=each.entry.name,
            clients=(each.entry.client,),
            version=_version(each),
            scope="global" if each.entry.scope == "global" else "project",
            source=each.entry.source,
        )
        lock_from_registry(project, wanted, policies, writing)
        row = installed.follow(each.entry.name, each.entry.client, wish.shop, writing.now)
        left += [row] if row is not None else []
    return left


def _renewals(project: Project, wish: Wish, found: Sequence[Newer], now: str) -> list[Renewal]:
    """What the pinned bytes would be today; not of servers that get another release anyway."""
    if wish.shop is None:
        return []
    from pinwarden.flows.artifacts.renewing import renewals

    newer = frozenset(each.entry.name for each in found)
    return renewals(project, wish.names, wish.shop, now, without=newer)


def _release_rows(wish: Wish, found: Sequence[Newer], now: str) -> Iterator[Row]:
    """Who published the newer releases of servers whose bytes are pinned, each once."""
    if wish.shop is None:
        return
    from pinwarden.flows.artifacts.gate import has_bytes
    from pinwarden.flows.artifacts.renewing import release_rows

    told: set[str] = set()
    for each in found:
        if each.latest is not None and has_bytes(each.entry) and each.entry.name not in told:
            told.add(each.entry.name)
            yield from release_rows(each.entry, each.latest, wish.shop, now)


class _Looked(Record):
    """What the registries said, and of how many entries they can know."""

    entries: tuple[Newer, ...]
    """Those that come from a registry."""
    wanted: int
    """All that were asked about."""
    configured: bool
    """Whether some of those were found in a configuration."""

    @property
    def failed(self) -> tuple[Newer, ...]:
        """Those that could not be looked up."""
        return tuple(each for each in self.entries if each.problem is not None)

    def in_words(self, outcome: str) -> str:
        """How many were looked up, and what came of it."""
        known = f"{len(self.entries)} of {counted(self.wanted, 'entry', 'entries')} come from a registry"
        if not self.entries:
            return f"{known}; {NOTHING_TO_LOOK_UP}"
        if not self.failed:
            return f"{known}, {outcome}"
        answered = f", the others {outcome}" if len(self.failed) < len(self.entries) else ""
        return f"{known}, {len(self.failed)} could not be looked up{answered}"


def _look_up(project: Project, names: Sequence[str], *, offline: bool) -> _Looked:
    lock = lock_store.read(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name} here")
    unknown = [name for name in names if not any(entry.name == name for entry in lock.entries)]
    if unknown:
        raise PinwardenError("SERVER_NOT_LOCKED", f"the lock has no entry for {unknown[0][:120]!a}")
    registries = project.registries(offline=offline)
    found: list[Newer] = []
    wanted = [entry for entry in lock.entries if not names or entry.name in names]
    for entry in wanted:
        if entry.source in UNLISTED:
            continue
        try:
            latest = from_value(registries.find(entry.name, None, entry.source))
        except PinwardenError as err:
            found.append(Newer(entry=entry, latest=None, problem=err.message))
            continue
        found.append(Newer(entry=entry, latest=latest))
    configured = any(entry.source == SOURCE for entry in wanted)
    return _Looked(entries=tuple(found), wanted=len(wanted), configured=configured)


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
                    level=UPDATE_KINDS[f"{member}_changes"].severity,
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
        level = UPDATE_KINDS["tier_changes"].severity
        rows.append(
            Row(code="tier_changes", level=level, entity="server", name=each.entry.name, path="", message=message)
        )
    return rows


def _row(each: Newer) -> Row:
    if each.problem:
        code, level, message = UNCHECKED, "review", each.problem
    else:
        code, level = "newer_release", UPDATE_KINDS["newer_release"].severity
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
