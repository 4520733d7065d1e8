"""Reading the audit log: verifying it, showing its end, and exporting it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report, Row, plural
from pinwarden.gateway.audit import chain as audit_chain
from pinwarden.gateway.audit.event import (
    EMPTY,
    MESSAGES,
    ChainCheck,
    LogEntry,
    LogHead,
    Verified,
    entry_hash,
    event_content,
    parse_entry,
)
from pinwarden.system.files import open_regular

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState

_SHORT = 200  # characters of a name that no entry cuts off
_LONGEST_LINE = 1 << 20  # an entry has a few hundred bytes; with arguments, at most some hundred thousand


class EntryFilter(Record):
    """Which entries are asked for; empty for any."""

    server: str = ""
    kinds: tuple[str, ...] = ()

    def fits(self, entry: LogEntry) -> bool:
        """Whether the entry is one of them."""
        return self.server in ("", entry.fact.server) and (not self.kinds or entry.fact.kind in self.kinds)

    def members(self) -> list[list[tuple[str, str]]]:
        """What the lines of such entries hold: one of each list."""
        short = self.server if len(self.server) <= _SHORT else ""  # a longer one may be cut off
        return [[("kind", kind) for kind in self.kinds], [("server", short)] if short else []]


def verify_log(state: GatewayState, heads: Sequence[LogHead], exports: Sequence[Path] = ()) -> Report:
    """The report of ``pinwarden audit verify``: the chain in the database."""
    earlier = [_Earlier(path) for path in exports]
    kept = [*heads, *(each.head for each in earlier)]
    check = ChainCheck(kept)
    for number, line, filed in audit_chain.rows(state.audit_database):
        check.follow(number, line, filed)
        _compare(number, line, earlier, check)
    return _verified("the audit log", check.outcome(), kept)


def verify_export(path: Path, heads: Sequence[LogHead], exports: Sequence[Path] = ()) -> Report:
    """The same for an exported file, which may begin anywhere in the chain."""
    earlier = [_Earlier(each) for each in exports]
    kept = [*heads, *(each.head for each in earlier)]
    check: ChainCheck | None = None
    number = 0
    for line in _lines_of(path):
        if check is None:
            check, number = _start(line, kept)
        check.follow(number, line)
        _compare(number, line, earlier, check)
        number += 1
    if check is None:
        raise _holds_nothing(path)
    return _verified(str(path), check.outcome(), kept)


_EXPORT = "Name a file that pinwarden audit export wrote."


class _Earlier:
    """An export that was kept, which has to be a part of the log: every line of it, and not only the last.

    It is read twice, a line at a time: whether it is an export at all, and beside the log.
    """

    def __init__(self, path: Path) -> None:
        check: ChainCheck | None = None
        number = 0
        for line in _lines_of(path):
            if check is None:
                check, self._next = _start(line, ())
                number = self._next
            check.follow(number, line)
            number += 1
        if check is None:
            raise _holds_nothing(path)
        outcome = check.outcome()
        if outcome.breaks:
            why = outcome.breaks[0].message
            raise PinwardenError("AUDIT_INVALID", f"{path} is no export of an audit log: {why}", hint=_EXPORT)
        self.head = outcome.head
        self._lines = _lines_of(path)

    def has_another(self, number: int, line: bytes) -> bool:
        """Whether the export has another entry of this number than the log, which is asked about in order.

        Its last one is its head, to which the log is held anyway.
        """
        while self._next < number:
            next(self._lines, None)
            self._next += 1
        if self._next != number or number >= self.head.number:
            return False
        self._next += 1
        return next(self._lines, line) != line


def _compare(number: int, line: bytes, earlier: Sequence[_Earlier], check: ChainCheck) -> None:
    if any(each.has_another(number, line) for each in earlier):
        check.differs(number)


def _holds_nothing(path: Path) -> PinwardenError:
    return PinwardenError("AUDIT_INVALID", f"{path} holds no entry of an audit log", hint=_EXPORT)


def last_entries(state: GatewayState, count: int, wanted: EntryFilter) -> list[LogEntry]:
    """The newest entries that are wanted, the oldest of them first."""
    found = audit_chain.newest(state.audit_database, wanted.members())
    return list(reversed(list(_some(found, count, wanted))))


def later_entries(state: GatewayState, after: int) -> Iterator[LogEntry]:
    """The entries behind a number: all of them, so that whoever goes on from the last one looks at none twice."""
    for _, line in audit_chain.lines(state.audit_database, after):
        yield parse_entry(line)


def tail_report(entries: Sequence[LogEntry]) -> Report:
    """The report of ``pinwarden audit tail``."""
    return Report(
        command="audit tail",
        subject="the audit log",
        summary=plural(len(entries), "event"),
        exit_code=EXIT_CLEAN,
        facts={"entries": [entry_facts(entry) for entry in entries]},
    )


def export(state: GatewayState, write: Callable[[bytes], object], after: int = 0) -> LogHead:
    """Write every entry behind a number as a line, exactly as it is kept. The last one, whose hash proves them all."""
    head = EMPTY
    for number, line in audit_chain.lines(state.audit_database, after):
        write(line + b"\n")
        head = LogHead(number=number, hash=entry_hash(line))
    return head


def export_report(subject: str, after: int, head: LogHead) -> Report:
    """What was exported, and the head that proves it."""
    count = max(0, head.number - after)
    return Report(
        command="audit export",
        subject=subject,
        summary=f"head {head}" if count or not after else f"no event is behind {after}",
        exit_code=EXIT_CLEAN,
        facts={"file": subject, "entries": count, "head": {"number": head.number, "hash": head.hash}},
    )


def entry_facts(entry: LogEntry) -> dict[str, Any]:
    """An entry as JSON."""
    return {
        "number": entry.number,
        "at": entry.at,
        "gateway": entry.gateway,
        "source": entry.source,
        "nth": entry.nth,
        "fact": event_content(entry.fact),
    }


def _some(entries: Iterator[LogEntry], count: int, wanted: EntryFilter) -> Iterator[LogEntry]:
    for entry in entries:
        if count <= 0:
            return
        if wanted.fits(entry):
            count -= 1
            yield entry


def _start(line: bytes, heads: Sequence[LogHead]) -> tuple[ChainCheck, int]:
    """An export of the end of a log is followed from its first line; what came before it is not here to be seen."""
    try:
        first = parse_entry(line)
    except PinwardenError:
        return ChainCheck(heads), 1
    before = LogHead(number=first.number - 1, hash=first.previous)
    for head in heads:
        if head.number < before.number:
            raise PinwardenError(
                "AUDIT_NOT_COVERED",
                f"the head {head.number} cannot be checked by this file, which begins with entry {first.number}",
                hint=f"Verify the log itself, or an export from entry {head.number + 1} or before.",
            )
    return ChainCheck(heads, start=before), first.number


def _lines_of(path: Path) -> Iterator[bytes]:
    with open_regular(path) as stream:
        while line := stream.readline(_LONGEST_LINE):
            if not line.endswith(b"\n"):
                raise PinwardenError("AUDIT_INVALID", f"{path} does not end with a whole entry")
            yield line[:-1]


def _verified(subject: str, outcome: Verified, heads: Sequence[LogHead]) -> Report:
    rows = tuple(
        Row(
            code=each.code,
            severity="critical",
            entity="entry",
            name=str(each.number),
            path="",
            message=f"{each.message}.",
        )
        for each in outcome.breaks
    )
    notes = () if heads or rows else (_NO_HEAD,)
    whole = "in order and unchanged" if not rows else "the log is not what was written"
    return Report(
        command="audit verify",
        subject=subject,
        summary=f"{plural(outcome.entries, 'event')}, {whole}; head {outcome.head}",
        exit_code=EXIT_REFUSED if rows else EXIT_CLEAN,
        rows=rows,
        notes=notes,
        facts={
            "ok": not rows,
            "entries": outcome.entries,
            "head": {"number": outcome.head.number, "hash": outcome.head.hash},
            "breaks": [{"number": each.number, "code": each.code, "message": each.message} for each in outcome.breaks],
            "heads_checked": len(heads),
        },
        rule_texts=MESSAGES,
    )


_NO_HEAD = (
    "without --head nobody can tell whether events were cut off at the end; keep the head that is printed here "
    "somewhere else, and give it the next time"
)
