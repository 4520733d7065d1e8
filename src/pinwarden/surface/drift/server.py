"""Changes of what a server says about itself: instructions, capabilities, identity."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pinwarden.core.versions import is_exact
from pinwarden.surface.drift.alarms import Approved, cues_of_new_item
from pinwarden.surface.drift.changes import ABSENT, Change
from pinwarden.surface.drift.item import MemberRule, picture_changes, website_changes
from pinwarden.surface.drift.json_values import same
from pinwarden.surface.drift.place import Place, text_changes, value_changes

_NOTICES = frozenset({"listChanged", "subscribe"})
_MAX_VERSION = 40
_MAX_WORDS_IN_VERSION = 2  # 1.0.0-alpha.1+build.7
_VERSION_PART = re.compile(r"[0-9A-Za-z]+")


def server_changes(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Iterator[Change]:
    """Every change of the server's own members; if an answer was not recorded, only new text that a model follows."""
    if after is None:
        return
    if before is None:
        yield from _unrecorded_before(after)
        return
    approved = Approved(dict(before))
    for member in dict(before) | dict(after):
        old, new = before.get(member, ABSENT), after.get(member, ABSENT)
        if not same(old, new):
            place = Place(entity="server", name="", field=member, approved=approved).down(member)
            yield from _RULES.get(member, _other_changes)(place, old, new)


def _unrecorded_before(after: Mapping[str, Any]) -> Iterator[Change]:
    """What nobody approved and a model reads now: the instructions, and an attack in what the server calls itself.

    A list of tools alone may be held against a whole surface, so capabilities and an ordinary identity are no news.
    """
    for member in ("instructions", "serverInfo"):
        value = after.get(member)
        alarms = [f"new_{code}" for code in cues_of_new_item(value)]
        if alarms or (member == "instructions" and value):
            place = Place(entity="server", name="", field=member, approved=Approved(ABSENT)).down(member)
            yield place.stated("text_added", ABSENT, value, alarms)


def same_release(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Whether both answers come from one release, as far as anybody said: what is not stated is not another one."""
    old, new = _version(before), _version(after)
    return old is ABSENT or new is ABSENT or same(old, new)


def _version(server: Mapping[str, Any] | None) -> Any:
    info = (server or {}).get("serverInfo")
    return info.get("version", ABSENT) if isinstance(info, dict) else ABSENT


def _other_changes(place: Place, old: Any, new: Any) -> Iterator[Change]:
    yield from value_changes(place, old, new, "member_changed")


def _capability_changes(place: Place, old: Any, new: Any) -> Iterator[Change]:
    """Down to the first member that appeared, went or changed."""
    if same(old, new):
        return
    if place.member in _NOTICES and all(side is ABSENT or type(side) is bool for side in (old, new)):
        yield place.change("notice_changed", old, new)
    elif _is_empty(old) and _is_empty(new) and place.path == "/capabilities":
        yield place.change("same_meaning", old, new)
    elif _may_be_walked(old, place) and _may_be_walked(new, place):
        was = old if isinstance(old, dict) else {}
        is_now = new if isinstance(new, dict) else {}
        for name in was | is_now:
            yield from _capability_changes(place.down(name), was.get(name, ABSENT), is_now.get(name, ABSENT))
    elif old is ABSENT:
        yield place.change("capability_added", old, new)
    elif new is ABSENT:
        yield place.change("capability_removed", old, new)
    else:
        yield place.change("capability_changed", old, new)


def _is_empty(value: Any) -> bool:
    return value is ABSENT or value == {}


def _may_be_walked(value: Any, place: Place) -> bool:
    """Only the whole member may be absent and still be walked, so that each capability is named by itself."""
    return isinstance(value, dict) or (value is ABSENT and place.path == "/capabilities")


def _identity_changes(place: Place, old: Any, new: Any) -> Iterator[Change]:
    if new is ABSENT:
        yield place.change("identity_unstated", old, new)
    elif not isinstance(old, dict) or not isinstance(new, dict):
        yield place.change("identity_changed", old, new)
    else:
        for member in old | new:
            was, is_now = old.get(member, ABSENT), new.get(member, ABSENT)
            if not same(was, is_now):
                yield from _IDENTITY_RULES.get(member, _other_changes)(place.down(member), was, is_now)


def _name_changes(place: Place, old: Any, new: Any) -> Iterator[Change]:
    yield place.change("identity_changed", old, new)


def _version_changes(place: Place, old: Any, new: Any) -> Iterator[Change]:
    yield place.change("version_changed" if new is ABSENT or _is_version(new) else "member_changed", old, new)


def _is_version(value: Any) -> bool:
    """Whether a value is a version and not a sentence in its place: short, numbers first, hardly a word."""
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
    "icons": picture_changes,
}
_RULES: dict[str, MemberRule] = {
    "instructions": text_changes,
    "capabilities": _capability_changes,
    "serverInfo": _identity_changes,
}
