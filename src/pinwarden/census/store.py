"""Writes and reads what the census knows. A text is stored once for all servers and runs that have it."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pinwarden.census.observation import CensusServer, ServerMemory, ServerObservation
from pinwarden.census.sources import SourceListing
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.strict_json import parse_json
from pinwarden.core.text import INVISIBLE
from pinwarden.surface.surface import ITEM_KINDS, Item, Surface
from pinwarden.system.database import Row, Transaction

SERVER_TEXT = "server"
"""The kind of the text with serverInfo, capabilities and instructions."""
_MAX_MESSAGE = 2_000
_MAX_FINDINGS = 500  # of one server; one with more has a finding that says so many times already
_KINDS = {kind.entity: kind for kind in ITEM_KINDS}
_NOT_LETTERS = re.compile(r"[\W_]+")


class CensusRun(Record):
    """A run over all servers of one source."""

    run: int
    source: str
    refresh: bool
    servers: int
    started_at: str
    finished_at: str

    @property
    def is_finished(self) -> bool:
        """Whether every server has a result."""
        return bool(self.finished_at)


_RUN = "run, source, refresh, servers, started_at, finished_at"


def list_runs(transaction: Transaction) -> list[CensusRun]:
    """Return all runs, the newest first."""
    return [_row_to_run(row) for row in transaction.rows(f"SELECT {_RUN} FROM census_runs ORDER BY run DESC")]  # noqa: S608


def find_run(transaction: Transaction, run: int | None) -> CensusRun:
    """Return a run, by default the newest. Raises SERVER_NOT_FOUND."""
    runs = list_runs(transaction)
    found = next((each for each in runs if run in (None, each.run)), None)
    if found is None:
        raise PinwardenError(
            "SERVER_NOT_FOUND",
            "the census has no run" if run is None else f"the census has no run {run}",
            hint="Start one with: pinwarden census run SOURCE",
        )
    return found


def add_run(transaction: Transaction, source: str, *, refresh: bool, now: str) -> CensusRun:
    """Add a run over the servers that a source has now."""
    row = transaction.row("SELECT COALESCE(MAX(run), 0) + 1 FROM census_runs")
    run = 1 if row is None else row[0]
    count = transaction.row("SELECT COUNT(*) FROM census_servers WHERE source = ?", (source,))
    servers = 0 if count is None else count[0]
    transaction.run(
        f"INSERT INTO census_runs ({_RUN}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608
        (run, source, int(refresh), servers, now, ""),
    )
    return CensusRun(run=run, source=source, refresh=refresh, servers=servers, started_at=now, finished_at="")


def finish_run(transaction: Transaction, run: int, now: str) -> None:
    """Record that every server of a run has a result."""
    transaction.run("UPDATE census_runs SET finished_at = ? WHERE run = ? AND finished_at = ''", (now, run))


def read_updated_since(transaction: Transaction, source: str) -> str:
    """Return when a source was listed the last time; empty if it never was."""
    row = transaction.row("SELECT updated_since FROM census_sources WHERE source = ?", (source,))
    return "" if row is None else str(row[0])


def put_listing(transaction: Transaction, source: str, listing: SourceListing, now: str) -> None:
    """Add and replace the servers of a source. What is remembered about a server is kept."""
    known = {
        row[0]: row[1]
        for row in transaction.rows("SELECT server, spec FROM census_servers WHERE source = ?", (source,))
    }
    listed = {server.id: server for server in listing.servers}
    gone = [*listing.removed, *((known.keys() - listed.keys()) if listing.is_complete else ())]
    for identifier in gone:
        transaction.run("DELETE FROM census_servers WHERE server = ?", (identifier,))
    for server in listed.values():
        spec = json.dumps(server.spec, separators=(",", ":"))
        if server.id not in known:
            transaction.run(
                "INSERT INTO census_servers (server, source, name, folder, spec, memory, added_at) "
                "VALUES (?, ?, ?, ?, ?, '', ?)",
                (server.id, source, server.name, server.folder, spec, now),
            )
        elif known[server.id] != spec:
            transaction.run(
                "UPDATE census_servers SET spec = ?, folder = ? WHERE server = ?", (spec, server.folder, server.id)
            )
    transaction.run("DELETE FROM census_sources WHERE source = ?", (source,))
    transaction.run("INSERT INTO census_sources (source, updated_since) VALUES (?, ?)", (source, now))


def list_unfinished(transaction: Transaction, run: CensusRun) -> list[str]:
    """Return the servers of a run that have no result."""
    return [
        row[0]
        for row in transaction.rows(
            "SELECT s.server FROM census_servers s WHERE s.source = ? AND NOT EXISTS "
            "(SELECT 1 FROM census_results r WHERE r.run = ? AND r.server = s.server) ORDER BY s.server",
            (run.source, run.run),
        )
    ]


def has_result(transaction: Transaction, run: int, server: str) -> bool:
    """Whether a server has its result in a run."""
    return transaction.row("SELECT 1 FROM census_results WHERE run = ? AND server = ?", (run, server)) is not None


def read_server(transaction: Transaction, identifier: str) -> tuple[CensusServer, ServerMemory] | None:
    """Return a server and what is remembered about it; None if its source no longer has it."""
    row = transaction.row(
        "SELECT source, name, folder, spec, memory FROM census_servers WHERE server = ?", (identifier,)
    )
    if row is None:
        return None
    source, name, folder, spec, memory = row
    server = CensusServer(id=identifier, source=source, name=name, spec=parse_json(spec.encode()), folder=folder)
    return server, ServerMemory.parse(memory)


def write_observation(
    transaction: Transaction, run: int, server: str, observation: ServerObservation, *, attempts: int
) -> None:
    """Write the only result of a server in a run. Raises ConflictError if it has one."""
    surface = "" if observation.surface is None else write_surface(transaction, observation.surface, run)
    observed_run = observation.observed_run or run
    columns: dict[str, str | int] = {
        "run": run,
        "server": server,
        "state": observation.state,
        "observed_run": observed_run,
        "code": _clean(observation.code)[:_MAX_NAME],
        "reason": _clean(observation.reason)[:_MAX_NAME],
        "message": _clean(observation.message)[:_MAX_MESSAGE],
        "version": _clean(observation.version)[:_MAX_NAME],
        "artifact": _clean(observation.artifact)[:_MAX_NAME],
        "publisher": _clean(observation.publisher)[:_MAX_NAME],
        "provenance": _clean(observation.provenance)[:_MAX_NAME],
        "surface": surface,
        "tools": 0 if observation.surface is None else len(observation.surface.items.get("tools", ())),
        "tokens": observation.tokens,
        "attempts": attempts,
        "milliseconds": observation.milliseconds,
        "checked_at": observation.checked_at,
    }
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    transaction.run(f"INSERT INTO census_results ({names}) VALUES ({marks})", tuple(columns.values()))  # noqa: S608
    transaction.run_many(
        "INSERT INTO census_findings (run, server, position, origin, severity, code, entity, name, message) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                run,
                server,
                position,
                origin,
                row.severity,
                row.code,
                row.entity,
                _clean(row.name)[:_MAX_NAME],
                _clean(row.message)[:_MAX_MESSAGE],
            )
            for position, (origin, row) in enumerate(observation.findings[:_MAX_FINDINGS])
        ],
    )
    if observation.memory is None:
        return
    remembered = replace(observation.memory, run=observed_run, surface=surface or observation.memory.surface)
    transaction.run("UPDATE census_servers SET memory = ? WHERE server = ?", (remembered.to_json(), server))


# Surfaces


def write_surface(transaction: Transaction, surface: Surface, run: int) -> str:
    """Store a surface, and each of its texts that is new. Returns its digest."""
    texts = list(_list_texts(surface))
    digest = str(Digest.of_bytes(canonicalize([text.digest for text in texts])))
    if transaction.row("SELECT 1 FROM census_items WHERE surface = ?", (digest,)) is not None:
        return digest
    # In one order, so that two workers that store the same texts do not wait for each other.
    for text in sorted({text.digest: text for text in texts}.values(), key=lambda text: text.digest):
        transaction.run(
            "INSERT INTO census_texts (digest, kind, name, body, likeness, first_run) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            (text.digest, text.kind, text.name, text.body, text.likeness, run),
        )
    for position, text in enumerate(texts):
        transaction.run(
            "INSERT INTO census_items (surface, position, text) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (digest, position, text.digest),
        )
    return digest


def read_surface(transaction: Transaction, digest: str) -> Surface | None:
    """Return a stored surface; None if there is none of this digest. Raises DATABASE_CORRUPT if a text was changed."""
    rows = transaction.rows(
        "SELECT t.digest, t.kind, t.body FROM census_items i JOIN census_texts t ON t.digest = i.text "
        "WHERE i.surface = ? ORDER BY i.position",
        (digest,),
    )
    if not digest or not rows:
        return None
    server: Mapping[str, Any] | None = None
    items: dict[str, list[Item]] = {}
    for text, kind, body in rows:
        if _compute_text_digest(kind, body) != text:
            raise PinwardenError("DATABASE_CORRUPT", "the census has a text that does not match its digest")
        value = parse_json(body.encode())
        if kind == _LISTS:
            items.update({member: [] for member in value})
        elif kind == SERVER_TEXT:
            server = value
        elif kind.startswith(_UNDIGESTABLE):
            item_kind = _KINDS[kind.removeprefix(_UNDIGESTABLE)]
            item = Item(kind=item_kind, value=value["seen"], digest=None, problem=value["problem"])
            items.setdefault(item_kind.member, []).append(item)
        else:
            items.setdefault(_KINDS[kind].member, []).append(Item.from_value(_KINDS[kind], value))
    return Surface(server=server, items={member: tuple(found) for member, found in items.items()}, observed={})


class _Text(Record):
    kind: str
    name: str
    body: str
    likeness: str = ""

    @property
    def digest(self) -> str:
        return _compute_text_digest(self.kind, self.body)


def _compute_text_digest(kind: str, body: str) -> str:
    return str(Digest.of_bytes(f"{kind}\n{body}".encode()))


_LISTS = "lists"
_UNDIGESTABLE = "undigestable "
_MAX_NAME = 200
_MIN_LIKENESS_CHARS = 40  # shorter texts, such as "List files.", are alike by chance


def _list_texts(surface: Surface) -> Iterator[_Text]:
    yield _Text(kind=_LISTS, name="", body=_encode(sorted(surface.items)))
    if surface.server is not None and surface.server_problem is None:
        name = surface.server.get("serverInfo")
        shown = str(name.get("name", "")) if isinstance(name, dict) else ""
        yield _Text(kind=SERVER_TEXT, name=_clean(shown)[:_MAX_NAME], body=_encode(dict(surface.server)))
    for item in sorted(surface.all_items(), key=lambda item: (item.kind.entity, item.key, str(item.digest))):
        name = _clean(item.key)[:_MAX_NAME]
        if item.digest is None:
            body = json.dumps({"problem": item.problem, "seen": item.value}, default=str)
            yield _Text(kind=f"{_UNDIGESTABLE}{item.kind.entity}", name=name, body=body)
        else:
            yield _Text(
                kind=item.kind.entity, name=name, body=_encode(item.value), likeness=_compute_likeness(item.value)
            )


def _encode(value: Any) -> str:
    return canonicalize(value).decode()


def _compute_likeness(value: Mapping[str, Any]) -> str:
    """Return the digest of a text without what a copy would change: names, case, blanks, hidden characters."""
    strings = _collect_strings({name: member for name, member in value.items() if name not in ("name", "title", "uri")})
    joined = INVISIBLE.sub("", unicodedata.normalize("NFKC", " ".join(strings)))
    plain = _NOT_LETTERS.sub("", joined.casefold())
    return str(Digest.of_bytes(plain.encode("utf-8", "replace"))) if len(plain) >= _MIN_LIKENESS_CHARS else ""


def _collect_strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name in sorted(value):
            yield name
            yield from _collect_strings(value[name])
    elif isinstance(value, list):
        for element in value:
            yield from _collect_strings(element)


def _clean(text: str) -> str:
    """Return text that both databases can store."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


def _row_to_run(row: Row) -> CensusRun:
    run, source, refresh, servers, started_at, finished_at = row
    return CensusRun(
        run=run,
        source=source,
        refresh=bool(refresh),
        servers=servers,
        started_at=started_at,
        finished_at=finished_at,
    )
