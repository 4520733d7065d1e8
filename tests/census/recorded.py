"""A census that was recorded without workers: results with any texts, written as a worker writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pinwarden.census import store
from pinwarden.census.census import Census
from pinwarden.census.observation import CensusServer, ResultState, ServerMemory, ServerObservation
from pinwarden.census.sources import SourceListing
from pinwarden.core.report import Row
from pinwarden.surface.surface import ITEM_KINDS, Item, Surface

TOOL = next(kind for kind in ITEM_KINDS if kind.entity == "tool")


def build_surface(*tools: dict[str, Any]) -> Surface:
    items = tuple(Item.from_value(TOOL, {"inputSchema": {"type": "object"}, **tool}) for tool in tools)
    return Surface(server={"serverInfo": {"name": "s", "version": "1"}}, items={"tools": items}, observed={})


def build_finding(message: str, *, name: str = "search", severity: Any = "critical") -> tuple[str, Row]:
    row = Row(code="text_changed", severity=severity, entity="tool", name=name, path="", message=message)
    return ("drift", row)


def record_run(
    database: Path,
    results: dict[str, ServerObservation],
    source: str = "https://registry.example",
    now: str = "2026-11-19T00:00:00.000Z",
) -> int:
    """Record a run in which each of these servers has this result. Returns its number."""
    census = Census(str(database))
    servers = tuple(CensusServer(id=f"{source}#{name}", source=source, name=name, spec={}) for name in results)
    with census.database.transaction(exclusive="census-runs") as transaction:
        store.put_listing(transaction, source, SourceListing(servers=servers), now)
        run = store.add_run(transaction, source, refresh=False, now=now)
        for name, observation in results.items():
            store.write_observation(transaction, run.run, f"{source}#{name}", observation, attempts=1)
        store.finish_run(transaction, run.run, now)
    census.close()
    return run.run


def observe(
    surface: Surface | None = None,
    findings: Sequence[tuple[str, Row]] = (),
    now: str = "2026-11-19T00:00:00.000Z",
    **facts: Any,
) -> ServerObservation:
    """The result of a server that was observed, or that failed if it has no surface."""
    state: ResultState = "failed" if surface is None else "observed"
    members = {"version": "1.0.0", "memory": ServerMemory(), "findings": tuple(findings), **facts}
    return ServerObservation(state=state, checked_at=now, surface=surface, **members)
