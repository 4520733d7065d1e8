"""The report of a census as a static site: pages with charts, a JSON feed and an Atom feed. It contains no script."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pinwarden.census import queries, store
from pinwarden.census.census import Census
from pinwarden.census.queries import CensusFinding
from pinwarden.core.digest import Digest
from pinwarden.core.record import Record
from pinwarden.core.text import parse_timestamp
from pinwarden.html.pages import ASSETS, Pages, read_asset
from pinwarden.system.database import Transaction
from pinwarden.system.files import write_atomically

WEEK = timedelta(days=7)
SERVERS_PER_PAGE = 500
_MAX_FEED = 200
_BAR_WIDTH = 480
_TOKEN_BOUNDS = (0, 100, 300, 1_000, 3_000, 10_000, 30_000)
_EPOCH = "1970-01-01T00:00:00Z"


class Bar(Record):
    """A bar of a chart."""

    label: str
    count: int
    width: int


TEMPLATES = Path(__file__).parent / "templates"
"""The templates of the pages. They extend the template that the value ``frame`` names."""
Values = dict[str, Any]


def write_report(census: Census, number: int | None, folder: Path) -> int:
    """Write the site about a run, by default the newest, into a folder. Returns the number of files."""
    pages = Pages(TEMPLATES)
    files: dict[str, bytes] = {path: read_asset(path) for path in ASSETS}
    with census.database.snapshot() as transaction:
        run = store.find_run(transaction, number)
        for path, template, values in _list_pages(transaction, run):
            frame = {"site_name": "Census", "frame": "site.html", "section": path.partition("/")[0], "run": run}
            files[f"{path}index.html" if not path or path.endswith("/") else path] = pages.render(
                template, path, {**frame, **values}, is_static=True
            )
        files["feed.json"] = build_json_feed(read_findings(transaction, run)["findings"])
    for path, body in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, body)
    return len(files)


def _list_pages(transaction: Transaction, run: store.CensusRun) -> Iterator[tuple[str, str, Values]]:
    yield "", "census_overview.html", read_overview(transaction, run)
    findings = read_findings(transaction, run)
    yield "findings/", "census_findings.html", findings
    yield "questions/", "census_questions.html", read_questions(transaction, run)
    page = last = 1
    while page <= last:
        values = read_servers(transaction, run, page)
        last = values["last"]
        links = {"before": _build_path(page - 1), "after": _build_path(page + 1) if page < last else ""}
        yield _build_path(page), "census_servers.html", {**values, **links}
        page += 1
    entries = [(finding, _identify(finding)) for finding in findings["findings"][:_MAX_FEED]]
    updated = max((finding.checked_at for finding in findings["findings"]), default=_EPOCH)
    yield "feed.atom", "feed.xml", {"entries": entries, "updated": updated, "feed_id": _build_feed_id(run)}


def _build_path(page: int) -> str:
    return "" if page < 1 else "servers/" if page == 1 else f"servers/{page}/"


def read_overview(transaction: Transaction, run: store.CensusRun) -> Values:
    """Return the values of the page with charts about a run."""
    costs = queries.read_token_costs(transaction, run.run)
    severities = Counter(finding.severity for finding in read_findings(transaction, run)["findings"])
    return {
        "states": build_bars(queries.count_states(transaction, run.run).items()),
        "failures": build_bars(queries.count_failures(transaction, run.run)),
        "severities": build_bars(severities.items()),
        "tokens": build_bars(count_by_bounds(costs)),
        "tokens_median": costs[len(costs) // 2] if costs else 0,
    }


def read_findings(transaction: Transaction, run: store.CensusRun) -> Values:
    """Return the values of the page with what was found in the seven days before a run."""
    return {"findings": queries.find_findings(transaction, run.run, _find_week_before(run.started_at))}


def read_questions(transaction: Transaction, run: store.CensusRun) -> Values:
    """Return the values of the page with questions: a title, an explanation, and rows of two columns for each."""
    ask: Callable[[Any], Any] = lambda question: question(transaction, run.run)  # noqa: E731
    changes = [
        (title, text, [(row.server, f"{row.before or 'none'} → {row.after or 'none'}") for row in ask(question)])
        for title, text, question in _CHANGE_QUESTIONS
    ]
    texts = [
        (title, text, [(f"{row.kind} {row.name}", ", ".join(row.servers[:20])) for row in ask(question)])
        for title, text, question in _TEXT_QUESTIONS
    ]
    return {"questions": [*changes, *texts]}


def read_servers(transaction: Transaction, run: store.CensusRun, page: int) -> Values:
    """Return the values of one page of the list of servers."""
    count = queries.count_results(transaction, run.run)
    rows = queries.iter_results(transaction, run.run, limit=SERVERS_PER_PAGE, offset=(page - 1) * SERVERS_PER_PAGE)
    return {"rows": list(rows), "page": page, "last": max(1, -(-count // SERVERS_PER_PAGE))}


_CHANGE_QUESTIONS = (
    ("Drift without a new version", "What they send changed, and their version did not.", queries.find_silent_drift),
    ("Provenance lost or changed", "The artifact had verified provenance before.", queries.find_lost_provenance),
    ("Another publisher", "The registry names another account than before.", queries.find_new_publishers),
)
_TEXT_QUESTIONS = (
    ("Shared definitions", "Several servers send them, byte for byte.", queries.find_shared_texts),
    (
        "Near copies",
        "They differ only in names, case, blanks or hidden characters.",
        queries.find_near_copies,
    ),
    (
        "New tools with popular names",
        f"At least {queries.POPULAR_SERVERS} other servers had a tool of this name before.",
        queries.find_shadowing_tools,
    ),
)


def build_bars(counts: Any) -> list[Bar]:
    """Return the bars of a chart, in the order of the counts."""
    rows = list(counts)
    most = max((count for _, count in rows), default=0)
    return [
        Bar(label=label, count=count, width=round(_BAR_WIDTH * count / most) if most else 0) for label, count in rows
    ]


def count_by_bounds(costs: Sequence[int]) -> list[tuple[str, int]]:
    """Count servers by their token costs."""
    bounds = [*_TOKEN_BOUNDS, None]
    return [
        (
            f"from {low:,}" if high is None else f"{low:,} to {high - 1:,}",
            sum(cost >= low and (high is None or cost < high) for cost in costs),
        )
        for low, high in zip(_TOKEN_BOUNDS, bounds[1:], strict=True)
    ]


def build_json_feed(findings: Sequence[CensusFinding]) -> bytes:
    """Return the findings as a JSON Feed, version 1.1."""
    feed = {
        "version": "https://jsonfeed.org/version/1.1",
        "title": "Census",
        "items": [
            {
                "id": _identify(finding),
                "title": f"{finding.server}: {finding.code}",
                "content_text": finding.message,
                "date_published": finding.checked_at,
                "tags": [finding.severity, finding.origin],
            }
            for finding in findings[:_MAX_FEED]
        ],
    }
    return json.dumps(feed, indent=2).encode() + b"\n"


def _identify(finding: CensusFinding) -> str:
    """Return an identifier that is the same in every report with this finding."""
    members = (finding.run, finding.server, finding.code, finding.entity, finding.name, finding.message)
    return f"urn:pinwarden:census:{Digest.of_bytes(json.dumps(members).encode()).hex}"


def _build_feed_id(run: store.CensusRun) -> str:
    return f"urn:pinwarden:census:{Digest.of_bytes(run.source.encode()).hex}"


def _find_week_before(moment: str) -> str:
    parsed = parse_timestamp(moment)
    return "" if parsed is None else (parsed - WEEK).strftime("%Y-%m-%dT%H:%M:%S.000Z")
