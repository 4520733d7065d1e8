"""Writing the author's lock, and holding the server against it.

``lock`` leaves a file alone that already says what would be written: a new time of generation is no change. ``check``
tells every change with its severity; whatever changed makes the lock stale, an unexpected entitlement more so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pinwarden.adapters.contract.files import read_lockfile, write_lockfile
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.keys import PrivateKey
from pinwarden.core.record import Record
from pinwarden.documents.contract.dialect import F5, Dialect, V, dialects_of
from pinwarden.documents.contract.extension import surface_of, with_extension
from pinwarden.documents.contract.lockfile import Lockfile, generate_lockfile
from pinwarden.documents.contract.normalise import normalised_digest
from pinwarden.documents.surface import TOOL
from pinwarden.flows.contract.costing import Budget, cost_change, over_budget
from pinwarden.flows.contract.observing import Observed, located
from pinwarden.flows.report import Report, Row, counted, is_grave, row_facts, weight
from pinwarden.flows.rows import row_of
from pinwarden.rules.contract.check import check_lockfile
from pinwarden.rules.drift.surface import compare
from pinwarden.rules.entitlements.contradictions import Contradiction, contradictions, gained

RULE_TEXTS = {
    "read_only_contradicted": "A tool declares readOnlyHint, and its code writes, starts programs or evaluates code.",
    "entitlement_gained": "The code of a tool can do more than the lock knows.",
    "entitlement_lost": "The code of a tool can do less than the lock knows.",
    "over_budget": "What the tools cost in every conversation is more than the budget allows.",
    "contract_changed": "The contract of a tool is not the one in the lock, in a part that no client sees.",
    "framework_moved": "The server moved to another framework or version without a change of meaning.",
}


class Place(Record):
    """A lockfile's path, and what is there. It is read before a server is started: what is corrupt stops at once."""

    path: Path
    present: Lockfile | None


def place_of(given: str | None, dialect: Dialect | None = None) -> Place:
    """The lockfile: the named one, the one that is here, or a new one in the dialect's own name."""
    path = _path_of(given, dialect)
    return Place(path=path, present=read_lockfile(path))


def locked_at(place: Place) -> Lockfile:
    """The lockfile that must be there."""
    if place.present is None:
        hint = "Make one with: pinwarden contract lock --server FILE"
        raise PinwardenError("LOCK_MISSING", f"there is no lockfile {place.path}", hint=hint)
    return place.present


def _path_of(given: str | None, dialect: Dialect | None) -> Path:
    if given is not None:
        return Path(given)
    here = [Path(each.file_name) for each in (F5, V) if Path(each.file_name).exists()]
    if len(here) > 1 and dialect is None:
        raise PinwardenError("USAGE", f"both {here[0]} and {here[1]} are here", hint="Name one with --lock FILE.")
    if dialect is None and here:
        return here[0]
    return Path((dialect or F5).file_name)


def fresh_lockfile(observed: Observed, now: str, dialect: Dialect, name: str | None = None) -> Lockfile:
    """The lockfile of a server as it is now."""
    plain = generate_lockfile(
        name or observed.name, observed.contracts, observed.prompts, generated_at=now, dialect=dialect
    )
    return with_extension(plain, observed.extension)


def lock(observed: Observed, place: Place, *, now: str, dialect: Dialect | None, name: str | None) -> Report:
    """Write the lock, unless it says the same already."""
    path, present = place.path, place.present
    spoken = dialect or (_spoken(present) if present is not None else V if path.name == V.file_name else F5)
    made = fresh_lockfile(observed, now, spoken, name)
    rows = notices(observed)
    same = present is not None and _same(present, made)
    if not same:
        write_lockfile(path, made)
    told = f"{counted(len(observed.contracts), 'tool')}, {counted(len(observed.prompts), 'prompt')}"
    summary = f"{path} is up to date ({told})" if same else f"{path} written ({told})"
    return Report(
        command="contract lock",
        subject=observed.name,
        summary=f"{summary}; surface {observed.extension.surface.digest}",
        exit_code=EXIT_CLEAN,
        rows=rows,
        facts={
            **_digests(made),
            "path": str(path),
            "written": not same,
            "dialect": spoken.name,
            "findings": [row_facts(row) for row in rows],
        },
        rule_texts=RULE_TEXTS,
    )


def check(observed: Observed, place: Place, *, compat: bool = False, budget: Budget | None = None) -> Report:
    """Hold the server against its lock, and what it costs against its budget."""
    path, locked = place.path, locked_at(place)
    result = check_lockfile(
        locked,
        observed.contracts,
        observed.prompts,
        current=observed.extension,
        dialect=_matching(locked, observed),
        compat=compat,
    )
    costs = cost_change(surface_of(locked), observed.extension.surface)
    over = () if budget is None else over_budget(observed.name, costs, budget)
    found = () if compat else (*changes(locked, observed, result.changed), *notices(observed))
    rows = tuple(sorted((*found, *over), key=weight))
    ok = result.ok and not any(is_grave(row) for row in rows)
    notes = (*_notes(locked, observed), *costs.notes())
    return Report(
        command="contract check",
        subject=observed.name,
        summary=result.message,
        exit_code=EXIT_CLEAN if ok else EXIT_REFUSED,
        rows=rows,
        notes=notes,
        facts={
            "ok": ok,
            "check": result.to_json(),
            **_digests(locked),
            "path": str(path),
            "tokens": costs.to_json(),
            "findings": [row_facts(row) for row in rows],
            "notes": list(notes),
        },
        rule_texts=RULE_TEXTS,
    )


