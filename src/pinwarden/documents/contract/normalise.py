"""A server's surface without what its framework adds by itself.

The official SDK and fastmcp describe the same functions in different words: generated titles, references or their
expansion, an empty description or none, a closed object or an open one. What is left here is what the author wrote,
so its digest is equal for a server that moved from one to the other without a change of meaning.

Only what is surely generated goes. A title with a sentence in it, a member nobody knows, text in ``_meta``: all stay,
for each could carry an instruction to the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.documents.surface import KINDS, PROMPT, TOOL, Item, Surface

FORMAT = "pinwarden-normalised/1"
_MAX_NODES = 20_000  # of one schema after its references are expanded; real ones stay below 5,000
_MAX_DEPTH = 100
_ENCODED = re.compile(
    r"\s*Provide a value matching the following JSON schema: (\{.*\})\. Encode non-string values as JSON\.\Z", re.DOTALL
)
_PLAIN_TEXT = re.compile(r"[\w$#/.:-]{0,64}\Z")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


def normalised_digest(surface: Surface) -> Digest:
    """Equal for a server that moved between the official SDK and fastmcp without a change of meaning."""
    return Digest.of(canonicalize(normalised(surface)))


def normalised(surface: Surface) -> dict[str, Any]:
    """What the author wrote, ready to be hashed or compared."""
    server = surface.server or {}
    info = server.get("serverInfo")
    document: dict[str, Any] = {"format": FORMAT}
    if isinstance(info, Mapping) and "name" in info:
        document["name"] = info["name"]
    if server.get("instructions"):
        document["instructions"] = server["instructions"]
    for kind in KINDS:
        items = sorted(surface.list_of(kind), key=lambda item: (item.key, str(item.digest)))
        if items:  # a list that is offered and empty is a matter of the framework
            document[kind.member] = [_item(item) for item in items]
    return document


def normalised_surface(surface: Surface) -> Surface:
    """The same as a surface, so that two of them can be compared item by item."""
    document = normalised(surface)
    items = {
        kind.member: tuple(Item.of(kind, value) for value in document.get(kind.member, ()))
        for kind in KINDS
        if kind.member in document
    }
    server = {"serverInfo": {"name": document["name"]}} if "name" in document else {}
    if "instructions" in document:
        server["instructions"] = document["instructions"]
    return Surface(server=server or None, items=items, observed={})


def framework_of(surface: Surface) -> str | None:
    """``fastmcp`` if its own marks are on what it serves; None if nothing tells."""
    for item in surface.all_items():
        value = item.value if isinstance(item.value, Mapping) else {}
        meta, returned = value.get("_meta"), value.get("outputSchema")
        if isinstance(meta, Mapping) and ("fastmcp" in meta or "_fastmcp" in meta):
            return "fastmcp"
        if isinstance(returned, Mapping) and "x-fastmcp-wrap-result" in returned:
            return "fastmcp"
    return None


def _item(item: Item) -> dict[str, Any]:
    value = {name: member for name, member in item.value.items() if member is not None}
    if not value.get("description"):
        value.pop("description", None)
    if _same_words(value.get("title"), item.name):
        del value["title"]
    if meta := _meta(value.pop("_meta", None)):
        value["_meta"] = meta
    if item.kind is TOOL:
        _schemas_of(value)
    if item.kind is PROMPT and isinstance(value.get("arguments"), list):
        value["arguments"] = [_argument(each) for each in value["arguments"]]
    return value


def _meta(meta: Any) -> Any:
    """``_meta`` without fastmcp's own entry, unless there are tags in it."""
    if not isinstance(meta, Mapping):
        return meta
    kept = {name: member for name, member in meta.items() if name not in ("fastmcp", "_fastmcp")}
    for name in ("fastmcp", "_fastmcp"):
        own = meta.get(name)
        if isinstance(own, Mapping) and own.get("tags"):
            kept["tags"] = own["tags"]
        elif own is not None and own not in ({"tags": []}, {}):
            kept[name] = own
    return kept


def _schemas_of(tool: dict[str, Any]) -> None:
    given = tool.get("inputSchema")
    if isinstance(given, Mapping):
        schema = _plain(given)
        if schema.get("additionalProperties") is False:
            del schema["additionalProperties"]  # fastmcp closes the object of the arguments, the SDK does not
        tool["inputSchema"] = schema
    returned = tool.get("outputSchema")
    if isinstance(returned, Mapping):
        schema = _plain(returned)
        if schema.get("x-fastmcp-wrap-result") is True:
            del schema["x-fastmcp-wrap-result"]
        tool["outputSchema"] = schema


