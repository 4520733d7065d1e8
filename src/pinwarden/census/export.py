"""Exports the results of a run as CSV, or as Parquet if pyarrow is installed, and compares two runs."""

from __future__ import annotations

import csv
import io
import unicodedata
from pathlib import Path

from pinwarden.census import queries, store
from pinwarden.census.census import Census
from pinwarden.census.queries import ServerResult
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import as_dict, field_names
from pinwarden.core.report import Report, ReportTable
from pinwarden.core.text import INVISIBLE, plural
from pinwarden.system.files import write_atomically

_COMPARED = ("state", "version", "artifact", "publisher", "provenance", "surface")
"""The fields of a result that ``census diff`` compares. The others differ in every run, or only with one of these."""
_FORMULA, _CONTROLS = tuple("=+-@"), tuple("\t\r\n")


def export_results(census: Census, number: int | None, output_format: str, path: Path) -> int:
    """Write the result of every server in a run, by default the newest. Returns the number of rows."""
    rows = _read_results(census, number)
    if output_format == "csv":
        write_atomically(path, _encode_csv(rows))
    else:
        _write_parquet(rows, path)
    return len(rows)


def compare_runs(census: Census, before: int | None, after: int | None) -> Report:
    """Return which servers differ between two runs over one source, by default the last two."""
    with census.database.snapshot() as transaction:
        new = store.find_run(transaction, after)
        earlier = [run.run for run in store.list_runs(transaction) if run.run < new.run and run.source == new.source]
        old = store.find_run(transaction, before if before is not None else earlier[0] if earlier else 0)
        if old.source != new.source:
            raise PinwardenError("USAGE", f"runs {old.run} and {new.run} are over different sources")
        results = [{row.server: row for row in queries.iter_results(transaction, run.run)} for run in (old, new)]
    changes = [
        {"server": name, "fact": fact, "before": first, "after": second}
        for name in sorted(results[0].keys() | results[1].keys())
        for fact, first, second in _compare(results[0].get(name), results[1].get(name))
    ]
    return Report(
        command="census diff",
        subject=new.source,
        summary=f"{plural(len({change['server'] for change in changes}), 'server')} changed between run {old.run} and "
        f"run {new.run}",
        exit_code=EXIT_REFUSED if changes else EXIT_CLEAN,
        facts={"before": old.run, "after": new.run, "source": new.source, "changes": changes},
        table=ReportTable(
            headings=("server", "fact", "before", "after"),
            rows=tuple(tuple(value[:80] or "-" for value in change.values()) for change in changes),
        )
        if changes
        else None,
    )


def _compare(old: ServerResult | None, new: ServerResult | None) -> list[tuple[str, str, str]]:
    if old is None or new is None:
        return [("server", "absent" if old is None else "present", "absent" if new is None else "present")]
    if new.state == "unchanged" and new.observed_run == old.observed_run:
        return []
    pairs = [(fact, str(getattr(old, fact)), str(getattr(new, fact))) for fact in _COMPARED]
    # An unchanged result has the facts of its observation, so its own state is no change.
    return [
        (fact, first, second)
        for fact, first, second in pairs
        if first != second and not (fact == "state" and "unchanged" in (first, second))
    ]


def _read_results(census: Census, number: int | None) -> list[ServerResult]:
    with census.database.snapshot() as transaction:
        run = store.find_run(transaction, number)
        return list(queries.iter_results(transaction, run.run))


def _encode_csv(rows: list[ServerResult]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)  # quotes what has the line end of RFC 4180, of which a text may have only the half
    writer.writerow(field_names(ServerResult))
    for row in rows:
        writer.writerow(_escape_formula(value) for value in as_dict(row).values())
    return text.getvalue().encode()


def _escape_formula(value: object) -> object:
    """Return text that a spreadsheet does not run: servers and registries chose it."""
    if not isinstance(value, str):
        return value
    # Spreadsheets skip blanks, and some take the full-width forms of these characters for them.
    start = unicodedata.normalize("NFKC", INVISIBLE.sub("", value)).lstrip()[:1]
    return f"'{value}" if start in _FORMULA or value[:1] in _CONTROLS else value


def _write_parquet(rows: list[ServerResult], path: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as err:
        raise PinwardenError(
            "USAGE",
            "an export as Parquet needs the Python package pyarrow, which is not installed",
            hint="Export as CSV with --as csv, or run in a checkout of Pinwarden: pip install '.[parquet]'",
        ) from err
    parquet.write_table(pyarrow.Table.from_pylist([as_dict(row) for row in rows]), path)
