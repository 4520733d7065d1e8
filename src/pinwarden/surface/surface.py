"""`Surface`: a server's tools, prompts, resources, templates, instructions and identity, exactly as sent.

Each item is kept verbatim, with a digest over all its members. A member that is absent, null or empty gives three
different digests.

An item that has no canonical form, for example because a member is repeated, is kept as *undigestable* with the reason.
Such an item never hides other items.
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
_MAX_KEPT_TEXT = 4096  # characters of an undigestable item's text that are kept for display
_MAX_DEPTH = 150  # nesting of one item; a surface file adds a few levels and must stay within the parser's limit
_KNOWN_MEMBERS = frozenset({"format", "observed", "server", "digests", "undigestable", "integrity"})


class ItemKind(Record):
    """One of the four lists that a server can offer: tools, prompts, resources or resource templates."""

    entity: str
    """What one item is called in changes and findings: ``tool``, ``prompt`` and so on."""
    member: str
    """The member that contains the list, both in the server's response and in a surface file."""
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
_LIST_MEMBERS = frozenset(kind.member for kind in ITEM_KINDS)


class Item(Record):
    """One tool, prompt, resource or template, exactly as the server sent it."""

    kind: ItemKind
    value: Any
    """The complete item. For an undigestable item: its key and name, if valid, and the beginning of its text."""
    digest: Digest | None
    problem: str | None = None
    """Why the item cannot be digested."""

    @classmethod
    def from_value(cls, kind: ItemKind, value: Any) -> Item:
        """Build an item from a strictly parsed JSON value."""
        key = value.get(kind.key) if isinstance(value, dict) else None
        if not isinstance(key, str) or not key:
            return cls(kind=kind, value=_summarize_value(kind, value), digest=None, problem=f"it has no {kind.key}")
        try:
            canonical = canonicalize(value)
        except PinwardenError as err:
            return cls(kind=kind, value=_summarize_value(kind, value), digest=None, problem=err.message)
        if canonical.count(b"{") + canonical.count(b"[") > _MAX_DEPTH and strict_json.nesting_depth(value) > _MAX_DEPTH:
            problem = f"it is nested more than {_MAX_DEPTH} levels deep"
            return cls(kind=kind, value=_summarize_value(kind, value), digest=None, problem=problem)
        return cls(kind=kind, value=value, digest=Digest.of_bytes(canonical))

    @classmethod
    def from_json_text(cls, kind: ItemKind, data: bytes, limits: Limits = DEFAULT_LIMITS) -> Item:
        """Build an item from its JSON text. Text that is not strict JSON becomes an undigestable item."""
        try:
            return cls.from_value(kind, strict_json.parse_json(data, limits))
        except PinwardenError as err:
            return cls(kind=kind, value=_summarize_text(kind, data), digest=None, problem=err.message)

    @property
    def key(self) -> str:
        """The identifier of the item in its list: the name of a tool or prompt, the URI of a resource."""
        key = self.value.get(self.kind.key) if isinstance(self.value, dict) else None
        return key if isinstance(key, str) else ""

    @property
    def name(self) -> str:
        """The name to show to a person; the key if the item has no name."""
        name = self.value.get("name") if isinstance(self.value, dict) else None
        return name if isinstance(name, str) and name else self.key

    @property
    def label(self) -> str:
        """The name in findings of the scan: the URI of a resource or template, the name of a tool or prompt."""
        return self.key if self.kind in (RESOURCE, TEMPLATE) and self.key else self.name

    def field_digests(self) -> dict[str, str]:
        """Return the digest of each member, by member name."""
        return {name: str(Digest.of_bytes(canonicalize(member))) for name, member in self.value.items()}


class Surface(Record):
    """Everything that one server offers, as read by one probe."""

    server: Mapping[str, Any] | None
    """serverInfo, capabilities and instructions, as far as the server sent them; None if they were not recorded."""
    items: Mapping[str, tuple[Item, ...]]
    """The items of each list by its member name, in the order sent. A list that is not offered is absent."""
    observed: Mapping[str, Any]
    """How the probe read the surface: client, protocol version, pages. Not part of comparisons."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Members of the surface file that this release of Pinwarden does not know; they are preserved."""

    def items_of_kind(self, kind: ItemKind) -> tuple[Item, ...]:
        """Return the items of one kind; an empty tuple if the server does not offer the list."""
        return self.items.get(kind.member, ())

    def all_items(self) -> Iterable[Item]:
        """Iterate over the items of all four kinds."""
        for kind in ITEM_KINDS:
            yield from self.items_of_kind(kind)

    @property
    def undigestable(self) -> tuple[Item, ...]:
        """The items without a digest. Pinwarden neither approves them nor passes them to a client."""
        return tuple(item for item in self.all_items() if item.digest is None)

    @property
    def server_problem(self) -> str | None:
        """Why serverInfo, capabilities and instructions have no digest; None if they have one."""
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
            return f"serverInfo, capabilities or instructions: {problem}"
        return None

    @property
    def digest(self) -> Digest | None:
        """One digest over the server information and all items, in any order; None if one of them has no digest."""
        if self.problem is not None:
            return None
        lists = {
            kind.member: sorted([item.key, str(item.digest)] for item in self.items_of_kind(kind))
            for kind in ITEM_KINDS
            if kind.member in self.items
        }
        return Digest.of_bytes(canonicalize({"format": FORMAT, "server": dict(self.server or {}), **lists}))


