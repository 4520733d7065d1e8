"""The semantic difference between two surfaces: what changed, where, and how much it matters.

``compare`` is stateless. It always gets the approved surface, so a tool that was removed and returns is compared with
its approved text, and a blocked surface never becomes the baseline. The order of items and members, the notation of
numbers, paging, cache hints and the protocol revision are not differences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pinwarden.core.json_values import is_json_equal, iter_strings
from pinwarden.core.text import show_invisible
from pinwarden.core.versions import is_exact
from pinwarden.surface.drift.changes import ABSENT, CRITICAL, Change, blocked_by_default, sort_changes
from pinwarden.surface.drift.item import MemberRule, icon_changes, item_changes, website_changes
from pinwarden.surface.drift.location import (
    ApprovedText,
    ChangeLocation,
    new_cues,
    new_item_cues,
    schema_alarms,
    text_changes,
    value_changes,
)
from pinwarden.surface.drift.pairing import Pairing, find_look_alike_names, find_renames, pair_items
from pinwarden.surface.drift.schema import is_closed
from pinwarden.surface.surface import ITEM_KINDS, PROMPT, TOOL, Item, ItemKind, Surface

__all__ = ["ABSENT", "Change", "blocked_by_default", "compare"]

_CALLED_BY_NAME = (TOOL, PROMPT)
_MIN_CLOSED_SCHEMAS = 3  # that must lose the member together, to look like a new schema generator
_MAX_NAME = 80


def compare(before: Surface, after: Surface) -> tuple[Change, ...]:
    """All changes from the approved to the current surface, most severe first.

    Items without a digest and items with duplicate names are always reported, even if they did not change.
    """
    changes = [*server_changes(before.server, after.server), *_undigestable_server(after)]
    for kind in ITEM_KINDS:
        changes.extend(_list_changes(kind, before, after))
    return sort_changes(changes)


def _list_changes(kind: ItemKind, before: Surface, after: Surface) -> Iterator[Change]:
    # 1. Match the items of both lists.
    pairing = pair_items(before.items_of_kind(kind), after.items_of_kind(kind))
    # 2. Compare items that are in both lists.
    unstated = kind is TOOL and bool(pairing.changed) and _unstated_everywhere(before, after)
    for old, new in pairing.changed:
        yield from item_changes(old, new, unstated_everywhere=unstated)
    # 3. Report items that are in only one list.
    yield from _removed_changes(pairing)
    yield from _added_changes(kind, pairing, before, after)
    # 4. Report duplicate and unreadable items.
    for approved, item in pairing.duplicates:
        yield _item_location(item, "duplicate").change_with("duplicate_name", _value(approved), item.value)
    for approved, item in pairing.undigestable:
        note = _reason_note(item.problem)
        yield _item_location(item, "undigestable").change_with("undigestable", _value(approved), item.value, note=note)


def _undigestable_server(after: Surface) -> Iterator[Change]:
    problem = after.server_problem
    if problem is not None:
        location = ChangeLocation(entity="server", name="", field="undigestable", approved=ApprovedText(ABSENT))
        yield location.change_with("undigestable", ABSENT, dict(after.server or {}), note=_reason_note(problem))


def _removed_changes(pairing: Pairing) -> Iterator[Change]:
    for item in pairing.removed:
        yield _item_location(item, "removed").change_with("item_removed", item.value, ABSENT)


def _added_changes(kind: ItemKind, pairing: Pairing, before: Surface, after: Surface) -> Iterator[Change]:
    if not pairing.added:
        return
    look_alikes: dict[str, str] = {}
    predecessors: dict[str, Item] = {}
    if kind in _CALLED_BY_NAME:
        present = [item.key for item in after.items_of_kind(kind) if item.digest is not None]
        look_alikes = find_look_alike_names([item.key for item in pairing.added], present)
        predecessors = {new.key: old for old, new in find_renames(pairing.removed, pairing.added)}
    within_release = is_same_release(before.server, after.server)
    for item in pairing.added:
        old = predecessors.get(item.key)
        yield _added_change(item, old, look_alikes.get(item.key), within_release)


def _added_change(item: Item, old: Item | None, look_alike: str | None, within_release: bool) -> Change:
    approved = ApprovedText(_value(old))
    cues = new_item_cues(item.value) if old is None else new_cues(iter_strings(item.value), approved)
    kinds = [f"new_{code}" for code in cues]
    kinds += schema_alarms(item.value, approved)
    notes: list[str] = []
    if old is not None:
        kinds.insert(0, _kind_of_rename(old, item, within_release))
        notes.append(f"Approved as {_quote_name(old.key)}.")
    if look_alike is not None:
        kinds.insert(0, "look_alike_name")
        notes.append(f"Compare {_quote_name(look_alike)}.")
    kind = "renamed_in_release" if "renamed_in_release" in kinds else "item_added"
    return _item_location(item, "added").change_with(kind, _value(old), item.value, kinds, note=" ".join(notes))


def _kind_of_rename(old: Item, new: Item, within_release: bool) -> str:
    """Renaming an item is normal in a new release without critical changes, but not within one release."""
    if within_release or any(change.severity == CRITICAL for change in item_changes(old, new)):
        return "renamed"
    return "renamed_in_release"


def _unstated_everywhere(before: Surface, after: Surface) -> bool:
    """Whether all closed input schemas, if there are several, lost ``additionalProperties``.

    A new schema generator does that. An attacker who opens one tool for a new argument does not change the others.
    """
    now = {item.key: item.value.get("inputSchema") for item in after.items_of_kind(TOOL) if item.digest is not None}
    closed = [
        item.key
        for item in before.items_of_kind(TOOL)
        if item.digest is not None and item.key in now and is_closed(item.value.get("inputSchema"))
    ]
    return len(closed) >= _MIN_CLOSED_SCHEMAS and all(
        isinstance(now[key], dict) and "additionalProperties" not in now[key] for key in closed
    )


def _item_location(item: Item, field: str) -> ChangeLocation:
    return ChangeLocation(entity=item.kind.entity, name=item.name, field=field, approved=ApprovedText(ABSENT))


def _value(item: Item | None) -> object:
    return ABSENT if item is None else item.value


def _reason_note(problem: str | None) -> str:
    return f"({show_invisible(problem)})" if problem else ""


def _quote_name(name: str) -> str:
    return f"'{show_invisible(name[:_MAX_NAME])}'"


_NOTIFICATION_FLAGS = frozenset({"listChanged", "subscribe"})
_MAX_VERSION = 40
_MAX_WORDS_IN_VERSION = 2  # 1.0.0-alpha.1+build.7
_VERSION_PART = re.compile(r"[0-9A-Za-z]+")


def server_changes(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Iterator[Change]:
    """Changes of the server's own members. If the approved ones were not recorded, only new text for the model."""
    if after is None:
        return
    if before is None:
        yield from _changes_without_baseline(after)
        return
    approved = ApprovedText(dict(before))
    for member in dict(before) | dict(after):
        old, new = before.get(member, ABSENT), after.get(member, ABSENT)
        if not is_json_equal(old, new):
            location = ChangeLocation(entity="server", name="", field=member, approved=approved).child(member)
            yield from _SERVER_RULES.get(member, _other_changes)(location, old, new)


