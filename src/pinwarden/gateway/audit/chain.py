"""The hash chain of the audit log in the database: appending and reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from os import urandom
from time import sleep

from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.gateway.audit.event import (
    EMPTY_HEAD,
    AuditEvent,
    AuditHead,
    LogEntry,
    encode_entry,
    hash_entry,
    parse_entry,
)
from pinwarden.gateway.audit.journal import JournalBatch, JournalEvent
from pinwarden.system.database import Database, Schema, Transaction, load_schema

_YIELD_AFTER = 32  # entries after which other threads may run: some hundred microseconds
_PAGE = 1000  # entries per query
_SEARCHED_PAGE = 20_000  # entries that one query with conditions searches in some ten milliseconds


def load_audit_schema() -> Schema:
    """Return the tables of the audit log."""
    return load_schema("audit")


def append_events(
    database: Database, batch: JournalBatch, last: int | None = None, *, refuse_gap: bool = False
) -> AuditHead:
    """Append events in one commit, except those that the chain already has. Returns the new head.

    Locks the chain, because several gateways may write to it. ``last`` is the number of events that the running gateway
    has recorded so far. Raises ``AUDIT_TAMPERED`` if the chain has more events of that gateway. With ``refuse_gap``,
    raises ``AUDIT_INVALID`` if events before the first one are missing, which no verification would accept.
    """
    with database.transaction(exclusive="audit") as transaction:
        head = _read_last_head(transaction)
        recorded = _count_recorded(transaction, batch.source, last)
        if refuse_gap and batch.first > recorded + 1:
            raise PinwardenError(
                "AUDIT_INVALID", f"event {batch.first} does not follow event {recorded}, the last one of its source"
            )
        skipped = max(0, recorded - batch.first + 1)
        rows: list[tuple[int, str, int, str]] = []
        encoder = _EntryEncoder(batch)
        number, previous = head.number, head.hash
        for nth, event in enumerate(batch.events[skipped:], batch.first + skipped):
            number += 1
            entry = encoder.encode(event, number, previous, nth)
            previous = hash_entry(entry.encode())
            rows.append((number, batch.source, nth, entry))
            if len(rows) % _YIELD_AFTER == 0:
                sleep(0)  # let threads that relay calls run
        if rows:
            transaction.run_many("INSERT INTO audit_entry (number, source, nth, entry) VALUES (?, ?, ?, ?)", rows)
    return AuditHead(number=number, hash=previous)


class _EntryEncoder:
    """Encodes the events of a batch as lines of the log.

    The lines of calls that share an event differ in five values, so the line is built once, with placeholders.
    """

    def __init__(self, batch: JournalBatch) -> None:
        self._batch = batch
        self._templates: dict[int, str] = {}

    def encode(self, recorded: JournalEvent, number: int, previous: str, nth: int) -> str:
        """Return the line for an event. ``previous`` is the hash of the previous line."""
        at = format_time(recorded.at)
        if not recorded.request_id:
            return self._encode_entry(recorded.event, number, previous, at, nth)
        template = self._templates.get(id(recorded.event))
        if template is None:
            template = self._templates[id(recorded.event)] = self._make_template(recorded.event)
        request_id = recorded.request_id
        if not request_id.isascii() or not request_id.isalnum():
            request_id = canonicalize(request_id).decode()[1:-1]
        return template % (at, request_id, nth, number, previous)

    def _encode_entry(self, event: AuditEvent, number: int, previous: str, at: str, nth: int) -> str:
        batch = self._batch
        entry = LogEntry(
            number=number, previous=previous, at=at, gateway=batch.gateway, source=batch.source, nth=nth, event=event
        )
        return encode_entry(entry).decode()

    def _make_template(self, event: AuditEvent) -> str:
        """Return a line with placeholders for the five values, in the order in which canonical JSON has them."""
        mark = urandom(16).hex()
        number, nth = 1 << 51, 1 << 52
        marked = replace(event, call=f"{event.call}{mark}c")
        text = self._encode_entry(marked, number, f"{mark}h", f"{mark}a", nth).replace("%", "%%")
        for marker, placeholder in (
            (f"{mark}a", "%s"),
            (f"{mark}c", "%s"),
            (f'"nth":{nth},"number":{number},"previous":"{mark}h"', '"nth":%d,"number":%d,"previous":"%s"'),
        ):
            text = text.replace(marker, placeholder, 1)
        return text


def read_head(database: Database) -> AuditHead:
    """Return the number and hash of the last entry."""
    with database.transaction() as transaction:
        return _read_last_head(transaction)


def read_start(database: Database) -> tuple[AuditHead, dict[str, int]]:
    """Return the head of the archived entries, and the number of archived events of each gateway run."""
    with database.transaction() as transaction:
        rows = transaction.rows("SELECT source, nth FROM audit_archived_source")
        return _read_start_head(transaction), {source: int(nth) for source, nth in rows}


def count_events(database: Database, source: str) -> int:
    """Return the number of events of a source that the chain has, including archived ones."""
    with database.transaction() as transaction:
        return _count_recorded(transaction, source, None)


def delete_archived(database: Database, head: AuditHead, counts: Mapping[str, int], limit: int) -> None:
    """Delete the entries up to a head. Each transaction deletes some and moves the start of the chain."""
    while True:
        with database.transaction(exclusive="audit") as transaction:
            start = _read_start_head(transaction)
            if start.number >= head.number:
                return
            row = transaction.row(
                "SELECT number, entry FROM audit_entry WHERE number >= 1 AND number <= ? ORDER BY number DESC LIMIT 1",
                (min(start.number + limit, head.number),),
            )
            if row is None:
                raise PinwardenError("AUDIT_TAMPERED", "entries of the audit log disappeared while it was archived")
            reached = AuditHead(number=row[0], hash=hash_entry(str(row[1]).encode("utf-8", "surrogatepass")))
            if reached.number == head.number and reached.hash != head.hash:
                raise PinwardenError("AUDIT_TAMPERED", f"entry {head.number} changed while the log was archived")
            for source, nth in _count_by_source(transaction, reached.number).items():
                if nth > counts.get(source, 0):
                    raise PinwardenError("AUDIT_TAMPERED", f"the events of {source[:40]} changed during archiving")
                transaction.run("DELETE FROM audit_archived_source WHERE source = ?", (source,))
                transaction.run("INSERT INTO audit_archived_source (source, nth) VALUES (?, ?)", (source, nth))
            transaction.run("DELETE FROM audit_entry WHERE number >= 1 AND number <= ?", (reached.number,))
            transaction.run("DELETE FROM audit_start")
            transaction.run("INSERT INTO audit_start (number, hash) VALUES (?, ?)", (reached.number, reached.hash))


def _count_by_source(transaction: Transaction, last: int) -> dict[str, int]:
    rows = transaction.rows(
        "SELECT source, MAX(nth) FROM audit_entry WHERE number >= 1 AND number <= ? GROUP BY source", (last,)
    )
    return {source: int(nth) for source, nth in rows}


def _read_start_head(transaction: Transaction) -> AuditHead:
    row = transaction.row("SELECT number, hash FROM audit_start ORDER BY number DESC LIMIT 1")
    return EMPTY_HEAD if row is None else AuditHead(number=row[0], hash=row[1])


def read_lines(database: Database, after: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield number and line of the entries after a number, in order. Reads a page at a time."""
    while True:
        page = database.rows(
            f"SELECT number, entry FROM audit_entry WHERE number > ? ORDER BY number LIMIT {_PAGE}",  # noqa: S608
            (after,),
        )
        for number, text in page:
            yield number, str(text).encode("utf-8", "surrogatepass")
        if len(page) < _PAGE:
            return
        after = page[-1][0]


