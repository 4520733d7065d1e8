"""Derive contracts from a server's surface and its internals.

Members that clients see come from the surface. Middleware, tags, limits and entitlements come from the server's process
or source, if available. Unknown facts are null or absent, and marked ``unknown`` in the extension.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pinwarden.contract.contract import (
    UNKNOWN_ENTITLEMENTS,
    ActionContract,
    BehaviorContract,
    EntitlementContract,
    PromptArgument,
    PromptContract,
    SurfaceContract,
    TokenContract,
    ToolContract,
)
from pinwarden.contract.digests import hash_required_fields, hash_text, hash_value, sort_by_utf16
from pinwarden.contract.extension import IN_MEMORY, LIVE, SOURCE, UNKNOWN
from pinwarden.core.record import Record, field
from pinwarden.surface.surface import PROMPT, TOOL, Surface

_DEFAULT_ACTION = "default"
_DISCRIMINATOR = "action"


class ToolInternals(Record):
    """Facts about a tool that clients do not see."""

    from_process: bool = True
    """Whether the server's process reported the facts. Otherwise they come only from source code."""
    tags: tuple[str, ...] = ()
    has_middleware: bool = False
    egress_max_bytes: int | None = None
    entitlements: EntitlementContract | None = None
    """None if the source of the tool's handler was not analysed."""


class ServerInternals(Record):
    """Facts about a server that clients do not see."""

    tools: Mapping[str, ToolInternals] = field(default_factory=dict)
    prompt_tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prompts_have_middleware: bool = False


def derive_contracts(surface: Surface, known: ServerInternals | None = None) -> dict[str, ToolContract]:
    """Derive the contract of every tool, by name. Every item of the surface must have a digest."""
    server = known or ServerInternals()
    return {
        item.key: _derive_tool(item.value, server.tools.get(item.key, ToolInternals()))
        for item in surface.items_of_kind(TOOL)
        if item.digest is not None
    }


def derive_prompts(surface: Surface, known: ServerInternals | None = None) -> tuple[PromptContract, ...]:
    """Derive the contract of every prompt."""
    server = known or ServerInternals()
    return tuple(
        _derive_prompt(item.value, server.prompt_tags.get(item.key, ()), server.prompts_have_middleware)
        for item in surface.items_of_kind(PROMPT)
        if item.digest is not None
    )


def derive_evidence(tool: ToolInternals | None) -> dict[str, str]:
    """Return how each fact about a tool is known, for the lockfile extension."""
    from_surface = dict.fromkeys(("description", "inputSchema", "outputSchema", "annotations", "agentLimitMax"), LIVE)
    process_level = UNKNOWN if tool is None or not tool.from_process else IN_MEMORY
    code = SOURCE if tool is not None and tool.entitlements is not None else UNKNOWN
    return {
        **from_surface,
        "tags": LIVE if process_level == UNKNOWN else IN_MEMORY,
        "middlewareChain": process_level,
        "egressMaxBytes": process_level,
        "entitlements": code,
    }


def _derive_tool(definition: Mapping[str, Any], known: ToolInternals) -> ToolContract:
    schema = definition.get("inputSchema")
    output = _unwrap_result(definition.get("outputSchema"))
    fields = _list_field_names(output)
    limit = output.get("maxItems")
    rules = _hash_rules(_get_object(definition, "_meta").get("systemRules"))
    description = definition.get("description")
    return ToolContract(
        surface=SurfaceContract(
            name=definition["name"],
            description=description if isinstance(description, str) else None,
            tags=known.tags or _read_tags(definition),
            actions=_derive_actions(definition, known),
            input_schema_digest=hash_value(schema),
        ),
        behavior=BehaviorContract(
            egress_schema_digest=_hash_field_names(fields),
            system_rules_fingerprint=rules,
            agent_limit_max=limit if type(limit) is int else None,
            egress_max_bytes=known.egress_max_bytes,
            middleware_chain=tuple(f"{key}:mw" for key in _list_action_keys(definition))
            if known.has_middleware
            else (),
        ),
        token_economics=_derive_token_contract(output, len(fields), rules),
        entitlements=known.entitlements or UNKNOWN_ENTITLEMENTS,
    )


def _derive_token_contract(output: Mapping[str, Any], field_count: int, rules: str) -> TokenContract:
    """Estimate how large results may become. Lists without ``maxItems`` and open objects are unbounded.

    MCP Fusion differs: it treats every result with fields as unbounded, and a list of plain values as bounded.
    """
    unbounded = _is_unbounded(output, output, iter(range(_MAX_SUBSCHEMAS)))
    if unbounded:
        risk = "critical" if field_count > 10 else "high"
    else:
        risk = "medium" if field_count > 20 else "low"
    return TokenContract(
        schema_field_count=field_count,
        unbounded_collection=unbounded,
        base_overhead_tokens=0 if rules == "none" else 50,
        inflation_risk=risk,
    )


