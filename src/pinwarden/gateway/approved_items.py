"""What approving one definition changes in an approved surface, for the lock and for approvals in a database alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.record import replace
from pinwarden.gateway.audit.event import SERVER_ITEM
from pinwarden.gateway.store.reviews import storable_name
from pinwarden.surface.surface import ITEM_KINDS, SERVER_MEMBERS, Item, Surface

KIND_OF = {kind.entity: kind for kind in ITEM_KINDS}


class Definition(Protocol):
    """A definition of an item, and the definitions that it takes the place of."""

    @property
    def entity(self) -> str:
        """tool, prompt, resource, resourceTemplate or server."""

    @property
    def item(self) -> str:
        """Its key."""

    @property
    def digest(self) -> str:
        """Of the definition."""

    @property
    def expected(self) -> str:
        """The digests that were approved before, with spaces between them."""

    @property
    def definition(self) -> str:
        """As canonical JSON."""


def is_intact(given: Definition) -> bool:
    """Whether a definition is of the item and the digest that it claims. Raises if it is no JSON."""
    value = strict_json.parse_json(given.definition.encode())
    if given.entity == SERVER_ITEM:
        key = given.item if given.item in SERVER_MEMBERS else ""
    else:
        key = storable_name(_key(given, value))
    return bool(key) and key == given.item and str(Digest.of_bytes(canonicalize(value))) == given.digest


def _key(given: Definition, value: Any) -> str:
    kind = KIND_OF.get(given.entity)
    key = value.get(kind.key) if kind is not None and isinstance(value, dict) else None
    return key if isinstance(key, str) else ""


def holds(given: Definition, approved: Surface) -> bool:
    """Whether the definition is approved already."""
    return given.digest in approved_digests(given, approved)


def fits(given: Definition, approved: Surface) -> bool:
    """Whether a surface is one that the difference was judged against, or holds already what is to be approved."""
    expected = set(given.expected.split())
    there = approved_digests(given, approved)
    return given.digest in there or bool(there & expected if expected else not there)


def approved_digests(given: Definition, approved: Surface) -> set[str]:
    """The digests that a surface has for the item."""
    if given.entity == SERVER_ITEM:
        said = approved.server or {}
        return {str(Digest.of_bytes(canonicalize(said[given.item])))} if given.item in said else set()
    items = approved.items_of_kind(KIND_OF[given.entity])
    return {str(item.digest) for item in items if storable_name(item.key) == given.item}


def with_definitions(approved: Surface, definitions: Sequence[Definition]) -> Surface:
    """The approved surface with these definitions in it, each in the place of the one of its name."""
    server = approved.server
    items = dict(approved.items)
    for each in definitions:
        value = strict_json.parse_json(each.definition.encode())
        if each.entity == SERVER_ITEM:
            server = {**(server or {}), each.item: value}
            continue
        kind = KIND_OF[each.entity]
        made = Item.from_value(kind, value)
        others = tuple(other for other in items.get(kind.member, ()) if other.key != made.key)
        items[kind.member] = (*others, made)
    return replace(approved, server=server, items=items)