def read_entries(database: Database) -> Iterator[LogEntry]:
    """Yield the entries in order. Raises ``AUDIT_INVALID`` for an entry that no gateway wrote."""
    for _, line in read_lines(database):
        yield parse_entry(line)


def read_entries_of_kind(database: Database, kind: str, after: int, limit: int) -> list[LogEntry]:
    """Return the first entries of a kind after a number."""
    rows = database.rows(
        "SELECT entry FROM audit_entry WHERE number > ? AND entry LIKE ? ORDER BY number LIMIT ?",
        (after, f'%"kind":"{kind}"%', limit),
    )
    entries = (parse_entry(str(text).encode("utf-8", "surrogatepass")) for (text,) in rows)
    return [entry for entry in entries if entry.event.kind == kind]


def read_newest_entries(
    database: Database, members: Sequence[Sequence[tuple[str, str]]] = (), *, before: int | None = None
) -> Iterator[LogEntry]:
    """Yield the entries, the newest first, or those before a number. Reads a page at a time.

    ``members`` lists groups of members, each as name and value. The database skips most entries that lack every member
    of a group, but not all of them: the caller has to check each entry.
    """
    where = "".join(f" AND ({' OR '.join('entry LIKE ?' for _ in group)})" for group in members if group)
    patterns = [_build_like_pattern(name, text) for group in members for name, text in group]
    page_size = _SEARCHED_PAGE if where else _PAGE
    first = read_head(database).number + 1 if before is None else before
    while last := _find_last_before(database, first):
        first = max(1, last - page_size + 1)
        page = database.rows(
            f"SELECT entry FROM audit_entry WHERE number >= ? AND number <= ?{where} ORDER BY number DESC",  # noqa: S608
            (first, last, *patterns),
        )
        for (text,) in page:
            yield parse_entry(str(text).encode("utf-8", "surrogatepass"))


