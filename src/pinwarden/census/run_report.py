"""The report about one run: how far it is, what failed and why, and what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pinwarden.census import store
from pinwarden.census.census import Census
from pinwarden.census.store import CensusRun
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED
from pinwarden.core.record import Record
from pinwarden.core.report import COULD_NOT_CHECK, Report, ReportTable, Row
from pinwarden.core.text import plural

_MAX_ROWS = 200
_MEMBERS = ("server", "origin", "severity", "code", "entity", "name", "message")
_SHOWN = "severity IN ('critical', 'review', 'warning')"
_ORDER = "CASE severity WHEN 'critical' THEN 0 WHEN 'review' THEN 1 ELSE 2 END, f.server, f.position"


class _RunSummary(Record):
    """What the database has about one run."""

    run: CensusRun
    states: Mapping[str, int]
    failures: Sequence[tuple[str, str, int]]
    """Code, reason, and number of servers."""
    failed: Sequence[tuple[str, str]]
    """Name and message of the first servers that failed."""
    findings: Sequence[Mapping[str, str]]
    """The first findings, the most severe ones first."""


def build_run_report(
    census: Census, command: str, number: int | None, unusable: Sequence[tuple[str, str]] = ()
) -> Report:
    """Return the report of ``census run`` or ``census status``."""
    summary = _read_summary(census, number)
    run, states, failures = summary.run, summary.states, summary.failures
    done = sum(states.values())
    rows = [_build_finding(finding) for finding in summary.findings]
    rows += [_build_failure(name, message) for name, message in (*summary.failed, *unusable[:_MAX_ROWS])]
    is_refused = any(finding["severity"] in ("critical", "warning") for finding in summary.findings)
    is_unchecked = bool(failures or unusable) or done < run.servers
    return Report(
        command=command,
        subject=run.source,
        summary=f"run {run.run}: {done} of {plural(run.servers, 'server')} done, {states.get('observed', 0)} observed, "
        f"{states.get('unchanged', 0)} unchanged, {states.get('failed', 0)} failed",
        exit_code=EXIT_REFUSED if is_refused else EXIT_UNCHECKED if is_unchecked else EXIT_CLEAN,
        rows=tuple(rows),
        table=ReportTable(
            headings=("failure", "kind", "servers"),
            rows=tuple((code, reason or "-", str(count)) for code, reason, count in failures),
        )
        if failures
        else None,
        facts={
            "run": run.run,
            "source": run.source,
            "servers": run.servers,
            "done": done,
            "states": dict(states),
            "started_at": run.started_at,
            "finished_at": run.finished_at or None,
            "failures": [{"code": code, "reason": reason, "servers": count} for code, reason, count in failures],
            "findings": [dict(finding) for finding in summary.findings],
            "unusable": [{"server": name, "message": message} for name, message in unusable[:_MAX_ROWS]],
        },
    )


def _read_summary(census: Census, number: int | None) -> _RunSummary:
    with census.database.snapshot() as transaction:
        run = store.find_run(transaction, number)
        values = (run.run,)
        states: dict[str, int] = dict(
            transaction.rows("SELECT state, COUNT(*) FROM census_results WHERE run = ? GROUP BY state", values)
        )
        failures = transaction.rows(
            "SELECT code, reason, COUNT(*) FROM census_results WHERE run = ? AND state = 'failed' "
            "GROUP BY code, reason ORDER BY 3 DESC, code, reason",
            values,
        )
        failed = transaction.rows(
            "SELECT s.name, r.message FROM census_results r JOIN census_servers s ON s.server = r.server "
            "WHERE r.run = ? AND r.state = 'failed' ORDER BY s.name LIMIT ?",
            (*values, _MAX_ROWS),
        )
        found = transaction.rows(
            "SELECT s.name, f.origin, f.severity, f.code, f.entity, f.name, f.message FROM census_findings f "  # noqa: S608
            f"JOIN census_servers s ON s.server = f.server WHERE f.run = ? AND {_SHOWN} ORDER BY {_ORDER} LIMIT ?",
            (*values, _MAX_ROWS),
        )
    return _RunSummary(
        run=run,
        states=states,
        failures=[(code, reason, count) for code, reason, count in failures],
        failed=[(name, message) for name, message in failed],
        findings=[dict(zip(_MEMBERS, row, strict=True)) for row in found],
    )


def _build_finding(finding: Mapping[str, str]) -> Row:
    return Row(
        code=finding["code"],
        severity=finding["severity"],
        server=finding["server"],
        entity=finding["entity"],
        name=finding["name"],
        path="",
        message=finding["message"],
    )


def _build_failure(name: str, message: str) -> Row:
    return Row(code=COULD_NOT_CHECK, severity="review", entity="server", name=name, path="", message=message)
