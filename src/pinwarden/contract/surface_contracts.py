"""Derive contracts from a server's surface and from what its process reports.

Everything that a client sees comes from the surface. Facts that only the process knows (middleware, tags, limits, code)
are added if available. Unknown facts are null or absent, and marked ``unknown`` in the extension.
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
from pinwarden.contract.digests import hex_of, hex_of_text, required_fields_digest, utf16_sorted
from pinwarden.contract.extension import IN_MEMORY, LIVE, SOURCE, UNKNOWN
from pinwarden.core.record import Record, field
from pinwarden.surface.surface import PROMPT, TOOL, Surface

_DEFAULT_ACTION = "default"
_DISCRIMINATOR = "action"


class KnownTool(Record):
    """What is known about a tool besides its surface."""

    from_process: bool = True
    """Whether the server's process reported it; otherwise only source was analysed."""
    tags: tuple[str, ...] = ()
    has_middleware: bool = False
    egress_max_bytes: int | None = None
    entitlements: EntitlementContract | None = None
    """None if the source of its handler was not analysed."""


class KnownServer(Record):
    """What is known about a server besides its surface."""

    tools: Mapping[str, KnownTool] = field(default_factory=dict)
    prompt_tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prompts_have_middleware: bool = False


def contracts_of(surface: Surface, known: KnownServer | None) -> dict[str, ToolContract]:
    """The contract of every tool. Items without a digest were rejected before."""
    server = known or KnownServer()
    return {
        item.key: _tool(item.value, server.tools.get(item.key, KnownTool()))
        for item in surface.items_of_kind(TOOL)
        if item.digest is not None
    }


def prompts_of(surface: Surface, known: KnownServer | None) -> tuple[PromptContract, ...]:
    """The contract of every prompt."""
    server = known or KnownServer()
    return tuple(
        _prompt(item.value, server.prompt_tags.get(item.key, ()), server.prompts_have_middleware)
        for item in surface.items_of_kind(PROMPT)
        if item.digest is not None
    )


def evidence_of(tool: KnownTool | None) -> dict[str, str]:
    """The source of each fact about a tool."""
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


def _tool(wire: Mapping[str, Any], known: KnownTool) -> ToolContract:
    schema = wire.get("inputSchema")
    output = _unwrapped(wire.get("outputSchema"))
    fields = _field_names(output)
    limit = output.get("maxItems")
    rules = _rules_fingerprint(_member(wire, "_meta").get("systemRules"))
    description = wire.get("description")
    return ToolContract(
        surface=SurfaceContract(
            name=wire["name"],
            description=description if isinstance(description, str) else None,
            tags=known.tags or _wire_tags(wire),
            actions=_actions(wire, known),
            input_schema_digest=hex_of(schema),
        ),
        behavior=BehaviorContract(
            egress_schema_digest=_egress_schema_digest(fields),
            system_rules_fingerprint=rules,
            agent_limit_max=limit if type(limit) is int else None,
            egress_max_bytes=known.egress_max_bytes,
            middleware_chain=tuple(f"{key}:mw" for key in _action_keys(wire)) if known.has_middleware else (),
        ),
        token_economics=_economics(output, len(fields), rules),
        entitlements=known.entitlements or UNKNOWN_ENTITLEMENTS,
    )


