"""The semantic difference between two surfaces: what changed, where, and how much it matters.

``compare`` has no memory. It is given the approved surface each time, so a tool that was removed and comes back is
held against the text that was approved, and a surface that was blocked never becomes the measure of the next one.
The order of items and members, the form of numbers, pages, cache hints and the protocol's era are no difference.
"""

from __future__ import annotations

from collections.abc import Iterator

from pinwarden.core.visible import show_invisible
from pinwarden.surface.drift.alarms import Approved, cues_of_new_item, new_cues, schema_alarms
from pinwarden.surface.drift.changes import ABSENT, CRITICAL, Change, blocked_by_default, in_order
from pinwarden.surface.drift.item import item_changes
from pinwarden.surface.drift.json_values import texts_in
from pinwarden.surface.drift.names import look_alikes
from pinwarden.surface.drift.pairing import Pairing, pair_items
from pinwarden.surface.drift.place import Place
from pinwarden.surface.drift.renames import find_renames
from pinwarden.surface.drift.schema import is_closed
from pinwarden.surface.drift.server import same_release, server_changes
from pinwarden.surface.surface import KINDS, PROMPT, TOOL, Item, Kind, Surface

__all__ = ["ABSENT", "Change", "blocked_by_default", "compare"]

_CALLED_BY_NAME = (TOOL, PROMPT)
_ENOUGH_TO_BE_A_HABIT = 3  # closed input schemas that must lose the member together
_MAX_SHOWN_NAME = 80


def compare(before: Surface, after: Surface) -> tuple[Change, ...]:
    """Every change from the approved surface to the one seen now, the worst first.

    An item now that has no digest is always reported, even if it was there before: it cannot have been approved. So
    are items of one name.
    """
    changes = [*server_changes(before.server, after.server), *_undigestable_server(after)]
    for kind in KINDS:
        changes.extend(_list_changes(kind, before, after))
    return in_order(changes)


def _list_changes(kind: Kind, before: Surface, after: Surface) -> Iterator[Change]:
    # 1. Say which item is which.
    pairing = pair_items(before.list_of(kind), after.list_of(kind))
    # 2. Compare those that are in both lists.
    unstated = kind is TOOL and bool(pairing.changed) and _unstated_everywhere(before, after)
    for old, new in pairing.changed:
        yield from item_changes(old, new, unstated_everywhere=unstated)
    # 3. Judge those that are in one of them.
    yield from _removed(pairing)
    yield from _added(kind, pairing, before, after)
    # 4. Report those that nobody can tell apart or read.
    for approved, item in pairing.duplicates:
        yield _whole(item, "duplicate").stated("duplicate_name", _value(approved), item.value)
    for approved, item in pairing.undigestable:
        note = _cause(item.problem)
        yield _whole(item, "undigestable").stated("undigestable", _value(approved), item.value, note=note)


def _undigestable_server(after: Surface) -> Iterator[Change]:
    problem = after.server_problem
    if problem is not None:
        place = Place(entity="server", name="", field="undigestable", approved=Approved(ABSENT))
        yield place.stated("undigestable", ABSENT, dict(after.server or {}), note=_cause(problem))


def _removed(pairing: Pairing) -> Iterator[Change]:
    for item in pairing.gone:
        yield _whole(item, "removed").stated("item_removed", item.value, ABSENT)


def _added(kind: Kind, pairing: Pairing, before: Surface, after: Surface) -> Iterator[Change]:
    if not pairing.fresh:
        return
    doubles: dict[str, str] = {}
    predecessors: dict[str, Item] = {}
    if kind in _CALLED_BY_NAME:
        present = [item.key for item in after.list_of(kind) if item.digest is not None]
        doubles = look_alikes([item.key for item in pairing.fresh], present)
        predecessors = {new.key: old for old, new in find_renames(pairing.gone, pairing.fresh)}
    within_release = same_release(before.server, after.server)
    for item in pairing.fresh:
        old = predecessors.get(item.key)
        yield _one_added(item, old, doubles.get(item.key), within_release)


def _one_added(item: Item, old: Item | None, double: str | None, within_release: bool) -> Change:
    approved = Approved(_value(old))
    cues = cues_of_new_item(item.value) if old is None else new_cues(texts_in(item.value), approved)
    kinds = [f"new_{code}" for code in cues]
    kinds += schema_alarms(item.value, approved)
    notes: list[str] = []
    if old is not None:
        kinds.insert(0, _kind_of_rename(old, item, within_release))
        notes.append(f"Approved as {_shown(old.key)}.")
    if double is not None:
        kinds.insert(0, "look_alike_name")
        notes.append(f"Compare {_shown(double)}.")
    first = "renamed_in_release" if "renamed_in_release" in kinds else "item_added"
    return _whole(item, "added").stated(first, _value(old), item.value, kinds, note=" ".join(notes))


def _kind_of_rename(old: Item, new: Item, within_release: bool) -> str:
    """Within one release no name has a reason to change. A new release may rename, if nothing else looks bad."""
    if within_release or any(change.severity == CRITICAL for change in item_changes(old, new)):
        return "renamed"
    return "renamed_in_release"


def _unstated_everywhere(before: Surface, after: Surface) -> bool:
    """Whether the input schemas that were closed have all lost the member that closed them, and are more than a few.

    That is what a new schema generator does. Who opens one tool for a new argument leaves the others alone.
    """
    now = {item.key: item.value.get("inputSchema") for item in after.list_of(TOOL) if item.digest is not None}
    closed = [
        item.key
        for item in before.list_of(TOOL)
        if item.digest is not None and item.key in now and is_closed(item.value.get("inputSchema"))
    ]
    return len(closed) >= _ENOUGH_TO_BE_A_HABIT and all(
        isinstance(now[key], dict) and "additionalProperties" not in now[key] for key in closed
    )


def _whole(item: Item, field: str) -> Place:
    return Place(entity=item.kind.entity, name=item.name, field=field, approved=Approved(ABSENT))


def _value(item: Item | None) -> object:
    return ABSENT if item is None else item.value


def _cause(problem: str | None) -> str:
    return f"({show_invisible(problem)})" if problem else ""


def _shown(name: str) -> str:
    return f"'{show_invisible(name[:_MAX_SHOWN_NAME])}'"