def _find_last_before(database: Database, number: int) -> int:
    row = database.row("SELECT MAX(number) FROM audit_entry WHERE number < ? AND number >= 1", (number,))
    return int(row[0]) if row is not None and row[0] is not None else 0


def _build_like_pattern(name: str, text: str) -> str:
    """Return a LIKE pattern for entries with this member.

    Special characters become ``_``, which matches any character.
    """
    encoded = canonicalize(text).decode("utf-8", "replace")[1:-1]
    literal = "".join(char if char.isascii() and (char.isalnum() or char in " .:@/-") else "_" for char in encoded)
    return f'%"{name}":"{literal}"%'


def read_rows(database: Database) -> Iterator[tuple[int, bytes, tuple[str, int]]]:
    """Yield all rows in order: number, line, and the columns ``source`` and ``nth``.

    Includes rows that no gateway writes: with numbers below 1, and without a number, which SQLite allows in a primary
    key. The latter have the number 0 here.
    """
    columns = "SELECT number, entry, source, nth FROM audit_entry"
    page = database.rows(f"{columns} WHERE number IS NULL LIMIT {_PAGE}")
    page += database.rows(f"{columns} WHERE number < 1 ORDER BY number LIMIT {_PAGE}")
    after = 0
    while True:
        for number, text, source, nth in page:
            yield number or 0, str(text).encode("utf-8", "surrogatepass"), (source, nth)
        page = database.rows(f"{columns} WHERE number > ? ORDER BY number LIMIT {_PAGE}", (after,))
        if not page:
            return
        after = page[-1][0]


def format_time(nanoseconds: int) -> str:
    """Format a time, in nanoseconds since 1970, as the timestamp of an entry."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{_format_second(seconds)}.{rest // 1000:06d}Z"


@lru_cache(maxsize=16)
def _format_second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def _count_recorded(transaction: Transaction, source: str, last: int | None) -> int:
    """Return the number of events of a run that the chain has.

    Raises ``AUDIT_TAMPERED`` if the columns of its last row contradict the entry. A forged row would prevent later
    events of the run from being appended.
    """
    row = transaction.row(
        "SELECT number, nth, entry FROM audit_entry WHERE source = ? AND number >= 1 ORDER BY nth DESC LIMIT 1",
        (source,),
    )
    if row is None:
        archived = transaction.row("SELECT nth FROM audit_archived_source WHERE source = ?", (source,))
        return 0 if archived is None else int(archived[0])
    number, nth, text = row
    try:
        entry = parse_entry(str(text).encode("utf-8", "surrogatepass"))
    except PinwardenError:
        entry = None
    if entry is None or (entry.number, entry.source, entry.nth) != (number, source, nth) or nth > (last or nth):
        raise PinwardenError(
            "AUDIT_TAMPERED",
            f"entry {number} of the audit log was not written by the gateway that it names",
            hint="Check who can write to the database. pinwarden audit verify reports other changes.",
        )
    return int(nth)


def _read_last_head(transaction: Transaction) -> AuditHead:
    last = transaction.row("SELECT number, entry FROM audit_entry WHERE number >= 1 ORDER BY number DESC LIMIT 1")
    if last is None:
        return _read_start_head(transaction)
    return AuditHead(number=last[0], hash=hash_entry(str(last[1]).encode("utf-8", "surrogatepass")))
