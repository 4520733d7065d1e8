"""`Surface`: a server's tools, prompts, resources, templates, instructions and identity, exactly as sent.

Items are kept verbatim, with a digest over all members. Absent, null and empty members are different. An item without a
canonical form (a repeated member, a lone surrogate, a 400-digit integer) is kept as *undigestable* with the reason; it
never hides other items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_slices import split_object
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import DEFAULT_LIMITS, Limits, encode_json_file
from pinwarden.core.typed_json import JsonObject

FORMAT = "pinwarden-surface/1"
SERVER_MEMBERS = ("serverInfo", "capabilities", "instructions")
_MAX_RAW = 4096  # characters of an undigestable item's text that are kept for display
_MAX_DEPTH = 150  # of one item; the surface file nests it a few levels deeper and must stay parseable
_KNOWN_MEMBERS = frozenset({"format", "observed", "server", "digests", "undigestable", "integrity"})


class ItemKind(Record):
    """One of the four lists that a server offers."""

    entity: str
    """The name of one item in changes and findings."""
    member: str
    """The member of the list result and of the surface document."""
    method: str
    key: str
    """The member that identifies an item in its list."""


TOOL = ItemKind(entity="tool", member="tools", method="tools/list", key="name")
PROMPT = ItemKind(entity="prompt", member="prompts", method="prompts/list", key="name")
RESOURCE = ItemKind(entity="resource", member="resources", method="resources/list", key="uri")
TEMPLATE = ItemKind(
    entity="resourceTemplate", member="resourceTemplates", method="resources/templates/list", key="uriTemplate"
)
ITEM_KINDS = (TOOL, PROMPT, RESOURCE, TEMPLATE)
_LISTS = frozenset(kind.member for kind in ITEM_KINDS)


class Item(Record):
    """One tool, prompt, resource or template, as it was sent."""

    kind: ItemKind
    value: Any
    """The complete item. If it is undigestable, the part that could be parsed, or None."""
    digest: Digest | None
    problem: str | None = None
    """Why the item cannot be digested."""

    @classmethod
    def from_value(cls, kind: ItemKind, value: Any) -> Item:
        """An item from a strictly parsed value."""
        key = value.get(kind.key) if isinstance(value, dict) else None
        if not isinstance(key, str) or not key:
            return cls(kind=kind, value=_keep_parts(kind, value), digest=None, problem=f"it has no {kind.key}")
        try:
            canonical = canonicalize(value)
        except PinwardenError as err:
            return cls(kind=kind, value=_keep_parts(kind, value), digest=None, problem=err.message)
        if canonical.count(b"{") + canonical.count(b"[") > _MAX_DEPTH and strict_json.nesting_depth(value) > _MAX_DEPTH:
            problem = f"it is nested more than {_MAX_DEPTH} levels deep"
            return cls(kind=kind, value=_keep_parts(kind, value), digest=None, problem=problem)
        return cls(kind=kind, value=value, digest=Digest.of_bytes(canonical))

    @classmethod
    def from_json_text(cls, kind: ItemKind, data: bytes, limits: Limits = DEFAULT_LIMITS) -> Item:
        """An item from its JSON text. Text that is not strict JSON becomes an undigestable item."""
        try:
            return cls.from_value(kind, strict_json.parse_json(data, limits))
        except PinwardenError as err:
            return cls(kind=kind, value=_keep_text(kind, data), digest=None, problem=err.message)

    @property
    def key(self) -> str:
        """The identifier of the item in its list: the name, or the address of a resource."""
        key = self.value.get(self.kind.key) if isinstance(self.value, dict) else None
        return key if isinstance(key, str) else ""

    @property
    def name(self) -> str:
        """The name for display."""
        name = self.value.get("name") if isinstance(self.value, dict) else None
        return name if isinstance(name, str) and name else self.key

    def field_digests(self) -> dict[str, str]:
        """The digest of each member."""
        return {name: str(Digest.of_bytes(canonicalize(member))) for name, member in self.value.items()}


class Surface(Record):
    """The result of one probe. ``observed`` describes the probe and is not compared."""

    server: Mapping[str, Any] | None
    """The sent members of serverInfo, capabilities and instructions; None if the response was not recorded."""
    items: Mapping[str, tuple[Item, ...]]
    """The items of each list by its member name, in the order sent. A list that is not offered is absent."""
    observed: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Members of the file that this release does not know; they are preserved."""

    def items_of_kind(self, kind: ItemKind) -> tuple[Item, ...]:
        """The items of one kind; none if the list is not offered."""
        return self.items.get(kind.member, ())

    def all_items(self) -> Iterable[Item]:
        """Every item of every kind."""
        for kind in ITEM_KINDS:
            yield from self.items_of_kind(kind)

    @property
    def undigestable(self) -> tuple[Item, ...]:
        """The items without a digest, which can be neither approved nor served."""
        return tuple(item for item in self.all_items() if item.digest is None)

    @property
    def server_problem(self) -> str | None:
        """Why the server's description of itself has no digest; None if it has one."""
        try:
            canonicalize(dict(self.server or {}))
        except PinwardenError as err:
            return err.message
        return None

    @property
    def problem(self) -> str | None:
        """Why the surface has no digest and cannot be approved; None if it has one."""
        for item in self.undigestable:
            return f"{item.kind.entity} {item.key[:80]!a}: {item.problem}"
        if (problem := self.server_problem) is not None:
            return f"the server's description of itself: {problem}"
        return None

    @property
    def digest(self) -> Digest | None:
        """One digest over everything that is compared, independent of the order of items; None if a part has none."""
        if self.problem is not None:
            return None
        lists = {
            kind.member: sorted([item.key, str(item.digest)] for item in self.items_of_kind(kind))
            for kind in ITEM_KINDS
            if kind.member in self.items
        }
        return Digest.of_bytes(canonicalize({"format": FORMAT, "server": dict(self.server or {}), **lists}))


