"""Moves the oldest entries of the audit log into a file, so that the database stays small.

1. Verify the entries that are older than a given time. A log that was changed is not archived.
2. Write them into a new file, exactly as they are stored.
3. Record in the log which entries were archived, and the digest of the file.
4. Delete them from the database, and store the head of the archive, from which the chain continues.

If the process is killed in between, no entry is lost: the next run archives again what is still in the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.gateway.audit.chain import delete_archived, read_head, read_lines, read_start
from pinwarden.gateway.audit.event import (
    ARCHIVED,
    AuditEvent,
    AuditHead,
    ChainVerifier,
    parse_entry,
)
from pinwarden.gateway.state import GatewayState
from pinwarden.project.lock import Approver
from pinwarden.system.database import Database
from pinwarden.system.files import open_new_file

_DELETED_AT_ONCE = 20_000  # entries in one transaction, during which gateways cannot write


class ArchivePlan(Record):
    """The entries to archive."""

    first: int
    head: AuditHead
    """The number and hash of the last one."""
    counts: tuple[tuple[str, int], ...]
    """For each gateway run, the number of its last archived event."""


def archive_entries(state: GatewayState, before: str, folder: Path, approver: Approver) -> Report:
    """Archive the entries from before a timestamp in a new file of the folder. The newest entry always stays."""
    database = state.audit_database
    plan = _plan_archive(database, before)
    if plan is None:
        return _build_report("nothing to archive: no entry is old enough", None, "", "")
    name = f"audit-{plan.first}-{plan.head.number}.jsonl"
    digest = sha256()
    with open_new_file(folder / name) as stream:
        for line in _read_until(database, plan):
            stream.write(line + b"\n")
            digest.update(line + b"\n")
    event = AuditEvent(
        kind=ARCHIVED,
        call=str(plan.head),
        item_kind="archive",
        item=name,
        observed=f"sha256:{digest.hexdigest()}",
        reason=f"entries {plan.first} to {plan.head.number} were archived"
        + (f": {approver.why}" if approver.why else ""),
        by=approver.by,
    )
    with state.open_audit_log() as log:
        log.record_durably(event)
    delete_archived(database, plan.head, dict(plan.counts), _DELETED_AT_ONCE)
    count = plan.head.number - plan.first + 1
    return _build_report(f"{plural(count, 'entry', 'entries')} archived in {folder / name}", plan, name, event.observed)


def _plan_archive(database: Database, before: str) -> ArchivePlan | None:
    """Verify the entries from before a timestamp, and return them. None if there are none."""
    newest = read_head(database).number
    start, counts = read_start(database)
    verifier = ChainVerifier(start=start, counts=counts)
    head: AuditHead | None = None
    for number, line in read_lines(database):
        if number >= newest or parse_entry(line).at >= before:
            break
        head = verifier.check_entry(number, line)
    outcome = verifier.finish()
    if outcome.breaks:
        raise PinwardenError(
            "AUDIT_TAMPERED",
            f"the audit log was not archived, because it was changed: {outcome.breaks[0].message}",
            hint="Run: pinwarden audit verify",
        )
    if head is None:
        return None
    return ArchivePlan(first=start.number + 1, head=head, counts=tuple(sorted(verifier.counts.items())))


def _read_until(database: Database, plan: ArchivePlan) -> Iterator[bytes]:
    for number, line in read_lines(database):
        if number > plan.head.number:
            return
        yield line


def _build_report(summary: str, plan: ArchivePlan | None, name: str, digest: str) -> Report:
    facts = {
        "file": name or None,
        "digest": digest or None,
        "entries": 0 if plan is None else plan.head.number - plan.first + 1,
        "head": None if plan is None else {"number": plan.head.number, "hash": plan.head.hash},
    }
    return Report(command="audit archive", subject="the audit log", summary=summary, exit_code=EXIT_CLEAN, facts=facts)
