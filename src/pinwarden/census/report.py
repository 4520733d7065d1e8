"""The report of a census as a static site: pages with charts, a JSON feed and an Atom feed. It contains no script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pinwarden.census import queries, store
from pinwarden.census.census import Census
from pinwarden.census.queries import CensusFinding, ServerResult
from pinwarden.core.digest import Digest
from pinwarden.core.record import Record
from pinwarden.core.text import parse_timestamp
from pinwarden.html.pages import ASSETS, Pages, read_asset
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


class ReportFacts(Record):
    """Everything that the pages about one run show."""

    run: store.CensusRun
    states: Sequence[Bar]
    failures: Sequence[Bar]
    severities: Sequence[Bar]
    tokens: Sequence[Bar]
    tokens_median: int
    findings: Sequence[CensusFinding]
    questions: Sequence[tuple[str, str, Sequence[tuple[str, str]]]]
    """Title, explanation, and rows of two columns."""
    results: Sequence[ServerResult]


def write_report(census: Census, number: int | None, folder: Path) -> int:
    """Write the site about a run, by default the newest, into a folder. Returns the number of files."""
    facts = read_facts(census, number)
    pages = Pages(Path(__file__).parent / "templates")
    files: dict[str, bytes] = {path: read_asset(path) for path in ASSETS}
    for path, template, values in _list_pages(facts):
        context = {"site_name": "Census", "run": facts.run, "section": path.partition("/")[0], "facts": facts, **values}
        files[f"{path}index.html" if not path or path.endswith("/") else path] = pages.render(
            template, path, context, is_static=True
        )
    files["feed.json"] = build_json_feed(facts)
    for path, body in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, body)
    return len(files)


def _list_pages(facts: ReportFacts) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    yield "", "overview.html", {}
    yield "findings/", "findings.html", {}
    yield "questions/", "questions.html", {}
    last = max(1, -(-len(facts.results) // SERVERS_PER_PAGE))
    for page in range(1, last + 1):
        rows = facts.results[(page - 1) * SERVERS_PER_PAGE : page * SERVERS_PER_PAGE]
        paths = {number: f"servers/{number}/" if number > 1 else "servers/" for number in (page - 1, page, page + 1)}
        values = {
            "rows": rows,
            "page": page,
            "last": last,
            "before": paths[page - 1] if page > 1 else "",
            "after": paths[page + 1] if page < last else "",
        }
        yield paths[page], "servers.html", values
    entries = [(finding, _identify(finding)) for finding in facts.findings[:_MAX_FEED]]
    updated = max((finding.checked_at for finding in facts.findings), default=_EPOCH)
    yield "feed.atom", "feed.xml", {"entries": entries, "updated": updated, "feed_id": _build_feed_id(facts)}


def read_facts(census: Census, number: int | None) -> ReportFacts:
    """Read what the pages show, as it is at one moment."""
    with census.database.snapshot() as transaction:
        run = store.find_run(transaction, number)
        findings = queries.find_findings(transaction, run.run, _find_week_before(run.started_at))
        costs = queries.read_token_costs(transaction, run.run)
        severities: dict[str, int] = {}
        for finding in findings:
            severities[finding.severity] = severities.get(finding.severity, 0) + 1
        ask: Callable[[Any], Any] = lambda question: question(transaction, run.run)  # noqa: E731
        return ReportFacts(
            run=run,
            states=build_bars(queries.count_states(transaction, run.run).items()),
            failures=build_bars(queries.count_failures(transaction, run.run)),
            severities=build_bars(severities.items()),
            tokens=build_bars(count_by_bounds(costs)),
            tokens_median=costs[len(costs) // 2] if costs else 0,
            findings=findings,
            questions=[
                (
                    title,
                    text,
                    [(row.server, f"{row.before or 'none'} → {row.after or 'none'}") for row in ask(question)],
                )
                for title, text, question in _CHANGE_QUESTIONS
            ]
            + [
                (title, text, [(f"{row.kind} {row.name}", ", ".join(row.servers[:20])) for row in ask(question)])
                for title, text, question in _TEXT_QUESTIONS
            ],
            results=list(queries.iter_results(transaction, run.run)),
        )


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


def build_json_feed(facts: ReportFacts) -> bytes:
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
            for finding in facts.findings[:_MAX_FEED]
        ],
    }
    return json.dumps(feed, indent=2).encode() + b"\n"


def _identify(finding: CensusFinding) -> str:
    """Return an identifier that is the same in every report with this finding."""
    members = (finding.run, finding.server, finding.code, finding.entity, finding.name, finding.message)
    return f"urn:pinwarden:census:{Digest.of_bytes(json.dumps(members).encode()).hex}"


def _build_feed_id(facts: ReportFacts) -> str:
    return f"urn:pinwarden:census:{Digest.of_bytes(facts.run.source.encode()).hex}"


def _find_week_before(moment: str) -> str:
    parsed = parse_timestamp(moment)
    return "" if parsed is None else (parsed - WEEK).strftime("%Y-%m-%dT%H:%M:%S.000Z")
