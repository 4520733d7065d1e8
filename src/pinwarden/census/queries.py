"""The questions that a census answers. Each is one query over the results and texts of one run.

A result that says "unchanged" stands for the observation in its ``observed_run``; ``_CURRENT`` joins the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from pinwarden.core.record import Record, field_names
from pinwarden.system.database import Transaction

POPULAR_SERVERS = 3
"""A name is popular if the tools of this many servers have it."""
_LIMIT = 500
_ALL = (1 << 31) - 1
_CURRENT = (
    "census_results c JOIN census_results r ON r.server = c.server AND r.run = c.observed_run "
    "JOIN census_servers s ON s.server = c.server"
)
_EARLIER = (
    "JOIN census_results p ON p.server = r.server AND p.run = (SELECT MAX(q.run) FROM census_results q "
    "WHERE q.server = r.server AND q.run < r.run AND q.state = 'observed')"
)


class CensusFinding(Record):
    """A finding about a server, with the run that has it."""

    run: int
    server: str
    checked_at: str
    origin: str
    severity: str
    code: str
    entity: str
    name: str
    message: str


class FactChange(Record):
    """A server that differs from its last observation in one fact."""

    server: str
    before: str
    after: str


class SharedText(Record):
    """A text that several servers send, or that is almost the same in several servers."""

    kind: str
    name: str
    servers: tuple[str, ...]


class ServerResult(Record):
    """The result of a server in a run, with the facts of its last observation.

    A field is a column of ``census_results``, and a column of the export.
    """

    server: str
    state: str
    observed_run: int
    code: str
    reason: str
    message: str
    version: str
    artifact: str
    publisher: str
    provenance: str
    surface: str
    tools: int
    tokens: int
    milliseconds: int
    checked_at: str


def find_findings(transaction: Transaction, run: int, since: str, *, limit: int = _LIMIT) -> list[CensusFinding]:
    """Return what was found since a time by the runs over the source of a run, the most severe first."""
    rows = transaction.rows(
        "SELECT f.run, s.name, r.checked_at, f.origin, f.severity, f.code, f.entity, f.name, f.message "
        "FROM census_findings f JOIN census_results r ON r.run = f.run AND r.server = f.server "
        "JOIN census_servers s ON s.server = f.server JOIN census_runs o ON o.run = ? "
        "WHERE s.source = o.source AND r.checked_at >= ? AND f.run <= o.run "
        "ORDER BY CASE f.severity WHEN 'critical' THEN 0 WHEN 'warning' THEN 1 WHEN 'review' THEN 2 ELSE 3 END, "
        "f.run DESC, s.name, f.position LIMIT ?",
        (run, since, limit),
    )
    return [CensusFinding(**dict(zip(field_names(CensusFinding), row, strict=True))) for row in rows]


def find_silent_drift(transaction: Transaction, run: int) -> list[FactChange]:
    """Return the servers whose surface changed while their version did not."""
    return _find_changes(transaction, run, "r.version", "p.version = r.version AND p.surface <> r.surface")


def find_lost_provenance(transaction: Transaction, run: int) -> list[FactChange]:
    """Return the servers whose artifact had verified provenance and has another one or none now."""
    return _find_changes(transaction, run, "r.provenance", "p.provenance <> '' AND p.provenance <> r.provenance")


def find_new_publishers(transaction: Transaction, run: int) -> list[FactChange]:
    """Return the servers whose artifact has another publisher than before."""
    return _find_changes(transaction, run, "r.publisher", "p.publisher <> '' AND p.publisher <> r.publisher")


def _find_changes(transaction: Transaction, run: int, column: str, condition: str) -> list[FactChange]:
    rows = transaction.rows(
        f"SELECT s.name, {column.replace('r.', 'p.')}, {column} FROM census_results r {_EARLIER} "  # noqa: S608
        "JOIN census_servers s ON s.server = r.server "
        f"WHERE r.run = ? AND r.state = 'observed' AND {condition} ORDER BY s.name LIMIT ?",
        (run, _LIMIT),
    )
    return [FactChange(server=server, before=before, after=after) for server, before, after in rows]


def find_shared_texts(transaction: Transaction, run: int) -> list[SharedText]:
    """Return the definitions that several servers send, byte for byte."""
    return _group(
        transaction,
        "SELECT t.digest, t.kind, t.name, s.name FROM census_texts t JOIN census_items i ON i.text = t.digest "
        "JOIN census_results r ON r.surface = i.surface JOIN census_results c ON c.server = r.server "
        "AND c.observed_run = r.run JOIN census_servers s ON s.server = c.server "
        "WHERE c.run = ? AND t.likeness <> '' ORDER BY t.digest, s.name",
        run,
    )


def find_near_copies(transaction: Transaction, run: int) -> list[SharedText]:
    """Return definitions that differ only in names, case, blanks or hidden characters."""
    return _group(
        transaction,
        "SELECT t.likeness, t.kind, t.name, s.name FROM census_texts t JOIN census_items i ON i.text = t.digest "
        "JOIN census_results r ON r.surface = i.surface JOIN census_results c ON c.server = r.server "
        "AND c.observed_run = r.run JOIN census_servers s ON s.server = c.server "
        "WHERE c.run = ? AND t.likeness IN (SELECT likeness FROM census_texts WHERE likeness <> '' "
        "GROUP BY likeness HAVING COUNT(*) > 1) ORDER BY t.likeness, s.name",
        run,
    )


def _group(transaction: Transaction, sql: str, run: int) -> list[SharedText]:
    groups: dict[str, tuple[str, str, list[str]]] = {}
    for key, kind, name, server in transaction.rows(sql, (run,)):
        groups.setdefault(key, (kind, name, []))[2].append(server)
    shared = [
        SharedText(kind=kind, name=name, servers=tuple(dict.fromkeys(servers)))
        for kind, name, servers in groups.values()
        if len(set(servers)) > 1
    ]
    return sorted(shared, key=lambda text: (-len(text.servers), text.name))[:_LIMIT]


def find_shadowing_tools(transaction: Transaction, run: int) -> list[SharedText]:
    """Return the tools that are new in a run, and have the name of a tool that is popular among other servers."""
    rows = transaction.rows(
        "SELECT DISTINCT t.name, s.name FROM census_texts t JOIN census_items i ON i.text = t.digest "
        "JOIN census_results r ON r.surface = i.surface AND r.run = ? JOIN census_servers s ON s.server = r.server "
        "WHERE t.kind = 'tool' AND t.first_run = ? AND (SELECT COUNT(DISTINCT o.server) FROM census_texts u "
        "JOIN census_items j ON j.text = u.digest JOIN census_results o ON o.surface = j.surface "
        "WHERE u.kind = 'tool' AND u.name = t.name AND u.first_run < t.first_run AND o.server <> r.server) >= ? "
        "ORDER BY t.name, s.name",
        (run, run, POPULAR_SERVERS),
    )
    return [SharedText(kind="tool", name=name, servers=(server,)) for name, server in rows[:_LIMIT]]


def read_token_costs(transaction: Transaction, run: int) -> list[int]:
    """Return how many tokens the tools of each observed server cost in every conversation."""
    sql = f"SELECT r.tokens FROM {_CURRENT} WHERE c.run = ? AND r.state = 'observed' ORDER BY r.tokens"  # noqa: S608
    return [row[0] for row in transaction.rows(sql, (run,))]


def count_states(transaction: Transaction, run: int) -> dict[str, int]:
    """Count the servers of a run by the state of their last observation."""
    sql = f"SELECT r.state, COUNT(*) FROM {_CURRENT} WHERE c.run = ? GROUP BY r.state"  # noqa: S608
    return dict(transaction.rows(sql, (run,)))


def count_failures(transaction: Transaction, run: int) -> list[tuple[str, int]]:
    """Count the failed servers of a run by code and kind, the most frequent first."""
    sql = (
        f"SELECT r.code, r.reason, COUNT(*) FROM {_CURRENT} WHERE c.run = ? AND r.state = 'failed' "  # noqa: S608
        "GROUP BY r.code, r.reason ORDER BY 3 DESC, 1, 2"
    )
    return [(f"{code} {reason}".strip(), count) for code, reason, count in transaction.rows(sql, (run,))]


def count_results(transaction: Transaction, run: int) -> int:
    """Count the servers of a run that have a result."""
    row = transaction.row(f"SELECT COUNT(*) FROM {_CURRENT} WHERE c.run = ?", (run,))  # noqa: S608
    return 0 if row is None else int(row[0])


def iter_results(transaction: Transaction, run: int, *, limit: int = _ALL, offset: int = 0) -> Iterator[ServerResult]:
    """Yield the result of every server in a run, by name, or of some of them."""
    tables = {"server": "s.name", "state": "c.state", "observed_run": "c.observed_run", "checked_at": "c.checked_at"}
    names = field_names(ServerResult)
    columns = ", ".join(tables.get(name, f"r.{name}") for name in names)
    sql = f"SELECT {columns} FROM {_CURRENT} WHERE c.run = ? ORDER BY s.name, s.server LIMIT ? OFFSET ?"  # noqa: S608
    for row in transaction.rows(sql, (run, limit, offset)):
        yield ServerResult(**dict(zip(names, row, strict=True)))