def _changes_without_baseline(after: Mapping[str, Any]) -> Iterator[Change]:
    """Unapproved text that a model reads: the instructions, and an attack in the server's name.

    The approved side may be only a list of tools, so capabilities and an ordinary identity are not reported.
    """
    for member in ("instructions", "serverInfo"):
        value = after.get(member)
        alarms = [f"new_{code}" for code in new_item_cues(value)]
        if alarms or (member == "instructions" and value):
            location = ChangeLocation(entity="server", name="", field=member, approved=ApprovedText(ABSENT)).child(
                member
            )
            yield location.change_with("text_added", ABSENT, value, alarms)


def is_same_release(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Whether both surfaces state the same version. A missing version counts as the same."""
    old, new = _version(before), _version(after)
    return old is ABSENT or new is ABSENT or is_json_equal(old, new)


def _version(server: Mapping[str, Any] | None) -> Any:
    info = (server or {}).get("serverInfo")
    return info.get("version", ABSENT) if isinstance(info, dict) else ABSENT


def _other_changes(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    yield from value_changes(location, old, new, "member_changed")


def _capability_changes(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    """Descend to the first member that was added, removed or changed."""
    if is_json_equal(old, new):
        return
    if location.member in _NOTIFICATION_FLAGS and all(side is ABSENT or type(side) is bool for side in (old, new)):
        yield location.change("notice_changed", old, new)
    elif _is_empty(old) and _is_empty(new) and location.path == "/capabilities":
        yield location.change("same_meaning", old, new)
    elif _has_comparable_members(old, location) and _has_comparable_members(new, location):
        old_members = old if isinstance(old, dict) else {}
        new_members = new if isinstance(new, dict) else {}
        for name in old_members | new_members:
            yield from _capability_changes(
                location.child(name), old_members.get(name, ABSENT), new_members.get(name, ABSENT)
            )
    elif old is ABSENT:
        yield location.change("capability_added", old, new)
    elif new is ABSENT:
        yield location.change("capability_removed", old, new)
    else:
        yield location.change("capability_changed", old, new)


def _is_empty(value: Any) -> bool:
    return value is ABSENT or value == {}


def _has_comparable_members(value: Any, location: ChangeLocation) -> bool:
    """Whether to compare a value member by member. Only the complete ``capabilities`` member may be absent then."""
    return isinstance(value, dict) or (value is ABSENT and location.path == "/capabilities")


def _identity_changes(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    if new is ABSENT:
        yield location.change("identity_unstated", old, new)
    elif not isinstance(old, dict) or not isinstance(new, dict):
        yield location.change("identity_changed", old, new)
    else:
        for member in old | new:
            old_value, new_value = old.get(member, ABSENT), new.get(member, ABSENT)
            if not is_json_equal(old_value, new_value):
                yield from _IDENTITY_RULES.get(member, _other_changes)(location.child(member), old_value, new_value)


def _name_changes(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    yield location.change("identity_changed", old, new)


def _version_changes(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    yield location.change("version_changed" if new is ABSENT or _is_version(new) else "member_changed", old, new)


def _is_version(value: Any) -> bool:
    """Whether a value is a version and not a sentence: short, numbers first, at most two words."""
    if not isinstance(value, str) or len(value) > _MAX_VERSION or not is_exact(value):
        return False
    words = [part for part in _VERSION_PART.findall(value) if part.isalpha()]
    return len(words) <= _MAX_WORDS_IN_VERSION


_IDENTITY_RULES: dict[str, MemberRule] = {
    "name": _name_changes,
    "title": text_changes,
    "description": text_changes,
    "version": _version_changes,
    "websiteUrl": website_changes,
    "icons": icon_changes,
}
_SERVER_RULES: dict[str, MemberRule] = {
    "instructions": text_changes,
    "capabilities": _capability_changes,
    "serverInfo": _identity_changes,
}
