"""Records audit events: first in a journal file, which takes microseconds; then in the database, on a thread.

1. `AuditLog.record` appends events to a journal file and returns. A killed process loses no events.
2. A thread writes the journal's events to the hash chain in the database, many in one commit.
3. `AuditLog.record_durably` returns when the events are committed. The gateway calls it before it sends a refusal.

While the database is unavailable, events wait in the journal and reach the chain later, in order. With
``when_unavailable="refuse"``, `record` raises in that time, so that the gateway forwards nothing. With ``"spool"``, it
records until the journal is full. `record_durably` does so in either case.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Literal, Self
from zlib import adler32

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.audit.event import EVENTS_LOST, AuditEvent
from pinwarden.gateway.audit.journal import (
    CALL,
    CHECKSUM_MASK,
    STEP,
    TEXT_CALL,
    WORD,
    Journal,
    JournalPosition,
    open_abandoned_journal,
    pack_event,
    pack_text_call,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinwarden.system.database import Database

WhenUnavailable = Literal["refuse", "spool"]
_MAX_WORD = 2**64 - 1
_pack_call_start = TEXT_CALL.pack


class AuditLimits(Record):
    """Limits of the log, in seconds and bytes."""

    gather_seconds: float = 0.05
    """How many seconds the thread collects events for one commit."""
    batch_bytes: int = 1 << 20
    """Maximum size of one commit, which the thread builds in memory."""
    max_backlog_bytes: int = 16 << 20
    """Size of the journal above which `record` waits for the database."""
    max_journal_bytes: int = 256 << 20
    """Size of the journal above which `record` raises while the database is unavailable: about a million events."""
    commit_seconds: float = 5.0
    """Seconds to wait for a commit. After that time, the journal is synced to disk instead, which is as durable."""
    retry_seconds: float = 0.2
    """Seconds between attempts to reach the database. Doubled after each failure, up to ``max_retry_seconds``."""
    max_retry_seconds: float = 5.0


class AuditLog:
    """Records events. Thread-safe; one per process.

    ``url`` is the database, and ``folder`` contains the journals. The database is opened on the log's thread, so that a
    gateway starts without waiting for the database.
    """

    def __init__(
        self,
        url: str | Path,
        folder: Path,
        *,
        gateway: str = "",
        when_unavailable: WhenUnavailable = "refuse",
        limits: AuditLimits = AuditLimits(),  # noqa: B008 - records do not change
    ) -> None:
        self._url = url
        self._folder = folder
        self._limits = limits
        self._refuses_when_unavailable = when_unavailable == "refuse"
        self.source = os.urandom(12).hex()
        """Identifies this run in the chain."""
        step = min(STEP, max(1, limits.batch_bytes // 8))
        self._journal = Journal.create(folder, gateway or _read_host_name(), self.source, step)
        self._lock = threading.Lock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._templates: dict[int, int] = {}
        """The first word of call records in the journal, by the ``id()`` of their template."""
        self._fast_until = 0
        """The journal size up to which `record_call` may skip its checks; 0 if it must make them."""
        self._changed = threading.Condition(self._lock)
        """The condition that the thread notifies after every commit and every failure."""
        self._committed_end = self._journal.start
        """The journal position up to which the database has all events."""
        self._open_count = 0
        """How often the database had been opened when ``_committed_end`` was set."""
        self._failure: PinwardenError | None = None
        self._was_tried = False
        self._is_stuck = False
        """Whether a commit timed out because the database does not respond. Later callers do not wait for commits."""
        self._is_closing = False
        self._reported_damage = False
        self._is_asleep = False
        """Whether the thread waits for events."""
        self._has_events = threading.Event()
        self._is_urgent = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> PinwardenError | None:
        """Why events cannot be written to the database now; None if they can."""
        return self._failure

    @property
    def refusal(self) -> PinwardenError | None:
        """Why `record` would raise now; None if it would not."""
        if self._refuses_when_unavailable:
            stuck = PinwardenError("DATABASE_UNAVAILABLE", "the database does not respond") if self._is_stuck else None
            return self._failure or stuck
        if self._failure is not None and self._journal.size > self._limits.max_journal_bytes:
            return PinwardenError("AUDIT_UNAVAILABLE", "the journal of the audit log is full")
        return None

    @property
    def waiting_count(self) -> int:
        """The number of events that the database does not have yet."""
        return self._journal.count - self._committed_end.nth

    def record(self, *events: AuditEvent) -> None:
        """Record the events of a message. Raises ``AUDIT_UNAVAILABLE`` if the message must not be forwarded."""
        now = time_ns()
        packed = [pack_event(now, event) for event in events]
        with self._lock:
            self._wait_until_available()
            self._journal.append(packed)
            self._update_fast_path()
        if not self._has_events.is_set():
            self._has_events.set()

    def record_call(self, template: AuditEvent, request_id: int | str) -> None:
        """Record a call. The recorded event is ``template`` with the request id appended to ``call``.

        Recording delays the call, so the code is inlined: up to the journal size ``_fast_until``, the checks of
        `record` are known to pass, and adding a call only copies words into the map (`Journal.add_call`).
        """
        self._acquire()  # a with statement takes three times as long
        try:
            word = self._templates.get(id(template))
            journal = self._journal
            size = journal.size
            if word is not None and size < self._fast_until:
                at = time_ns()
                words, index = journal.words, size >> 3
                if type(request_id) is int:
                    words[index + 1] = request_id
                    words[index + 2] = at
                    journal.checksum = checksum = (journal.checksum + request_id + at) & CHECKSUM_MASK
                    words[index] = word | checksum
                    journal.size = size + CALL
                elif type(request_id) is str:
                    data = _pack_call_start(b"@", word, at) + request_id.encode()
                    start, end = size + WORD, size + WORD + len(data)
                    if end >= self._fast_until:
                        raise ValueError
                    journal.map[start:end] = data  # type: ignore[index]
                    journal.checksum = checksum = (journal.checksum + adler32(data)) & CHECKSUM_MASK
                    words[index] = len(data) << 32 | checksum
                    journal.size = end + WORD - 1 & -WORD
                else:
                    raise ValueError
                journal.count += 1
                if self._is_asleep:
                    self._has_events.set()
                return
        except ValueError:
            pass  # an integer above 64 bits, or a string that does not fit
        finally:
            self._release()
        self.record_calls([(template, request_id)])

    def record_calls(self, calls: Sequence[tuple[AuditEvent, int | str]]) -> None:
        """Record several calls, all or none."""
        now = time_ns()
        with self._lock:
            self._wait_until_available()
            journal = self._journal
            words = [self._get_template_word(template) for template, _ in calls]
            texts = {
                index: pack_text_call(words[index], str(request_id), now)
                for index, (_, request_id) in enumerate(calls)
                if type(request_id) is not int or not 0 <= request_id <= _MAX_WORD
            }
            journal.ensure_capacity(len(calls) * CALL + sum(map(len, texts.values())))
            for index, ((_, request_id), word) in enumerate(zip(calls, words, strict=True)):
                if index in texts:
                    journal.add_text_call(texts[index])
                else:
                    journal.add_call(word, int(request_id), now)
            self._update_fast_path()
        self._has_events.set()

    def _get_template_word(self, template: AuditEvent) -> int:
        """Return the first word of a template's call records in the journal.

        The journal keeps the template alive, so its ``id()`` stays unique.
        """
        word = self._templates.get(id(template))
        if word is None:
            word = self._templates[id(template)] = self._journal.add_template(template)
        return word

    def _wait_until_available(self) -> None:
        """Wait until an event can be recorded, or raise."""
        if self._refuses_when_unavailable and (self._failure is not None or self._is_stuck or not self._was_tried):
            self._refuse_if_unavailable()
        if self._journal.size > self._limits.max_backlog_bytes:
            self._wait_for_capacity()

    def _update_fast_path(self) -> None:
        """Update the journal size up to which `record_call` may skip the checks."""
        is_available = self._was_tried and self._failure is None and not self._is_stuck and not self._is_closing
        limit = min(self._journal.capacity, self._limits.max_backlog_bytes) - CALL
        self._fast_until = limit if is_available or not self._refuses_when_unavailable else 0

    def check_available(self) -> None:
        """Raise ``AUDIT_UNAVAILABLE`` if no message may be forwarded now."""
        with self._lock:
            self._wait_until_available()

    def record_durably(self, *events: AuditEvent) -> None:
        """Record events, and return when they would survive a power cut: committed, or synced to the journal."""
        now = time_ns()
        packed = [pack_event(now, event) for event in events]
        with self._lock:
            if self._journal.size > self._limits.max_backlog_bytes:
                self._wait_for_capacity()
            last = self._journal.append(packed)
            self._is_urgent.set()
            self._has_events.set()
            in_time = self._changed.wait_for(
                lambda: (
                    self._committed_end.nth >= last or self._failure is not None or self._is_stuck or self._is_closing
                ),
                self._limits.commit_seconds,
            )
            if self._committed_end.nth < last:
                self._is_stuck = self._is_stuck or not in_time
                self._journal.sync()
            self._update_fast_path()

    def close(self) -> None:
        """Write all events to the database and stop. Events that cannot be written stay in the journal."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
            self._fast_until = 0
        self._is_urgent.set()
        self._has_events.set()
        self._thread.join(self._limits.commit_seconds * 2)
        if self._thread.is_alive():  # the database hangs; the operating system closes the journal when the process ends
            with self._lock:
                self._journal.sync()
            return
        with self._lock:  # an event that is recorded now stays in the journal, or is refused
            complete = self._committed_end.nth == self._journal.count
            if not complete:
                self._journal.sync()
            self._journal.close(remove=complete)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_if_unavailable(self) -> None:
        self._changed.wait_for(lambda: self._was_tried, self._limits.commit_seconds)
        if self._failure is not None or self._is_stuck or not self._was_tried:
            reason = "the database does not respond" if self._failure is None else self._failure.message
            raise PinwardenError("AUDIT_UNAVAILABLE", f"the audit log cannot be written: {reason}")

    def _wait_for_capacity(self) -> None:
        """Wait until the database has caught up. While it is unavailable, the journal may grow up to its limit."""
        backlog = self._limits.max_backlog_bytes
        if self._failure is None:
            self._is_urgent.set()
            self._changed.wait_for(
                lambda: self._journal.size <= backlog or self._failure is not None, self._limits.commit_seconds
            )
        if self._journal.size > (backlog if self._failure is None else self._limits.max_journal_bytes):
            raise PinwardenError("AUDIT_UNAVAILABLE", "the journal of the audit log is full")

    # On the thread

    def _run(self) -> None:
        from pinwarden.gateway.audit.chain import load_audit_schema
        from pinwarden.system.database import open_database

        database = open_database(self._url, load_audit_schema())
        try:
            self._write_until_closed(database)
        finally:
            database.close()

    def _write_until_closed(self, database: Database) -> None:
        pause = self._limits.retry_seconds
        while True:
            try:
                if not self._was_tried or self._failure is not None:
                    self._recover_abandoned_journals(database)
                self._write_events(database)
            except Exception as err:  # noqa: BLE001 - the thread must survive, or the log stops
                self._set_failure(_to_pinwarden_error(err))
                if self._is_closing:
                    return
                self._is_urgent.clear()
                self._is_urgent.wait(pause)
                pause = min(pause * 2, self._limits.max_retry_seconds)
                continue
            pause = self._limits.retry_seconds
            self._set_failure(None)
            if self._is_closing and self.waiting_count == 0:
                return
            self._wait_for_events()
            self._is_urgent.wait(self._limits.gather_seconds)
            self._is_urgent.clear()

    def _wait_for_events(self) -> None:
        """Wait for events. `record_call` sets `_has_events` only while this thread is asleep."""
        with self._lock:
            self._is_asleep = self.waiting_count == 0
        if self._is_asleep:
            self._has_events.wait()
            self._is_asleep = False
        self._has_events.clear()

    def _recover_abandoned_journals(self, database: Database) -> None:
        """Write the journals of killed gateways to the database. A damaged journal is kept, and the log records it.

        If the log refuses events while the database is unavailable, the database must respond to a query first.
        Otherwise, the database is contacted only if there are journals.
        """
        if self._refuses_when_unavailable:
            database.row("SELECT 1")
        try:
            recover_journals(database, self._folder)
        except PinwardenError as err:
            if err.code != "AUDIT_TAMPERED":
                raise
            if not self._reported_damage:
                self._reported_damage = True
                damage = AuditEvent(kind=EVENTS_LOST, code="journal_damaged", reason=err.message)
                with self._lock:
                    self._journal.append([pack_event(time_ns(), damage)])
                    self._update_fast_path()

    def _write_events(self, database: Database) -> None:
        from pinwarden.gateway.audit.chain import append_events

        while True:
            open_count = database.open_count()
            with self._lock:
                if open_count != self._open_count:
                    # The reopened database may be another one, without the events of this journal.
                    self._open_count, self._committed_end = open_count, self._journal.start
                since, until = self._committed_end, self._journal.end
            if since.nth == until.nth:
                return
            batch, position = self._journal.read(since, until, self._limits.batch_bytes)
            append_events(database, batch, until.nth)
            self._on_committed(position)
            if self._journal.size <= self._limits.batch_bytes:
                return  # events that arrived meanwhile are written with the next commit

    def _on_committed(self, position: JournalPosition) -> None:
        with self._changed:
            self._committed_end = position
            if position.nth == self._journal.count and position.offset > self._limits.batch_bytes:
                with suppress(PinwardenError):  # the next commit tries again
                    self._journal.reset()
                    self._templates.clear()
                    self._committed_end = self._journal.start
            self._failure = None
            self._is_stuck = False
            self._was_tried = True
            self._update_fast_path()
            self._changed.notify_all()

    def _set_failure(self, failure: PinwardenError | None) -> None:
        with self._changed:
            self._failure = failure
            self._is_stuck = False
            self._was_tried = True
            self._update_fast_path()
            self._changed.notify_all()