def _economics(output: Mapping[str, Any], field_count: int, rules: str) -> TokenContract:
    """How large results may become. Lists without ``maxItems`` and open objects are unbounded.

    MCP Fusion treats every result with a field as unbounded, but no list of plain values.
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
        return True  # recursive, or too large to examine
    if schema.get("type") == "array" or "items" in schema:
        inner = _resolved(schema.get("items"), root)
        return type(schema.get("maxItems")) is not int or _is_unbounded(inner, root, budget, depth + 1)
    more = schema.get("additionalProperties")
    if isinstance(more, dict) and more and type(schema.get("maxProperties")) is not int:
        return True
    parts = [*_member(schema, "properties").values()]
    for keyword in ("anyOf", "oneOf", "allOf"):
        value = schema.get(keyword)
        parts += value if isinstance(value, list) else []
    return any(_is_unbounded(_resolved(part, root), root, budget, depth + 1) for part in parts)


_MAX_SUBSCHEMAS, _MAX_DEPTH = 2000, 32
"""Limits for walking a schema: subschemas and depth."""


def _actions(wire: Mapping[str, Any], known: KnownTool) -> dict[str, ActionContract]:
    hints = _member(wire, "annotations")
    required = _member(wire, "inputSchema").get("required")
    keys = _action_keys(wire)
    chosen = _DISCRIMINATOR if keys != (_DEFAULT_ACTION,) else None
    names = tuple(
        name for name in (required if isinstance(required, list) else ()) if isinstance(name, str) and name != chosen
    )
    action = ActionContract(
        destructive=hints.get("destructiveHint") is True,
        idempotent=hints.get("idempotentHint") is True,
        read_only=hints.get("readOnlyHint") is True,
        required_fields=names,
        input_schema_digest=required_fields_digest(names),
        has_middleware=known.has_middleware,
    )
    return dict.fromkeys(keys, action)


def _action_keys(wire: Mapping[str, Any]) -> tuple[str, ...]:
    """The values of an ``action`` parameter with an enumeration; otherwise the default action."""
    properties = _member(_member(wire, "inputSchema"), "properties")
    values = _member(properties, _DISCRIMINATOR).get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return tuple(dict.fromkeys(values))
    return (_DEFAULT_ACTION,)


def _unwrapped(schema: Any) -> Mapping[str, Any]:
    """The schema of the result. Both frameworks wrap a value that is not an object in ``{"result": …}``."""
    if not isinstance(schema, dict):
        return {}
    properties = schema.get("properties")
    if isinstance(properties, dict) and list(properties) == ["result"] and _is_wrapper(schema):
        return _resolved(properties["result"], schema)
    return schema


def _is_wrapper(schema: Mapping[str, Any]) -> bool:
    title = schema.get("title")
    return schema.get("x-fastmcp-wrap-result") is True or (isinstance(title, str) and title.endswith("Output"))


def _resolved(part: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema with its local reference resolved."""
    if not isinstance(part, dict):
        return {}
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        definition = _member(_member(root, "$defs"), reference.removeprefix("#/$defs/"))
        return {**definition, "$defs": root.get("$defs")}
    return {**part, "$defs": root.get("$defs")}


def _field_names(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The field names of a result, or of the objects in a list."""
    if schema.get("type") == "array":
        schema = _resolved(schema.get("items"), schema)
    return tuple(_member(schema, "properties"))


def _egress_schema_digest(names: Iterable[str]) -> str | None:
    """The digest of the output's field names, without their types, as in MCP Fusion; None without fields."""
    distinct = set(names)
    return hex_of_text(",".join(utf16_sorted(distinct))) if distinct else None


def _rules_fingerprint(rules: Any) -> str:
    if not isinstance(rules, list) or not rules or not all(isinstance(rule, str) for rule in rules):
        return "none"
    return f"static:{hex_of_text(','.join(utf16_sorted(set(rules))))}"


def _wire_tags(wire: Mapping[str, Any]) -> tuple[str, ...]:
    """Tags from fastmcp's metadata, or from ``_meta.tags``."""
    meta = _member(wire, "_meta")
    for container in (_member(meta, "fastmcp"), _member(meta, "_fastmcp"), meta):
        tags = container.get("tags")
        if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags):
            return tuple(tags)
    return ()


def _prompt(wire: Mapping[str, Any], tags: tuple[str, ...], has_middleware: bool) -> PromptContract:
    arguments = wire.get("arguments")
    return PromptContract(
        name=wire["name"],
        description=_text(wire, "description"),
        title=_text(wire, "title"),
        tags=tags or _wire_tags(wire),
        arguments=tuple(
            PromptArgument(
                name=argument["name"],
                description=_text(argument, "description"),
                required=argument.get("required") is True,
            )
            for argument in (arguments if isinstance(arguments, list) else ())
            if isinstance(argument, dict) and isinstance(argument.get("name"), str)
        ),
        has_middleware=has_middleware,
    )


def _member(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    member = value.get(name)
    return member if isinstance(member, dict) else {}


def _text(value: Mapping[str, Any], name: str) -> str | None:
    member = value.get(name)
    return member if isinstance(member, str) else None
