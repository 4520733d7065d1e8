"""What alerts are about: pending reviews, faults of the audit log, and refused requests to a registry.

The outbox knows what was reported already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pinwarden.alerts.alert import AUDIT, CRITICAL, PUBLISH, REVIEW, AlertItem
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.text import parse_timestamp
from pinwarden.gateway.audit.chain import read_entries_of_kind, read_head
from pinwarden.gateway.audit.event import EVENTS_LOST
from pinwarden.gateway.state import GatewayState
from pinwarden.registry.access import list_refused_requests
from pinwarden.registry.registry import Registry

_MAX_FAULTS = 100
_MAX_REFUSED = 500
_OVERLAP_MS = 60_000  # requests of several replicas may be committed in another order than they began


class Occurrence(Record):
    """Something that people may have to know."""

    key: str
    """Identifies it, so that it is reported once."""
    subject: str
    """The server, gateway or namespace that it is about."""
    since: float
    """When it began, in seconds since 1970."""
    item: AlertItem
    position: int = 0
    """Where the source has it, if the source is read in order."""


class Reading(Record):
    """What a source has, and how far it was read."""

    occurrences: tuple[Occurrence, ...]
    end: int = 0


class AlertSource(Protocol):
    """Where occurrences come from."""

    name: str
    command: str
    """What people run next."""

    def read(self, after: int) -> Reading:
        """Return what is current. A source that is read in order returns what came after a position; -1: never read."""
        ...

    def choose_topic(self, items: Iterable[AlertItem]) -> str:
        """Return the topic of an alert about the items."""
        ...


class PendingReviews:
    """The changes that are pending review in a gateway's database, by server."""

    name = "reviews"
    command = "pinwarden review"

    def __init__(self, state: GatewayState) -> None:
        self._state = state

    def read(self, after: int) -> Reading:  # noqa: ARG002  reviews have no order
        """Return all pending changes."""
        return Reading(
            occurrences=tuple(
                Occurrence(
                    key=review.name,
                    subject=review.server,
                    since=_to_seconds(review.opened),
                    item=AlertItem(
                        name=f"{review.entity} {review.item}",
                        level=review.level,
                        reason=review.reason,
                        review=review.name,
                    ),
                )
                for review in self._state.reviews.select()
            )
        )

    def choose_topic(self, items: Iterable[AlertItem]) -> str:
        """Return ``critical`` if one of the changes may be an attack, else ``review``."""
        return CRITICAL if any(item.level == CRITICAL for item in items) else REVIEW


class AuditFaults:
    """Damaged journals of the audit log."""

    name = "audit"
    command = "pinwarden audit verify"

    def __init__(self, state: GatewayState) -> None:
        self._state = state

    def read(self, after: int) -> Reading:
        """Return the faults after an entry. Those from before the first reading are not reported."""
        database = self._state.audit_database
        end = read_head(database).number
        faults = [] if after < 0 else read_entries_of_kind(database, EVENTS_LOST, after, _MAX_FAULTS)
        return Reading(
            occurrences=tuple(
                Occurrence(
                    key=str(entry.number),
                    subject=entry.gateway,
                    since=_to_seconds(entry.at),
                    item=AlertItem(name=f"entry {entry.number}", level=CRITICAL, reason=entry.event.reason),
                    position=entry.number,
                )
                for entry in faults
            ),
            end=end if len(faults) < _MAX_FAULTS else faults[-1].number,
        )

    def choose_topic(self, items: Iterable[AlertItem]) -> str:  # noqa: ARG002  as the interface has it
        """Return ``audit``."""
        return AUDIT


class RefusedPublishes:
    """Requests of publishers that a registry refused, by namespace."""

    name = "publishes"
    command = "pinwarden registry audit"

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def read(self, after: int) -> Reading:
        """Return the requests refused after a time in milliseconds. Those before the first reading are not reported."""
        now = self._registry.now_ms()
        rows = [] if after < 0 else list_refused_requests(self._registry, after, _MAX_REFUSED)
        return Reading(
            occurrences=tuple(
                Occurrence(
                    key=row.id,
                    subject=row.namespace or "registry",
                    since=row.moment / 1000,
                    item=AlertItem(name=row.subject or row.action, level=REVIEW, reason=f"{row.action}: {row.outcome}"),
                    position=row.moment,
                )
                for row in rows
            ),
            end=now - _OVERLAP_MS,
        )

    def choose_topic(self, items: Iterable[AlertItem]) -> str:  # noqa: ARG002  as the interface has it
        """Return ``publish``."""
        return PUBLISH


def _to_seconds(text: str) -> float:
    moment = parse_timestamp(text)
    if moment is None:
        raise PinwardenError("DATABASE_CORRUPT", f"{text[:40]!a} is not a timestamp")
    return moment.timestamp()
