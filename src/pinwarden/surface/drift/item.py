"""Changes inside one item: a tool, prompt, resource or template compared with its approved version, by member."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from pinwarden.core.canonical import is_number
from pinwarden.core.json_values import is_json_equal
from pinwarden.surface.drift.changes import ABSENT, Change
from pinwarden.surface.drift.location import ApprovedText, ChangeLocation, text_changes, value_changes
from pinwarden.surface.drift.schema import schema_changes
from pinwarden.surface.surface import PROMPT, RESOURCE, TOOL, Item

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.\-]*):")
_AUTHORITY = re.compile(r"[^:/?#]+://([^/?#]*)")
# Schemes for which the part after // is a host. With others (notes://index) it is only a name.
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
_ICON_SCHEMES = frozenset({"https", "http", "data"})
# Every address is a destination, and an image in a data: address is always encoded.
_ORDINARY_IN_ADDRESSES = frozenset({"destination", "encoded_payload"})

MemberRule = Callable[[ChangeLocation, Any, Any], Iterator[Change]]


def item_changes(before: Item, after: Item, *, unstated_everywhere: bool = False) -> Iterator[Change]:
    """Every change between an approved item and its current version."""
    approved = ApprovedText(before.value)
    no_change_reported = True
    for member in before.value | after.value:
        old, new = before.value.get(member, ABSENT), after.value.get(member, ABSENT)
        if is_json_equal(old, new):
            continue
        location = ChangeLocation(entity=before.kind.entity, name=before.name, field=member, approved=approved).child(
            member
        )
        for change in _member_changes(before, location, old, new, unstated_everywhere):
            no_change_reported = False
            yield change
    if no_change_reported:
        # The digests differ, but no rule found a change: report it anyway.
        location = ChangeLocation(entity=before.kind.entity, name=before.name, field="", approved=approved)
        yield location.change("changed", before.value, after.value)


def _member_changes(
    item: Item, location: ChangeLocation, old: Any, new: Any, unstated_everywhere: bool
) -> Iterator[Change]:
    if item.kind is TOOL and location.field in ("inputSchema", "outputSchema"):
        inputs = location.field == "inputSchema"
        return schema_changes(location, old, new, inputs=inputs, unstated_everywhere=unstated_everywhere)
    if item.kind is TOOL and location.field == "annotations":
        return annotation_changes(location, old, new)
    if item.kind is PROMPT and location.field == "arguments":
        return _argument_changes(location, old, new)
    if item.kind is RESOURCE and location.field == "size" and is_number(new):
        return iter((location.change("content_fact_changed", old, new),))
    return MEMBER_RULES.get(location.field, _other_changes)(location, old, new)


def _other_changes(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    yield from value_changes(location, old, new, "member_changed")


def _address_changes(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    """The address of a resource, or the template of one."""
    kind = "address_changed" if _scheme_and_host(old) == _scheme_and_host(new) else "address_moved"
    yield location.change(kind, old, new, ignored=_ORDINARY_IN_ADDRESSES)


def _scheme_and_host(address: Any) -> tuple[str, str]:
    """Scheme of an address, and its host if the scheme has one."""
    scheme = _SCHEME.match(address) if isinstance(address, str) else None
    if scheme is None:
        return "", ""
    name = scheme[1].lower()
    host = _AUTHORITY.match(address.strip()) if name in _NETWORK_SCHEMES else None
    return name, host[1].lower() if host else ""


def icon_changes(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    """Icons: the host fetches and shows them, so their addresses must be of a harmless scheme."""
    for change in value_changes(location, old, new, "icon_changed"):
        icon_location = ChangeLocation(
            entity=location.entity,
            name=location.name,
            field=location.field,
            path=change.path,
            approved=location.approved,
        )
        kind = "unsafe_address" if any(map(_has_unsafe_scheme, _addresses_in(change))) else "icon_changed"
        yield icon_location.change(kind, change.before, change.after, ignored=_ORDINARY_IN_ADDRESSES)


def website_changes(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    """An address that a user may open."""
    kind = "unsafe_address" if _has_unsafe_scheme(new) or _scheme(new) == "data" else "address_changed"
    yield location.change(kind, old, new, ignored=_ORDINARY_IN_ADDRESSES)


def _addresses_in(change: Change) -> list[Any]:
    if change.path.endswith("/src"):
        return [change.after]
    icons = change.after if isinstance(change.after, list) else [change.after]
    return [icon.get("src", "") for icon in icons if isinstance(icon, dict)]


def _has_unsafe_scheme(address: Any) -> bool:
    return _scheme(address) not in _ICON_SCHEMES | {""}


def _scheme(address: Any) -> str:
    match = _SCHEME.match(address) if isinstance(address, str) else None
    return match[1].lower() if match else ""


def _media_type_changes(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    yield location.change("media_type_changed", old, new)


def _content_annotation_changes(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    """Annotations of content: audience, priority, date of the last edit."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        yield from value_changes(location, old, new, "member_changed")
        return
    for name in old | new:
        new_value = new.get(name, ABSENT)
        kind = "content_fact_changed" if name == "lastModified" and _is_date(new_value) else "member_changed"
        yield from value_changes(location.child(name), old.get(name, ABSENT), new_value, kind)


