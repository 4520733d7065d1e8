"""Compare one tool, prompt, resource or template with its approved version, member by member."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from pinwarden.core.canonical import is_number
from pinwarden.core.json_values import is_json_equal
from pinwarden.surface.drift.approved_text import ApprovedServer, ApprovedText
from pinwarden.surface.drift.changes import ABSENT, Change
from pinwarden.surface.drift.location import ChangeLocation, compare_texts, compare_values
from pinwarden.surface.drift.schema import compare_schemas
from pinwarden.surface.drift.text_signals import (
    adds,
    describes_destruction,
    destroys,
    erases,
    find_main_verb,
    reads,
    split_name_words,
    writes,
)
from pinwarden.surface.surface import PROMPT, RESOURCE, TOOL, Item

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.\-]*):")
_AUTHORITY = re.compile(r"[^:/?#]+://([^/?#]*)")
# In addresses with these schemes, the text after // is a host. With other schemes (notes://index), it is only a name.
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
# Cues that are normal in an address: it has a host, and an image in a data: URL is encoded.
_ORDINARY_IN_ADDRESSES = frozenset({"destination", "encoded_payload"})

MemberRule = Callable[[ChangeLocation, Any, Any], Iterator[Change]]


def compare_items(
    before: Item, after: Item, server: ApprovedServer | None = None, *, new_schema_generator: bool = False
) -> Iterator[Change]:
    """Compare an approved item with its current version. Yields at least one change.

    ``server`` is the approved text of all items, so that a sentence which moved between items is not new.
    """
    approved = ApprovedText(before.value, server)
    no_change_reported = True
    for member in before.value | after.value:
        old, new = before.value.get(member, ABSENT), after.value.get(member, ABSENT)
        if is_json_equal(old, new):
            continue
        location = ChangeLocation(entity=before.kind.entity, name=before.name, field=member, approved=approved).child(
            member
        )
        for change in _compare_member(before, location, old, new, new_schema_generator):
            no_change_reported = False
            yield change
    if no_change_reported:
        # The digests differ, so there is a change even if no rule found it.
        location = ChangeLocation(entity=before.kind.entity, name=before.name, field="", approved=approved)
        yield location.build_change("changed", before.value, after.value)


def _compare_member(
    item: Item, location: ChangeLocation, old: Any, new: Any, new_schema_generator: bool
) -> Iterator[Change]:
    if item.kind is TOOL and location.field in ("inputSchema", "outputSchema"):
        is_input = location.field == "inputSchema"
        return compare_schemas(location, old, new, is_input=is_input, new_schema_generator=new_schema_generator)
    if item.kind is TOOL and location.field == "annotations":
        return _compare_annotations(location, old, new)
    if item.kind is PROMPT and location.field == "arguments":
        return _compare_arguments(location, old, new)
    if item.kind is RESOURCE and location.field == "size" and is_number(new):
        return iter((location.build_change("content_fact_changed", old, new),))
    return _MEMBER_RULES.get(location.field, _compare_other_member)(location, old, new)


def _compare_other_member(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    yield from compare_values(location, old, new, "member_changed")


def _compare_addresses(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    """Compare the URI of a resource, or the URI template of a resource template."""
    kind = "address_changed" if _split_scheme_and_host(old) == _split_scheme_and_host(new) else "address_moved"
    yield location.build_change(kind, old, new, ignored=_ORDINARY_IN_ADDRESSES)


def _split_scheme_and_host(address: Any) -> tuple[str, str]:
    """Return the scheme of an address, and the host if addresses with this scheme have one."""
    scheme = _SCHEME.match(address) if isinstance(address, str) else None
    if scheme is None:
        return "", ""
    name = scheme[1].lower()
    host = _AUTHORITY.match(address.strip()) if name in _NETWORK_SCHEMES else None
    return name, host[1].lower() if host else ""


def compare_icons(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    """Compare icons. The host downloads and shows them, so only https, http and data addresses are safe."""
    for change in compare_values(location, old, new, "icon_changed"):
        icon_location = ChangeLocation(
            entity=location.entity,
            name=location.name,
            field=location.field,
            path=change.path,
            approved=location.approved,
        )
        kind = "unsafe_address" if any(map(_has_unsafe_scheme, _list_addresses(change))) else "icon_changed"
        yield icon_location.build_change(kind, change.before, change.after, ignored=_ORDINARY_IN_ADDRESSES)


def compare_website_urls(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    """Compare the addresses of a website that a user may open."""
    kind = "unsafe_address" if _has_unsafe_scheme(new) or _parse_scheme(new) == "data" else "address_changed"
    yield location.build_change(kind, old, new, ignored=_ORDINARY_IN_ADDRESSES)


def _list_addresses(change: Change) -> list[Any]:
    if change.path.endswith("/src"):
        return [change.after]
    icons = change.after if isinstance(change.after, list) else [change.after]
    return [icon.get("src", "") for icon in icons if isinstance(icon, dict)]


def _has_unsafe_scheme(address: Any) -> bool:
    return _parse_scheme(address) not in _ICON_SCHEMES | {""}


def _parse_scheme(address: Any) -> str:
    match = _SCHEME.match(address) if isinstance(address, str) else None
    return match[1].lower() if match else ""


def _compare_media_types(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    yield location.build_change("media_type_changed", old, new)


def _compare_content_annotations(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    """Compare annotations of content: audience, priority, date of the last modification."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        yield from compare_values(location, old, new, "member_changed")
        return
    for name in old | new:
        new_value = new.get(name, ABSENT)
        kind = "content_fact_changed" if name == "lastModified" and _is_date(new_value) else "member_changed"
        yield from compare_values(location.child(name), old.get(name, ABSENT), new_value, kind)