def encode_surface(surface: Surface) -> bytes:
    """The surface as a file: items sorted by key, their digests, and a digest of the file."""
    document: dict[str, Any] = {**surface.extra, "format": FORMAT, "observed": dict(surface.observed)}
    if surface.server is not None:
        document["server"] = dict(surface.server)
    digests: dict[str, Any] = {}
    for kind in ITEM_KINDS:
        if kind.member not in surface.items:
            continue
        ordered = sorted(surface.items_of_kind(kind), key=_order)
        document[kind.member] = [item.value for item in ordered if item.digest is not None]
        digests[kind.member] = [
            {"key": item.key, "item": str(item.digest), "fields": item.field_digests()}
            for item in ordered
            if item.digest is not None
        ]
    if surface.undigestable:
        document["undigestable"] = [
            {"kind": item.kind.entity, "key": item.key, "problem": item.problem, "seen": item.value}
            for item in sorted(surface.undigestable, key=_order)
        ]
    digests["surface"] = str(surface.digest) if surface.digest else None
    document["digests"] = digests
    document["integrity"] = str(Digest.of_bytes(encode_json_file(document)))
    return encode_json_file(document)


def parse_surface(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Surface:
    """Parse a surface file. Raises if a digest in it does not match its content."""
    document = strict_json.parse_json(data, limits)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        _fail(f"not a surface document of format {FORMAT}")
    members = JsonObject(document, "", _invalid)
    server = members.optional_object("server")
    surface = Surface(
        server=None if server is None else server.value,
        items=_items_of(document, _undigestable(members)),
        observed=members.object("observed").value,
        extra={name: value for name, value in document.items() if name not in _KNOWN_MEMBERS and name not in _LISTS},
    )
    if strict_json.parse_json(encode_surface(surface), limits) != document:
        _fail("its digests do not match its content")
    return surface


def surface_from_listing(listing: Any) -> Surface:
    """A surface from an object with any of serverInfo, capabilities, instructions and the four lists.

    A server sends the first three in one response. If all are missing, that response was not recorded, and they are
    not compared. They may also be in a member ``initialize``.
    """
    if not isinstance(listing, dict):
        _fail("the listing is not an object")
    initialize = listing.get("initialize", listing)
    if not isinstance(initialize, dict):
        _fail("initialize is not an object")
    server = {member: initialize[member] for member in SERVER_MEMBERS if member in initialize}
    return Surface(server=server or None, items=_items_of(listing, []), observed={})


def parse_surface_or_listing(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Surface:
    """Parse a surface file or a listing. Raises for any other JSON file."""
    document = strict_json.parse_json(data, limits)
    if isinstance(document, dict) and "format" in document:
        return parse_surface(data, limits)
    surface = surface_from_listing(document)
    if surface.server is None and not surface.items:
        _fail("the file is neither a surface nor a listing")
    return surface


def _items_of(document: Mapping[str, Any], undigestable: list[Item]) -> dict[str, tuple[Item, ...]]:
    lists: dict[str, tuple[Item, ...]] = {}
    for kind in ITEM_KINDS:
        if kind.member not in document:
            continue
        values = JsonObject(document, "", _invalid).items(kind.member)
        undigestable_items = tuple(item for item in undigestable if item.kind is kind)
        lists[kind.member] = tuple(Item.from_value(kind, value) for value in values) + undigestable_items
    return lists


def _undigestable(document: JsonObject) -> list[Item]:
    kinds = {kind.entity: kind for kind in ITEM_KINDS}
    items: list[Item] = []
    for row in document.objects("undigestable") if "undigestable" in document else ():
        kind = kinds.get(row.string("kind"))
        if kind is None:
            row.fail("kind", "is not a kind of item")
        items.append(Item(kind=kind, value=row.value.get("seen"), digest=None, problem=row.string("problem")))
    return items


def _order(item: Item) -> tuple[str, str]:
    return item.key, str(item.digest)


def _keep_parts(kind: ItemKind, value: Any) -> dict[str, Any]:
    """The parts of an undigestable item to keep: its key and name if they are valid, and the beginning of its text."""
    from json import dumps

    try:
        text = dumps(value, default=str)
    except ValueError:  # an integer with more digits than Python writes
        text = "unreadable"
    members = value if isinstance(value, dict) else {}
    return {**_valid_names(kind, members.items()), "text": text[:_MAX_RAW]}


def _keep_text(kind: ItemKind, data: bytes) -> dict[str, Any]:
    """Like `_keep_parts`, for an item that could not be parsed."""
    members: list[tuple[str, Any]] = []
    try:
        for name, text in split_object(data):
            if name in (kind.key, "name"):
                members.append((name, strict_json.parse_json(text)))
    except PinwardenError:
        members = []  # not an object, or its name is invalid
    return {**_valid_names(kind, members), "text": data[:_MAX_RAW].decode("utf-8", "backslashreplace")}


def _valid_names(kind: ItemKind, members: Iterable[tuple[Any, Any]]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name, value in members:
        if name in (kind.key, "name") and isinstance(value, str) and len(value) <= _MAX_RAW:
            try:
                value.encode()
            except UnicodeEncodeError:
                continue
            names[name] = value
    return names


def _invalid(path: str, problem: str) -> PinwardenError:
    return PinwardenError("SURFACE_INVALID", f"{path} {problem}")


def _fail(problem: str) -> NoReturn:
    raise PinwardenError("SURFACE_INVALID", problem)
