"""What happened in the last days, counted from the audit log in the background: calls, changes, and who uses what.

The log has no columns to count by. So one thread reads the entries of the last days once, then only newer ones, and
all again every hour, so that what is older than the period is forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Condition, Thread
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.audit.chain import read_lines, read_newest_entries
from pinwarden.gateway.audit.event import ALLOWED, BLOCKED, CALLED, HELD, WARNED, LogEntry, parse_entry

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState

DAYS = 7
_BUCKET_SECONDS = 6 * 3600
_MAX_ENTRIES = 300_000
_MAX_USES = 50_000  # pairs of item and client
_REBUILD_SECONDS = 3600.0
_PAUSE_SECONDS = 1.0  # between two reads of the log
_PATIENCE_SECONDS = 0.3  # that a page waits for a count that is not there yet


class Bucket(Record):
    """What happened in six hours."""

    start: str
    """When it began, in UTC."""
    calls: int = 0
    refused: int = 0
    changes: int = 0


class Use(Record):
    """How often a client used an item."""

    client: str
    calls: int
    refused: int
    last: str


class ActivityCounts(Record):
    """What was counted."""

    buckets: tuple[Bucket, ...]
    """The oldest first, without gaps."""
    is_complete: bool
    """Whether all entries of the period were read; a very long log is counted from its end."""

    def list_days(self) -> list[Bucket]:
        """Return the sums of each day, the newest first."""
        days: dict[str, list[Bucket]] = {}
        for bucket in reversed(self.buckets):
            days.setdefault(bucket.start[:10], []).append(bucket)
        return [
            Bucket(
                start=day,
                calls=sum(bucket.calls for bucket in of),
                refused=sum(bucket.refused for bucket in of),
                changes=sum(bucket.changes for bucket in of),
            )
            for day, of in days.items()
        ]


class _Counter:
    """The counts while they grow. Used by one thread."""

    def __init__(self, now: float) -> None:
        self.began = now
        self.last_number = 0
        self.is_complete = True
        self.buckets: dict[int, list[int]] = {}
        self.uses: dict[tuple[str, str, str], dict[str, list[int | str]]] = {}
        self._pairs = 0

    def add(self, entry: LogEntry, at: float) -> None:
        """Count an entry."""
        self.last_number = max(self.last_number, entry.number)
        event = entry.event
        is_use = event.kind in (CALLED, ALLOWED, WARNED) and bool(event.call)
        is_refusal = event.kind == BLOCKED and bool(event.call)
        if not (is_use or is_refusal or event.kind == HELD):
            return
        bucket = self.buckets.setdefault(int(at // _BUCKET_SECONDS), [0, 0, 0])
        bucket[0 if is_use else 1 if is_refusal else 2] += 1
        if event.kind != HELD and event.item:
            self._add_use((event.server, event.item_kind, event.item), event.client, entry.at, refused=is_refusal)

    def _add_use(self, item: tuple[str, str, str], client: str, at: str, *, refused: bool) -> None:
        clients = self.uses.setdefault(item, {})
        if client not in clients:
            if self._pairs >= _MAX_USES:
                self.is_complete = False
                return
            self._pairs += 1
            clients[client] = [0, 0, at]
        use = clients[client]
        use[int(refused)] = int(use[int(refused)]) + 1
        use[2] = max(str(use[2]), at)


class Activity:
    """Counts the audit log of one state. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._changed = Condition()
        self._thread: Thread | None = None
        self._is_wanted = self._is_stopped = False
        self._rounds = 0
        self._counter: _Counter | None = None
        self._problem: PinwardenError | None = None

    def read(self, state: GatewayState) -> ActivityCounts | None:
        """Return the counts, and begin to bring them up to date; None while the log is counted for the first time."""
        with self._changed:
            if self._thread is None:
                self._thread = Thread(target=self._run, args=(state,), name="activity", daemon=True)
                self._thread.start()
            self._is_wanted = True
            self._changed.notify_all()
            if self._counter is None:
                self._changed.wait_for(lambda: self._rounds > 0 or self._is_stopped, _PATIENCE_SECONDS)
            if self._problem is not None:
                raise self._problem
            return None if self._counter is None else self._build_counts(self._counter)

    def list_uses(self, server: str, entity: str, item: str) -> list[Use]:
        """Return who used an item in the period, the most frequent first, as it was counted last."""
        with self._changed:
            found = {} if self._counter is None else self._counter.uses.get((server, entity, item), {})
            uses = [
                Use(client=client, calls=int(calls), refused=int(refused), last=str(last))
                for client, (calls, refused, last) in found.items()
            ]
        return sorted(uses, key=lambda use: (-use.calls - use.refused, use.client))

    def close(self) -> None:
        """Stop counting."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(10.0)

    def _build_counts(self, counter: _Counter) -> ActivityCounts:
        last = int(self._clock() // _BUCKET_SECONDS)
        numbers = range(last - DAYS * 86_400 // _BUCKET_SECONDS + 1, last + 1)
        buckets = [(number, counter.buckets.get(number, (0, 0, 0))) for number in numbers]
        return ActivityCounts(
            buckets=tuple(
                Bucket(start=_format_bucket(number), calls=calls, refused=refused, changes=changes)
                for number, (calls, refused, changes) in buckets
            ),
            is_complete=counter.is_complete,
        )

    def _run(self, state: GatewayState) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_wanted or self._is_stopped)
                if self._is_stopped:
                    return
                self._is_wanted = False
            try:
                self._count(state)
                self._problem = None
            except PinwardenError as err:
                self._problem = err
            with self._changed:
                self._rounds += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_stopped, _PAUSE_SECONDS)

    def _count(self, state: GatewayState) -> None:
        """Count what is new, or everything if the last time is long ago."""
        now, counter = self._clock(), self._counter
        database = state.audit_database
        if counter is not None and now - counter.began < _REBUILD_SECONDS:
            for _, line in read_lines(database, counter.last_number):
                entry = parse_entry(line)
                with self._changed:
                    counter.add(entry, _parse_time(entry.at))
                if self._is_stopped:
                    return
            return
        counter = _Counter(now)
        for read, entry in enumerate(read_newest_entries(database)):
            at = _parse_time(entry.at)
            if at < now - DAYS * 86_400 or self._is_stopped:
                break
            if read >= _MAX_ENTRIES:
                counter.is_complete = False
                break
            counter.add(entry, at)
        with self._changed:
            self._counter = counter


def _parse_time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _format_bucket(number: int) -> str:
    return datetime.fromtimestamp(number * _BUCKET_SECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