def _is_date(value: Any) -> bool:
    """Whether a value is an ISO 8601 date or absent. Any other text counts as a change for review."""
    return value is ABSENT or (isinstance(value, str) and _DATE.fullmatch(value) is not None)


# Arguments of a prompt


def _compare_arguments(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    old_arguments, new_arguments = _index_arguments(old), _index_arguments(new)
    if old_arguments is None or new_arguments is None:
        yield from compare_values(location, old, new, "member_changed")
        return
    no_change_reported = True
    for name in old_arguments | new_arguments:
        for change in _compare_argument(location, old_arguments.get(name), new_arguments.get(name)):
            no_change_reported = False
            yield change
    if no_change_reported:
        yield location.build_change("order_changed" if old_arguments else "same_meaning", old, new)


def _compare_argument(
    location: ChangeLocation, old: tuple[int, dict[str, Any]] | None, new: tuple[int, dict[str, Any]] | None
) -> Iterator[Change]:
    if old is None and new is not None:
        yield location.child(new[0]).build_change("argument_added", ABSENT, new[1])
    elif old is not None and new is None:
        yield location.child(old[0]).build_change("argument_removed", old[1], ABSENT)
    elif old is not None and new is not None:
        for member in old[1] | new[1]:
            inner = location.child(new[0]).child(member)
            yield from _compare_argument_member(inner, old[1].get(member, ABSENT), new[1].get(member, ABSENT))


def _compare_argument_member(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    if is_json_equal(old, new):
        return
    if location.member in ("title", "description"):
        yield from compare_texts(location, old, new)
    elif location.member == "required" and all(side is ABSENT or type(side) is bool for side in (old, new)):
        is_required = new is True
        kind = "argument_required" if is_required else "argument_optional"
        yield location.build_change("same_meaning" if is_required == (old is True) else kind, old, new)
    else:
        yield from compare_values(location, old, new, "member_changed")


def _index_arguments(arguments: Any) -> dict[str, tuple[int, dict[str, Any]]] | None:
    """Index arguments by name, each with its position; None if they are not a list of objects with unique names."""
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


def _compare_descriptions(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    server = location.approved.server
    key = location.approved.value.get("uri", location.approved.value.get("name", ""))
    if isinstance(new, str) and len(new.split()) > 2 and server.describes_other_item(location.entity, str(key), new):
        yield location.build_change("description_copied", old, new)
    elif isinstance(old, str) and isinstance(new, str) and _is_understated(location.name, old, new):
        yield location.build_change("read_only_claimed", old, new)
    else:
        yield from compare_texts(location, old, new)


_FRAMEWORK_NOTES = frozenset({"fastmcp", "_fastmcp"})


def _compare_metadata(location: ChangeLocation, old: Any, new: Any) -> Iterator[Change]:
    """Compare ``_meta``. Hosts read some of its members; those of frameworks are only for the server's own use."""
    old_notes, new_notes = (side if isinstance(side, dict) else {} for side in (old, new))
    if not all(side is ABSENT or isinstance(side, dict) for side in (old, new)):
        yield from compare_values(location, old, new, "member_changed")
        return
    for name in old_notes | new_notes:
        kind = "framework_note_changed" if name in _FRAMEWORK_NOTES else "member_changed"
        inner = location.child(name)
        yield from compare_values(inner, old_notes.get(name, ABSENT), new_notes.get(name, ABSENT), kind)


def _is_understated(name: str, old: str, new: str) -> bool:
    """Whether the description of an item that deletes something by its name no longer begins by saying so."""
    return (
        destroys(find_main_verb(split_name_words(name), ""))
        and describes_destruction(old)
        and bool(find_main_verb([], new))
        and not describes_destruction(new)
    )


_MEMBER_RULES: dict[str, MemberRule] = {
    "name": compare_texts,
    "title": compare_texts,
    "description": _compare_descriptions,
    "_meta": _compare_metadata,
    "uri": _compare_addresses,
    "uriTemplate": _compare_addresses,
    "mimeType": _compare_media_types,
    "icons": compare_icons,
    "annotations": _compare_content_annotations,
}
"""The rule for each member that means the same in all kinds of items."""


_MIN_REVISED = 4  # tools whose hints must change alike before they count as revised together
_HARMLESS_VALUES = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
"""For each hint, the value that makes a tool look less dangerous. MCP's default is the opposite value."""


def _compare_annotations(location: ChangeLocation, before: Any, after: Any) -> Iterator[Change]:
    """Compare the annotations of a tool, hint by hint."""
    if not isinstance(before, dict | type(ABSENT)) or not isinstance(after, dict | type(ABSENT)):
        yield from compare_values(location, before, after, "annotation_changed")
        return
    old = before if isinstance(before, dict) else {}
    new = after if isinstance(after, dict) else {}
    if not old and not new:
        yield location.build_change("same_meaning", before, after)
    for hint in old | new:
        yield from _compare_hint(location.child(hint), old, new)


def _compare_hint(location: ChangeLocation, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    hint = location.member
    before, after = old.get(hint, ABSENT), new.get(hint, ABSENT)
    if is_json_equal(before, after):
        return
    if hint == "title":
        yield from compare_texts(location, before, after)
    elif hint not in _HARMLESS_VALUES:
        yield from compare_values(location, before, after, "annotation_changed")
    elif _denies_hazard(hint, old, new) and not (
        _agrees_with_name(location, hint) or _is_revised_everywhere(location, hint)
    ):
        yield location.build_change("annotation_toward_harmless", before, after)
    elif _contradicts_name(location, hint, after) and not _is_part_of_revision(location, hint):
        yield location.build_change("read_only_claimed", before, after)
    elif before is ABSENT:
        is_default = after is (not _HARMLESS_VALUES[hint])
        yield location.build_change("same_meaning" if is_default else "annotation_declared", before, after)
    elif after is ABSENT:
        yield location.build_change("annotation_withdrawn", before, after)
    else:
        yield location.build_change("annotation_changed", before, after)


def _contradicts_name(location: ChangeLocation, hint: str, value: Any) -> bool:
    """Whether a hint says that a tool is harmless which changes or destroys something by its name or description."""
    verb = location.find_main_verb() if _looks_harmless(hint, value) else ""
    return (hint == "readOnlyHint" and writes(verb)) or (hint == "destructiveHint" and destroys(verb))


def _agrees_with_name(location: ChangeLocation, hint: str) -> bool:
    """Whether a tool is harmless by its name or approved description, so that the hint only corrects an earlier one."""
    verb = location.find_main_verb()
    return reads(verb) or (hint != "readOnlyHint" and adds(verb))


def _is_revised_everywhere(location: ChangeLocation, hint: str) -> bool:
    """Whether several tools lose the same warning together, as if their author revised the hints of all tools."""
    pairs = ((old.get("annotations"), new.get("annotations")) for old, new in location.approved.server.pair_tools())
    revised = (
        1 for old, new in pairs if isinstance(old, dict) and isinstance(new, dict) and _denies_hazard(hint, old, new)
    )
    return len(list(islice(revised, _MIN_REVISED))) == _MIN_REVISED


def _is_part_of_revision(location: ChangeLocation, hint: str) -> bool:
    """Whether a tool stops or detaches something, and its author revised the hints of several tools together.

    Not every tool with such a name is destructive: it may remove a label, or end a session.
    """
    if hint != "destructiveHint" or erases(location.find_main_verb()):
        return False
    return _is_revised_everywhere(location, hint) or _gets_first_hints_everywhere(location)


def _gets_first_hints_everywhere(location: ChangeLocation) -> bool:
    pairs = ((old.get("annotations"), new.get("annotations")) for old, new in location.approved.server.pair_tools())
    first = (1 for old, new in pairs if not old and isinstance(new, dict))
    return not location.approved.value.get("annotations") and len(list(islice(first, _MIN_REVISED))) == _MIN_REVISED


def _denies_hazard(hint: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    if not _looks_harmless(hint, new.get(hint, ABSENT)):
        return False
    if _states_hazard(hint, old.get(hint, ABSENT)):
        return True
    # A tool that was declared destructive now claims to be read-only, and hosts check that hint first.
    return (
        hint == "readOnlyHint"
        and not _looks_harmless(hint, old.get(hint, ABSENT))
        and _states_hazard("destructiveHint", old.get("destructiveHint", ABSENT))
    )


def _looks_harmless(hint: str, value: Any) -> bool:
    """Whether a host considers the tool harmless. Some hosts accept any truthy value as true."""
    return value is not ABSENT and bool(value) is _HARMLESS_VALUES[hint]


def _states_hazard(hint: str, value: Any) -> bool:
    return value is not ABSENT and bool(value) is not _HARMLESS_VALUES[hint]
