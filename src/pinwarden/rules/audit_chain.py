"""Whether the entries of an audit log are those that were written, all of them, in their order.

A chain can tell everything but what its own end says: who may write to the log can cut off its last entries, or write
the log anew. A head that was kept elsewhere shows both.
"""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.documents.audit_entry import EMPTY, Entry, Head, hash_of, parse

MESSAGES = {
    "unreadable": "is not an entry that a gateway wrote",
    "gap": "does not follow the entry before it: something was removed",
    "moved": "stands in another place than the one it was written to",
    "broken_link": "names another entry before it than the one that is there: one of the two was changed",
    "lost_event": "was not preceded by the event that its gateway counted before it",
    "cut_off": "is not there: the log ends before the head that was kept",
    "rewritten": "is not the one that was kept: the log was written anew",
}
_MOST = 100  # breaks that are told; who finds so many will not read on


class Break(Record):
    """One place where the log is not what was written."""

    number: int
    code: str
    message: str


class Verified(Record):
    """What came of following the chain."""

    entries: int
    head: Head
    breaks: tuple[Break, ...]


class ChainCheck:
    """Follows a chain entry by entry, in constant memory but for a number per run of a gateway."""

    def __init__(self, heads: Iterable[Head] = (), start: Head = EMPTY) -> None:
        self._kept = {head.number: head for head in heads if head.number > 0}
        self._head = start
        self._whole = start == EMPTY
        self._entries = 0
        self._counts: dict[str, int] = {}
        self._breaks: list[Break] = []

    def follow(self, number: int, line: bytes) -> None:
        """The next entry, and the number under which it is kept."""
        self._entries += 1
        kept = self._kept.pop(number, None)
        if kept is not None and hash_of(line) != kept.hash:
            self._break(number, "rewritten")
        try:
            entry = parse(line)
        except PinwardenError as err:
            self._break(number, "unreadable", err.message)
        else:
            self._check(number, entry)
        self._head = Head(number=number, hash=hash_of(line))

    def outcome(self) -> Verified:
        """What was found, when there are no more entries."""
        for number in sorted(self._kept):
            self._break(number, "cut_off")
        self._kept.clear()
        return Verified(entries=self._entries, head=self._head, breaks=tuple(self._breaks))

    def _check(self, number: int, entry: Entry) -> None:
        if entry.number != number:
            self._break(number, "moved")
        elif number != self._head.number + 1:
            self._break(number, "gap")
        elif entry.previous != self._head.hash:
            self._break(number, "broken_link")
        expected = self._counts.get(entry.source, 0 if self._whole else entry.nth - 1) + 1
        if entry.nth != expected:
            self._break(number, "lost_event", f"event {expected} of {entry.source[:40]} is missing")
        self._counts[entry.source] = max(entry.nth, expected)

    def _break(self, number: int, code: str, more: str = "") -> None:
        if len(self._breaks) < _MOST:
            told = f"entry {number} {MESSAGES[code]}" + (f" ({more})" if more else "")
            self._breaks.append(Break(number=number, code=code, message=told))
