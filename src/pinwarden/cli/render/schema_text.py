"""JSON Schemas as short text: ``path: string, limit?: integer``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_PLAIN_NAME = re.compile(r"[\w$@./:-]+", re.ASCII)
_MAX_DEPTH = 3
_MAX_MEMBERS = 12
_MAX_CHOICES = 6
_MAX_CHOICE = 30  # a longer accepted value is cut to this many characters
_MAX_TYPE = 160  # a type with a longer text is printed without its members


def describe_parameters(tool: dict[str, Any]) -> str:
    """Return the parameters of a tool with their types; ``?`` marks optional ones."""
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return ""
    return ", ".join(_list_members(schema, schema, depth=1))


def quote_name(name: Any) -> str:
    """Return a name as it is, or in quotes if it has characters that could be taken for something else than a name."""
    text = str(name)
    return text if _PLAIN_NAME.fullmatch(text) else _encode(text)


def describe_schema(schema: Any) -> str:
    """Return the type that a schema describes."""
    root = schema if isinstance(schema, dict) else {}
    return _describe(schema, root, depth=1)


def _list_members(schema: dict[str, Any], root: dict[str, Any], depth: int) -> Iterator[str]:
    required = schema.get("required")
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    members = list(schema["properties"].items())
    # Required parameters come first, as in a function's signature.
    members.sort(key=lambda member: member[0] not in names)
    for name, member in members[:_MAX_MEMBERS]:
        yield f"{quote_name(name)}{'' if name in names else '?'}: {_describe(member, root, depth)}"
    if len(members) > _MAX_MEMBERS:
        yield f"… {len(members) - _MAX_MEMBERS} more"


def _describe(schema: Any, root: dict[str, Any], depth: int) -> str:
    if not isinstance(schema, dict):
        return "nothing" if schema is False else "any"
    if depth > _MAX_DEPTH:
        return _describe_simple_type(schema)
    if isinstance(reference := schema.get("$ref"), str):
        target = _resolve(reference, root)
        return reference[:80] if target is None else _describe(target, root, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(keyword), list) and choices:
            return _join([_describe(choice, root, depth + 1) for choice in choices[:_MAX_CHOICES]], len(choices))
    if isinstance(values := schema.get("enum"), list) and values:
        return _join([_quote(value) for value in values[:_MAX_CHOICES]], len(values))
    if "const" in schema:
        return _quote(schema["const"])
    return _describe_type(schema, root, depth)


def _describe_type(schema: dict[str, Any], root: dict[str, Any], depth: int) -> str:
    if schema.get("type") == "array" and isinstance(items := schema.get("items"), dict):
        element = _describe(items, root, depth + 1)
        return f"({element})[]" if " | " in element and not element.startswith("{") else f"{element}[]"
    if isinstance(schema.get("properties"), dict) and schema["properties"]:
        text = "{" + ", ".join(_list_members(schema, root, depth + 1)) + "}"
        return (
            text
            if len(text) <= _MAX_TYPE
            else "{" + ", ".join(map(quote_name, list(schema["properties"])[:8])) + ", …}"
        )
    return _describe_simple_type(schema)


def _describe_simple_type(schema: dict[str, Any]) -> str:
    named = schema.get("type")
    if isinstance(named, list):
        return " | ".join(str(name)[:_MAX_CHOICE] for name in named[:_MAX_CHOICES])
    return named[:_MAX_CHOICE] if isinstance(named, str) else "any"


def _resolve(reference: str, root: dict[str, Any]) -> Any:
    """Return the part of the schema that a local reference names; None if there is none."""
    if not reference.startswith("#/"):
        return None
    value: Any = root
    for token in reference[2:].split("/"):
        value = value.get(token.replace("~1", "/").replace("~0", "~")) if isinstance(value, dict) else None
    return value


def _join(choices: list[str], total: int) -> str:
    more = [f"{total - len(choices)} more"] if total > len(choices) else []
    return " | ".join(dict.fromkeys([*choices, *more]))


def _quote(value: Any) -> str:
    text = _encode(value)
    return text if len(text) <= _MAX_CHOICE else f"{text[: _MAX_CHOICE - 1]}…"


def _encode(value: Any) -> str:
    from json import dumps

    return dumps(value, ensure_ascii=False)