def recover_journals(database: Database, folder: Path) -> int:
    """Write the journals of killed gateways to the database, the oldest first. Returns the number of journals.

    If a journal is damaged, writes its events before the damage, continues with the next journal, and raises
    ``AUDIT_TAMPERED`` at the end.
    """
    count = 0
    damaged: PinwardenError | None = None
    for path in _list_journals(folder):
        try:
            count += _recover_journal(database, path)
        except PinwardenError as err:
            if err.code != "AUDIT_TAMPERED":
                raise
            damaged = damaged or err
    if damaged is not None:
        raise damaged
    return count


def _recover_journal(database: Database, path: Path) -> bool:
    from pinwarden.gateway.audit.chain import append_events

    with open_abandoned_journal(path) as journal:
        if journal is None:
            return False
        position = journal.start
        while position.nth < journal.end.nth:
            batch, position = journal.read(position, journal.end, AuditLimits().batch_bytes)
            append_events(database, batch)
        if journal.damaged:
            raise journal.build_tampered_error(journal.count)
        path.unlink(missing_ok=True)
        return True


def _list_journals(folder: Path) -> list[Path]:
    """Return the journals in a folder, the oldest first.

    Removes files of gateways that were killed while creating one.
    """
    journals: list[tuple[int, Path]] = []
    for path in (*folder.glob("*.journal"), *folder.glob("*.new")):
        with suppress(OSError):  # another process recovered it
            age = path.stat().st_mtime_ns
            if path.suffix == ".journal":
                journals.append((age, path))
            elif time_ns() - age > _UNFINISHED_AGE:
                path.unlink()
    return [path for _, path in sorted(journals)]


_UNFINISHED_AGE = 3600 * 10**9  # nanoseconds; creating a journal takes less than a second


def _to_pinwarden_error(err: Exception) -> PinwardenError:
    return (
        err if isinstance(err, PinwardenError) else PinwardenError("AUDIT_UNAVAILABLE", f"{type(err).__name__}: {err}")
    )


def _read_host_name() -> str:
    from platform import node

    return node()[:64]
