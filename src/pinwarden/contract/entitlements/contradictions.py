"""Where the code of a tool denies what its definition or its lock says."""

from __future__ import annotations

from collections.abc import Mapping

from pinwarden.contract.entitlements.values import (
    CODE_EVALUATION,
    FILESYSTEM_WRITE,
    KINDS,
    NATIVE,
    SUBPROCESS,
    Entitlements,
    Finding,
)
from pinwarden.core.record import Record

READ_ONLY_BROKEN = "read_only_contradicted"
GAINED = "entitlement_gained"

_CHANGES_SOMETHING = (FILESYSTEM_WRITE, SUBPROCESS, CODE_EVALUATION, NATIVE)


class Contradiction(Record):
    """One tool, one claim, and the code that denies it."""

    code: str
    tool: str
    kind: str
    message: str
    findings: tuple[Finding, ...]


def contradictions(tool: str, annotations: Mapping[str, object], found: Entitlements) -> tuple[Contradiction, ...]:
    """Each entitlement that a tool with ``readOnlyHint: true`` must not have."""
    if annotations.get("readOnlyHint") is not True:
        return ()
    return tuple(
        _contradiction(READ_ONLY_BROKEN, tool, kind, f"{tool} says that it only reads, and its code has {kind}", found)
        for kind in _CHANGES_SOMETHING
        if kind in found.kinds
    )


def gained(tool: str, locked: tuple[str, ...], found: Entitlements) -> tuple[Contradiction, ...]:
    """Each entitlement that the code has and the lock does not."""
    return tuple(
        _contradiction(GAINED, tool, kind, f"{tool} has {kind} now, which the lock does not know", found)
        for kind in KINDS
        if kind in found.kinds and kind not in locked
    )


def _contradiction(code: str, tool: str, kind: str, message: str, found: Entitlements) -> Contradiction:
    findings = tuple(each for each in found.findings if each.kind == kind)
    return Contradiction(code=code, tool=tool, kind=kind, message=message, findings=findings)
