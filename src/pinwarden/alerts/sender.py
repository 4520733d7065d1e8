"""Collects what people have to know, and delivers it.

One round:

1. **Collect.** Each source returns what is current. What no alert was made about waits until `group_seconds` after its
   first occurrence, so that an upgrade of twenty tools is one alert, and a server that changes all the time makes at
   most one alert in `_REPEAT_SECONDS`.
2. **Store** the alert for each destination that wants its topic.
3. **Deliver** what is due. A failure is repeated later; after the last attempt, `pinwarden alerts list` shows it.

If the database cannot be read, the sender itself keeps one alert about that and delivers it without the outbox.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from pinwarden.alerts.alert import AUDIT, CRITICAL, Alert, AlertItem, build_alert
from pinwarden.alerts.config import AlertSettings, Destination
from pinwarden.alerts.delivery import DeliveryError, deliver
from pinwarden.alerts.outbox import FAILED, RETRY_SECONDS, Outbox
from pinwarden.alerts.sources import AlertSource, Occurrence
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.clock import wall_clock

POLL_SECONDS = 2.0
_REPEAT_SECONDS = 600  # between two alerts about the same subject
_OUTAGE_SECONDS = 30  # how long the database is unavailable before people are alerted
_STOP_SECONDS = 5.0
_MAX_DELIVERIES = 100  # in one round, so that new alerts are collected in between

Log = Callable[[str], None]
Clock = Callable[[], float]


class AlertSender:
    """Sends the alerts of some sources. Use it from one thread."""

    def __init__(
        self,
        settings: AlertSettings,
        outbox: Outbox,
        sources: Sequence[AlertSource],
        log: Log,
        *,
        clock: Clock = time.time,
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self._sources = sources
        self._log = log
        self._clock = clock
        self._destinations = {destination.name: destination for destination in settings.destinations}
        self._outage: _Outage | None = None

    def run(self, stop: threading.Event) -> None:
        """Run rounds until the event is set."""
        while not stop.is_set():
            self.run_once()
            stop.wait(POLL_SECONDS)

    def run_once(self) -> None:
        """Run one round. Failures are logged."""
        try:
            for source in self._sources:
                self._collect(source)
            self._deliver_due()
        except PinwardenError as err:
            self._report_outage(err)
            return
        except Exception as err:  # noqa: BLE001  a defect here must not end the thread, and with it all alerts
            self._log(f"alerts: internal error: {type(err).__name__}: {err}")
            return
        if self._outage is not None:
            self._log("alerts: the database is available again")
            self._outage = None

    def _collect(self, source: AlertSource) -> None:
        now = int(self._clock())
        position = self._outbox.read_position(source.name)
        reading = source.read(position)
        reported = self._outbox.list_reported(source.name)
        waiting: list[int] = []
        for subject, occurrences in _group_by_subject(reading.occurrences, reported).items():
            if not self._is_due(source, subject, occurrences, now) or not self._store(
                source, subject, occurrences, now
            ):
                waiting += [occurrence.position for occurrence in occurrences]
        end = min(waiting) - 1 if waiting else reading.end
        if end > position:
            self._outbox.save_position(source.name, end)

    def _is_due(self, source: AlertSource, subject: str, occurrences: Sequence[Occurrence], now: int) -> bool:
        first = min(occurrence.since for occurrence in occurrences)
        newest = self._outbox.find_newest(source.name, subject)
        return now >= first + self._settings.group_seconds and now >= newest + _REPEAT_SECONDS

    def _store(self, source: AlertSource, subject: str, occurrences: Sequence[Occurrence], now: int) -> bool:
        items = [occurrence.item for occurrence in occurrences]
        alert = build_alert(source.choose_topic(items), subject, items, source.command)
        wanted = [name for name, destination in self._destinations.items() if alert.topic in destination.topics]
        keys = [occurrence.key for occurrence in occurrences]
        return self._outbox.add(source.name, keys, alert, wanted, now)

    def _deliver_due(self) -> None:
        for _ in range(_MAX_DELIVERIES):
            claimed = self._outbox.claim(list(self._destinations), int(self._clock()))
            if claimed is None:
                return
            problem = self._try_delivery(claimed.alert, self._destinations[claimed.destination], claimed.id)
            state = self._outbox.finish(claimed, problem, int(self._clock()))
            if state == FAILED:
                self._log(f"alerts: gave up on {claimed.destination}: {problem}; see pinwarden alerts list")
            elif problem:
                self._log(f"alerts: {claimed.destination} was not reached and is tried again later: {problem}")

    def _try_delivery(self, alert: Alert, destination: Destination, identifier: str) -> str:
        """Return why the delivery failed, or an empty string."""
        try:
            deliver(alert, destination, identifier, wall_clock())
        except DeliveryError as err:
            return str(err)
        return ""

    def _report_outage(self, err: PinwardenError) -> None:
        now = self._clock()
        if self._outage is None:
            self._log(f"alerts: the database cannot be used: {err.message}")
            self._outage = _Outage(since=now, reason=err.message, undelivered=tuple(self._destinations))
        outage = self._outage
        attempts = int(outage.attempts)
        pause = _OUTAGE_SECONDS if not attempts else RETRY_SECONDS[min(attempts, len(RETRY_SECONDS)) - 1]
        if not outage.undelivered or now < outage.tried + pause or now < outage.since + _OUTAGE_SECONDS:
            return
        item = AlertItem(name=err.code, level=CRITICAL, reason=outage.reason)
        alert = build_alert(AUDIT, "gateway database", [item], "pinwarden audit verify")
        undelivered = [
            name
            for name in outage.undelivered
            if AUDIT in self._destinations[name].topics
            and self._try_delivery(alert, self._destinations[name], f"outage-{int(outage.since)}")
        ]
        self._outage = _Outage(
            since=outage.since,
            reason=outage.reason,
            undelivered=tuple(undelivered),
            tried=now,
            attempts=attempts + 1,
        )


@contextmanager
def send_in_background(sender: AlertSender) -> Iterator[None]:
    """Run a sender on a thread until the context ends. An open delivery has a few seconds to finish."""
    stop = threading.Event()
    thread = threading.Thread(target=sender.run, args=(stop,), name="alerts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_STOP_SECONDS)


class _Outage(Record):
    """A period during which the database is unavailable."""

    since: float
    reason: str
    undelivered: tuple[str, ...]
    """The destinations that have not been notified of it yet."""
    tried: float = 0.0
    attempts: int = 0


def _group_by_subject(occurrences: Iterable[Occurrence], reported: frozenset[str]) -> dict[str, list[Occurrence]]:
    groups: dict[str, list[Occurrence]] = {}
    for occurrence in occurrences:
        if occurrence.key not in reported:
            groups.setdefault(occurrence.subject, []).append(occurrence)
    return groups
