"""What a flow found, in one form that every face can show.

A report holds rows (one per thing a person should look at), facts (what ``--format json`` prints), and the exit code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

ROW_SEVERITIES = ("critical", "review", "warning", "info")
"""From what looks like an attack to what only deserves a note. Advisory findings are warning or info."""

FAILING_SEVERITIES = ("critical", "review")
"""The levels that fail a run."""

COULD_NOT_CHECK = "could_not_check"
"""The code of a row about something that could not be checked, which is never clean."""


class Row(Record):
    """One change or finding, and where it is."""

    code: str
    severity: str
    entity: str
    name: str
    path: str
    message: str
    before: str | None = None
    """The approved text, where the row is about changed text."""
    after: str | None = None
    excerpt: str | None = None
    file: str | None = None
    """The file it is in, relative to the project."""
    line: int | None = None
    column: int | None = None


class Report(Record):
    """The outcome of one command."""

    command: str
    subject: str
    summary: str
    exit_code: int
    facts: Mapping[str, Any]
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    """Things to tell a person that are not findings: what was not compared, what was assumed."""
    rule_texts: Mapping[str, str] = field(default_factory=dict)
    """What each row code means, for formats that list their rules."""
    file: str | None = None
    """The file that the report is about: the place of rows that name none."""


def severity_rank(row: Row) -> int:
    """For sorting: the gravest first."""
    return ROW_SEVERITIES.index(row.severity)


def is_failing(row: Row) -> bool:
    """Whether a person has to look before anything goes on."""
    return row.severity in FAILING_SEVERITIES


def row_facts(row: Row) -> dict[str, Any]:
    """A row as JSON; what is not known of it is absent."""
    facts = {
        "code": row.code,
        "severity": row.severity,
        "entity": row.entity,
        "name": row.name,
        "path": row.path,
        "message": row.message,
        "before": row.before,
        "after": row.after,
        "file": row.file,
        "line": row.line,
    }
    return {name: value for name, value in facts.items() if value is not None}


def hints_for_failures(failures: Sequence[tuple[str, PinwardenError]]) -> tuple[str, ...]:
    """What to do next about servers that something failed for: every hint once, with the names that it is for."""
    names: dict[str, dict[str, None]] = {}
    for name, err in failures:
        if err.code != "NOTHING_TO_RUN":  # no failure: there is nothing to do about it
            names.setdefault(err.hint, {})[name] = None
    return tuple(f"{', '.join(them)}: {hint}" for hint, them in names.items())


def plural(count: int, noun: str, many: str | None = None) -> str:
    """A count with its noun: ``1 finding``, ``2 findings``, ``2 entries``."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"


class FindingKind(Record):
    """One row of a table."""

    kind: str
    severity: str
    reason: str


FindingKinds = Mapping[str, FindingKind]
"""A table, by kind."""


def kind_table(**rows: tuple[tuple[str, str], ...]) -> FindingKinds:
    """A table from pairs of kind and reason, under how grave they are."""
    return MappingProxyType(
        {
            kind: FindingKind(kind=kind, severity=severity, reason=reason)
            for severity, kinds in rows.items()
            for kind, reason in kinds
        }
    )


def kind_reasons(*tables: FindingKinds) -> dict[str, str]:
    """What each kind of these tables means; where two have the same kind, the last says it."""
    return {kind: row.reason for table in tables for kind, row in table.items()}