def _is_date(value: Any) -> bool:
    """Whether a value is absent or an ISO 8601 date, not other text."""
    return value is ABSENT or (isinstance(value, str) and _DATE.fullmatch(value) is not None)


# Arguments of a prompt


def _argument_changes(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    old_arguments, new_arguments = _arguments_by_name(old), _arguments_by_name(new)
    if old_arguments is None or new_arguments is None:
        yield from value_changes(location, old, new, "member_changed")
        return
    no_change_reported = True
    for name in old_arguments | new_arguments:
        for change in _compare_argument(location, old_arguments.get(name), new_arguments.get(name)):
            no_change_reported = False
            yield change
    if no_change_reported:
        yield location.change("order_changed" if old_arguments else "same_meaning", old, new)


def _compare_argument(
    location: ChangeLocation, old: tuple[int, dict[str, Any]] | None, new: tuple[int, dict[str, Any]] | None
) -> Iterator[Change]:
    if old is None and new is not None:
        yield location.child(new[0]).change("argument_added", ABSENT, new[1])
    elif old is not None and new is None:
        yield location.child(old[0]).change("argument_removed", old[1], ABSENT)
    elif old is not None and new is not None:
        for member in old[1] | new[1]:
            inner = location.child(new[0]).child(member)
            yield from _argument_member_changes(inner, old[1].get(member, ABSENT), new[1].get(member, ABSENT))


def _argument_member_changes(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    if is_json_equal(old, new):
        return
    if location.member in ("title", "description"):
        yield from text_changes(location, old, new)
    elif location.member == "required" and all(side is ABSENT or type(side) is bool for side in (old, new)):
        is_required = new is True
        kind = "argument_required" if is_required else "argument_optional"
        yield location.change("same_meaning" if is_required == (old is True) else kind, old, new)
    else:
        yield from value_changes(location, old, new, "member_changed")


def _arguments_by_name(arguments: Any) -> dict[str, tuple[int, dict[str, Any]]] | None:
    """Arguments with their indexes by name; None if they are not a list of objects with distinct names."""
    if arguments is ABSENT:
        return {}
    if not isinstance(arguments, list):
        return None
    by_name: dict[str, tuple[int, dict[str, Any]]] = {}
    for index, argument in enumerate(arguments):
        name = argument.get("name") if isinstance(argument, dict) else None
        if not isinstance(name, str) or name in by_name:
            return None
        by_name[name] = index, argument
    return by_name


MEMBER_RULES: dict[str, MemberRule] = {
    "name": text_changes,
    "title": text_changes,
    "description": text_changes,
    "uri": _address_changes,
    "uriTemplate": _address_changes,
    "mimeType": _media_type_changes,
    "icons": icon_changes,
    "annotations": _content_annotation_changes,
}
"""Rules for members that mean the same in every kind of item. Other members are compared value by value."""


HARMLESS_VALUE = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
"""By hint, the value that makes a tool look less dangerous. The protocol's default is the opposite."""


def annotation_changes(location: ChangeLocation, before: Any, after: Any) -> Iterator[Change]:
    """Every changed hint of one tool."""
    if not isinstance(before, dict | type(ABSENT)) or not isinstance(after, dict | type(ABSENT)):
        yield from value_changes(location, before, after, "annotation_changed")
        return
    old = before if isinstance(before, dict) else {}
    new = after if isinstance(after, dict) else {}
    if not old and not new:
        yield location.change("same_meaning", before, after)
    for hint in old | new:
        yield from _hint_changes(location.child(hint), old, new)


def _hint_changes(location: ChangeLocation, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    hint = location.member
    before, after = old.get(hint, ABSENT), new.get(hint, ABSENT)
    if is_json_equal(before, after):
        return
    if hint == "title":
        yield from text_changes(location, before, after)
    elif hint not in HARMLESS_VALUE:
        yield from value_changes(location, before, after, "annotation_changed")
    elif _denies_hazard(hint, old, new):
        yield location.change("annotation_toward_harmless", before, after)
    elif before is ABSENT:
        is_default = after is (not HARMLESS_VALUE[hint])
        yield location.change("same_meaning" if is_default else "annotation_declared", before, after)
    elif after is ABSENT:
        yield location.change("annotation_withdrawn", before, after)
    else:
        yield location.change("annotation_changed", before, after)


def _denies_hazard(hint: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    if not _looks_harmless(hint, new.get(hint, ABSENT)):
        return False
    if _states_hazard(hint, old.get(hint, ABSENT)):
        return True
    # A tool that was declared destructive now also claims to be read-only, which hosts check first.
    return (
        hint == "readOnlyHint"
        and not _looks_harmless(hint, old.get(hint, ABSENT))
        and _states_hazard("destructiveHint", old.get("destructiveHint", ABSENT))
    )


def _looks_harmless(hint: str, value: Any) -> bool:
    """Whether a lenient host, which accepts any truthy value as true, considers the tool harmless."""
    return value is not ABSENT and bool(value) is HARMLESS_VALUE[hint]


def _states_hazard(hint: str, value: Any) -> bool:
    return value is not ABSENT and bool(value) is not HARMLESS_VALUE[hint]
