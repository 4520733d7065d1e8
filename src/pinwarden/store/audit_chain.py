"""The table of the audit log: appending to its one chain, and reading it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from time import sleep

from pinwarden.documents.audit_entry import EMPTY, Entry, Head, encode, hash_of, parse
from pinwarden.rules.audit_chain import ChainCheck, Verified
from pinwarden.store.audit_journal import Batch
from pinwarden.store.database import Database, Schema, Transaction, schema_of

_BREATH = 16  # entries that are written without letting other threads run: some hundred microseconds
_PAGE = 1000  # entries that are read at once


def audit_schema() -> Schema:
    """The tables of the audit log."""
    return schema_of("audit")


def append(database: Database, batch: Batch) -> Head:
    """Add events to the end of the chain, in one commit. What is there already is not added again.

    Whoever appends is alone in it, over all processes: several gateways on one database write one chain.
    """
    with database.transaction(alone="audit") as step:
        head = _head(step)
        known = step.row("SELECT MAX(nth) FROM audit_entry WHERE source = ?", (batch.source,))
        skipped = max(0, (known[0] if known and known[0] is not None else 0) - batch.first + 1)
        rows: list[tuple[int, str, int, str]] = []
        for nth, noted in enumerate(batch.events[skipped:], batch.first + skipped):
            line = encode(
                Entry(
                    number=head.number + 1,
                    previous=head.hash,
                    at=moment_text(noted.at),
                    gateway=batch.gateway,
                    source=batch.source,
                    nth=nth,
                    fact=noted.fact,
                )
            )
            head = Head(number=head.number + 1, hash=hash_of(line))
            rows.append((head.number, batch.source, nth, line.decode()))
            if len(rows) % _BREATH == 0:
                sleep(0)  # a call that waits for the interpreter goes first
        if rows:
            step.run_many("INSERT INTO audit_entry (number, source, nth, entry) VALUES (?, ?, ?, ?)", rows)
    return head


def head_of(database: Database) -> Head:
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


def entries(database: Database) -> Iterator[Entry]:
    """Every entry in order. One that is not what a gateway wrote raises: nothing is concluded from a forged log."""
    for _, line in lines(database):
        yield parse(line)


def newest(database: Database) -> Iterator[Entry]:
    """Every entry, the newest first, a page at a time."""
    below = head_of(database).number + 1
    while True:
        page = database.rows(
            f"SELECT number, entry FROM audit_entry WHERE number < ? ORDER BY number DESC LIMIT {_PAGE}",  # noqa: S608
            (below,),
        )
        for _, text in page:
            yield parse(str(text).encode("utf-8", "surrogatepass"))
        if len(page) < _PAGE:
            return
        below = page[-1][0]


def verify(database: Database, heads: Sequence[Head] = ()) -> Verified:
    """Follow the whole chain."""
    check = ChainCheck(heads)
    for number, line in lines(database):
        check.follow(number, line)
    return check.outcome()


def moment_text(nanoseconds: int) -> str:
    """A moment as entries write it."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"


def _head(step: Transaction) -> Head:
    last = step.row("SELECT number, entry FROM audit_entry ORDER BY number DESC LIMIT 1")
    if last is None:
        return EMPTY
    return Head(number=last[0], hash=hash_of(str(last[1]).encode("utf-8", "surrogatepass")))
