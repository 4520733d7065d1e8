"""The audit log as a gateway uses it: events go in at the cost of microseconds, and into the chain on another thread.

1. `AuditLog.record` appends to a journal on this machine, and returns. A killed process loses nothing.
2. A thread of its own takes what is in the journal to the database, many events in one commit.
3. `AuditLog.record_durably` returns when the event is committed. A refusal is recorded so before it is answered.

While the database is away, events wait in the journal and reach the chain in their order when it is back. What the
gateway may do meanwhile is a choice: with ``when_away="refuse"`` `record` raises, so that nothing passes that the log
does not have; with ``"spool"`` it goes on until the journal is full. Refusals are recorded in either case.
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
    STEP,
    SUM,
    TEXT_CALL,
    WORD,
    Journal,
    JournalPosition,
    left_behind,
    pack,
    text_call,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinwarden.system.database import Database

WhenAway = Literal["refuse", "spool"]
_LARGEST = 2**64 - 1  # request id that is a word of the journal
_pack_text_call = TEXT_CALL.pack


class AuditLimits(Record):
    """How much, how long, and why."""

    gather: float = 0.05
    """Seconds in which events are gathered for one commit: a call pays for none, and a reader sees them at once."""
    batch: int = 1 << 20
    """Bytes of the journal that become one commit: what the log holds in memory."""
    backlog: int = 16 << 20
    """Bytes that may wait for a database that is there; then `record` waits for it."""
    journal: int = 256 << 20
    """Bytes that may wait for one that is away; about a million events. Then even "spool" refuses."""
    wait: float = 5.0
    """Seconds that anyone waits for a commit; then the journal is synced instead, which is as durable."""
    retry: float = 0.2
    """Seconds between attempts to reach a database that is away, doubled up to `longest_retry`."""
    longest_retry: float = 5.0


class AuditLog:
    """Takes facts from any thread. One for each process.

    ``url`` is that of the database; journals are kept in ``folder``. The database is opened on the log's own thread,
    so that a gateway starts without waiting for it.
    """

    def __init__(
        self,
        url: str | Path,
        folder: Path,
        *,
        gateway: str = "",
        when_away: WhenAway = "refuse",
        limits: AuditLimits = AuditLimits(),  # noqa: B008 - records do not change
    ) -> None:
        self._url = url
        self._folder = folder
        self._limits = limits
        self._refuses = when_away == "refuse"
        self.source = os.urandom(12).hex()
        """Names this run in the entries of the chain."""
        step = min(STEP, max(1, limits.batch // 8))
        self._journal = Journal.create(folder, gateway or _machine(), self.source, step)
        self._lock = threading.Lock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._forms: dict[int, int] = {}
        """By the address of a form, its number in the journal."""
        self._free = 0
        """Up to which size of the journal events are taken without a further look; 0 if a look is due."""
        self._changed = threading.Condition(self._lock)
        """Told to those who wait for a commit."""
        self._done = self._journal.start
        """What the database has."""
        self._opened = 0
        """How often it was opened."""
        self._away: PinwardenError | None = None
        self._tried = False
        self._stuck = False
        """Somebody waited in vain for a commit: the database neither answers nor fails. The next do not wait."""
        self._closing = False
        self._told_damage = False
        self._asleep = False
        """The thread waits for events."""
        self._work = threading.Event()
        self._urgent = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> PinwardenError | None:
        """Why the database does not take events now; None if it does."""
        return self._away

    @property
    def refusal(self) -> PinwardenError | None:
        """Why events are refused now; None if they are taken, if only into the journal."""
        if self._refuses:
            stuck = PinwardenError("DATABASE_UNAVAILABLE", "the database does not answer") if self._stuck else None
            return self._away or stuck
        if self._away is not None and self._journal.size > self._limits.journal:
            return PinwardenError("AUDIT_UNAVAILABLE", "the audit log has no room for more events")
        return None

    @property
    def waiting(self) -> int:
        """How many events the database does not have yet."""
        return self._journal.count - self._done.nth

    def record(self, *facts: AuditEvent) -> None:
        """Take facts about what is let through. Returns at once; raises AUDIT_UNAVAILABLE if it must not pass."""
        now = time_ns()
        packed = [pack(now, fact) for fact in facts]
        with self._lock:
            self._admit()
            self._journal.append(packed)
            self._look()
        if not self._work.is_set():
            self._work.set()

    def note(self, form: AuditEvent, request_id: int | str) -> None:
        """`record` for what is recorded most: a fact that is like others but for its moment and its request id.

        This is done while a call waits, so it is all in one place: what `record` would look at is known to be well up
        to the size `_free`, and what `Journal.append` would do is a copy into its map.
        """
        self._acquire()  # a with statement takes three times as long
        try:
            known = self._forms.get(id(form))
            journal = self._journal
            size = journal.size
            if known is not None and size < self._free:
                at = time_ns()
                words, place = journal.words, size >> 3
                if type(request_id) is int:
                    words[place + 1] = request_id
                    words[place + 2] = at
                    journal.check = check = (journal.check + request_id + at) & SUM
                    words[place] = known | check
                    journal.size = size + CALL
                elif type(request_id) is str:
                    data = _pack_text_call(b"@", known, at) + request_id.encode()
                    start, end = size + WORD, size + WORD + len(data)
                    if end >= self._free:
                        raise ValueError
                    journal.map[start:end] = data  # type: ignore[index]
                    journal.check = check = (journal.check + adler32(data)) & SUM
                    words[place] = len(data) << 32 | check
                    journal.size = end + WORD - 1 & -WORD
                else:
                    raise ValueError
                journal.count += 1
                if self._asleep:
                    self._work.set()
                return
        except ValueError:
            pass  # a number that is no word, or a text for which there is no room
        finally:
            self._release()
        self.note_all([(form, request_id)])

    def note_all(self, notes: Sequence[tuple[AuditEvent, int | str]]) -> None:
        """`note` for several: all of them, or none."""
        now = time_ns()
        with self._lock:
            self._admit()
            journal = self._journal
            known = [self._form(form) for form, _ in notes]
            texts = {
                place: text_call(known[place], str(request_id), now)
                for place, (_, request_id) in enumerate(notes)
                if type(request_id) is not int or not 0 <= request_id <= _LARGEST
            }
            journal.have_room(len(notes) * CALL + sum(map(len, texts.values())))  # of a text: its words, and two more
            for place, ((_, request_id), first) in enumerate(zip(notes, known, strict=True)):
                if place in texts:
                    journal.add_text_call(texts[place])
                else:
                    journal.add_call(first, int(request_id), now)
            self._look()
        self._work.set()

    def _form(self, form: AuditEvent) -> int:
        """By which number the journal has a form. It keeps the form, so that nothing else can be at its address."""
        known = self._forms.get(id(form))
        if known is None:
            known = self._forms[id(form)] = self._journal.add_form(form)
        return known

    def _admit(self) -> None:
        """Raise if an event must not pass, or wait until there is room for it."""
        if self._refuses and (self._away is not None or self._stuck or not self._tried):
            self._refuse_if_away()
        if self._journal.size > self._limits.backlog:
            self._make_room()

    def _look(self) -> None:
        """Find out how far events may be taken without a look."""
        well = self._tried and self._away is None and not self._stuck and not self._closing
        self._free = min(self._journal.room, self._limits.backlog) - CALL if well or not self._refuses else 0

    def admit(self) -> None:
        """Raise AUDIT_UNAVAILABLE if nothing may be let through now."""
        with self._lock:
            self._admit()

    def record_durably(self, *facts: AuditEvent) -> None:
        """Take facts, and return when they survive a power cut: committed, or synced where the database is away."""
        now = time_ns()
        packed = [pack(now, fact) for fact in facts]
        with self._lock:
            if self._journal.size > self._limits.backlog:
                self._make_room()
            mine = self._journal.append(packed)
            self._urgent.set()
            self._work.set()
            in_time = self._changed.wait_for(
                lambda: self._done.nth >= mine or self._away is not None or self._stuck or self._closing,
                self._limits.wait,
            )
            if self._done.nth < mine:
                self._stuck = self._stuck or not in_time
                self._journal.sync()
            self._look()

    def close(self) -> None:
        """Bring everything into the database, and end. What it cannot take now stays in the journal for the next."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._free = 0
        self._urgent.set()
        self._work.set()
        self._thread.join(self._limits.wait * 2)
        if self._thread.is_alive():  # the database hangs; the system closes the file with the process
            with self._lock:
                self._journal.sync()
            return
        with self._lock:  # what comes now is either in the journal that stays, or refused
            complete = self._done.nth == self._journal.count
            if not complete:
                self._journal.sync()
            self._journal.close(remove=complete)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_if_away(self) -> None:
        self._changed.wait_for(lambda: self._tried, self._limits.wait)
        if self._away is not None or self._stuck or not self._tried:
            why = "its database does not answer" if self._away is None else self._away.message
            raise PinwardenError("AUDIT_UNAVAILABLE", f"the audit log takes no events: {why}")

    def _make_room(self) -> None:
        """Wait for the database if it is only slow; while it is away, the journal may grow to its limit."""
        full = self._limits.backlog
        if self._away is None:
            self._urgent.set()
            self._changed.wait_for(lambda: self._journal.size <= full or self._away is not None, self._limits.wait)
        if self._journal.size > (full if self._away is None else self._limits.journal):
            raise PinwardenError("AUDIT_UNAVAILABLE", "the audit log has no room for more events")

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
                if not self._tried or self._away is not None:
                    self._recover(database)
                self._drain(database)
            except Exception as err:  # noqa: BLE001 - whatever it is, the thread goes on: without it nothing is logged
                self._tell(_as_ours(err))
                if self._closing:
                    return
                self._urgent.clear()
                self._urgent.wait(pause)
                pause = min(pause * 2, self._limits.longest_retry)
                continue
            pause = self._limits.retry
            self._tell(None)
            if self._closing and self.waiting == 0:
                return
            self._sleep()
            self._urgent.wait(self._limits.gather)
            self._urgent.clear()

    def _sleep(self) -> None:
        """Wait for events. Those that note them need not tell while nobody sleeps."""
        with self._lock:
            self._asleep = self.waiting == 0
        if self._asleep:
            self._work.wait()
            self._asleep = False
        self._work.clear()

    def _recover(self, database: Database) -> None:
        """Take up what killed gateways left. A journal that was tampered with is told in the log, and stays.

        Without a journal there is nothing to bring; but if nothing may pass while the database is away, it counts as
        being there only when it has answered.
        """
        if self._refuses:
            database.row("SELECT 1")
        try:
            recover(database, self._folder)
        except PinwardenError as err:
            if err.code != "AUDIT_TAMPERED":
                raise
            if not self._told_damage:
                self._told_damage = True
                told = AuditEvent(kind=SPOOLED, code="journal_damaged", reason=err.message)
                with self._lock:
                    self._journal.append([pack(time_ns(), told)])
                    self._look()

    def _drain(self, database: Database) -> None:
        from pinwarden.gateway.audit.chain import append

        while True:
            opened = database.open_count()
            with self._lock:
                if opened != self._opened:
                    # What was in the database that was open before need not be in this one.
                    self._opened, self._done = opened, self._journal.start
                since, until = self._done, self._journal.end
            if since.nth == until.nth:
                return
            batch, place = self._journal.read(since, until, self._limits.batch)
            append(database, batch, until.nth)
            self._settle(place)
            if self._journal.size <= self._limits.batch:
                return  # what came meanwhile is gathered for the next commit, until the journal has to begin anew

    def _settle(self, place: JournalPosition) -> None:
        with self._changed:
            self._done = place
            if place.nth == self._journal.count and place.offset > self._limits.batch:
                with suppress(PinwardenError):  # then it is as it was, and the next commit tries again
                    self._journal.reset()
                    self._forms.clear()
                    self._done = self._journal.start
            self._away = None
            self._stuck = False
            self._tried = True
            self._look()
            self._changed.notify_all()

    def _tell(self, problem: PinwardenError | None) -> None:
        with self._changed:
            self._away = problem
            self._stuck = False
            self._tried = True
            self._look()
            self._changed.notify_all()


