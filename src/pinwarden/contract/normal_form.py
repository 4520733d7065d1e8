"""The normal form of a surface: without the parts that its framework generates.

The official SDK and fastmcp describe the same functions differently. They differ in generated titles, expanded
references, empty descriptions and ``additionalProperties``. The normal form has only the parts that the author wrote,
so its digest stays the same when a server moves from one framework to the other.

Only parts that are certainly generated are removed. A title with a sentence, an unused definition, an unknown member
and text in ``_meta`` stay, because each could contain an instruction to the model.
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

_MAX_NODES = 20_000  # values in one schema after expansion; schemas of real servers have fewer than 5,000
_MAX_DEPTH = 100
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_DEFINITION_KEYWORDS = ("$defs", "definitions")
_SEPARATORS = re.compile(r"[ _-]+")
_FUNCTION_SUFFIX = re.compile(r"(?:Arguments|DictOutput|Output)\Z")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_MAX_WORDS, _MAX_NAME_LENGTH = 3, 40


def simplify_schema(schema: Mapping[str, Any], tool: str) -> dict[str, Any]:
    """Expand local references and remove generated titles. A schema that is too large stays unchanged."""
    try:
        return _ReferenceExpander(schema, tool).build_result()
    except _TooLargeError:
        return dict(schema)


def is_generated_title(title: Any, key: str) -> bool:
    """Whether the title of a subschema is derived from its key."""
    return bool(key) and has_same_words(title, key)


def is_generated_root_title(title: Any, tool: str) -> bool:
    """Whether the title of a root schema is derived from the tool's name, or is a class name of a few words.

    A name of many words could be a sentence that instructs the model, so it does not count as generated.
    """
    return isinstance(title, str) and (
        has_same_words(_FUNCTION_SUFFIX.sub("", title), tool) or _is_class_name(_FUNCTION_SUFFIX.sub("", title))
    )


def has_same_words(title: Any, name: str) -> bool:
    """Whether two texts differ only in case and separators."""
    return isinstance(title, str) and _fold_name(title) == _fold_name(name)


def _fold_name(text: str) -> str:
    return _SEPARATORS.sub("", text).casefold()


def _is_class_name(text: str) -> bool:
    return (
        text.isascii()
        and text.isidentifier()
        and len(text) <= _MAX_NAME_LENGTH
        and len(_WORD.findall(text)) <= _MAX_WORDS
    )


class _TooLargeError(Exception):
    """The expanded schema is too large."""


class _ReferenceExpander:
    """Expands the references of one schema. Keeps the definitions that some references still need."""

    def __init__(self, root: Mapping[str, Any], tool: str) -> None:
        self.root, self.tool = root, tool
        self.definitions: dict[str, Any] = {
            f"#/{keyword}/{name}": definition
            for keyword in _DEFINITION_KEYWORDS
            if isinstance(root.get(keyword), Mapping)
            for name, definition in root[keyword].items()
        }
        self.remaining = _MAX_NODES
        self.expandable = self._find_expandable_references()
        self.expanded: set[str] = set()

    def build_result(self) -> dict[str, Any]:
        """Return the expanded schema, with the definitions that are still referenced or were never used."""
        body = {
            name: member
            for name, member in self.root.items()
            if not (name in _DEFINITION_KEYWORDS and isinstance(member, Mapping))
            and not (name == "title" and is_generated_root_title(member, self.tool))
        }
        plain = dict(self.expand(body, "", _MAX_DEPTH))
        for reference, definition in self._collect_kept_definitions(plain).items():
            _, keyword, name = reference.split("/", 2)
            plain.setdefault(keyword, {})[name] = definition
        return plain

    def expand(self, schema: Any, key: str, depth: int) -> Any:
        """Expand the subschema with this key."""
        self.remaining -= 1
        if self.remaining < 0 or depth < 0:
            raise _TooLargeError
        if not isinstance(schema, Mapping) or ("$id" in schema and schema is not self.root):
            return schema  # references inside a schema with its own $id are relative to this $id
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference in self.expandable:
            siblings = {name: member for name, member in schema.items() if name != "$ref"}
            name = reference.rpartition("/")[2]
            definition = {
                keyword: member
                for keyword, member in self.definitions[reference].items()
                if not (keyword == "title" and is_generated_title(member, name))
            }
            if all(definition[shared] == siblings[shared] for shared in definition.keys() & siblings.keys()):
                self.expanded.add(reference)
                return self.expand({**definition, **siblings}, key, depth - 1)
        return {
            name: self._expand_member(name, member, depth - 1)
            for name, member in schema.items()
            if not (name == "title" and is_generated_title(member, key))
        }

    def _expand_member(self, name: str, member: Any, depth: int) -> Any:
        if name in _SCHEMA_MAPS and isinstance(member, Mapping):
            return {key: self.expand(value, key, depth) for key, value in member.items()}
        if name in _SCHEMA_LISTS and isinstance(member, list):
            return [self.expand(part, "", depth) for part in member]
        if name in _SCHEMAS:
            return self.expand(member, "", depth)
        if name == "required" and isinstance(member, list) and all(isinstance(part, str) for part in member):
            return sorted(member)
        return member

    def _collect_kept_definitions(self, plain: Any) -> dict[str, Any]:
        """Return the definitions that are still referenced or were never expanded, because a model reads them too."""
        kept: dict[str, Any] = {}
        self._add_kept_definitions(_list_references(plain), kept)
        for name in sorted(self.definitions):
            if name not in self.expanded:
                self._add_kept_definitions([name], kept)
        return kept

    def _add_kept_definitions(self, names: Iterable[str], kept: dict[str, Any]) -> None:
        pending = list(names)
        while pending:
            name = pending.pop()
            if name in self.definitions and name not in kept:
                kept[name] = self.expand(self.definitions[name], name.rpartition("/")[2], _MAX_DEPTH)
                pending += _list_references(kept[name])

    def _find_expandable_references(self) -> frozenset[str]:
        """Return the references whose definitions are not recursive. A definition named by a sentence is excluded."""
        references = {
            name: frozenset(_list_references(definition)) & self.definitions.keys()
            for name, definition in self.definitions.items()
        }
        return frozenset(
            name
            for name, definition in self.definitions.items()
            if isinstance(definition, Mapping)
            and "$id" not in definition
            and _is_class_name(name.split("/", 2)[2])
            and name not in _find_reachable(references, references[name])
        )


def _find_reachable(references: Mapping[str, frozenset[str]], start: Iterable[str]) -> set[str]:
    reached: set[str] = set()
    pending = list(start)
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending.extend(references[name])
    return reached


def _list_references(value: Any) -> list[str]:
    """Return all values of ``$ref`` anywhere in a value."""
    references: list[str] = []
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                references.append(part["$ref"])
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
    return references


FORMAT = "pinwarden-normalised/1"
_ENCODING_SENTENCE = re.compile(
    r"\s*Provide a value matching the following JSON schema: (\{.*\})\. Encode non-string values as JSON\.\Z", re.DOTALL
)
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_FORMATS = frozenset({"binary", "date", "date-time", "duration", "email", "ipv4", "ipv6", "time", "uri", "uuid"})
_TYPE_MEMBERS = frozenset({"additionalProperties", "anyOf", "format", "items", "prefixItems", "type", "uniqueItems"})
_USUAL_CAPABILITIES = frozenset({"completions", "logging", "prompts", "resources", "tools"})
_USUAL_EXTENSION = "io.modelcontextprotocol/ui"


def compute_normalised_digest(surface: Surface) -> Digest:
    """Return the digest of the normal form, which stays the same if only the framework changes."""
    return Digest.of_bytes(canonicalize(normalise(surface)))


def normalise(surface: Surface) -> dict[str, Any]:
    """Return the normal form as JSON."""
    server = surface.server or {}
    document: dict[str, Any] = {"format": FORMAT}
    if info := _normalise_info(server.get("serverInfo")):
        document["serverInfo"] = info
    if capabilities := _normalise_capabilities(server.get("capabilities")):
        document["capabilities"] = capabilities
    if server.get("instructions"):
        document["instructions"] = server["instructions"]
    for kind in ITEM_KINDS:
        items = sorted(surface.items_of_kind(kind), key=lambda item: (item.key, str(item.digest)))
        if items:  # only some frameworks offer empty lists
            document[kind.member] = [_normalise_item(item) for item in items]
    return document


def normalise_surface(surface: Surface) -> Surface:
    """Return the normal form as a surface, for comparison item by item."""
    document = normalise(surface)
    items = {
        kind.member: tuple(Item.from_value(kind, value) for value in document.get(kind.member, ()))
        for kind in ITEM_KINDS
        if kind.member in document
    }
    server = {member: document[member] for member in SERVER_MEMBERS if member in document}
    return Surface(server=server or None, items=items, observed={})


def detect_framework(surface: Surface) -> str | None:
    """Return ``fastmcp`` if the surface has members that only fastmcp generates; otherwise None."""
    for item in surface.all_items():
        value = item.value if isinstance(item.value, Mapping) else {}
        meta, returned = value.get("_meta"), value.get("outputSchema")
        if isinstance(meta, Mapping) and ("fastmcp" in meta or "_fastmcp" in meta):
            return "fastmcp"
        if isinstance(returned, Mapping) and "x-fastmcp-wrap-result" in returned:
            return "fastmcp"
    return None


def _normalise_info(info: Any) -> Any:
    """Remove the version, which frameworks set to their own version if the author states none."""
    return {name: member for name, member in info.items() if name != "version"} if isinstance(info, Mapping) else info


def _normalise_capabilities(capabilities: Any) -> Any:
    """Remove the capabilities that frameworks always declare."""
    if not isinstance(capabilities, Mapping):
        return capabilities
    kept = {name: member for name, member in capabilities.items() if name not in _USUAL_CAPABILITIES}
    if kept.get("extensions") == {_USUAL_EXTENSION: {}}:
        del kept["extensions"]
    return {name: member for name, member in kept.items() if member not in ({}, None)}


def _normalise_item(item: Item) -> dict[str, Any]:
    value = {name: member for name, member in item.value.items() if member is not None}
    if not value.get("description"):
        value.pop("description", None)
    if has_same_words(value.get("title"), item.name):
        del value["title"]
    if meta := _normalise_meta(value.pop("_meta", None)):
        value["_meta"] = meta
    if item.kind is TOOL:
        _normalise_schemas(value, item.name)
    if item.kind is PROMPT and isinstance(value.get("arguments"), list):
        value["arguments"] = [_normalise_argument(argument) for argument in value["arguments"]]
    return value


def _normalise_meta(meta: Any) -> Any:
    """Remove fastmcp's own member of ``_meta``, and move its tags to ``_meta.tags``, where SDK servers have them."""
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