def changes(locked: Lockfile, observed: Observed, changed: tuple[str, ...]) -> tuple[Row, ...]:
    """What moved since the lock was written, as a person would want to read it."""
    before = surface_of(locked)
    rows = [] if before is None else [row_of(each) for each in compare(before, observed.extension.surface)]
    rows += _entitlement_rows(locked, observed)
    told = {row.name for row in rows}
    rows += [
        Row(
            code="contract_changed",
            level="review",
            entity="tool",
            name=name,
            path="",
            message="the contract changed in a part that no client sees",
        )
        for name in changed
        if name not in told
    ]
    return tuple(rows)


def notices(observed: Observed) -> tuple[Row, ...]:
    """Where the code denies what its definition says."""
    if observed.analysis is None:
        return ()
    wire = {item.key: item.value for item in observed.extension.surface.list_of(TOOL)}
    return tuple(
        _row(each, "critical")
        for name, found in observed.analysis.handlers.items()
        for each in contradictions(name, wire.get(name, {}).get("annotations") or {}, found)
    )


def sign(path: Path, keys: Iterable[PrivateKey]) -> None:
    """Sign the lockfile that was just written or found up to date."""
    from pinwarden.documents.contract.extension import sign_lockfile

    locked = read_lockfile(path)
    if locked is None:
        raise PinwardenError("LOCK_MISSING", f"there is no lockfile {path}")
    write_lockfile(path, sign_lockfile(locked, keys))


def _entitlement_rows(locked: Lockfile, observed: Observed) -> list[Row]:
    rows: list[Row] = []
    if observed.analysis is None:
        return rows
    for name, found in observed.analysis.handlers.items():
        known = _locked_kinds(locked, name)
        if known is None:
            continue
        rows += [_row(each, "critical") for each in gained(name, known, found)]
        rows += [
            Row(
                code="entitlement_lost",
                level="info",
                entity="tool",
                name=name,
                path="entitlements",
                message=f"{name} no longer has {kind}",
            )
            for kind in known
            if kind not in found.kinds
        ]
    return rows


def _locked_kinds(locked: Lockfile, name: str) -> tuple[str, ...] | None:
    """What the lock knows of a tool's entitlements; None where its source was not read."""
    tools = (locked.extension or {}).get("tools")
    entry = tools.get(name) if isinstance(tools, Mapping) else None
    found = entry.get("entitlements") if isinstance(entry, Mapping) else None
    kinds = found.get("kinds") if isinstance(found, Mapping) else None
    return tuple(each for each in kinds if isinstance(each, str)) if isinstance(kinds, list) else None


def _row(each: Contradiction, level: str) -> Row:
    first = each.findings[0] if each.findings else None
    return Row(
        code=each.code,
        level=level,
        entity="tool",
        name=each.tool,
        path="entitlements",
        message=each.message + (f": {located(first)}" if first else ""),
        file=first.path if first else None,
        line=first.line if first else None,
    )


def _matching(locked: Lockfile, observed: Observed) -> Dialect:
    """Of the dialects that a file may be in, the first that gives its digest; the newest if none does."""
    possible = dialects_of(locked.document)
    for dialect in possible:
        made = generate_lockfile("", observed.contracts, observed.prompts, generated_at="", dialect=dialect)
        if made.integrity_digest == locked.integrity_digest:
            return dialect
    return possible[0]


def _spoken(present: Lockfile) -> Dialect:
    return dialects_of(present.document)[0]


def _same(present: Lockfile, made: Lockfile) -> bool:
    """Whether two files say the same, but for when they were made, by whom they were signed and what follows of it."""
    return _said(present) == _said(made)


def _said(lockfile: Lockfile) -> dict[str, Any]:
    extension = {
        name: each for name, each in (lockfile.extension or {}).items() if name not in ("bodyDigest", "signature")
    }
    return {**lockfile.document, "generatedAt": "", "pinwarden": extension}


def _notes(locked: Lockfile, observed: Observed) -> tuple[str, ...]:
    before = surface_of(locked)
    if before is None:
        return ("the lockfile has no texts of its own, so only digests were compared; lock again to see what moves",)
    now = observed.extension.surface
    if before.digest != now.digest and normalised_digest(before) == normalised_digest(now):
        return ("the server moved between frameworks or versions without a change of meaning",)
    return ()


def _digests(lockfile: Lockfile) -> dict[str, Any]:
    extension = lockfile.extension or {}
    names = ("bodyDigest", "surfaceDigest", "normalisedDigest")
    return {
        "serverName": lockfile.server_name,
        "integrityDigest": lockfile.integrity_digest,
        **{name: extension[name] for name in names if name in extension},
    }