def _is_unbounded(schema: Mapping[str, Any], root: Mapping[str, Any], budget: Iterator[int], depth: int = 0) -> bool:
    if next(budget, None) is None or depth > _MAX_DEPTH:
        return True  # the schema is recursive or too large to examine
    if schema.get("type") == "array" or "items" in schema:
        inner = _resolve_reference(schema.get("items"), root)
        return type(schema.get("maxItems")) is not int or _is_unbounded(inner, root, budget, depth + 1)
    more = schema.get("additionalProperties")
    if isinstance(more, dict) and more and type(schema.get("maxProperties")) is not int:
        return True
    parts = [*_get_object(schema, "properties").values()]
    for keyword in ("anyOf", "oneOf", "allOf"):
        value = schema.get(keyword)
        parts += value if isinstance(value, list) else []
    return any(_is_unbounded(_resolve_reference(part, root), root, budget, depth + 1) for part in parts)


_MAX_SUBSCHEMAS, _MAX_DEPTH = 2000, 32
"""The limits for one schema: the number of subschemas, and their depth."""


def _derive_actions(definition: Mapping[str, Any], known: ToolInternals) -> dict[str, ActionContract]:
    hints = _get_object(definition, "annotations")
    required = _get_object(definition, "inputSchema").get("required")
    keys = _list_action_keys(definition)
    chosen = _DISCRIMINATOR if keys != (_DEFAULT_ACTION,) else None
    names = tuple(
        name for name in (required if isinstance(required, list) else ()) if isinstance(name, str) and name != chosen
    )
    action = ActionContract(
        destructive=hints.get("destructiveHint") is True,
        idempotent=hints.get("idempotentHint") is True,
        read_only=hints.get("readOnlyHint") is True,
        required_fields=names,
        input_schema_digest=hash_required_fields(names),
        has_middleware=known.has_middleware,
    )
    return dict.fromkeys(keys, action)


def _list_action_keys(definition: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the allowed values of the tool's ``action`` parameter, or the default action if it has none."""
    properties = _get_object(_get_object(definition, "inputSchema"), "properties")
    values = _get_object(properties, _DISCRIMINATOR).get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return tuple(dict.fromkeys(values))
    return (_DEFAULT_ACTION,)


def _unwrap_result(schema: Any) -> Mapping[str, Any]:
    """Return the schema of the result itself. Frameworks wrap a result that is not an object in ``{"result": …}``."""
    if not isinstance(schema, dict):
        return {}
    properties = schema.get("properties")
    if isinstance(properties, dict) and list(properties) == ["result"] and _is_wrapper(schema):
        return _resolve_reference(properties["result"], schema)
    return schema


def _is_wrapper(schema: Mapping[str, Any]) -> bool:
    title = schema.get("title")
    return schema.get("x-fastmcp-wrap-result") is True or (isinstance(title, str) and title.endswith("Output"))


def _resolve_reference(part: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema with its local reference resolved."""
    if not isinstance(part, dict):
        return {}
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        definition = _get_object(_get_object(root, "$defs"), reference.removeprefix("#/$defs/"))
        return {**definition, "$defs": root.get("$defs")}
    return {**part, "$defs": root.get("$defs")}


def _list_field_names(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the field names of a result, or of the objects in a list."""
    if schema.get("type") == "array":
        schema = _resolve_reference(schema.get("items"), schema)
    return tuple(_get_object(schema, "properties"))


def _hash_field_names(names: Iterable[str]) -> str | None:
    """Hash the field names of the output, without types, as MCP Fusion does; None if there are no fields."""
    distinct = set(names)
    return hash_text(",".join(sort_by_utf16(distinct))) if distinct else None


def _hash_rules(rules: Any) -> str:
    if not isinstance(rules, list) or not rules or not all(isinstance(rule, str) for rule in rules):
        return "none"
    return f"static:{hash_text(','.join(sort_by_utf16(set(rules))))}"


def _read_tags(definition: Mapping[str, Any]) -> tuple[str, ...]:
    """Return tags from fastmcp's metadata, or from ``_meta.tags``."""
    meta = _get_object(definition, "_meta")
    for container in (_get_object(meta, "fastmcp"), _get_object(meta, "_fastmcp"), meta):
        tags = container.get("tags")
        if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags):
            return tuple(tags)
    return ()


def _derive_prompt(definition: Mapping[str, Any], tags: tuple[str, ...], has_middleware: bool) -> PromptContract:
    arguments = definition.get("arguments")
    return PromptContract(
        name=definition["name"],
        description=_get_string(definition, "description"),
        title=_get_string(definition, "title"),
        tags=tags or _read_tags(definition),
        arguments=tuple(
            PromptArgument(
                name=argument["name"],
                description=_get_string(argument, "description"),
                required=argument.get("required") is True,
            )
            for argument in (arguments if isinstance(arguments, list) else ())
            if isinstance(argument, dict) and isinstance(argument.get("name"), str)
        ),
        has_middleware=has_middleware,
    )


def _get_object(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    member = value.get(name)
    return member if isinstance(member, dict) else {}


def _get_string(value: Mapping[str, Any], name: str) -> str | None:
    member = value.get(name)
    return member if isinstance(member, str) else None
