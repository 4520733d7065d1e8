"""The reports of ``contract check``, ``contract verify-signature`` and ``verify --contract``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pinwarden.contract.check import check_lockfile
from pinwarden.contract.costs import COST_KINDS, TokenBudget, check_budget, compare_costs
from pinwarden.contract.dialect import Dialect, detect_dialects
from pinwarden.contract.entitlement_findings import (
    CONTRACT_KINDS,
    check_annotations,
    check_prompt_and_resource_entitlements,
    check_startup_entitlements,
    check_tool_entitlements,
    report_unchecked_tools,
)
from pinwarden.contract.extension import check_body, read_surface, verify_lockfile
from pinwarden.contract.lock_command import StoredLockfile, digests_to_json, load_lockfile, require_lockfile
from pinwarden.contract.lockfile import Lockfile, generate_lockfile
from pinwarden.contract.normal_form import compute_normalised_digest
from pinwarden.contract.observation import ObservedServer, note_unanalysed_tools
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.report import Report, Row, collect_kind_reasons, is_failing, row_to_json, severity_rank
from pinwarden.core.text import plural
from pinwarden.surface.drift.changes import build_change_row
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.surface import Surface


def check(
    observed: ObservedServer, stored: StoredLockfile, *, compat: bool = False, budget: TokenBudget | None = None
) -> Report:
    """Compare a server with its lockfile, and return the report of ``pinwarden contract check``."""
    path, locked = stored.path, require_lockfile(stored)
    result = check_lockfile(
        locked,
        observed.contracts,
        observed.prompts,
        current=observed.extension,
        dialect=_find_matching_dialect(locked, observed),
        compat=compat,
    )
    costs = compare_costs(read_surface(locked), observed.extension.surface)
    over = () if budget is None else check_budget(observed.name, costs, budget)
    changed = () if compat else (*list_changes(locked, observed, result.changed), *check_annotations(observed, locked))
    rows = tuple(sorted((*changed, *over), key=severity_rank))
    ok = result.ok and not any(is_failing(row) for row in rows)
    notes = (*_list_notes(locked, observed), *note_unanalysed_tools(observed), *costs.build_notes())
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
            **digests_to_json(locked),
            "path": str(path),
            "tokens": costs.to_json(),
            "findings": [row_to_json(row) for row in rows],
            "notes": list(notes),
        },
        rule_texts=collect_kind_reasons(CONTRACT_KINDS, COST_KINDS),
    )


def list_changes(locked: Lockfile, observed: ObservedServer, changed: tuple[str, ...]) -> tuple[Row, ...]:
    """Report everything that changed since the lock was written."""
    before = read_surface(locked)
    rows = (
        [_build_unsealed_row(observed.name)]
        if before is None
        else [build_change_row(change) for change in compare(before, observed.extension.surface)]
    )
    rows += [
        *check_tool_entitlements(locked, observed),
        *check_prompt_and_resource_entitlements(locked, observed),
        *report_unchecked_tools(locked, observed),
        *check_startup_entitlements(locked, observed, observed.name),
    ]
    reported = {row.name for row in rows}
    rows += [
        Row(
            code="contract_changed",
            severity="review",
            entity="tool",
            name=name,
            path="",
            message="the contract changed in a part that clients do not see",
        )
        for name in changed
        if name not in reported
    ]
    return tuple(rows)


def _build_unsealed_row(name: str) -> Row:
    """Report a lockfile without Pinwarden's extension, so that removing the extension does not go unnoticed."""
    return Row(
        code="lock_unsealed",
        severity="review",
        entity="server",
        name=name,
        path="",
        message="the lockfile has only digests, so instructions, resources, annotations and output were not checked",
    )


def _find_matching_dialect(locked: Lockfile, observed: ObservedServer) -> Dialect:
    """Return the first possible dialect that reproduces the lockfile's digest, or else the newest possible one."""
    possible = detect_dialects(locked.document)
    for dialect in possible:
        generated = generate_lockfile("", observed.contracts, observed.prompts, generated_at="", dialect=dialect)
        if generated.integrity_digest == locked.integrity_digest:
            return dialect
    return possible[0]


def _list_notes(locked: Lockfile, observed: ObservedServer) -> tuple[str, ...]:
    before = read_surface(locked)
    if before is None:
        return (
            "the lockfile has no surface, so only digests were compared; run `pinwarden contract lock` to add the "
            "surface, or use --compat to check as MCP Fusion does",
        )
    now = observed.extension.surface
    if before.digest != now.digest and compute_normalised_digest(before) == compute_normalised_digest(now):
        return ("only the server's framework or its version changed, not the meaning of its tools",)
    return ()


def verify_contract(path: Path, live: Surface, keys: Sequence[PublicKey], subject: str) -> Report:
    """Compare a live server's surface with its author's contract.

    1. Check that the contract is unmodified and, if keys are given, signed by one of them.
    2. Compare its surface with the live one, and report every difference.

    A server that offers less than its contract fails too, because it may be another server. Only versions and parts
    that frameworks generate may differ.
    """
    lockfile = require_lockfile(load_lockfile(str(path)))
    if not check_body(lockfile):
        raise PinwardenError("LOCK_INVALID", f"{path} has no surface to compare, only digests for the server's author")
    signers = verify_lockfile(lockfile, keys) if keys else ()
    locked_surface = read_surface(lockfile)
    if locked_surface is None:
        raise PinwardenError("LOCK_INVALID", f"{path} has no surface")
    same = locked_surface.digest is not None and locked_surface.digest == live.digest
    rows = (
        ()
        if same
        else tuple(sorted((build_change_row(change) for change in compare(locked_surface, live)), key=severity_rank))
    )
    same_meaning = live.problem is None and compute_normalised_digest(locked_surface) == compute_normalised_digest(live)
    unsigned = () if keys else ("the contract's signature was not verified; give the author's key with --public-key",)
    return Report(
        command="verify",
        subject=subject,
        summary="the server matches its contract"
        if same
        else f"the server does not match its contract: {plural(len(rows), 'difference')}",
        exit_code=EXIT_CLEAN if same or (same_meaning and not any(map(is_failing, rows))) else EXIT_REFUSED,
        rows=rows,
        notes=(
            *unsigned,
            *(("only versions or framework-generated parts differ",) if same_meaning and not same else ()),
        ),
        facts={
            "contract": {"serverName": lockfile.server_name, "surfaceDigest": str(locked_surface.digest)},
            "surfaceDigest": str(live.digest) if live.digest else None,
            "signers": [key.did for key in signers],
            "matches": same,
            "findings": [row_to_json(row) for row in rows],
        },
    )


def verify_signature(stored: StoredLockfile, keys: Sequence[PublicKey]) -> Report:
    """Verify the lockfile's signatures, and report which of the keys signed it."""
    lockfile = require_lockfile(stored)
    signers = verify_lockfile(lockfile, keys)
    return Report(
        command="contract verify-signature",
        subject=str(stored.path),
        summary=f"signed by {', '.join(key.did for key in signers)}",
        exit_code=EXIT_CLEAN,
        facts={"signers": [key.did for key in signers], "serverName": lockfile.server_name},
    )
