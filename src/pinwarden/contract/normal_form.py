"""The normal form of a surface: without what its framework adds.

The official SDK and fastmcp describe the same functions in different words: generated titles, references or their
expansion, an empty description or none, a closed object or an open one. What is left here is what the author wrote,
so its digest is equal for a server that moved from one to the other without a change of meaning.

Only what is surely generated goes. A title with a sentence in it, a definition nobody refers to, a member nobody
knows, text in ``_meta``: all stay, for each could carry an instruction to the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.surface.surface import ITEM_KINDS, PROMPT, SERVER_MEMBERS, TOOL, Item, Surface

_MAX_NODES = 20_000  # of one schema after its references are expanded; real ones stay below 5,000
_MAX_DEPTH = 100
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_PLACES = ("$defs", "definitions")
_SEPARATORS = re.compile(r"[ _-]+")
_MADE_OF_FUNCTIONS = re.compile(r"(?:Arguments|DictOutput|Output)\Z")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_MOST_WORDS, _LONGEST_NAME = 3, 40


def plain_schema(schema: Mapping[str, Any], tool: str) -> dict[str, Any]:
    """The schema of a tool with local references expanded and generated titles gone; as it is if that is too much."""
    try:
        return _Expansion(schema, tool).whole()
    except _TooMuchError:
        return dict(schema)


def is_generated_title(title: Any, key: str) -> bool:
    """Whether a title within a schema is the name of what it stands on, in other letters."""
    return bool(key) and same_words(title, key)


def is_generated_root_title(title: Any, tool: str) -> bool:
    """Whether a title of a whole schema is made of the name of the tool, or is the name of a class.

    A class may be called anything, also a sentence; so a name of many words is not taken for one.
    """
    return isinstance(title, str) and (
        same_words(_MADE_OF_FUNCTIONS.sub("", title), tool) or _is_class_name(_MADE_OF_FUNCTIONS.sub("", title))
    )


def same_words(title: Any, name: str) -> bool:
    """Whether two texts differ in capitals and separators only. Anything else, seen or unseen, is a difference."""
    return isinstance(title, str) and _folded(title) == _folded(name)


def _folded(text: str) -> str:
    return _SEPARATORS.sub("", text).casefold()


def _is_class_name(text: str) -> bool:
    return (
        text.isascii()
        and text.isidentifier()
        and len(text) <= _LONGEST_NAME
        and len(_WORD.findall(text)) <= _MOST_WORDS
    )


class _TooMuchError(Exception):
    """A schema whose references multiply."""


class _Expansion:
    """One walk over a schema. A definition that is not put in the place of every reference to it stays."""

    def __init__(self, root: Mapping[str, Any], tool: str) -> None:
        self.root, self.tool = root, tool
        self.definitions: dict[str, Any] = {
            f"#/{place}/{name}": each
            for place in _PLACES
            if isinstance(root.get(place), Mapping)
            for name, each in root[place].items()
        }
        self.left = _MAX_NODES
        self.expandable = self._expandable()
        self.expanded: set[str] = set()

    def whole(self) -> dict[str, Any]:
        """The plain form of the whole schema, with the definitions that are still needed or were never used."""
        body = {
            name: member
            for name, member in self.root.items()
            if not (name in _PLACES and isinstance(member, Mapping))
            and not (name == "title" and is_generated_root_title(member, self.tool))
        }
        plain = dict(self.of(body, "", _MAX_DEPTH))
        for reference, definition in self._kept(plain).items():
            _, place, name = reference.split("/", 2)
            plain.setdefault(place, {})[name] = definition
        return plain

    def of(self, schema: Any, key: str, depth: int) -> Any:
        """The plain form of the schema under that key."""
        self.left -= 1
        if self.left < 0 or depth < 0:
            raise _TooMuchError
        if not isinstance(schema, Mapping) or ("$id" in schema and schema is not self.root):
            return schema  # references below another $id mean something else
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference in self.expandable:
            beside = {name: member for name, member in schema.items() if name != "$ref"}
            name = reference.rpartition("/")[2]
            definition = {
                each: member
                for each, member in self.definitions[reference].items()
                if not (each == "title" and is_generated_title(member, name))
            }
            if all(definition[key] == beside[key] for key in definition.keys() & beside.keys()):
                self.expanded.add(reference)
                return self.of({**definition, **beside}, key, depth - 1)
        return {
            name: self._member(name, member, depth - 1)
            for name, member in schema.items()
            if not (name == "title" and is_generated_title(member, key))
        }

    def _member(self, name: str, member: Any, depth: int) -> Any:
        if name in _SCHEMA_MAPS and isinstance(member, Mapping):
            return {each: self.of(value, each, depth) for each, value in member.items()}
        if name in _SCHEMA_LISTS and isinstance(member, list):
            return [self.of(part, "", depth) for part in member]
        if name in _SCHEMAS:
            return self.of(member, "", depth)
        if name == "required" and isinstance(member, list) and all(isinstance(part, str) for part in member):
            return sorted(member)
        return member

    def _kept(self, plain: Any) -> dict[str, Any]:
        """The definitions that something still refers to, and those that were put nowhere: a model reads them too."""
        kept: dict[str, Any] = {}
        self._keep(_references(plain), kept)
        for name in sorted(self.definitions):
            if name not in self.expanded:
                self._keep([name], kept)
        return kept

    def _keep(self, names: Iterable[str], kept: dict[str, Any]) -> None:
        pending = list(names)
        while pending:
            name = pending.pop()
            if name in self.definitions and name not in kept:
                kept[name] = self.of(self.definitions[name], name.rpartition("/")[2], _MAX_DEPTH)
                pending += _references(kept[name])

    def _expandable(self) -> frozenset[str]:
        """The definitions that can stand in the place of a reference: no circle, and no name with a sentence in it."""
        leads = {
            name: frozenset(_references(each)) & self.definitions.keys() for name, each in self.definitions.items()
        }
        return frozenset(
            name
            for name, each in self.definitions.items()
            if isinstance(each, Mapping)
            and "$id" not in each
            and _is_class_name(name.split("/", 2)[2])
            and name not in _reached(leads, leads[name])
        )


def _reached(leads: Mapping[str, frozenset[str]], start: Iterable[str]) -> set[str]:
    reached: set[str] = set()
    pending = list(start)
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending.extend(leads[name])
    return reached


def _references(value: Any) -> list[str]:
    """Whatever ``$ref`` says anywhere in a value."""
    references: list[str] = []
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if isinstance(each.get("$ref"), str):
                references.append(each["$ref"])
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
    return references


FORMAT = "pinwarden-normalised/1"
_ENCODED = re.compile(
    r"\s*Provide a value matching the following JSON schema: (\{.*\})\. Encode non-string values as JSON\.\Z", re.DOTALL
)
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_FORMATS = frozenset({"binary", "date", "date-time", "duration", "email", "ipv4", "ipv6", "time", "uri", "uuid"})
_TYPE_MEMBERS = frozenset({"additionalProperties", "anyOf", "format", "items", "prefixItems", "type", "uniqueItems"})
_USUAL_CAPABILITIES = frozenset({"completions", "logging", "prompts", "resources", "tools"})
_USUAL_EXTENSION = "io.modelcontextprotocol/ui"


def normalised_digest(surface: Surface) -> Digest:
    """Equal for a server that moved between the official SDK and fastmcp without a change of meaning."""
    return Digest.of_bytes(canonicalize(normalised(surface)))


def normalised(surface: Surface) -> dict[str, Any]:
    """What the author wrote, ready to be hashed or compared."""
    server = surface.server or {}
    document: dict[str, Any] = {"format": FORMAT}
    if info := _info(server.get("serverInfo")):
        document["serverInfo"] = info
    if capabilities := _capabilities(server.get("capabilities")):
        document["capabilities"] = capabilities
    if server.get("instructions"):
        document["instructions"] = server["instructions"]
    for kind in ITEM_KINDS:
        items = sorted(surface.items_of_kind(kind), key=lambda item: (item.key, str(item.digest)))
        if items:  # a list that is offered and empty is a matter of the framework
            document[kind.member] = [_item(item) for item in items]
    return document


def normalised_surface(surface: Surface) -> Surface:
    """The same as a surface, so that two of them can be compared item by item."""
    document = normalised(surface)
    items = {
        kind.member: tuple(Item.from_value(kind, value) for value in document.get(kind.member, ()))
        for kind in ITEM_KINDS
        if kind.member in document
    }
    server = {member: document[member] for member in SERVER_MEMBERS if member in document}
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


def _info(info: Any) -> Any:
    """What the server calls itself. Frameworks put their own version where the author gives none."""
    return {name: member for name, member in info.items() if name != "version"} if isinstance(info, Mapping) else info


def _capabilities(capabilities: Any) -> Any:
    """What is offered beyond what frameworks offer by themselves; the lists themselves say which of those are there."""
    if not isinstance(capabilities, Mapping):
        return capabilities
    kept = {name: member for name, member in capabilities.items() if name not in _USUAL_CAPABILITIES}
    if kept.get("extensions") == {_USUAL_EXTENSION: {}}:
        del kept["extensions"]
    return {name: member for name, member in kept.items() if member not in ({}, None)}


def _item(item: Item) -> dict[str, Any]:
    value = {name: member for name, member in item.value.items() if member is not None}
    if not value.get("description"):
        value.pop("description", None)
    if same_words(value.get("title"), item.name):
        del value["title"]
    if meta := _meta(value.pop("_meta", None)):
        value["_meta"] = meta
    if item.kind is TOOL:
        _schemas_of(value, item.name)
    if item.kind is PROMPT and isinstance(value.get("arguments"), list):
        value["arguments"] = [_argument(argument) for argument in value["arguments"]]
    return value


def _meta(meta: Any) -> Any:
    """``_meta`` without the entry that fastmcp always makes; the tags in it stand where the SDK's authors put them."""
    if not isinstance(meta, Mapping):
        return meta
    kept = dict(meta)
    for name in ("fastmcp", "_fastmcp"):
        own = meta.get(name)
        if own in ({"tags": []}, {}):
            del kept[name]
        elif isinstance(own, Mapping) and list(own) == ["tags"] and "tags" not in kept:
            kept["tags"] = kept.pop(name)["tags"]
    return kept


