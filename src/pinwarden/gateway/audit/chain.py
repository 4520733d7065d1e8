"""The table of the audit log: appending to its one chain, and reading it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from os import urandom
from time import sleep

from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.gateway.audit.event import EMPTY, AuditEvent, LogEntry, LogHead, encode_entry, entry_hash, parse_entry
from pinwarden.gateway.audit.journal import Batch, JournalEvent
from pinwarden.system.database import Database, Schema, Transaction, load_schema

_BREATH = 32  # entries that are written without letting other threads run: some hundred microseconds
_PAGE = 1000  # entries that are read at once
_FAR = 20_000  # entries among which the database looks at once: some ten milliseconds


def audit_schema() -> Schema:
    """The tables of the audit log."""
    return load_schema("audit")


def append(database: Database, batch: Batch, last: int | None = None) -> LogHead:
    """Add events to the end of the chain, in one commit. What is there already is not added again.

    Whoever appends is alone in it, over all processes: several gateways on one database write one chain. ``last`` is
    how many events a run has counted that still goes on: of more than that, the log can know nothing.
    """
    with database.transaction(exclusive="audit") as step:
        head = _head(step)
        skipped = max(0, _known(step, batch.source, last) - batch.first + 1)
        rows: list[tuple[int, str, int, str]] = []
        entry_of = _Entries(batch)
        number, before = head.number, head.hash
        for nth, noted in enumerate(batch.events[skipped:], batch.first + skipped):
            number += 1
            entry = entry_of(noted, number, before, nth)
            before = entry_hash(entry.encode())
            rows.append((number, batch.source, nth, entry))
            if len(rows) % _BREATH == 0:
                sleep(0)  # a call that waits for the interpreter goes first
        if rows:
            step.run_many("INSERT INTO audit_entry (number, source, nth, entry) VALUES (?, ?, ?, ?)", rows)
    return LogHead(number=number, hash=before)


class _Entries:
    """Writes the entries of a batch. Calls of one form differ in five places, which are filled in."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._forms: dict[int, str] = {}

    def __call__(self, noted: JournalEvent, number: int, before: str, nth: int) -> str:
        at = moment_text(noted.at)
        if not noted.number:
            return self._encoded(noted.fact, number, before, at, nth)
        form = self._forms.get(id(noted.fact))
        if form is None:
            form = self._forms[id(noted.fact)] = self._form(noted.fact)
        request_id = noted.number
        if not request_id.isascii() or not request_id.isalnum():
            request_id = canonicalize(request_id).decode()[1:-1]
        return form % (at, request_id, nth, number, before)

    def _encoded(self, fact: AuditEvent, number: int, before: str, at: str, nth: int) -> str:
        batch = self._batch
        entry = LogEntry(
            number=number, previous=before, at=at, gateway=batch.gateway, source=batch.source, nth=nth, fact=fact
        )
        return encode_entry(entry).decode()

    def _form(self, fact: AuditEvent) -> str:
        """The entry with marks where it differs: members are sorted, so the five come in the order of the alphabet."""
        mark = urandom(16).hex()
        number, nth = 1 << 51, 1 << 52
        marked = replace(fact, call=f"{fact.call}{mark}c")
        text = self._encoded(marked, number, f"{mark}h", f"{mark}a", nth).replace("%", "%%")
        for mine, place in (
            (f"{mark}a", "%s"),
            (f"{mark}c", "%s"),
            (f'"nth":{nth},"number":{number},"previous":"{mark}h"', '"nth":%d,"number":%d,"previous":"%s"'),
        ):
            text = text.replace(mine, place, 1)
        return text


def head_of(database: Database) -> LogHead:
    """The last entry."""
    with database.transaction() as step:
        return _head(step)


def lines(database: Database, after: int = 0) -> Iterator[tuple[int, bytes]]:
    """Every entry behind a number, in order, a page at a time."""
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