def _normalise_schemas(tool: dict[str, Any], name: str) -> None:
    arguments = tool.get("inputSchema")
    if isinstance(arguments, Mapping):
        schema = simplify_schema(arguments, name)
        if schema.get("additionalProperties") is False:
            del schema["additionalProperties"]  # set by fastmcp, not by the SDK
        tool["inputSchema"] = schema
    returned = tool.get("outputSchema")
    if isinstance(returned, Mapping):
        schema = simplify_schema(returned, name)
        if schema.get("x-fastmcp-wrap-result") is True:
            del schema["x-fastmcp-wrap-result"]
        tool["outputSchema"] = schema


def _normalise_argument(argument: Any) -> Any:
    if not isinstance(argument, Mapping):
        return argument
    kept = dict(argument)
    description = kept.get("description")
    if (
        isinstance(description, str)
        and (result := _ENCODING_SENTENCE.search(description))
        and _has_only_types(result[1])
    ):
        kept["description"] = description[: result.start()]
    if not kept.get("description"):
        kept.pop("description", None)
    if kept.get("required") is False:
        del kept["required"]
    return kept


def _has_only_types(text: str) -> bool:
    """Whether the schema in the sentence that fastmcp generates has only types.

    Other members could contain an instruction to the model.
    """
    try:
        pending = [strict_json.parse_json(text.encode())]
    except (PinwardenError, UnicodeEncodeError):
        return False
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if not part.keys() <= _TYPE_MEMBERS:
                return False
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
        elif not isinstance(part, bool) and part not in _TYPES | _FORMATS:
            return False
    return True
