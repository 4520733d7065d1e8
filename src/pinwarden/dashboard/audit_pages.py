"""The page of the audit log: the newest events, filtered, and whether the chain is whole."""

from __future__ import annotations

from pinwarden.core.errors import PinwardenError
from pinwarden.dashboard.sources import DashboardRequest, Sources, Values
from pinwarden.gateway.audit.event import KINDS, LogEntry
from pinwarden.gateway.audit.report import EntryFilter, read_last_entries
from pinwarden.html.pages import PageContent

_PAGE = 100


def build_audit_page(sources: Sources, request: DashboardRequest) -> PageContent:
    """Build the page with the newest events that match the filter, or with earlier ones."""
    entries, selected, before = read_filtered_entries(sources, request, _PAGE)
    values: Values = {
        "entries": entries,
        "kinds": KINDS,
        "kind": next(iter(selected.kinds), ""),
        "server": selected.server,
        "is_filtered": bool(selected.kinds or selected.server),
        "is_first": before is None,
        "older": entries[-1].number if len(entries) == _PAGE else None,
        "check": sources.log_check.result,
        "is_checking": sources.log_check.is_running,
    }
    return PageContent(template="audit.html", values=values)


def read_filtered_entries(
    sources: Sources, request: DashboardRequest, count: int
) -> tuple[list[LogEntry], EntryFilter, int | None]:
    """Return the entries that the query selects, the newest first, with the filter and the number they are before."""
    kind, server, text = (request.query.get(name, "").strip() for name in ("kind", "server", "before"))
    if kind and kind not in KINDS:
        raise PinwardenError("USAGE", f"{kind[:40]!a} is not a kind of event", hint=f"Kinds: {', '.join(KINDS)}.")
    if text and not (text.isascii() and text.isdigit() and int(text[:18]) > 0 and len(text) <= 18):
        raise PinwardenError("USAGE", f"{text[:40]!a} is not the number of an entry")
    before = int(text) if text else None
    selected = EntryFilter(server=server, kinds=(kind,) if kind else ())
    return read_last_entries(sources.state, count, selected, before)[::-1], selected, before
