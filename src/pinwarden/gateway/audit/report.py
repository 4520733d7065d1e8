"""Reads the audit log for ``pinwarden audit``: verify, tail and export."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report, Row
from pinwarden.core.text import plural
from pinwarden.gateway.audit import chain as audit_chain
from pinwarden.gateway.audit.event import (
    ARCHIVED,
    EMPTY_HEAD,
    MESSAGES,
    AuditHead,
    ChainResult,
    ChainVerifier,
    LogEntry,
    event_to_json,
    hash_entry,
    parse_entry,
    parse_head,
)
from pinwarden.system.files import open_regular

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.system.database import Database

_MAX_ARCHIVES = 10_000  # archives that are looked at, the oldest first
_MAX_SEARCHED = 200  # characters of a name; entries truncate longer ones
_MAX_LINE = 1 << 20  # bytes; an entry has a few hundred, with arguments at most some hundred thousand


class EntryFilter(Record):
    """Selects entries by members of their events."""

    values: Mapping[str, Sequence[str]]
    """The values that are selected, by the name of a member of `AuditEvent`. A member without values selects all."""

    def matches(self, entry: LogEntry) -> bool:
        """Whether the entry is selected."""
        event = entry.event
        return all(not values or getattr(event, name) in values for name, values in self.values.items())

    def list_required_members(self) -> list[list[tuple[str, str]]]:
        """Return groups of members that selected entries have, as `chain.read_newest_entries` expects them."""
        return [
            [(name, value) for value in values]
            for name, values in self.values.items()
            if all(len(value) <= _MAX_SEARCHED for value in values)  # a longer one may be truncated
        ]


def verify_log(state: GatewayState, heads: Sequence[AuditHead], exports: Sequence[Path] = ()) -> Report:
    """Verify the chain in the database. Returns the report of ``pinwarden audit verify``.

    If its oldest entries were archived, the chain begins after them. ``exports`` may be archives.
    """
    earlier = [_EarlierExport(path, heads) for path in exports]
    database = state.audit_database
    start, counts = audit_chain.read_start(database)
    archives = [export for export in earlier if export.head.number <= start.number]
    _refuse_uncovered(heads, start, archives)
    current = [head for head in heads if head.number >= start.number]
    current += [export.head for export in earlier if export.head.number >= start.number]
    verifier = ChainVerifier(current, start, counts)
    for number, line, columns in audit_chain.read_rows(database):
        verifier.check_entry(number, line, columns)
        _compare_with_exports(number, line, earlier, verifier)
    if start != EMPTY_HEAD and not _is_archived(database, start):
        verifier.report_unarchived(start)
    _check_archives(archives, start, verifier)
    return _build_verification_report(
        "the audit log", verifier.finish(), [*heads, *(one.head for one in earlier)], start
    )


def _is_archived(database: Database, start: AuditHead) -> bool:
    """Whether an entry of the log says that the entries up to a head were archived."""
    for entry in audit_chain.read_entries_of_kind(database, ARCHIVED, start.number, _MAX_ARCHIVES):
        head = parse_head(entry.event.call)
        if head == start or head.number > start.number:
            return True
    return False


def _refuse_uncovered(heads: Sequence[AuditHead], start: AuditHead, archives: Sequence[_EarlierExport]) -> None:
    """Raise if a head is older than the chain in the database, and no archive has its entry."""
    for head in heads:
        if head.number < start.number and not any(archive.covers(head.number) for archive in archives):
            raise PinwardenError(
                "AUDIT_NOT_COVERED",
                f"the head {head.number} cannot be checked, because the entries up to {start.number} were archived",
                hint="Give the archive too: pinwarden audit verify --against FILE",
            )


def _check_archives(archives: Sequence[_EarlierExport], start: AuditHead, verifier: ChainVerifier) -> None:
    """Report archives that do not lead to the start of the chain."""
    following = {archive.start for archive in archives} | {start}
    for archive in archives:
        if archive.is_rewritten or archive.head not in following:
            verifier.report_rewritten(archive.head.number)


def verify_export(path: Path, heads: Sequence[AuditHead], exports: Sequence[Path] = ()) -> Report:
    """Verify an exported file, which may begin anywhere in the chain. Returns the report of ``audit verify``."""
    earlier = [_EarlierExport(export_path) for export_path in exports]
    all_heads = [*heads, *(export_entries.head for export_entries in earlier)]
    verifier: ChainVerifier | None = None
    number = 0
    for line in _read_lines(path):
        if verifier is None:
            verifier, number = _start_verifier(line, all_heads)
        verifier.check_entry(number, line)
        _compare_with_exports(number, line, earlier, verifier)
        number += 1
    if verifier is None:
        raise _build_empty_error(path)
    return _build_verification_report(str(path), verifier.finish(), all_heads)


_EXPORT_HINT = "Name a file that pinwarden audit export wrote."


class _EarlierExport:
    """An earlier export of the log. The log must contain all of its lines.

    The file is read twice, line by line: first to verify it, then in parallel with the log.
    """

    def __init__(self, path: Path, heads: Sequence[AuditHead] = ()) -> None:
        """Read and verify the file. ``heads`` that it covers are compared with its entries."""
        verifier: ChainVerifier | None = None
        number = 0
        known: dict[int, list[str]] = {}
        for head in heads:
            known.setdefault(head.number, []).append(head.hash)
        self.is_rewritten = False
        """Whether an entry differs from a head."""
        for line in _read_lines(path):
            if verifier is None:
                verifier, self._next = _start_verifier(line, ())
                number = self._next
                self.start = verifier.head
                """The head of the chain just before the first entry of the file."""
            reached = verifier.check_entry(number, line)
            self.is_rewritten |= any(digest != reached.hash for digest in known.get(number, ()))
            number += 1
        if verifier is None:
            raise _build_empty_error(path)
        outcome = verifier.finish()
        if outcome.breaks:
            reason = outcome.breaks[0].message
            raise PinwardenError("AUDIT_INVALID", f"{path} is not a valid export: {reason}", hint=_EXPORT_HINT)
        self.head = outcome.head
        self._lines = _read_lines(path)

    def covers(self, number: int) -> bool:
        """Whether the file has the entry with this number."""
        return self.start.number < number <= self.head.number

    def differs(self, number: int, line: bytes) -> bool:
        """Whether the export has a different line for an entry of the log. Entries must be passed in order.

        The last line is not compared here, because the verifier compares it as a head.
        """
        while self._next < number:
            next(self._lines, None)
            self._next += 1
        if self._next != number or number >= self.head.number:
            return False
        self._next += 1
        return next(self._lines, line) != line


def _compare_with_exports(number: int, line: bytes, earlier: Sequence[_EarlierExport], verifier: ChainVerifier) -> None:
    if any(export_entries.differs(number, line) for export_entries in earlier):
        verifier.report_rewritten(number)


def _build_empty_error(path: Path) -> PinwardenError:
    return PinwardenError("AUDIT_INVALID", f"{path} contains no entries of an audit log", hint=_EXPORT_HINT)


def read_last_entries(
    state: GatewayState, count: int, selected: EntryFilter, before: int | None = None
) -> list[LogEntry]:
    """Return the newest ``count`` selected entries, or the last ones before a number, the oldest of them first."""
    entries = audit_chain.read_newest_entries(state.audit_database, selected.list_required_members(), before=before)
    return list(reversed(list(_select_entries(entries, count, selected))))


def read_later_entries(state: GatewayState, after: int) -> Iterator[LogEntry]:
    """Yield all entries after a number."""
    for _, line in audit_chain.read_lines(state.audit_database, after):
        yield parse_entry(line)


def build_tail_report(entries: Sequence[LogEntry]) -> Report:
    """Return the report of ``pinwarden audit tail``."""
    return Report(
        command="audit tail",
        subject="the audit log",
        summary=plural(len(entries), "event"),
        exit_code=EXIT_CLEAN,
        facts={"entries": [entry_to_json(entry) for entry in entries]},
    )


def export_entries(state: GatewayState, write: Callable[[bytes], object], after: int = 0) -> AuditHead:
    """Write the entries after a number, one per line, exactly as they are stored.

    Returns the head of the written entries; `EMPTY_HEAD` if there are none.
    """
    head = EMPTY_HEAD
    for number, line in audit_chain.read_lines(state.audit_database, after):
        write(line + b"\n")
        head = AuditHead(number=number, hash=hash_entry(line))
    return head


def build_export_report(subject: str, after: int, head: AuditHead) -> Report:
    """Return the report of ``pinwarden audit export``."""
    count = max(0, head.number - after)
    return Report(
        command="audit export",
        subject=subject,
        summary=f"head {head}" if count or not after else f"no events after {after}",
        exit_code=EXIT_CLEAN,
        facts={"file": subject, "entries": count, "head": {"number": head.number, "hash": head.hash}},
    )


def entry_to_json(entry: LogEntry) -> dict[str, Any]:
    """Return an entry as JSON."""
    return {
        "number": entry.number,
        "at": entry.at,
        "gateway": entry.gateway,
        "source": entry.source,
        "nth": entry.nth,
        "fact": event_to_json(entry.event),
    }


def _select_entries(entries: Iterator[LogEntry], count: int, selected: EntryFilter) -> Iterator[LogEntry]:
    for entry in entries:
        if count <= 0:
            return
        if selected.matches(entry):
            count -= 1
            yield entry


def _start_verifier(line: bytes, heads: Sequence[AuditHead]) -> tuple[ChainVerifier, int]:
    """Return a verifier for an export, which may begin anywhere in the chain, and the number of its first entry."""
    try:
        first = parse_entry(line)
    except PinwardenError:
        return ChainVerifier(heads), 1
    previous = AuditHead(number=first.number - 1, hash=first.previous)
    for head in heads:
        if head.number < previous.number:
            raise PinwardenError(
                "AUDIT_NOT_COVERED",
                f"the head {head.number} cannot be checked, because this file begins with entry {first.number}",
                hint=f"Verify the log itself, or an export that begins with entry {head.number + 1} or earlier.",
            )
    return ChainVerifier(heads, start=previous), first.number


def _read_lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as stream:
        while line := stream.readline(_MAX_LINE):
            if not line.endswith(b"\n"):
                raise PinwardenError("AUDIT_INVALID", f"{path} ends with an incomplete entry")
            yield line[:-1]


def _build_verification_report(
    subject: str, outcome: ChainResult, heads: Sequence[AuditHead], start: AuditHead = EMPTY_HEAD
) -> Report:
    rows = tuple(
        Row(
            code=problem.code,
            severity="critical",
            entity="entry",
            name=str(problem.number),
            path="",
            message=f"{problem.message}.",
        )
        for problem in outcome.breaks
    )
    notes = () if heads or rows else (_NO_HEAD,)
    if start != EMPTY_HEAD:
        notes = (f"the entries up to {start.number} were archived; --against FILE verifies an archive too", *notes)
    verdict = "the log was changed" if rows else "complete and unchanged"
    return Report(
        command="audit verify",
        subject=subject,
        summary=f"{plural(outcome.entries, 'event')}, {verdict}; head {outcome.head}",
        exit_code=EXIT_REFUSED if rows else EXIT_CLEAN,
        rows=rows,
        notes=notes,
        facts={
            "ok": not rows,
            "entries": outcome.entries,
            "head": {"number": outcome.head.number, "hash": outcome.head.hash},
            "breaks": [
                {"number": problem.number, "code": problem.code, "message": problem.message}
                for problem in outcome.breaks
            ],
            "heads_checked": len(heads),
        },
        rule_texts=MESSAGES,
    )


_NO_HEAD = (
    "without --head, removed events at the end of the log cannot be detected; keep the head printed here outside the "
    "log and pass it the next time"
)
