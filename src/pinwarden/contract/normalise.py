"""A server's surface without what its framework adds by itself.

The official SDK and fastmcp describe the same functions in different words: generated titles, references or their
expansion, an empty description or none, a closed object or an open one. What is left here is what the author wrote,
so its digest is equal for a server that moved from one to the other without a change of meaning.

Only what is surely generated goes. A title with a sentence in it, a definition nobody refers to, a member nobody
knows, text in ``_meta``: all stay, for each could carry an instruction to the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pinwarden.contract.plain_schema import plain_schema, same_words
from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.surface.surface import ITEM_KINDS, PROMPT, SERVER_MEMBERS, TOOL, Item, Surface

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
        value["arguments"] = [_argument(each) for each in value["arguments"]]
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
    if isinstance(description, str) and (found := _ENCODED.search(description)) and _only_a_type(found[1]):
        kept["description"] = description[: found.start()]
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
