"""The report of ``contract check``, and ``contract verify`` of a live server. Every change makes the lock stale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pinwarden.contract.check import check_lockfile
from pinwarden.contract.costs import COST_KINDS, Budget, cost_change, over_budget
from pinwarden.contract.denials import (
    CONTRACT_KINDS,
    gained_rows,
    notices,
    prompt_and_resource_rows,
    startup_rows,
    unchecked_rows,
)
from pinwarden.contract.dialect import Dialect, dialects_of
from pinwarden.contract.extension import check_body, surface_of, verify_lockfile
from pinwarden.contract.lock_command import Place, digests_of, locked_at, place_of
from pinwarden.contract.lockfile import Lockfile, generate_lockfile
from pinwarden.contract.normal_form import normalised_digest
from pinwarden.contract.observation import Observed, unanalysed_note
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.report import Report, Row, is_failing, kind_reasons, row_facts, severity_rank
from pinwarden.surface.drift.changes import change_row
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.surface import Surface


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
    matching = () if compat else (*changes(locked, observed, result.changed), *notices(observed, locked))
    rows = tuple(sorted((*matching, *over), key=severity_rank))
    ok = result.ok and not any(is_failing(row) for row in rows)
    notes = (*_notes(locked, observed), *unanalysed_note(observed), *costs.notes())
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
            **digests_of(locked),
            "path": str(path),
            "tokens": costs.to_json(),
            "findings": [row_facts(row) for row in rows],
            "notes": list(notes),
        },
        rule_texts=kind_reasons(CONTRACT_KINDS, COST_KINDS),
    )


def changes(locked: Lockfile, observed: Observed, changed: tuple[str, ...]) -> tuple[Row, ...]:
    """What moved since the lock was written, as a person would want to read it."""
    before = surface_of(locked)
    rows = (
        [_unsealed(observed.name)]
        if before is None
        else [change_row(change) for change in compare(before, observed.extension.surface)]
    )
    rows += [
        *gained_rows(locked, observed),
        *prompt_and_resource_rows(locked, observed),
        *unchecked_rows(locked, observed),
        *startup_rows(locked, observed, observed.name),
    ]
    reported = {row.name for row in rows}
    rows += [
        Row(
            code="contract_changed",
            severity="review",
            entity="tool",
            name=name,
            path="",
            message="the contract changed in a part that no client sees",
        )
        for name in changed
        if name not in reported
    ]
    return tuple(rows)


def _unsealed(name: str) -> Row:
    """Whoever takes our member out of a lockfile must not get a weaker check for it."""
    return Row(
        code="lock_unsealed",
        severity="review",
        entity="server",
        name=name,
        path="",
        message="the lockfile holds digests only: instructions, resources, annotations and output are held to nothing",
    )


def _matching(locked: Lockfile, observed: Observed) -> Dialect:
    """Of the dialects that a file may be in, the first that gives its digest; the newest if none does."""
    possible = dialects_of(locked.document)
    for dialect in possible:
        made = generate_lockfile("", observed.contracts, observed.prompts, generated_at="", dialect=dialect)
        if made.integrity_digest == locked.integrity_digest:
            return dialect
    return possible[0]


def _notes(locked: Lockfile, observed: Observed) -> tuple[str, ...]:
    before = surface_of(locked)
    if before is None:
        return (
            "the lockfile has no texts of its own, so only digests were compared; run `pinwarden contract lock` to add "
            "them, or check with --compat as the original does",
        )
    now = observed.extension.surface
    if before.digest != now.digest and normalised_digest(before) == normalised_digest(now):
        return ("the server moved between frameworks or versions without a change of meaning",)
    return ()


def verify_contract(path: Path, seen: Surface, keys: Sequence[PublicKey], subject: str) -> Report:
    """Whether a server shows what its contract says.

    1. The contract is whole, and signed by one of the keys where keys are given.
    2. Its surface and the one that was seen have the same digest; otherwise every difference is told.

    A contract is kept or broken: a server that shows less breaks it too, for it may be another one. Only a version, or
    what frameworks add by themselves, may differ.
    """
    lockfile = locked_at(place_of(str(path)))
    if not check_body(lockfile):
        raise PinwardenError("LOCK_INVALID", f"{path} holds digests only, which only its author can check")
    signers = verify_lockfile(lockfile, keys) if keys else ()
    promised = surface_of(lockfile)
    if promised is None:
        raise PinwardenError("LOCK_INVALID", f"{path} holds no surface")
    same = promised.digest is not None and promised.digest == seen.digest
    rows = () if same else tuple(sorted((change_row(change) for change in compare(promised, seen)), key=severity_rank))
    equal = "the server shows what its contract says"
    meaning = seen.problem is None and normalised_digest(promised) == normalised_digest(seen)
    unsigned = () if keys else ("the contract's signature was not checked; name its key with --public-key",)
    return Report(
        command="verify",
        subject=subject,
        summary=equal if same else f"the server does not show what its contract says: {len(rows)} differences",
        exit_code=EXIT_CLEAN if same or (meaning and not any(map(is_failing, rows))) else EXIT_REFUSED,
        rows=rows,
        notes=(
            *unsigned,
            *(("only the version, or what frameworks add by themselves, differs",) if meaning and not same else ()),
        ),
        facts={
            "contract": {"serverName": lockfile.server_name, "surfaceDigest": str(promised.digest)},
            "surfaceDigest": str(seen.digest) if seen.digest else None,
            "signers": [key.did for key in signers],
            "matches": same,
            "findings": [row_facts(row) for row in rows],
        },
    )


def verify_signature(place: Place, keys: Sequence[PublicKey]) -> Report:
    """Who of the known keys signed the contract, as it is."""
    lockfile = locked_at(place)
    signers = verify_lockfile(lockfile, keys)
    return Report(
        command="contract verify-signature",
        subject=str(place.path),
        summary=f"signed by {', '.join(key.did for key in signers)}",
        exit_code=EXIT_CLEAN,
        facts={"signers": [key.did for key in signers], "serverName": lockfile.server_name},
    )
