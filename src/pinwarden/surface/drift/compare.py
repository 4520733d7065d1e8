"""Compare an approved surface with the current one: every change with its location and severity.

``compare`` keeps no state. The caller always passes the approved surface, so a tool that disappears and returns is
compared with its approved text, and a blocked surface never becomes the baseline. The order of items and members, the
notation of numbers, paging, cache hints and the protocol revision do not count as changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinwarden.core.json_values import is_json_equal
from pinwarden.core.text import show_invisible
from pinwarden.core.versions import is_exact
from pinwarden.surface.drift.approved_text import ApprovedServer, ApprovedText, find_schema_alarms
from pinwarden.surface.drift.changes import ABSENT, CRITICAL, Change, blocked_by_default, sort_changes
from pinwarden.surface.drift.item import MemberRule, compare_icons, compare_items, compare_website_urls
from pinwarden.surface.drift.location import ChangeLocation, compare_texts, compare_values
from pinwarden.surface.drift.new_cues import Alarm, find_item_alarms, find_text_alarms
from pinwarden.surface.drift.pairing import Pairing, find_look_alike_names, find_renames, find_wrapped_names, pair_items
from pinwarden.surface.drift.schema import is_closed
from pinwarden.surface.drift.text_signals import fold_identifier
from pinwarden.surface.scan.scan import NeighbourTools
from pinwarden.surface.surface import ITEM_KINDS, PROMPT, TOOL, Item, ItemKind, Surface

__all__ = ["ABSENT", "Change", "blocked_by_default", "compare"]

_CALLED_BY_NAME = (TOOL, PROMPT)
_MIN_CLOSED_SCHEMAS = 3  # schemas that must change together before they count as a change of the schema generator
_MAX_NAME = 80


def compare(
    before: Surface,
    after: Surface,
    neighbours: Sequence[tuple[str, Surface]] = (),
    *,
    served: Surface | None = None,
) -> tuple[Change, ...]:
    """Compare the approved surface with the current one. Returns all changes, the most severe first.

    ``neighbours`` are the names and surfaces of the other approved servers, with whose tools new text may interfere.
    ``served`` is all that the server sends now, if ``after`` has only a part of it. The severity depends on it.
    Items without a digest and items with duplicate names are always reported, even if they did not change.
    """
    current = after if served is None else served
    server = ApprovedServer(before, current, NeighbourTools.from_surfaces(current, neighbours))
    changes = [*compare_server_info(before.server, after.server, server), *_report_undigestable_server(after)]
    for kind in ITEM_KINDS:
        changes.extend(_compare_lists(kind, before, after, server))
    return sort_changes(changes)


def _compare_lists(kind: ItemKind, before: Surface, after: Surface, server: ApprovedServer) -> Iterator[Change]:
    # 1. Match the items of both lists.
    pairing = pair_items(before.items_of_kind(kind), after.items_of_kind(kind))
    # 2. Compare items that are in both lists.
    new_schema_generator = kind is TOOL and bool(pairing.changed) and _has_new_schema_generator(before, after)
    for old, new in pairing.changed:
        yield from compare_items(old, new, server, new_schema_generator=new_schema_generator)
    # 3. Report items that are in only one list.
    yield from _report_removed_items(pairing)
    yield from _report_added_items(kind, pairing, before, after, server)
    # 4. Report duplicate and undigestable items.
    for approved, item in pairing.duplicates:
        yield _locate_item(item, "duplicate").build_change_with_alarms(
            "duplicate_name", _value_or_absent(approved), item.value
        )
    for approved, item in pairing.undigestable:
        note = _format_note(item.problem)
        yield _locate_item(item, "undigestable").build_change_with_alarms(
            "undigestable", _value_or_absent(approved), item.value, note=note
        )


def _report_undigestable_server(after: Surface) -> Iterator[Change]:
    problem = after.server_problem
    if problem is not None:
        location = ChangeLocation(entity="server", name="", field="undigestable", approved=ApprovedText(ABSENT))
        yield location.build_change_with_alarms(
            "undigestable", ABSENT, dict(after.server or {}), note=_format_note(problem)
        )


def _report_removed_items(pairing: Pairing) -> Iterator[Change]:
    for item in pairing.removed:
        yield _locate_item(item, "removed").build_change_with_alarms("item_removed", item.value, ABSENT)


def _report_added_items(
    kind: ItemKind, pairing: Pairing, before: Surface, after: Surface, server: ApprovedServer
) -> Iterator[Change]:
    if not pairing.added:
        return
    look_alikes: dict[str, str] = {}
    predecessors: dict[str, Item] = {}
    wrapped: dict[str, str] = {}
    if kind in _CALLED_BY_NAME:
        present = [item.key for item in after.items_of_kind(kind) if item.digest is not None]
        look_alikes = find_look_alike_names([item.key for item in pairing.added], present)
        predecessors = {new.key: old for old, new in find_renames(pairing.removed, pairing.added)}
        approved = [item for item in before.items_of_kind(kind) if item.digest is not None]
        wrapped = find_wrapped_names([item for item in pairing.added if item.key not in predecessors], approved)
    is_only_change = not pairing.changed and len(pairing.added) == len(pairing.removed) == len(predecessors)
    within_release = is_only_change and is_same_release(before.server, after.server)
    for item in pairing.added:
        old = predecessors.get(item.key)
        similar = {"look_alike_name": look_alikes.get(item.key), "name_wrapped": wrapped.get(item.key)}
        yield _build_added_change(item, old, similar, within_release, server)


def _build_added_change(
    item: Item, old: Item | None, similar: Mapping[str, str | None], within_release: bool, server: ApprovedServer
) -> Change:
    approved = ApprovedText(_value_or_absent(old), server)
    alarms = find_item_alarms(item.value, server) if old is None else [*find_text_alarms(item.value, approved)]
    alarms += map(Alarm, find_schema_alarms(item.value, approved))
    if server.interferes(item, approved):
        alarms.append(Alarm("tool_shadowing"))
    notes: list[str] = []
    if old is not None:
        alarms.insert(0, Alarm(_choose_rename_kind(old, item, within_release, server)))
        notes.append(f"It was approved as {_quote_name(old.key)}.")
    for kind_of_name, name in similar.items():
        if name is not None:
            alarms.insert(0, Alarm(kind_of_name))
            notes.append(f"The similar name is {_quote_name(name)}.")
            break
    kind = "renamed_in_release" if Alarm("renamed_in_release") in alarms else "item_added"
    return _locate_item(item, "added").build_change_with_alarms(
        kind, _value_or_absent(old), item.value, alarms, note=" ".join(notes)
    )


def _choose_rename_kind(old: Item, new: Item, within_release: bool, server: ApprovedServer) -> str:
    """Choose the kind: a renamed item is normal in a new release unless its content has critical changes."""
    same_name = fold_identifier(old.key) == fold_identifier(new.key)  # in another notation
    same_text = is_json_equal(old.value.get("description"), new.value.get("description"))
    if within_release and not (same_name and same_text):
        return "renamed"
    is_critical = any(change.severity == CRITICAL for change in compare_items(old, new, server))
    return "renamed" if is_critical else "renamed_in_release"


def _has_new_schema_generator(before: Surface, after: Surface) -> bool:
    """Whether several input schemas had ``additionalProperties: false`` and all of them lost it.

    This happens when a server starts to use another schema generator. An attacker who wants to pass a new argument to
    one tool has no reason to change the others.
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


