"""Changes inside one item: a tool, prompt, resource or template compared with its approved self, member by member."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from pinwarden.core.canonical import is_number
from pinwarden.surface.drift.alarms import Approved
from pinwarden.surface.drift.annotations import annotation_changes
from pinwarden.surface.drift.changes import ABSENT, Change
from pinwarden.surface.drift.json_values import same
from pinwarden.surface.drift.place import Place, text_changes, value_changes
from pinwarden.surface.drift.schema import schema_changes
from pinwarden.surface.surface import PROMPT, RESOURCE, TOOL, Item

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.\-]*):")
_AUTHORITY = re.compile(r"[^:/?#]+://([^/?#]*)")
# Schemes under which the part after // is a machine. Elsewhere (notes://index) it is just a name.
_NETWORK_SCHEMES = frozenset(
    {
        "http",
        "https",
        "ws",
        "wss",
        "ftp",
        "ftps",
        "sftp",
        "ssh",
        "git",
        "smb",
        "nfs",
        "file",
        "s3",
        "gs",
        "ldap",
        "ldaps",
    }
)
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?(?:[Zz]|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_PICTURE_SCHEMES = frozenset({"https", "http", "data"})
# An address is a destination by nature, and a picture inside a data: address is encoded by nature.
_ORDINARY_IN_ADDRESSES = frozenset({"destination", "encoded_payload"})

MemberRule = Callable[[Place, Any, Any], Iterator[Change]]


def item_changes(before: Item, after: Item, *, unstated_everywhere: bool = False) -> Iterator[Change]:
    """Every change between an approved item and the one now in its place."""
    approved = Approved(before.value)
    silent = True
    for member in before.value | after.value:
        old, new = before.value.get(member, ABSENT), after.value.get(member, ABSENT)
        if same(old, new):
            continue
        place = Place(entity=before.kind.entity, name=before.name, field=member, approved=approved).down(member)
        for change in _member_changes(before, place, old, new, unstated_everywhere):
            silent = False
            yield change
    if silent:
        # The digests differ, so something does. No rule may let it pass unseen.
        place = Place(entity=before.kind.entity, name=before.name, field="", approved=approved)
        yield place.change("changed", before.value, after.value)


def _member_changes(item: Item, place: Place, old: Any, new: Any, unstated_everywhere: bool) -> Iterator[Change]:
    if item.kind is TOOL and place.field in ("inputSchema", "outputSchema"):
        inputs = place.field == "inputSchema"
        return schema_changes(place, old, new, inputs=inputs, unstated_everywhere=unstated_everywhere)
    if item.kind is TOOL and place.field == "annotations":
        return annotation_changes(place, old, new)
    if item.kind is PROMPT and place.field == "arguments":
        return _argument_changes(place, old, new)
    if item.kind is RESOURCE and place.field == "size" and is_number(new):
        return iter((place.change("content_fact_changed", old, new),))
    return MEMBER_RULES.get(place.field, _other_changes)(place, old, new)


def _other_changes(place: Place, old: Any, new: Any) -> Iterator[Change]:
    yield from value_changes(place, old, new, "member_changed")


def _address_changes(place: Place, old: Any, new: Any) -> Iterator[Change]:
    """The address of a resource, or the template of one."""
    kind = "address_changed" if _leads_to(old) == _leads_to(new) else "address_moved"
    yield place.change(kind, old, new, ignored=_ORDINARY_IN_ADDRESSES)


def _leads_to(address: Any) -> tuple[str, str]:
    """Scheme and, where it is one, machine of an address."""
    scheme = _SCHEME.match(address) if isinstance(address, str) else None
    if scheme is None:
        return "", ""
    name = scheme[1].lower()
    machine = _AUTHORITY.match(address.strip()) if name in _NETWORK_SCHEMES else None
    return name, machine[1].lower() if machine else ""


def picture_changes(place: Place, old: Any, new: Any) -> Iterator[Change]:
    """Icons: the host fetches and shows them, so their addresses must be of a harmless scheme."""
    for change in value_changes(place, old, new, "icon_changed"):
        where = Place(
            entity=place.entity, name=place.name, field=place.field, path=change.path, approved=place.approved
        )
        kind = "unsafe_address" if any(map(_is_unsafe, _addresses_in(change))) else "icon_changed"
        yield where.change(kind, change.before, change.after, ignored=_ORDINARY_IN_ADDRESSES)


def website_changes(place: Place, old: Any, new: Any) -> Iterator[Change]:
    """An address that a user may open."""
    kind = "unsafe_address" if _is_unsafe(new) or _scheme(new) == "data" else "address_changed"
    yield place.change(kind, old, new, ignored=_ORDINARY_IN_ADDRESSES)


def _addresses_in(change: Change) -> list[Any]:
    if change.path.endswith("/src"):
        return [change.after]
    icons = change.after if isinstance(change.after, list) else [change.after]
    return [icon.get("src", "") for icon in icons if isinstance(icon, dict)]


def _is_unsafe(address: Any) -> bool:
    return _scheme(address) not in _PICTURE_SCHEMES | {""}


def _scheme(address: Any) -> str:
    found = _SCHEME.match(address) if isinstance(address, str) else None
    return found[1].lower() if found else ""


def _media_type_changes(place: Place, old: Any, new: Any) -> Iterator[Change]:
    yield place.change("media_type_changed", old, new)


def _content_annotation_changes(place: Place, old: Any, new: Any) -> Iterator[Change]:
    """Annotations of content: for whom it is, how much it matters, when it was edited."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        yield from value_changes(place, old, new, "member_changed")
        return
    for name in old | new:
        is_now = new.get(name, ABSENT)
        kind = "content_fact_changed" if name == "lastModified" and _is_date(is_now) else "member_changed"
        yield from value_changes(place.down(name), old.get(name, ABSENT), is_now, kind)