def entries(database: Database) -> Iterator[LogEntry]:
    """Every entry in order. One that is not what a gateway wrote raises: nothing is concluded from a forged log."""
    for _, line in lines(database):
        yield parse_entry(line)


def newest(database: Database, holding: Sequence[Sequence[tuple[str, str]]] = ()) -> Iterator[LogEntry]:
    """Every entry, the newest first, a page at a time.

    With ``holding`` the database leaves out most of those that nobody asked for, which is faster by far than to read
    them here: of each group an entry has at least one member of a name and a text. Some that have none may be left.
    """
    where = "".join(f" AND ({' OR '.join('entry LIKE ?' for _ in group)})" for group in holding if group)
    patterns = [_pattern(name, text) for group in holding for name, text in group]
    reach = _FAR if where else _PAGE
    below = head_of(database).number + 1
    while top := _top(database, below):
        below = max(1, top - reach + 1)
        page = database.rows(
            f"SELECT entry FROM audit_entry WHERE number >= ? AND number <= ?{where} ORDER BY number DESC",  # noqa: S608
            (below, top, *patterns),
        )
        for (text,) in page:
            yield parse_entry(str(text).encode("utf-8", "surrogatepass"))


def _top(database: Database, below: int) -> int:
    found = database.row("SELECT MAX(number) FROM audit_entry WHERE number < ? AND number >= 1", (below,))
    return int(found[0]) if found is not None and found[0] is not None else 0


def _pattern(name: str, text: str) -> str:
    """What the line of an entry with this member is like. What has a meaning of its own there stands for any letter."""
    written = canonicalize(text).decode("utf-8", "replace")[1:-1]
    plain = "".join(each if each.isascii() and (each.isalnum() or each in " .:@/-") else "_" for each in written)
    return f'%"{name}":"{plain}"%'


def rows(database: Database) -> Iterator[tuple[int, bytes, tuple[str, int]]]:
    """All that is in the table, in order, with the run and count beside each line: also where no entry belongs."""
    columns = "SELECT number, entry, source, nth FROM audit_entry"
    page = database.rows(f"{columns} WHERE number < 1 ORDER BY number LIMIT {_PAGE}")
    after = 0
    while True:
        for number, text, source, nth in page:
            yield number, str(text).encode("utf-8", "surrogatepass"), (source, nth)
        page = database.rows(f"{columns} WHERE number > ? ORDER BY number LIMIT {_PAGE}", (after,))
        if not page:
            return
        after = page[-1][0]


def moment_text(nanoseconds: int) -> str:
    """A moment as entries write it."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{_second_text(seconds)}.{rest // 1000:06d}Z"


@lru_cache(maxsize=16)
def _second_text(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def _known(step: Transaction, source: str, most: int | None) -> int:
    """How many events of a run the chain has. It is believed only of an entry that says so itself.

    A row that only pretended to be an event of the run would keep out all that the run still tells.
    """
    found = step.row(
        "SELECT number, nth, entry FROM audit_entry WHERE source = ? AND number >= 1 ORDER BY nth DESC LIMIT 1",
        (source,),
    )
    if found is None:
        return 0
    number, nth, text = found
    try:
        entry = parse_entry(str(text).encode("utf-8", "surrogatepass"))
    except PinwardenError:
        entry = None
    if entry is None or (entry.number, entry.source, entry.nth) != (number, source, nth) or nth > (most or nth):
        raise PinwardenError(
            "AUDIT_TAMPERED",
            f"entry {number} of the audit log stands for an event that its gateway did not write",
            hint="Look at who could write to the database. pinwarden audit verify tells what else was changed.",
        )
    return int(nth)


def _head(step: Transaction) -> LogHead:
    last = step.row("SELECT number, entry FROM audit_entry WHERE number >= 1 ORDER BY number DESC LIMIT 1")
    if last is None:
        return EMPTY
    return LogHead(number=last[0], hash=entry_hash(str(last[1]).encode("utf-8", "surrogatepass")))