def recover(database: Database, folder: Path) -> int:
    """Bring the events of killed gateways into the chain, the oldest journal first. How many journals there were.

    One that was tampered with raises, after all others were brought in; what precedes the damage is brought in too.
    """
    count = 0
    damaged: PinwardenError | None = None
    for path in _left_in(folder):
        try:
            count += _bring_in(database, path)
        except PinwardenError as err:
            if err.code != "AUDIT_TAMPERED":
                raise
            damaged = damaged or err
    if damaged is not None:
        raise damaged
    return count


def _bring_in(database: Database, path: Path) -> bool:
    from pinwarden.gateway.audit.chain import append

    with left_behind(path) as journal:
        if journal is None:
            return False
        place = journal.start
        while place.nth < journal.end.nth:
            batch, place = journal.read(place, journal.end, AuditLimits().batch)
            append(database, batch)
        if journal.damaged:
            raise journal.tampered(journal.count)
        path.unlink(missing_ok=True)
        return True


def _left_in(folder: Path) -> list[Path]:
    """The journals in a folder by age. Those that were never finished hold nothing, and go."""
    found: list[tuple[int, Path]] = []
    for path in (*folder.glob("*.journal"), *folder.glob("*.new")):
        with suppress(OSError):  # another process took it up
            age = path.stat().st_mtime_ns
            if path.suffix == ".journal":
                found.append((age, path))
            elif time_ns() - age > _FORGOTTEN:
                path.unlink()
    return [path for _, path in sorted(found)]


_FORGOTTEN = 3600 * 10**9  # nanoseconds; making a journal takes less than one of its seconds


def _as_ours(err: Exception) -> PinwardenError:
    return (
        err if isinstance(err, PinwardenError) else PinwardenError("AUDIT_UNAVAILABLE", f"{type(err).__name__}: {err}")
    )


def _machine() -> str:
    from platform import node

    return node()[:64]
