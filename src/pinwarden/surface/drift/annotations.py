"""Changes of a tool's annotations: what it says about its own harm.

Hosts skip questions on these hints. The protocol's defaults are the careful ones (not read-only, destructive, not
idempotent, open world), so leaving a hint out never makes a tool look safer by the protocol; denying a hazard that
was stated does. Stating a harmless value for the first time is what honest servers do when they begin to annotate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinwarden.surface.drift.changes import ABSENT, Change
from pinwarden.surface.drift.json_values import same
from pinwarden.surface.drift.place import Place, text_changes, value_changes

HARMLESS_VALUE = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
"""For each hint the value that makes a tool look less dangerous; the protocol's default is the other one."""


def annotation_changes(place: Place, before: Any, after: Any) -> Iterator[Change]:
    """Every changed hint of one tool."""
    if not isinstance(before, dict | type(ABSENT)) or not isinstance(after, dict | type(ABSENT)):
        yield from value_changes(place, before, after, "annotation_changed")
        return
    old = before if isinstance(before, dict) else {}
    new = after if isinstance(after, dict) else {}
    if not old and not new:
        yield place.change("same_meaning", before, after)
    for hint in old | new:
        yield from _hint_changes(place.down(hint), old, new)


def _hint_changes(place: Place, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    hint = place.member
    before, after = old.get(hint, ABSENT), new.get(hint, ABSENT)
    if same(before, after):
        return
    if hint == "title":
        yield from text_changes(place, before, after)
    elif hint not in HARMLESS_VALUE:
        yield from value_changes(place, before, after, "annotation_changed")
    elif _denies_hazard(hint, old, new):
        yield place.change("annotation_toward_harmless", before, after)
    elif before is ABSENT:
        is_default = after is (not HARMLESS_VALUE[hint])
        yield place.change("same_meaning" if is_default else "annotation_declared", before, after)
    elif after is ABSENT:
        yield place.change("annotation_withdrawn", before, after)
    else:
        yield place.change("annotation_changed", before, after)


def _denies_hazard(hint: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    if not _looks_harmless(hint, new.get(hint, ABSENT)):
        return False
    if _states_hazard(hint, old.get(hint, ABSENT)):
        return True
    # A tool that was stated to destroy and now also claims to read only: hosts look at the second hint first.
    return (
        hint == "readOnlyHint"
        and not _looks_harmless(hint, old.get(hint, ABSENT))
        and _states_hazard("destructiveHint", old.get("destructiveHint", ABSENT))
    )


def _looks_harmless(hint: str, value: Any) -> bool:
    """Read as a careless host does: anything that counts as true is true."""
    return value is not ABSENT and bool(value) is HARMLESS_VALUE[hint]


def _states_hazard(hint: str, value: Any) -> bool:
    return value is not ABSENT and bool(value) is not HARMLESS_VALUE[hint]