def _argument(argument: Any) -> Any:
    if not isinstance(argument, Mapping):
        return argument
    kept = dict(argument)
    description = kept.get("description")
    if isinstance(description, str) and (found := _ENCODED.search(description)) and _only_a_type(found[1]):
        kept["description"] = description[: found.start()]
    if not kept.get("description"):
        kept.pop("description", None)
    if kept.get("required") is False:
        del kept["required"]
    return kept


def _only_a_type(text: str) -> bool:
    """Whether a schema within a sentence says nothing but types: then the sentence is fastmcp's own."""
    try:
        pending = [strict_json.parse(text.encode())]
    except (PinwardenError, UnicodeEncodeError):
        return False
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            pending.extend(each)
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
        elif isinstance(each, str) and not _PLAIN_TEXT.match(each):
            return False
    return True


def is_generated_title(title: Any, key: str) -> bool:
    """Whether a title within a schema is of the kind that frameworks make: the name of what it stands on in other
    letters, or the name of a class. Neither holds a sentence."""
    return isinstance(title, str) and (_same_words(title, key) or title.isidentifier())


def _same_words(title: Any, name: str) -> bool:
    return isinstance(title, str) and _folded(title) == _folded(name)


def _folded(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())


# Schemas


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with local references expanded and generated titles gone; unexpanded if that would be too much."""
    try:
        return dict(_Expansion(schema).of(schema, "", (), _MAX_DEPTH))
    except _TooMuchError:
        return dict(schema)


class _TooMuchError(Exception):
    """A schema whose references multiply."""


class _Expansion:
    """One walk over a schema. Recursive references stay, with the definitions they need."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.definitions: dict[str, Any] = {
            f"#/{place}/{name}": each
            for place in ("$defs", "definitions")
            if isinstance(root.get(place), Mapping)
            for name, each in root[place].items()
        }
        self.left = _MAX_NODES
        self.recursive = self._recursive()

    def of(self, schema: Any, key: str, inside: tuple[str, ...], depth: int) -> Any:
        """The plain form of the schema under that key, within the references that are being expanded."""
        self.left -= 1
        if self.left < 0 or depth < 0:
            raise _TooMuchError
        if not isinstance(schema, Mapping):
            return schema
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference in self.definitions and reference not in self.recursive:
            beside = {name: member for name, member in schema.items() if name != "$ref"}
            whole = (
                {**self.definitions[reference], **beside} if isinstance(self.definitions[reference], Mapping) else {}
            )
            return self.of(whole, reference.rpartition("/")[2], (*inside, reference), depth - 1)
        return {
            name: self._member(name, member, inside, depth - 1)
            for name, member in schema.items()
            if not self._drops(name, member, key)
        }

    def _member(self, name: str, member: Any, inside: tuple[str, ...], depth: int) -> Any:
        if name in _SCHEMA_MAPS and isinstance(member, Mapping):
            kept = member.items()
            if name in ("$defs", "definitions"):
                kept = [(each, value) for each, value in kept if f"#/{name}/{each}" in self.recursive]  # type: ignore[assignment]
            return {each: self.of(value, each, inside, depth) for each, value in kept}
        if name in _SCHEMA_LISTS and isinstance(member, list):
            return [self.of(each, "", inside, depth) for each in member]
        if name in _SCHEMAS:
            return self.of(member, "", inside, depth)
        if name == "required" and isinstance(member, list) and all(isinstance(each, str) for each in member):
            return sorted(member)
        return member

    def _drops(self, name: str, member: Any, key: str) -> bool:
        if name in ("$defs", "definitions"):
            return not self.recursive
        return name == "title" and is_generated_title(member, key)

    def _recursive(self) -> frozenset[str]:
        """The definitions that lead back to themselves."""
        leads = {
            name: frozenset(_references(each)) & self.definitions.keys() for name, each in self.definitions.items()
        }
        return frozenset(name for name in leads if name in _reached(leads, leads[name]))


def _reached(leads: Mapping[str, frozenset[str]], start: Iterable[str]) -> set[str]:
    found: set[str] = set()
    pending = list(start)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(leads[name])
    return found


def _references(value: Any) -> list[str]:
    found: list[str] = []
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if isinstance(each.get("$ref"), str):
                found.append(each["$ref"])
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
    return found
