"""The page of the audit log: the newest events, filtered, and whether the chain is whole."""

from __future__ import annotations

from urllib.parse import urlencode

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.dashboard.sources import DashboardRequest, Sources, Values
from pinwarden.gateway.audit.event import KINDS, LogEntry
from pinwarden.gateway.audit.report import EntryFilter, read_last_entries
from pinwarden.html.pages import PageContent

_PAGE = 100


class FilterField(Record):
    """A field of the filter: a parameter of the page and of the API, with the name of a member of `AuditEvent`."""

    name: str
    label: str
    choices: tuple[str, ...] = ()
    """The values that the member can have; empty if it can have any text."""


FILTER_FIELDS = (
    FilterField(name="kind", label="Kind", choices=KINDS),
    FilterField(name="server", label="Server"),
    FilterField(name="client", label="Client"),
)


def build_audit_page(sources: Sources, request: DashboardRequest) -> PageContent:
    """Build the page with the newest events that match the filter, or with earlier ones."""
    entries, selected, before = read_filtered_entries(sources, request, _PAGE)
    values: Values = {
        "entries": entries,
        "filter_fields": [(field, selected[field.name]) for field in FILTER_FIELDS],
        "filter_query": urlencode(selected),
        "is_filtered": any(selected.values()),
        "is_first": before is None,
        "older": entries[-1].number if len(entries) == _PAGE else None,
        "check": sources.log_check.result,
        "is_checking": sources.log_check.is_running,
    }
    return PageContent(template="audit.html", values=values)


def read_filtered_entries(
    sources: Sources, request: DashboardRequest, count: int
) -> tuple[list[LogEntry], dict[str, str], int | None]:
    """Return the entries that the query selects, the newest first.

    The second result has the value of each field of the filter, the third the number that the entries are before.
    """
    selected = {field.name: _read_field(field, request) for field in FILTER_FIELDS}
    text = request.query.get("before", "").strip()
    if text and not (text.isascii() and text.isdigit() and int(text[:18]) > 0 and len(text) <= 18):
        raise PinwardenError("USAGE", f"{text[:40]!a} is not the number of an entry")
    before = int(text) if text else None
    entry_filter = EntryFilter(values={name: (value,) if value else () for name, value in selected.items()})
    return read_last_entries(sources.state, count, entry_filter, before)[::-1], selected, before


def _read_field(field: FilterField, request: DashboardRequest) -> str:
    value = request.query.get(field.name, "").strip()
    if value and field.choices and value not in field.choices:
        raise PinwardenError(
            "USAGE", f"{field.name} cannot be {value[:40]!a}", hint=f"Possible values: {', '.join(field.choices)}."
        )
    return value