def _schemas_of(tool: dict[str, Any], name: str) -> None:
    given = tool.get("inputSchema")
    if isinstance(given, Mapping):
        schema = plain_schema(given, name)
        if schema.get("additionalProperties") is False:
            del schema["additionalProperties"]  # fastmcp closes the object of the arguments, the SDK does not
        tool["inputSchema"] = schema
    returned = tool.get("outputSchema")
    if isinstance(returned, Mapping):
        schema = plain_schema(returned, name)
        if schema.get("x-fastmcp-wrap-result") is True:
            del schema["x-fastmcp-wrap-result"]
        tool["outputSchema"] = schema


def _argument(argument: Any) -> Any:
    if not isinstance(argument, Mapping):
        return argument
    kept = dict(argument)
    description = kept.get("description")
    if isinstance(description, str) and (result := _ENCODED.search(description)) and _only_a_type(result[1]):
        kept["description"] = description[: result.start()]
    if not kept.get("description"):
        kept.pop("description", None)
    if kept.get("required") is False:
        del kept["required"]
    return kept


def _only_a_type(text: str) -> bool:
    """Whether a schema within a sentence is made of types alone: then the sentence is fastmcp's own.

    Names and values that an author chooses could be words of another sentence.
    """
    try:
        pending = [strict_json.parse_json(text.encode())]
    except (PinwardenError, UnicodeEncodeError):
        return False
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if not each.keys() <= _TYPE_MEMBERS:
                return False
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
        elif not isinstance(each, bool) and each not in _TYPES | _FORMATS:
            return False
    return True
