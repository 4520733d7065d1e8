"""A place inside an item, and how a difference there becomes a ``Change``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pinwarden.core.record import Record, replace
from pinwarden.surface.drift.alarms import Approved, new_cues, schema_alarms
from pinwarden.surface.drift.changes import ABSENT, CHANGE_KINDS, CRITICAL, Change
from pinwarden.surface.drift.json_values import same, step, texts_in

_SCHEMAS = frozenset({"inputSchema", "outputSchema"})


class Place(Record):
    """Where in which item, and what that item was approved to say."""

    entity: str
    name: str
    field: str
    path: str = ""
    member: str = ""
    """The last step of the path, if it is the name of a member."""
    approved: Approved

    def down(self, token: str | int) -> Place:
        """One level further down."""
        return replace(self, path=step(self.path, token), member=token if isinstance(token, str) else "")

    def change(self, kind: str, before: Any, after: Any, *, ignored: frozenset[str] = frozenset()) -> Change:
        """The change of that kind at this place, raised to critical if what is new there looks like an attack.

        ``ignored`` are the classes of cues that are ordinary at such a place.
        """
        return self.stated(kind, before, after, self._alarms(before, after, ignored))

    def stated(self, kind: str, before: Any, after: Any, alarms: Iterable[str] = (), note: str = "") -> Change:
        """The change at this place with the kinds that raise it. The first critical one gives the kind."""
        kinds = list(dict.fromkeys([kind, *alarms]))
        chosen = next((row for row in map(CHANGE_KINDS.__getitem__, kinds) if row.severity == CRITICAL), None)
        row = chosen or CHANGE_KINDS[kind]
        reasons = [row.reason, *(CHANGE_KINDS[other].reason for other in kinds if other != row.kind), note]
        return Change(
            entity=self.entity,
            name=self.name,
            field=self.field,
            path=self.path,
            kind=row.kind,
            severity=row.severity,
            before=before,
            after=after,
            reason=" ".join(filter(None, reasons)),
        )

    def _alarms(self, before: Any, after: Any, ignored: frozenset[str]) -> Iterator[str]:
        if after is ABSENT:
            return
        texts = texts_in(after)
        if before is ABSENT and self.member:
            texts = iter((self.member, *texts))
        for code in new_cues(texts, self.approved, ignored):
            yield f"new_{code}"
        if self.field in _SCHEMAS:
            yield from schema_alarms(after, self.approved)


def value_changes(place: Place, before: Any, after: Any, kind: str) -> Iterator[Change]:
    """Every differing leaf of two values of which no more is known, each as a change of that kind."""
    if same(before, after):
        return
    if type(before) is dict and type(after) is dict and before and after:
        for name in before | after:
            yield from value_changes(place.down(name), before.get(name, ABSENT), after.get(name, ABSENT), kind)
    elif type(before) is list and type(after) is list and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from value_changes(place.down(number), old, new, kind)
    else:
        yield place.change(kind, before, after)


def text_changes(place: Place, before: Any, after: Any) -> Iterator[Change]:
    """Text that a model or user reads: any difference counts."""
    if not same(before, after):
        kind = "text_added" if before is ABSENT else "text_removed" if after is ABSENT else "text_changed"
        yield place.change(kind, before, after)
