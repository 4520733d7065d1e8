"""The dashboard at the size of a company: how pages grow with servers and events, next to their bare SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Goal, compare, table
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.dashboard.access import DashboardSession, DashboardUser
from pinwarden.dashboard.pages import find_page, render_page
from pinwarden.dashboard.sources import DashboardRequest, Sources
from pinwarden.gateway.audit.event import CALLED, EMPTY_HEAD, AuditEvent, LogEntry, encode_entry, hash_entry
from pinwarden.gateway.baselines import FIRST_USE
from pinwarden.gateway.state import GatewayState
from pinwarden.gateway.store.reviews import Review, Sighting
from pinwarden.project.project import Project
from pinwarden.surface.surface import surface_from_listing
from pinwarden.system.database import Database

SMALL, LARGE = (250, 5_000), (5_000, 100_000)
"""Servers and events."""
PENDING, TOOLS = 200, 4
NOW = "2026-11-01T12:00:00.000Z"
MAX_GROWTH = 1.5
ROUNDS = 15
_REVIEWS = "SELECT * FROM review WHERE state IN ('pending') ORDER BY opened, server, entity, item, name"
_DECIDED = "SELECT * FROM review WHERE state IN ('approved', 'rejected') ORDER BY opened, server, entity, item, name"
_ITEM = "server = 'server-0' AND entity = 'tool' AND item = 'tool-0'"


def report() -> str:
    """The overview and the page of one review, with the same changes pending in a small and in a large company."""
    with TemporaryDirectory() as folder:
        small, large = (_Company(Path(folder) / str(servers), servers, events) for servers, events in (SMALL, LARGE))
        review = (
            f"SELECT * FROM review WHERE name = '{large.review}'",
            "SELECT * FROM trusted WHERE server = 'server-0'",
            f"SELECT * FROM review WHERE {_ITEM}",
            f"SELECT * FROM sighting WHERE {_ITEM}",
            _REVIEWS,
        )
        tables = [
            _compare("overview", small, large, "", (_REVIEWS, _DECIDED)),
            _compare("review", small, large, f"reviews/{large.review}/", review),
        ]
        for company in (small, large):
            company.sources.activity.close()
            company.state.close()
    return "\n\n".join(tables)


class _Company:
    """A gateway's state with so many servers and events, and a review that is pending in each."""

    def __init__(self, folder: Path, servers: int, events: int) -> None:
        self.state = GatewayState(folder / "state")
        self.review = _fill(self.state, servers, events)
        root = folder / "project"
        root.mkdir()
        project = Project(root=root, lock=root / "mcp-lock.json", home=root, system="linux", variables={})
        self.sources = Sources(state=self.state, project=project, scopes=(project,))


def _compare(page: str, small: _Company, large: _Company, path: str, statements: Sequence[str]) -> str:
    session = DashboardSession(DashboardUser(name="ana", role="admin"), 0.0)
    request = DashboardRequest(path=path, session=session)
    runs: dict[str, Callable[[], object]] = {
        "small company": partial(_build, small.sources, request),
        "large company": partial(_build, large.sources, request),
        "its bare SQL": partial(_run, large.state.reviews._database, statements),
    }
    rows = compare(runs, baseline="small company", rounds=ROUNDS)
    title = f"dashboard: {page}, {PENDING} changes pending, {SMALL[0]} or {LARGE[0]} servers, {LARGE[1]} events"
    return table(title, rows, 1, [Goal(name="large company", against="small company", at_most=MAX_GROWTH)])


def _run(database: Database, statements: Sequence[str]) -> None:
    for statement in statements:
        database.rows(statement)


def _build(sources: Sources, request: DashboardRequest) -> bytes:
    content = find_page(sources, request)
    assert content is not None
    return render_page(request.path, content, request.session)


def _tool(number: int, words: str) -> dict[str, object]:
    schema = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(8)}}
    return {"name": f"tool-{number}", "description": words, "inputSchema": schema}


def _fill(state: GatewayState, servers: int, events: int) -> str:
    """Fill the database. Returns the name of a pending review of the first server."""
    words = "Searches the notes of the user for all words of the query, the newest first. " * 5
    approved = [_tool(number, words) for number in range(TOOLS)]
    texts = [canonicalize(tool).decode() for tool in approved]
    sightings = [
        Sighting(
            server=f"server-{server}",
            entity="tool",
            item=f"tool-{number}",
            digest=str(Digest.of_bytes(text.encode())),
            definition=text,
            action="allow",
            first_seen=NOW,
            last_seen=NOW,
        )
        for server in range(servers)
        for number, text in enumerate(texts)
    ]
    state.observed_definitions.record(sightings)
    surface = surface_from_listing({"capabilities": {"tools": {}}, "tools": approved})
    changed = canonicalize(_tool(0, f"{words} Also searches the archive.")).decode()
    for server in range(PENDING):
        state.trusted_surfaces.trust_first_use(f"server-{server}", surface, NOW)
    added = state.reviews.add(
        Review(
            name="",
            server=f"server-{server}",
            baseline=str(FIRST_USE),
            entity="tool",
            item="tool-0",
            digest=str(Digest.of_bytes(changed.encode())),
            expected=str(Digest.of_bytes(texts[0].encode())),
            definition=changed,
            level="review",
            code="text_changed",
            reason="Text that the model or the user reads has changed.",
            opened=NOW,
            last_seen=NOW,
        )
        for server in range(PENDING)
    )
    _fill_log(state, servers, events)
    return added[0].name


def _fill_log(state: GatewayState, servers: int, events: int) -> None:
    rows: list[tuple[int, str, int, str]] = []
    previous = EMPTY_HEAD.hash
    for number in range(1, events + 1):
        event = AuditEvent(kind=CALLED, server=f"server-{number % servers}", item_kind="tool", item="tool-0")
        entry = LogEntry(
            number=number, previous=previous, at=NOW, gateway="bench", source="bench", nth=number, event=event
        )
        line = encode_entry(entry)
        previous = hash_entry(line)
        rows.append((number, "bench", number, line.decode()))
    with state.audit_database.transaction(exclusive="audit") as transaction:
        transaction.run_many("INSERT INTO audit_entry (number, source, nth, entry) VALUES (?, ?, ?, ?)", rows)
