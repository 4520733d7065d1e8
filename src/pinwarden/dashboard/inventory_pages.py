"""The pages about what servers offer: all servers, one server, and the tools of all servers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pinwarden.contract.costs import estimate_tokens
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.dashboard.sources import (
    DashboardRequest,
    Sources,
    Values,
    group_blocked_items,
    identify_server,
    list_remarks,
)
from pinwarden.gateway.store.reviews import PENDING, Sighting
from pinwarden.html.pages import PageContent
from pinwarden.project.status import ServerStatus
from pinwarden.project.status_report import report_status

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TOOLS = 100
"""The most tools on one page."""
_MAX_SERVERS = 500
_MAX_QUERY = 200
_MAX_WORDS = 8
_ACTIONS = {"allow": "approved", "audit": "recorded", "warn": "warned", "block": "blocked"}


class ServerRow(Record):
    """A server that a gateway observed, or that this user has configured or locked."""

    name: str
    id: str
    items: int | None
    """How many tools, prompts and resources it served; None if no gateway observed it."""
    blocked: int
    pending: int
    last_seen: str | None
    status: ServerStatus | None
    """Its state on this machine; None if it is not configured here."""


class ItemRow(Record):
    """The definition of an item that a server served last."""

    sighting: Sighting
    server_id: str
    state: str
    tokens: int
    others: int
    """How many other servers have a tool of this name."""


def list_servers(sources: Sources) -> list[ServerRow]:
    """Return all servers by name."""
    pending = sources.state.reviews.select((PENDING,))
    counts = Counter(review.server for review in pending)
    observed = {row[0]: row for row in sources.state.observed_definitions.summarize_servers()}
    status = report_status(sources.scopes, blocked=group_blocked_items(pending, sources.scopes)).servers
    here = {server.name: server for server in status}
    servers: list[ServerRow] = []
    for name in sorted({*observed, *here}, key=lambda name: (name.casefold(), name)):
        _, items, blocked, seen = observed.get(name, (name, None, 0, None))
        servers.append(
            ServerRow(
                name=name,
                id=identify_server(name),
                items=items,
                blocked=blocked,
                pending=counts[name],
                last_seen=seen,
                status=here.get(name),
            )
        )
    return servers


def build_servers_page(sources: Sources, request: DashboardRequest) -> PageContent:
    """Build the list of all servers, or of those that need something."""
    servers = list_servers(sources)
    only = request.query.get("show", "")
    shown = [server for server in servers if not only or server.pending or server.blocked]
    values: Values = {
        "servers": shown[:_MAX_SERVERS],
        "omitted": max(0, len(shown) - _MAX_SERVERS),
        "total": len(servers),
        "only": bool(only),
    }
    return PageContent(template="servers.html", values=values)


def build_server_page(sources: Sources, _: DashboardRequest, server_id: str) -> PageContent:
    """Build the page of one server: what it serves, and what is approved or blocked."""
    server = next((server for server in list_servers(sources) if server.id == server_id), None)
    if server is None:
        raise PinwardenError("PAGE_NOT_FOUND", "there is no such server", hint="Go to the list of servers.")
    sightings = sources.state.observed_definitions.select_current(server.name)
    items = describe_items(sightings)
    values: Values = {
        "server": server,
        "available": [item for item in items if item.state != "blocked"],
        "blocked": [item for item in items if item.state == "blocked"],
        "tokens": sum(item.tokens for item in items if item.state != "blocked" and item.sighting.entity == "tool"),
        "remarks": list_remarks(sources),
        "reviews": [review for review in sources.state.reviews.select((PENDING,)) if review.server == server.name],
    }
    return PageContent(template="server.html", values=values)


def build_tools_page(sources: Sources, request: DashboardRequest) -> PageContent:
    """Build the search over the tools of all servers."""
    found = search_tools(sources, read_words(request))
    values: Values = {
        "query": request.query.get("q", "").strip(),
        "items": found[:MAX_TOOLS],
        "more": len(found) > MAX_TOOLS,
        "limit": MAX_TOOLS,
    }
    return PageContent(template="tools.html", values=values)


def read_words(request: DashboardRequest) -> list[str]:
    """Return the words to search for, in lower case."""
    query = request.query.get("q", "").strip()
    if len(query) > _MAX_QUERY:
        raise PinwardenError("USAGE", f"a search has at most {_MAX_QUERY} characters")
    return query.lower().split()[:_MAX_WORDS]


def search_tools(sources: Sources, words: list[str]) -> list[ItemRow]:
    """Return tools with all words, by name. One more than a page has shows that there are more."""
    sightings = sources.state.observed_definitions.search_tools(words, 4 * MAX_TOOLS)
    matching = [sighting for sighting in sightings if all(word in sighting.definition.lower() for word in words)]
    return describe_items(matching)[: MAX_TOOLS + 1]


def describe_items(sightings: Iterable[Sighting]) -> list[ItemRow]:
    """Return items with their state and their cost in tokens."""
    listed = list(sightings)
    owners: dict[str, set[str]] = {}
    for sighting in listed:
        if sighting.entity == "tool":
            owners.setdefault(sighting.item, set()).add(sighting.server)
    return [
        ItemRow(
            sighting=sighting,
            server_id=identify_server(sighting.server),
            state=_ACTIONS.get(sighting.action, sighting.action),
            tokens=estimate_tokens(sighting.definition),
            others=len(owners.get(sighting.item, ())) - 1 if sighting.entity == "tool" else 0,
        )
        for sighting in listed
    ]


def server_to_json(server: ServerRow) -> dict[str, Any]:
    """Return a server as JSON."""
    status = server.status
    states = ("pinned", "approved", "verified", "enforced")
    return {
        "name": server.name,
        "id": server.id,
        "items": server.items,
        "blocked": server.blocked,
        "pending": server.pending,
        "last_seen": server.last_seen,
        "states": None if status is None else {state: getattr(status, state) for state in states},
    }


def item_to_json(item: ItemRow) -> dict[str, Any]:
    """Return an item as JSON."""
    sighting = item.sighting
    return {
        "server": sighting.server,
        "entity": sighting.entity,
        "item": sighting.item,
        "digest": sighting.digest or None,
        "state": item.state,
        "tokens": item.tokens,
        "other_servers": item.others,
        "first_seen": sighting.first_seen,
        "last_seen": sighting.last_seen,
        "sessions": sighting.sessions,
    }