def _locate_item(item: Item, field: str) -> ChangeLocation:
    return ChangeLocation(entity=item.kind.entity, name=item.name, field=field, approved=ApprovedText(ABSENT))


def _value_or_absent(item: Item | None) -> object:
    return ABSENT if item is None else item.value


def _format_note(problem: str | None) -> str:
    return f"({show_invisible(problem)})" if problem else ""


def _quote_name(name: str) -> str:
    return f"'{show_invisible(name[:_MAX_NAME])}'"


_NOTIFICATION_FLAGS = frozenset({"listChanged", "subscribe"})
_MAX_VERSION = 40
_MAX_WORDS_IN_VERSION = 2  # as in 1.0.0-alpha.1+build.7
_VERSION_PART = re.compile(r"[0-9A-Za-z]+")


def compare_server_info(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, server: ApprovedServer | None = None
) -> Iterator[Change]:
    """Compare serverInfo, capabilities and instructions.

    If ``before`` is None, because the approval did not record these members, only text for the model is reported.
    """
    if after is None:
        return
    if before is None:
        yield from _compare_without_baseline(after, server)
        return
    approved = ApprovedText(dict(before), server)
    for member in dict(before) | dict(after):
        old, new = before.get(member, ABSENT), after.get(member, ABSENT)
        if not is_json_equal(old, new):
            location = ChangeLocation(entity="server", name="", field=member, approved=approved).child(member)
            yield from _SERVER_RULES.get(member, _compare_other_member)(location, old, new)


