"""Tables of what can be found: every kind of finding with how grave it is and what it means.

A table stands beside the code that finds. It is the single source for levels and for the sentences people read, in
reports and in ``docs/reference/findings.md``. A kind is stable data that scripts may match on; its sentence may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pinwarden.core.record import Record


class FindingKind(Record):
    """One row of a table."""

    kind: str
    severity: str
    reason: str


Kinds = Mapping[str, FindingKind]
"""A table, by kind."""


def kind_table(**rows: tuple[tuple[str, str], ...]) -> Kinds:
    """A table from pairs of kind and reason, under how grave they are."""
    return MappingProxyType(
        {
            kind: FindingKind(kind=kind, severity=severity, reason=reason)
            for severity, kinds in rows.items()
            for kind, reason in kinds
        }
    )


def reasons_of(*tables: Kinds) -> dict[str, str]:
    """What each kind of these tables means; where two have the same kind, the last says it."""
    return {kind: row.reason for table in tables for kind, row in table.items()}
