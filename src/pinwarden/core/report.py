"""`Report`, the result of every command, in a form that every output format can render.

A report has one row per change or finding, the facts that ``--format json`` prints, and the exit code.

A `FindingKinds` table lists the kinds of findings that one check reports, with severity and reason. Each table is in
the module of its check, and ``docs/reference/findings.md`` is generated from all of them. Kinds are stable, because
scripts match on them. Reasons may change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

ROW_SEVERITIES = ("critical", "review", "warning", "info")
"""From most to least severe. ``critical`` looks like an attack; advisory findings are ``warning`` or ``info``."""

FAILING_SEVERITIES = ("critical", "review")
"""A command fails if its report has a row of one of these severities."""

COULD_NOT_CHECK = "could_not_check"
"""The code of a row for a check that could not be completed. A report with such a row is never clean."""


class Row(Record):
    """One change or finding, with its location."""

    code: str
    severity: str
    entity: str
    name: str
    path: str
    message: str
    before: str | None = None
    """The approved text, if the row is about changed text."""
    after: str | None = None
    excerpt: str | None = None
    file: str | None = None
    """The file with the finding, relative to the project."""
    line: int | None = None
    column: int | None = None
    server: str | None = None
    """The server that has the item, in a report about the items of several servers."""
    needs: str | None = None
    """The option or command without which the check could not be completed."""

    @property
    def subject(self) -> str:
        """The entity, after the name of its server if the row has one: ``notes: tool``."""
        return self.entity if self.server is None else f"{self.server}: {self.entity}"


class ReportTable(Record):
    """A short table that text output shows at the end of a report."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Report(Record):
    """The result of one command."""

    command: str
    subject: str
    summary: str
    exit_code: int
    facts: Mapping[str, Any]
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks that are not findings, for example a comparison that was skipped."""
    details: tuple[str, ...] = ()
    """Remarks about what has not changed since the last run. Text output counts them, and lists them if verbose."""
    table: ReportTable | None = None
    next_command: str | None = None
    """The command that a user runs next, complete and quoted for a shell."""
    commit_command: str | None = None
    """The command that adds the files of the project to the next commit. Only text output shows it."""
    rule_texts: Mapping[str, str] = field(default_factory=dict)
    """The meaning of each row code, for formats that list their rules."""
    file: str | None = None
    """The file that the report is about, used for every row without a file of its own."""


def severity_rank(row: Row) -> int:
    """Return a sort key that puts the most severe row first."""
    return ROW_SEVERITIES.index(row.severity)


def is_failing(row: Row) -> bool:
    """Whether the row makes the command fail."""
    return row.severity in FAILING_SEVERITIES


def row_to_json(row: Row) -> dict[str, Any]:
    """Return the row as a JSON object, without members that are None."""
    facts = {
        "code": row.code,
        "severity": row.severity,
        "entity": row.subject,
        "name": row.name,
        "path": row.path,
        "message": row.message,
        "before": row.before,
        "after": row.after,
        "file": row.file,
        "line": row.line,
    }
    return {name: value for name, value in facts.items() if value is not None}


def get_error_row_code(err: PinwardenError) -> str:
    """Return the code of a row about this error: the code of the error, in the lower case of row codes."""
    return err.code.lower()


def hints_for_failures(failures: Sequence[tuple[str, PinwardenError]]) -> tuple[str, ...]:
    """Return the distinct hints of failures of servers, each prefixed with the names of the servers it is for."""
    servers_by_hint: dict[str, dict[str, None]] = {}
    for server, err in failures:
        if err.code != "NOTHING_TO_RUN":  # this code is not a failure
            servers_by_hint.setdefault(err.hint, {})[server] = None
    return tuple(f"{', '.join(servers)}: {hint}" for hint, servers in servers_by_hint.items())


class FindingKind(Record):
    """A kind of finding that a check can report."""

    kind: str
    severity: str
    reason: str
    phrase: str = ""
    """For a change: what a list of changes counts, such as ``parameter{s} removed``."""


FindingKinds = Mapping[str, FindingKind]
"""The kinds of findings of one check, by name."""


def build_kind_table(**rows: tuple[tuple[str, str] | tuple[str, str, str], ...]) -> FindingKinds:
    """Build a table. Each keyword is a severity; its value has a row for each kind: kind, reason, perhaps a phrase."""
    return MappingProxyType(
        {
            row[0]: FindingKind(kind=row[0], severity=severity, reason=row[1], phrase=row[2] if len(row) > 2 else "")
            for severity, kinds in rows.items()
            for row in kinds
        }
    )


def collect_kind_reasons(*tables: FindingKinds) -> dict[str, str]:
    """Return the reason of each kind in these tables. If two tables have the same kind, the last table wins."""
    return {kind: row.reason for table in tables for kind, row in table.items()}