def encode_surface(surface: Surface) -> bytes:
    """Encode a surface as a file: items sorted by key, their digests, and a digest of the file itself."""
    document: dict[str, Any] = {**surface.extra, "format": FORMAT, "observed": dict(surface.observed)}
    if surface.server is not None:
        document["server"] = dict(surface.server)
    digests: dict[str, Any] = {}
    for kind in ITEM_KINDS:
        if kind.member not in surface.items:
            continue
        ordered = sorted(surface.items_of_kind(kind), key=_sort_key)
        document[kind.member] = [item.value for item in ordered if item.digest is not None]
        digests[kind.member] = [
            {"key": item.key, "item": str(item.digest), "fields": item.field_digests()}
            for item in ordered
            if item.digest is not None
        ]
    if surface.undigestable:
        document["undigestable"] = [
            {"kind": item.kind.entity, "key": item.key, "problem": item.problem, "seen": item.value}
            for item in sorted(surface.undigestable, key=_sort_key)
        ]
    digests["surface"] = str(surface.digest) if surface.digest else None
    document["digests"] = digests
    document["integrity"] = str(Digest.of_bytes(encode_json_file(document)))
    return encode_json_file(document)


def parse_surface(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Surface:
    """Parse a surface file. Raises if a digest in it does not match its content."""
    document = strict_json.parse_json(data, limits)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        _raise_invalid(f"the file is not a surface of format {FORMAT}")
    members = JsonObject(document, "", _build_error)
    server = members.optional_object("server")
    surface = Surface(
        server=None if server is None else server.value,
        items=_parse_lists(document, _parse_undigestable(members)),
        observed=members.object("observed").value,
        extra={
            name: value for name, value in document.items() if name not in _KNOWN_MEMBERS and name not in _LIST_MEMBERS
        },
    )
    if strict_json.parse_json(encode_surface(surface), limits) != document:
        _raise_invalid("the digests in the surface file do not match its content")
    return surface


def surface_from_listing(listing: Any) -> Surface:
    """Build a surface from a listing: an object with any of serverInfo, capabilities, instructions and the four lists.

    The first three may also be in a member ``initialize``. If none of them is present, the surface has no server
    information, and comparisons skip it.
    """
    if not isinstance(listing, dict):
        _raise_invalid("the listing is not an object")
    initialize = listing.get("initialize", listing)
    if not isinstance(initialize, dict):
        _raise_invalid("initialize is not an object")
    server = {member: initialize[member] for member in SERVER_MEMBERS if member in initialize}
    return Surface(server=server or None, items=_parse_lists(listing, []), observed={})


def parse_surface_or_listing(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Surface:
    """Parse a surface file or a listing. Raises for any other JSON file."""
    document = strict_json.parse_json(data, limits)
    if isinstance(document, dict) and "format" in document:
        return parse_surface(data, limits)
    surface = surface_from_listing(document)
    if surface.server is None and not surface.items:
        _raise_invalid("the file is neither a surface nor a listing")
    return surface


def _parse_lists(document: Mapping[str, Any], undigestable: list[Item]) -> dict[str, tuple[Item, ...]]:
    lists: dict[str, tuple[Item, ...]] = {}
    for kind in ITEM_KINDS:
        if kind.member not in document:
            continue
        values = JsonObject(document, "", _build_error).array(kind.member)
        undigestable_items = tuple(item for item in undigestable if item.kind is kind)
        lists[kind.member] = tuple(Item.from_value(kind, value) for value in values) + undigestable_items
    return lists


def _parse_undigestable(document: JsonObject) -> list[Item]:
    kinds = {kind.entity: kind for kind in ITEM_KINDS}
    items: list[Item] = []
    for row in document.objects("undigestable") if "undigestable" in document else ():
        kind = kinds.get(row.string("kind"))
        if kind is None:
            row.fail("kind", "is not tool, prompt, resource or resourceTemplate")
        items.append(Item(kind=kind, value=row.value.get("seen"), digest=None, problem=row.string("problem")))
    return items


def _sort_key(item: Item) -> tuple[str, str]:
    return item.key, str(item.digest)


def _summarize_value(kind: ItemKind, value: Any) -> dict[str, Any]:
    """Keep the key and name of an undigestable item, if they are valid, and the beginning of its text."""
    from json import dumps

    try:
        text = dumps(value, default=str)
    except ValueError:  # an integer with more digits than Python converts to text
        text = "unreadable"
    members = value if isinstance(value, dict) else {}
    return {**_select_valid_names(kind, members.items()), "text": text[:_MAX_KEPT_TEXT]}


def _summarize_text(kind: ItemKind, data: bytes) -> dict[str, Any]:
    """Keep the key and name of an item that could not be parsed, if they are valid, and the beginning of its text."""
    members: list[tuple[str, Any]] = []
    try:
        for name, text in split_object(data):
            if name in (kind.key, "name"):
                members.append((name, strict_json.parse_json(text)))
    except PinwardenError:
        members = []  # not an object, or its name is invalid
    return {**_select_valid_names(kind, members), "text": data[:_MAX_KEPT_TEXT].decode("utf-8", "backslashreplace")}


def _select_valid_names(kind: ItemKind, members: Iterable[tuple[Any, Any]]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name, value in members:
        if name in (kind.key, "name") and isinstance(value, str) and len(value) <= _MAX_KEPT_TEXT:
            try:
                value.encode()
            except UnicodeEncodeError:
                continue
            names[name] = value
    return names


def _build_error(path: str, problem: str) -> PinwardenError:
    return PinwardenError("SURFACE_INVALID", f"{path} {problem}")


def _raise_invalid(problem: str) -> NoReturn:
    raise PinwardenError("SURFACE_INVALID", problem)