def _is_date(value: Any) -> bool:
    """Whether a value is a date as ISO 8601 writes it, or none; any other text is a text."""
    return value is ABSENT or (isinstance(value, str) and _DATE.fullmatch(value) is not None)


# Arguments of a prompt


def _argument_changes(place: Place, old: Any, new: Any) -> Iterator[Change]:
    was, is_now = _by_name(old), _by_name(new)
    if was is None or is_now is None:
        yield from value_changes(place, old, new, "member_changed")
        return
    silent = True
    for name in was | is_now:
        for change in _one_argument(place, was.get(name), is_now.get(name)):
            silent = False
            yield change
    if silent:
        yield place.change("order_changed" if was else "same_meaning", old, new)


def _one_argument(
    place: Place, old: tuple[int, dict[str, Any]] | None, new: tuple[int, dict[str, Any]] | None
) -> Iterator[Change]:
    if old is None and new is not None:
        yield place.down(new[0]).change("argument_added", ABSENT, new[1])
    elif old is not None and new is None:
        yield place.down(old[0]).change("argument_removed", old[1], ABSENT)
    elif old is not None and new is not None:
        for member in old[1] | new[1]:
            inner = place.down(new[0]).down(member)
            yield from _argument_member(inner, old[1].get(member, ABSENT), new[1].get(member, ABSENT))


def _argument_member(place: Place, old: Any, new: Any) -> Iterator[Change]:
    if same(old, new):
        return
    if place.member in ("title", "description"):
        yield from text_changes(place, old, new)
    elif place.member == "required" and all(side is ABSENT or type(side) is bool for side in (old, new)):
        demanded = new is True
        kind = "argument_required" if demanded else "argument_optional"
        yield place.change("same_meaning" if demanded == (old is True) else kind, old, new)
    else:
        yield from value_changes(place, old, new, "member_changed")


def _by_name(arguments: Any) -> dict[str, tuple[int, dict[str, Any]]] | None:
    """Arguments with their positions by name; None if they are no list of objects with a name each."""
    if arguments is ABSENT:
        return {}
    if not isinstance(arguments, list):
        return None
    named: dict[str, tuple[int, dict[str, Any]]] = {}
    for number, argument in enumerate(arguments):
        name = argument.get("name") if isinstance(argument, dict) else None
        if not isinstance(name, str) or name in named:
            return None
        named[name] = number, argument
    return named


MEMBER_RULES: dict[str, MemberRule] = {
    "name": text_changes,
    "title": text_changes,
    "description": text_changes,
    "uri": _address_changes,
    "uriTemplate": _address_changes,
    "mimeType": _media_type_changes,
    "icons": picture_changes,
    "annotations": _content_annotation_changes,
}
"""How the members are compared that mean the same in every kind of item; any other is compared value by value."""
