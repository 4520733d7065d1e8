"""The pages about the newest run of a census: those of ``pinwarden census report``, in the frame of the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pinwarden.census import report, store
from pinwarden.core.errors import PinwardenError
from pinwarden.dashboard.sources import DashboardRequest, Sources, Values
from pinwarden.html.pages import PageContent

if TYPE_CHECKING:
    from pinwarden.census.store import CensusRun
    from pinwarden.system.database import Transaction

_MAX_DIGITS = 9


def build_overview_page(sources: Sources, request: DashboardRequest) -> PageContent:
    """Build the page with charts."""
    return _build(sources, request, "census_overview.html", report.read_overview)


def build_findings_page(sources: Sources, request: DashboardRequest) -> PageContent:
    """Build the page with the findings of the last seven days."""
    return _build(sources, request, "census_findings.html", report.read_findings)


def build_questions_page(sources: Sources, request: DashboardRequest) -> PageContent:
    """Build the page with questions and answers."""
    return _build(sources, request, "census_questions.html", report.read_questions)


def build_servers_page(sources: Sources, request: DashboardRequest) -> PageContent:
    """Build one page of the list of servers."""
    page = max(1, _read_number(request, "page") or 1)
    chosen = _read_number(request, "run")
    start = "?" if chosen is None else f"?run={chosen}&"

    def read(transaction: Transaction, run: CensusRun) -> Values:
        values = report.read_servers(transaction, run, page)
        before = f"{start}page={page - 1}" if page > 1 else ""
        after = f"{start}page={page + 1}" if page < values["last"] else ""
        return {**values, "before": before, "after": after}

    return _build(sources, request, "census_servers.html", read)


def _build(
    sources: Sources, request: DashboardRequest, template: str, read: Callable[[Transaction, CensusRun], Values]
) -> PageContent:
    number = _read_number(request, "run")
    values: dict[str, Any] = {"frame": "census.html", "run": None, "chosen": number, "page_path": request.path}
    if sources.census is None:
        return PageContent(template="census_missing.html", values=values)
    with sources.census.database.snapshot() as transaction:
        runs = store.list_runs(transaction)
        run = next((run for run in runs if number in (None, run.run)), None)
        if run is None and number is not None:
            raise PinwardenError("PAGE_NOT_FOUND", f"the census has no run {number}")
        if run is None:
            return PageContent(template="census_missing.html", values=values)
        return PageContent(template=template, values={**values, "run": run, **read(transaction, run)})


def _read_number(request: DashboardRequest, name: str) -> int | None:
    text = request.query.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise PinwardenError("PAGE_NOT_FOUND", f"{name} is not a number")
    return int(text)
