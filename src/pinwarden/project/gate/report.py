"""What the checks found, in one report; what nobody looked at is said, and never ok."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from pinwarden.clients.table import clients_looked_for
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED
from pinwarden.core.record import Record, field, replace
from pinwarden.core.report import (
    COULD_NOT_CHECK,
    FindingKinds,
    Report,
    Row,
    is_failing,
    kind_reasons,
    kind_table,
    plural,
    row_facts,
    severity_rank,
)
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import extension_of
from pinwarden.lock.locked_config import UNLISTED
from pinwarden.lock.lockfile import Lock
from pinwarden.lock.shape import TOOL_HASHES
from pinwarden.lock.verification import PROBLEMS

if TYPE_CHECKING:
    from pinwarden.project.gate.check import Gate
    from pinwarden.project.project import Policies, Project


CHECKS = ("integrity", "signature", "configs", "policy", "registry", "bytes", "scripts", "advisories", "live")


class Checked(Record):
    """What the checks found in one project."""

    subject: str
    """The lock, relative to the repository's root."""
    entries: int = 0
    unconfigured: bool = False
    """There is neither a lock nor a configured server."""
    found: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """The rows of each check of ``CHECKS``."""
    nothing: Mapping[str, str] = field(default_factory=dict)
    """The checks that were ``skipped``, and those for which there was ``none`` to check."""
    asked: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rule_texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all checks."""
        return tuple(row for group in self.found.values() for row in group)


def checked_project(
    project: Project, lock: Lock, found: Mapping[str, Sequence[Row]], gate: Gate, policies: Policies
) -> Checked:
    """What the checks found in a project that has a lock."""
    in_vain = {name: {row.name for row in group if row.code == COULD_NOT_CHECK} for name, group in found.items()}
    checked = Checked(
        subject=project.shown(project.lock),
        entries=len(lock.entries),
        found=found,
        nothing=_nothing_to_check(lock, gate, policies),
        asked=_asked(lock, gate),
        notes=tuple(_not_looked_at(lock, gate, in_vain)),
    )
    return replace(checked, rule_texts=_rule_texts(gate, checked.rows))


def gate_report(projects: Sequence[Checked]) -> Report:
    """The report of all checks, in one project or several."""
    rows = [row for checked in projects for row in checked.rows]
    unchecked = [row for row in rows if row.code == COULD_NOT_CHECK]
    drift = [row for row in rows if is_failing(row) and row.code != COULD_NOT_CHECK]
    exit_code = EXIT_REFUSED if drift else EXIT_UNCHECKED if unchecked else EXIT_CLEAN
    notes = tuple(dict.fromkeys(note for checked in projects for note in checked.notes))
    return Report(
        command="ci",
        subject=", ".join(checked.subject for checked in projects),
        summary=_summary(projects, drift, unchecked, rows),
        exit_code=exit_code,
        rows=tuple(sorted(rows, key=severity_rank)),
        notes=notes,
        file=projects[0].subject,
        facts={
            "ok": exit_code == EXIT_CLEAN,
            "checkedEntries": sum(checked.entries for checked in projects),
            "checks": {name: _worst(_status(checked, name) for checked in projects) for name in CHECKS},
            "asked": {
                name: sum(each.asked.get(name, 0) for each in projects) for name in ("registry", "bytes", "live")
            },
            "failures": [row_facts(row) for row in drift],
            "unchecked": [row_facts(row) for row in unchecked],
            "remarks": [row_facts(row) for row in rows if row.severity in ("warning", "info")],
            "notes": list(notes),
            "clientsLookedFor": list(clients_looked_for()),
            "projects": [
                {
                    "lock": checked.subject,
                    "checkedEntries": checked.entries,
                    "checks": {name: _status(checked, name) for name in CHECKS},
                }
                for checked in projects
            ],
        },
        rule_texts={code: text for checked in projects for code, text in checked.rule_texts.items()},
    )


def _worst(states: Iterable[str]) -> str:
    """The state of a check over several projects: one failure fails it, and it is ok where it was done at all."""
    known = set(states)
    return next(state for state in ("failed", "ok", "none", "skipped") if state in known)


def _rule_texts(gate: Gate, rows: Iterable[Row]) -> dict[str, str]:
    texts = {**PROBLEMS, **(kind_reasons(LIVE_KINDS) if any(row.code in LIVE_KINDS for row in rows) else {})}
    if gate.signatures is not None:
        from pinwarden.project.lock_signatures import SIGNATURE_KINDS

        texts.update(kind_reasons(SIGNATURE_KINDS))
    if gate.osv is not None:
        from pinwarden.project.locked_packages import VULNERABILITY_KINDS

        texts.update(kind_reasons(VULNERABILITY_KINDS))
    if gate.workshop is not None:
        from pinwarden.artifacts.artifact_drift import ARTIFACT_KINDS

        texts.update(kind_reasons(ARTIFACT_KINDS))
    if gate.probe is not None:
        from pinwarden.lock.toolpin_pins import PIN_FINDINGS

        texts.update(PIN_FINDINGS)
    if any(row.code == "install_script_left_out" for row in rows):
        from pinwarden.project.install_scripts import SCRIPT_KINDS

        texts.update(kind_reasons(SCRIPT_KINDS))
    untold = {row.code for row in rows} - texts.keys()
    if untold:
        from pinwarden.clients.drift import CONFIG_KINDS
        from pinwarden.clients.findings import FINDING_KINDS
        from pinwarden.surface.drift.changes import CHANGE_KINDS

        known = kind_reasons(CHANGE_KINDS, FINDING_KINDS, CONFIG_KINDS)
        texts.update({code: known[code] for code in untold & known.keys()})
    return texts


def _status(checked: Checked, name: str) -> str:
    grave = [row for row in checked.found.get(name, ()) if is_failing(row)]
    nothing = checked.nothing.get(name)
    if grave and not (nothing == "none" and all(row.code == COULD_NOT_CHECK for row in grave)):
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
    empty = {
        "policy": not policies.any,
        "scripts": not has_closures(lock),
        **{name: count == 0 for name, count in _asked(lock, gate).items()},
    }
    return {name: "none" for name, nothing in empty.items() if nothing} | {
        name: "skipped" for name, skipped in off.items() if skipped
    }


_Names = Mapping[str, Collection[str]]


def _asked(lock: Lock, gate: Gate, without: _Names = MappingProxyType({})) -> dict[str, int]:
    """Of how many entries the registries and the live servers were asked, some names aside."""

    def count(kind: str, is_on: bool, fits: Callable[[Entry], bool]) -> int:
        return sum(fits(entry) and entry.name not in without.get(kind, ()) for entry in lock.entries) if is_on else 0

    return {
        "registry": count("registry", gate.registries is not None, lambda entry: entry.source not in UNLISTED),
        "bytes": count("bytes", gate.workshop is not None, _has_bytes),
        "live": count("live", gate.probe is not None, _has_live_pin),
    }


def has_closures(lock: Lock) -> bool:
    """Whether the dependencies of any entry are locked."""
    return any((known := extension_of(entry)) is not None and known.closure is not None for entry in lock.entries)


def _has_bytes(entry: Entry) -> bool:
    from pinwarden.project.locked_servers import has_bytes

    return has_bytes(entry)


def _has_live_pin(entry: Entry) -> bool:
    extension = extension_of(entry)
    pinned = extension is not None and extension.surface is not None
    return pinned or any(member in entry.manifest for member in TOOL_HASHES)


def _not_looked_at(lock: Lock, gate: Gate, in_vain: _Names) -> Iterator[str]:
    """What was looked at and what was not; ``in_vain`` are those that a check did not get to the end with."""
    if gate.configs:
        yield f"looked for the files of {len(clients_looked_for())} clients (--format json names them)"
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
    asked = _asked(lock, gate, in_vain)
    # --live looks up what came from a registry as well; of a lock without such entries there is nothing to tell.
    if gate.registries is not None and (gate.registry_wanted or asked["registry"]):
        option = "--registry" if gate.registry_wanted else "--live"
        yield f"{option} looked up {asked['registry']} of {plural(entries, 'entry', 'entries')}"
    if gate.workshop is not None:
        yield f"--bytes fetched and hashed the artifacts of {asked['bytes']} of {plural(entries, 'entry', 'entries')}"
    if gate.probe is None:
        yield "live servers were not asked (--live)"
    else:
        yield f"--live asked the servers of {asked['live']} of {plural(entries, 'entry', 'entries')}"


def _unseen_texts(lock: Lock) -> Iterator[str]:
    from pinwarden.lock.locked_config import locked_config, uncovered
    from pinwarden.system.redaction import redacted_members

    for entry in lock.entries:
        unseen = redacted_members(locked_config(entry.key, entry.document).entry)
        if unseen:
            yield uncovered(entry.name, unseen)


def _summary(projects: Sequence[Checked], drift: Sequence[Row], unchecked: Sequence[Row], rows: Sequence[Row]) -> str:
    if all(checked.unconfigured for checked in projects) and not (drift or unchecked):
        return "No MCP servers are configured here: nothing to check"
    entries = f"{plural(sum(checked.entries for checked in projects), 'entry', 'entries')} checked"
    if len(projects) > 1:
        entries = f"{len(projects)} projects, {entries}"
    if drift:
        critical = sum(row.severity == "critical" for row in drift)
        return f"{entries}: {plural(len(drift), 'finding')}, {critical} of them critical"
    if unchecked:
        return f"{entries}: {len(unchecked)} could not be checked"
    noted = f", {plural(len(rows), 'remark')}" if rows else ""
    unread = sum(row.code == UNREAD for row in rows)
    if unread:
        told = f"what {plural(unread, 'server')} in another release or configuration tells was not looked at"
        return f"{entries}: everything else is as approved, {told}{noted}"
    pinned = "everything that is pinned" if any(row.code == UNPINNED for row in rows) else "everything"
    return f"{entries}: {pinned} is as approved{noted}"


UNREAD = "text_of_another_release"
UNPINNED = "text_not_pinned"
LIVE_KINDS: FindingKinds = kind_table(
    warning=(
        (
            UNREAD,
            "The approved text is that of another release or configuration; what it says now was not asked.",
        ),
        (UNPINNED, "Nothing that the server tells the model was approved, so a live server has nothing to be held to."),
    ),
)


def unread_rows(lock: Lock) -> Iterator[Row]:
    """Servers whose approved text was approved for something else than they start now. They are held to it all the
    same; what they say themselves is only known once they are asked."""
    from pinwarden.lock.locked_launch import started_in_words
    from pinwarden.project.locked_servers import approve_command

    for entry in lock.entries:
        extension = extension_of(entry)
        if extension is None or extension.surface is None or extension.surface_of is None:
            continue
        yield Row(
            code=UNREAD,
            severity=LIVE_KINDS[UNREAD].severity,
            entity="server",
            name=entry.name,
            path="",
            message=(
                f"its text was approved for {extension.surface_of[:200]}, and {started_in_words(entry)} was not asked "
                f"since; what differs is blocked: {approve_command(entry, lock.entries)}"
            ),
        )


def unpinned_rows(lock: Lock, has_pin: Callable[[Entry], bool]) -> Iterator[Row]:
    """Servers that ``--live`` has nothing to compare with, where it has something for others."""
    if not any(map(has_pin, lock.entries)):
        return
    from pinwarden.project.locked_servers import approve_command

    for entry in lock.entries:
        if not has_pin(entry):
            how = approve_command(entry, lock.entries)
            yield Row(
                code=UNPINNED,
                severity=LIVE_KINDS[UNPINNED].severity,
                entity="server",
                name=entry.name,
                path="",
                message=f"was not asked: nothing that it tells the model is approved so far; {how}",
            )


def in_vain(check: str, why: str) -> Row:
    """A check that was asked for and had nothing to look at."""
    return Row(code=COULD_NOT_CHECK, severity="review", entity="lock", name="", path="", message=f"{check}: {why}")
