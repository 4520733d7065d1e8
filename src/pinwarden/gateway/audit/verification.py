"""Whether the entries of an audit log are those that were written, all of them, in their order.

A chain can tell everything but what its own end says: who may write to the log can cut off its last entries, or write
the log anew. A head that was kept elsewhere shows both.
"""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.audit.entry import EMPTY, Entry, Head, hash_of, parse

MESSAGES = {
    "unreadable": "is not an entry that a gateway wrote",
    "gap": "does not follow the entry before it: something was removed",
    "moved": "stands in another place than the one it was written to",
    "broken_link": "names another entry before it than the one that is there: one of the two was changed",
    "misfiled": "is kept under another run or count than the one that it names, where it keeps other events out",
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
        """``start`` is what the first entry follows: heads before it cannot be checked, and must not be given."""
        self._kept: dict[int, set[str]] = {}
        for head in heads:
            self._kept.setdefault(head.number, set()).add(head.hash)
        self._head = start
        self._whole = start == EMPTY
        self._entries = 0
        self._counts: dict[str, int] = {}
        self._breaks: list[Break] = []
        self._hold_to_heads(start)

    def follow(self, number: int, line: bytes, filed: tuple[str, int] | None = None) -> None:
        """The next entry, the number under which it is kept, and the run and count, where they are kept beside it."""
        if number < 1:  # none was ever written there
            self._break(number, "moved")
            return
        self._entries += 1
        before, self._head = self._head, Head(number=number, hash=hash_of(line))
        self._hold_to_heads(self._head)
        try:
            entry = parse(line)
        except PinwardenError as err:
            self._break(number, "unreadable", err.message)
        else:
            self._check(number, entry, before)
            if filed is not None and filed != (entry.source, entry.nth):
                self._break(number, "misfiled")

    def outcome(self) -> Verified:
        """What was found, when there are no more entries."""
        for number in sorted(self._kept):
            self._break(number, "cut_off")
        self._kept.clear()
        return Verified(entries=self._entries, head=self._head, breaks=tuple(self._breaks))

    def differs(self, number: int) -> None:
        """The entry is not the one that an earlier export has."""
        self._break(number, "rewritten")

    def _hold_to_heads(self, here: Head) -> None:
        if self._kept.pop(here.number, {here.hash}) != {here.hash}:
            self._break(here.number, "rewritten")

    def _check(self, number: int, entry: Entry, before: Head) -> None:
        if entry.number != number:
            self._break(number, "moved")
        elif number != before.number + 1:
            self._break(number, "gap")
        elif entry.previous != before.hash:
            self._break(number, "broken_link")
        expected = self._counts.get(entry.source, 0 if self._whole else entry.nth - 1) + 1
        if entry.nth != expected:
            self._break(number, "lost_event", f"event {expected} of {entry.source[:40]} is missing")
        self._counts[entry.source] = max(entry.nth, expected)

    def _break(self, number: int, code: str, more: str = "") -> None:
        if len(self._breaks) < _MOST:
            told = f"entry {number} {MESSAGES[code]}" + (f" ({more})" if more else "")
            self._breaks.append(Break(number=number, code=code, message=told))
