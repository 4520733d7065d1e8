"""The parts of an item's definition that pages show."""

from __future__ import annotations

from typing import Any

Parameter = tuple[str, str, bool, str]
"""Name, type, whether it is required, and description."""


def list_parameters(value: dict[str, Any]) -> list[Parameter]:
    """Return the parameters of a tool or prompt, as far as they have the usual form."""
    schema = value.get("inputSchema")
    if isinstance(schema, dict):
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict):
            return []
        names = required if isinstance(required, list) else []
        return [
            (name, _describe_type(member), name in names, _get_description(member))
            for name, member in properties.items()
        ]
    arguments = value.get("arguments")
    return [
        (argument["name"], "text", argument.get("required") is True, _get_description(argument))
        for argument in (arguments if isinstance(arguments, list) else [])
        if isinstance(argument, dict) and isinstance(argument.get("name"), str)
    ]


def _describe_type(schema: Any) -> str:
    stated = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(stated, list):
        return " or ".join(name for name in stated if isinstance(name, str))
    return stated if isinstance(stated, str) else "any"


def _get_description(schema: Any) -> str:
    described = schema.get("description") if isinstance(schema, dict) else None
    return described if isinstance(described, str) else ""