def _compare_without_baseline(after: Mapping[str, Any], server: ApprovedServer | None) -> Iterator[Change]:
    """Report unapproved text for the model: any instructions, and serverInfo that looks like an attack.

    The approved surface may be only a list of tools, so capabilities and an ordinary serverInfo are not reported.
    """
    for member in ("instructions", "serverInfo"):
        value = after.get(member)
        alarms = find_item_alarms(value, server)
        if server is not None and server.has_text_about_neighbours(value, ApprovedText(ABSENT, server)):
            alarms.append(Alarm("tool_shadowing"))
        if alarms or (member == "instructions" and value):
            location = ChangeLocation(entity="server", name="", field=member, approved=ApprovedText(ABSENT)).child(
                member
            )
            yield location.build_change_with_alarms("text_added", ABSENT, value, alarms)


def is_same_release(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Whether both servers state the same version. A server without a version counts as the same release."""
    old, new = _get_stated_version(before), _get_stated_version(after)
    return old is ABSENT or new is ABSENT or is_json_equal(old, new)


def _get_stated_version(server: Mapping[str, Any] | None) -> Any:
    info = (server or {}).get("serverInfo")
    return info.get("version", ABSENT) if isinstance(info, dict) else ABSENT


def _compare_other_member(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    yield from compare_values(location, old, new, "member_changed")


def _compare_capabilities(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    """Compare capabilities member by member and report each that was added, removed or changed."""
    if is_json_equal(old, new):
        return
    if location.member in _NOTIFICATION_FLAGS and all(side is ABSENT or type(side) is bool for side in (old, new)):
        yield location.build_change("notice_changed", old, new)
    elif _is_empty(old) and _is_empty(new) and location.path == "/capabilities":
        yield location.build_change("same_meaning", old, new)
    elif _has_comparable_members(old, location) and _has_comparable_members(new, location):
        old_members = old if isinstance(old, dict) else {}
        new_members = new if isinstance(new, dict) else {}
        for name in old_members | new_members:
            yield from _compare_capabilities(
                location.child(name), old_members.get(name, ABSENT), new_members.get(name, ABSENT)
            )
    elif old is ABSENT:
        yield location.build_change("capability_added", old, new)
    elif new is ABSENT:
        yield location.build_change("capability_removed", old, new)
    else:
        yield location.build_change("capability_changed", old, new)


def _is_empty(value: Any) -> bool:
    return value is ABSENT or value == {}


def _has_comparable_members(value: Any, location: ChangeLocation) -> bool:
    """Whether to compare a value member by member. Absent ``capabilities`` count as an empty object."""
    return isinstance(value, dict) or (value is ABSENT and location.path == "/capabilities")


def _compare_identities(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    if new is ABSENT:
        yield location.build_change("identity_unstated", old, new)
    elif not isinstance(old, dict) or not isinstance(new, dict):
        yield location.build_change("identity_changed", old, new)
    else:
        for member in old | new:
            old_value, new_value = old.get(member, ABSENT), new.get(member, ABSENT)
            if not is_json_equal(old_value, new_value):
                yield from _IDENTITY_RULES.get(member, _compare_other_member)(
                    location.child(member), old_value, new_value
                )


def _compare_names(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    yield location.build_change("identity_changed", old, new)


def _compare_versions(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    yield location.build_change("version_changed" if new is ABSENT or _is_version(new) else "member_changed", old, new)


def _is_version(value: Any) -> bool:
    """Whether a value is a version and not a sentence: short, starting with numbers, with at most two words."""
    if not isinstance(value, str) or len(value) > _MAX_VERSION or not is_exact(value):
        return False
    words = [part for part in _VERSION_PART.findall(value) if part.isalpha()]
    return len(words) <= _MAX_WORDS_IN_VERSION


_IDENTITY_RULES: dict[str, MemberRule] = {
    "name": _compare_names,
    "title": compare_texts,
    "description": compare_texts,
    "version": _compare_versions,
    "websiteUrl": compare_website_urls,
    "icons": compare_icons,
}
_SERVER_RULES: dict[str, MemberRule] = {
    "instructions": compare_texts,
    "capabilities": _compare_capabilities,
    "serverInfo": _compare_identities,
}
