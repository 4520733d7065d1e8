"""The audit log as a gateway uses it: recording takes microseconds, and a thread writes to the database.

1. `AuditLog.record` appends events to a journal file and returns. A killed process loses none.
2. A thread writes the journal's events to the hash chain in the database, many in one commit.
3. `AuditLog.record_durably` returns when the events are committed. The gateway uses it before it answers a refusal.

While the database is unavailable, events wait in the journal and reach the chain later, in order. Meanwhile `record`
raises with ``when_unavailable="refuse"``, so that no message passes unrecorded; with ``"spool"`` it continues until the
journal is full. Refusals are recorded in either case.
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
from pinwarden.gateway.audit.event import SPOOLED, AuditEvent
from pinwarden.gateway.audit.journal import (
    CALL,
    CHECKSUM_MASK,
    STEP,
    TEXT_CALL,
    WORD,
    Journal,
    JournalPosition,
    open_abandoned,
    pack,
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

    gather: float = 0.05
    """Seconds in which events are collected for one commit."""
    batch: int = 1 << 20
    """Bytes of the journal in one commit, which are in memory at once."""
    backlog: int = 16 << 20
    """Bytes in the journal above which `record` waits for the database."""
    journal: int = 256 << 20
    """Bytes in the journal while the database is unavailable, about a million events. Beyond that `record` raises."""
    wait: float = 5.0
    """Seconds to wait for a commit. After that, the journal is synced instead, which is as durable."""
    retry: float = 0.2
    """Seconds between attempts to reach the database, doubled up to `longest_retry`."""
    longest_retry: float = 5.0


class AuditLog:
    """Records events. Thread-safe; one per process.

    ``url`` is the database, and ``folder`` contains the journals. The database is opened on the log's thread, so that a
    gateway starts without waiting for it.
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
        self._refuses = when_unavailable == "refuse"
        self.source = os.urandom(12).hex()
        """Identifies this run in the chain."""
        step = min(STEP, max(1, limits.batch // 8))
        self._journal = Journal.create(folder, gateway or _host_name(), self.source, step)
        self._lock = threading.Lock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._templates: dict[int, int] = {}
        """By the ``id()`` of a template, the first word of its calls in the journal."""
        self._fast_until = 0
        """The journal size up to which `note` needs no checks; 0 if it needs them now."""
        self._changed = threading.Condition(self._lock)
        """Notified after every commit and failure."""
        self._done = self._journal.start
        """The database has all events up to here."""
        self._open_count = 0
        """How often the database was opened when `_done` was set."""
        self._failure: PinwardenError | None = None
        self._tried = False
        self._stuck = False
        """Whether a commit timed out: the database neither responds nor fails. Later callers do not wait."""
        self._closing = False
        self._reported_damage = False
        self._asleep = False
        """Whether the thread waits for events."""
        self._work = threading.Event()
        self._urgent = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> PinwardenError | None:
        """Why events cannot be written to the database now; None if they can."""
        return self._failure

    @property
    def refusal(self) -> PinwardenError | None:
        """Why `record` would raise now; None if it would not."""
        if self._refuses:
            stuck = PinwardenError("DATABASE_UNAVAILABLE", "the database does not respond") if self._stuck else None
            return self._failure or stuck
        if self._failure is not None and self._journal.size > self._limits.journal:
            return PinwardenError("AUDIT_UNAVAILABLE", "the journal of the audit log is full")
        return None

    @property
    def waiting(self) -> int:
        """The number of events that the database does not have yet."""
        return self._journal.count - self._done.nth

    def record(self, *events: AuditEvent) -> None:
        """Record events before their message is forwarded. ``AUDIT_UNAVAILABLE`` if it must not be forwarded."""
        now = time_ns()
        packed = [pack(now, event) for event in events]
        with self._lock:
            self._admit()
            self._journal.append(packed)
            self._update_fast_path()
        if not self._work.is_set():
            self._work.set()

    def note(self, template: AuditEvent, request_id: int | str) -> None:
        """Record a call. Its event is ``template`` with the request id appended to ``call``.

        The call waits for this, so the code is inlined: up to the size `_fast_until` the checks of `record` are known
        to pass, and `Journal.add_call` only copies into the map.
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
                if self._asleep:
                    self._work.set()
                return
        except ValueError:
            pass  # an integer above 64 bits, or a string that does not fit
        finally:
            self._release()
        self.note_all([(template, request_id)])

    def note_all(self, notes: Sequence[tuple[AuditEvent, int | str]]) -> None:
        """Record several calls, all or none."""
        now = time_ns()
        with self._lock:
            self._admit()
            journal = self._journal
            words = [self._template_word(template) for template, _ in notes]
            texts = {
                index: pack_text_call(words[index], str(request_id), now)
                for index, (_, request_id) in enumerate(notes)
                if type(request_id) is not int or not 0 <= request_id <= _MAX_WORD
            }
            journal.ensure_capacity(len(notes) * CALL + sum(map(len, texts.values())))
            for index, ((_, request_id), word) in enumerate(zip(notes, words, strict=True)):
                if index in texts:
                    journal.add_text_call(texts[index])
                else:
                    journal.add_call(word, int(request_id), now)
            self._update_fast_path()
        self._work.set()

    def _template_word(self, template: AuditEvent) -> int:
        """The first word of calls of a template. The journal keeps the template alive, so its ``id()`` stays unique."""
        word = self._templates.get(id(template))
        if word is None:
            word = self._templates[id(template)] = self._journal.add_template(template)
        return word

    def _admit(self) -> None:
        """Wait until an event can be recorded, or raise."""
        if self._refuses and (self._failure is not None or self._stuck or not self._tried):
            self._refuse_if_unavailable()
        if self._journal.size > self._limits.backlog:
            self._wait_for_capacity()

    def _update_fast_path(self) -> None:
        """Update the journal size up to which `note` may skip the checks."""
        is_available = self._tried and self._failure is None and not self._stuck and not self._closing
        limit = min(self._journal.capacity, self._limits.backlog) - CALL
        self._fast_until = limit if is_available or not self._refuses else 0

    def admit(self) -> None:
        """Raise ``AUDIT_UNAVAILABLE`` if no message may be forwarded now."""
        with self._lock:
            self._admit()

    def record_durably(self, *events: AuditEvent) -> None:
        """Record events, and return when they would survive a power cut: committed, or synced to the journal."""
        now = time_ns()
        packed = [pack(now, event) for event in events]
        with self._lock:
            if self._journal.size > self._limits.backlog:
                self._wait_for_capacity()
            last = self._journal.append(packed)
            self._urgent.set()
            self._work.set()
            in_time = self._changed.wait_for(
                lambda: self._done.nth >= last or self._failure is not None or self._stuck or self._closing,
                self._limits.wait,
            )
            if self._done.nth < last:
                self._stuck = self._stuck or not in_time
                self._journal.sync()
            self._update_fast_path()

    def close(self) -> None:
        """Write all events to the database and stop. If that fails, they stay in the journal for the next process."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._fast_until = 0
        self._urgent.set()
        self._work.set()
        self._thread.join(self._limits.wait * 2)
        if self._thread.is_alive():  # the database hangs; the system closes the file when the process ends
            with self._lock:
                self._journal.sync()
            return
        with self._lock:  # a late event is either in the journal that stays, or refused
            complete = self._done.nth == self._journal.count
            if not complete:
                self._journal.sync()
            self._journal.close(remove=complete)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_if_unavailable(self) -> None:
        self._changed.wait_for(lambda: self._tried, self._limits.wait)
        if self._failure is not None or self._stuck or not self._tried:
            reason = "the database does not respond" if self._failure is None else self._failure.message
            raise PinwardenError("AUDIT_UNAVAILABLE", f"the audit log cannot be written: {reason}")

    def _wait_for_capacity(self) -> None:
        """Wait for the database if it is only slow. While it is unavailable, the journal may grow up to its limit."""
        backlog = self._limits.backlog
        if self._failure is None:
            self._urgent.set()
            self._changed.wait_for(
                lambda: self._journal.size <= backlog or self._failure is not None, self._limits.wait
            )
        if self._journal.size > (backlog if self._failure is None else self._limits.journal):
            raise PinwardenError("AUDIT_UNAVAILABLE", "the journal of the audit log is full")

    # On the thread

    def _run(self) -> None:
        from pinwarden.gateway.audit.chain import audit_schema
        from pinwarden.system.database import open_database

        database = open_database(self._url, audit_schema())
        try:
            self._serve(database)
        finally:
            database.close()

    def _serve(self, database: Database) -> None:
        pause = self._limits.retry
        while True:
            try:
                if not self._tried or self._failure is not None:
                    self._recover(database)
                self._drain(database)
            except Exception as err:  # noqa: BLE001 - the thread must survive: without it nothing is logged
                self._report(_as_pinwarden_error(err))
                if self._closing:
                    return
                self._urgent.clear()
                self._urgent.wait(pause)
                pause = min(pause * 2, self._limits.longest_retry)
                continue
            pause = self._limits.retry
            self._report(None)
            if self._closing and self.waiting == 0:
                return
            self._sleep()
            self._urgent.wait(self._limits.gather)
            self._urgent.clear()

    def _sleep(self) -> None:
        """Wait for events. `note` sets `_work` only while this thread is asleep."""
        with self._lock:
            self._asleep = self.waiting == 0
        if self._asleep:
            self._work.wait()
            self._asleep = False
        self._work.clear()

    def _recover(self, database: Database) -> None:
        """Write the journals of killed gateways to the database. A damaged one is reported in the log, and stays.

        Without journals this does not contact the database, unless the log refuses events while the database is
        unavailable: then the database must answer a query first.
        """
        if self._refuses:
            database.row("SELECT 1")
        try:
            recover(database, self._folder)
        except PinwardenError as err:
            if err.code != "AUDIT_TAMPERED":
                raise
            if not self._reported_damage:
                self._reported_damage = True
                damage = AuditEvent(kind=SPOOLED, code="journal_damaged", reason=err.message)
                with self._lock:
                    self._journal.append([pack(time_ns(), damage)])
                    self._update_fast_path()

    def _drain(self, database: Database) -> None:
        from pinwarden.gateway.audit.chain import append

        while True:
            open_count = database.open_count()
            with self._lock:
                if open_count != self._open_count:
                    # The reopened database may be another one, without the events of this journal.
                    self._open_count, self._done = open_count, self._journal.start
                since, until = self._done, self._journal.end
            if since.nth == until.nth:
                return
            batch, position = self._journal.read(since, until, self._limits.batch)
            append(database, batch, until.nth)
            self._committed(position)
            if self._journal.size <= self._limits.batch:
                return  # the next commit takes events that arrived meanwhile

    def _committed(self, position: JournalPosition) -> None:
        with self._changed:
            self._done = position
            if position.nth == self._journal.count and position.offset > self._limits.batch:
                with suppress(PinwardenError):  # the next commit tries again
                    self._journal.reset()
                    self._templates.clear()
                    self._done = self._journal.start
            self._failure = None
            self._stuck = False
            self._tried = True
            self._update_fast_path()
            self._changed.notify_all()

    def _report(self, failure: PinwardenError | None) -> None:
        with self._changed:
            self._failure = failure
            self._stuck = False
            self._tried = True
            self._update_fast_path()
            self._changed.notify_all()


def recover(database: Database, folder: Path) -> int:
    """Write the journals of killed gateways to the database, oldest first. Returns how many there were.

    For a damaged journal, the events before the damage are written; ``AUDIT_TAMPERED`` is raised after all journals.
    """
    count = 0
    damaged: PinwardenError | None = None
    for path in _journals_in(folder):
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
    from pinwarden.gateway.audit.chain import append

    with open_abandoned(path) as journal:
        if journal is None:
            return False
        position = journal.start
        while position.nth < journal.end.nth:
            batch, position = journal.read(position, journal.end, AuditLimits().batch)
            append(database, batch)
        if journal.damaged:
            raise journal.tampered(journal.count)
        path.unlink(missing_ok=True)
        return True


def _journals_in(folder: Path) -> list[Path]:
    """The journals in a folder, the oldest first. Removes files of gateways that were killed while creating one."""
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


def _as_pinwarden_error(err: Exception) -> PinwardenError:
    return (
        err if isinstance(err, PinwardenError) else PinwardenError("AUDIT_UNAVAILABLE", f"{type(err).__name__}: {err}")
    )


def _host_name() -> str:
    from platform import node

    return node()[:64]
