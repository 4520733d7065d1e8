"""Adds approved definitions to an approved surface; used for the lock and for approvals in a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.record import replace
from pinwarden.gateway.audit.event import SERVER_ITEM
from pinwarden.gateway.store.reviews import make_storable_name
from pinwarden.surface.surface import ITEM_KINDS, SERVER_MEMBERS, Item, Surface

KIND_BY_ENTITY = {kind.entity: kind for kind in ITEM_KINDS}


class Definition(Protocol):
    """A definition of an item, with the digests of the definitions that it replaces."""

    @property
    def entity(self) -> str:
        """The type of the item: tool, prompt, resource, resourceTemplate or server."""

    @property
    def item(self) -> str:
        """The item's key: its name or URI, or the name of the server member."""

    @property
    def digest(self) -> str:
        """The digest of the definition."""

    @property
    def expected(self) -> str:
        """The previously approved digests, separated by spaces."""

    @property
    def definition(self) -> str:
        """The definition as canonical JSON."""


def is_intact(definition: Definition) -> bool:
    """Whether the JSON text has the stated key and digest. Raises PinwardenError if the text is not strict JSON."""
    value = strict_json.parse_json(definition.definition.encode())
    if definition.entity == SERVER_ITEM:
        key = definition.item if definition.item in SERVER_MEMBERS else ""
    else:
        key = make_storable_name(_get_item_key(definition, value))
    return bool(key) and key == definition.item and str(Digest.of_bytes(canonicalize(value))) == definition.digest


def _get_item_key(definition: Definition, value: Any) -> str:
    kind = KIND_BY_ENTITY.get(definition.entity)
    key = value.get(kind.key) if kind is not None and isinstance(value, dict) else None
    return key if isinstance(key, str) else ""


def is_approved(definition: Definition, approved: Surface) -> bool:
    """Whether the surface already contains the definition."""
    return definition.digest in find_approved_digests(definition, approved)


def can_be_added(definition: Definition, approved: Surface) -> bool:
    """Whether the surface has the definition already, or is as the approver saw it.

    As the approver saw it: the surface has one of the expected definitions of the item; if none is expected, it has no
    definition of the item.
    """
    expected = set(definition.expected.split())
    digests = find_approved_digests(definition, approved)
    return definition.digest in digests or bool(digests & expected if expected else not digests)


def find_approved_digests(definition: Definition, approved: Surface) -> set[str]:
    """Return the digests that the surface has for the item."""
    if definition.entity == SERVER_ITEM:
        server = approved.server or {}
        return {str(Digest.of_bytes(canonicalize(server[definition.item])))} if definition.item in server else set()
    items = approved.items_of_kind(KIND_BY_ENTITY[definition.entity])
    return {str(item.digest) for item in items if make_storable_name(item.key) == definition.item}


def find_approved_value(definition: Definition, approved: Surface) -> Any:
    """Return the definition that the surface has for the item; None if it has none."""
    if definition.entity == SERVER_ITEM:
        return (approved.server or {}).get(definition.item)
    items = approved.items_of_kind(KIND_BY_ENTITY[definition.entity])
    return next((item.value for item in items if make_storable_name(item.key) == definition.item), None)


def add_definitions(approved: Surface, definitions: Sequence[Definition]) -> Surface:
    """Return the approved surface with these definitions added. An added definition replaces one with the same key."""
    server = approved.server
    items = dict(approved.items)
    for definition in definitions:
        value = strict_json.parse_json(definition.definition.encode())
        if definition.entity == SERVER_ITEM:
            server = {**(server or {}), definition.item: value}
            continue
        kind = KIND_BY_ENTITY[definition.entity]
        item = Item.from_value(kind, value)
        others = tuple(other for other in items.get(kind.member, ()) if other.key != item.key)
        items[kind.member] = (*others, item)
    return replace(approved, server=server, items=items)
