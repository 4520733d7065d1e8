"""Derive contracts from a server's surface and from what its process reports.

What is asked on the wire is taken from there and never from objects. What only the process knows (middleware, tags,
limits, code) is given beside it; without a process it is not known, and the extension says so. A fact that nobody
knows is written as null or absent, and marked ``unknown``.
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
    """What is known of a tool beside what a client sees."""

    asked_inside: bool = True
    """Whether the server's process reported it; otherwise only source was read."""
    tags: tuple[str, ...] = ()
    has_middleware: bool = False
    egress_max_bytes: int | None = None
    entitlements: EntitlementContract | None = None
    """None where no source of its handler was read."""


class KnownServer(Record):
    """What a server's process knows; for a server that was only asked from outside there is none."""

    tools: Mapping[str, KnownTool] = field(default_factory=dict)
    prompt_tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prompts_have_middleware: bool = False


def contracts_of(surface: Surface, known: KnownServer | None) -> dict[str, ToolContract]:
    """The contract of every tool that a client sees. Items that cannot be digested were refused before."""
    inside = known or KnownServer()
    return {
        item.key: _tool(item.value, inside.tools.get(item.key, KnownTool()))
        for item in surface.items_of_kind(TOOL)
        if item.digest is not None
    }


def prompts_of(surface: Surface, known: KnownServer | None) -> tuple[PromptContract, ...]:
    """The contract of every prompt that a client sees."""
    inside = known or KnownServer()
    return tuple(
        _prompt(item.value, inside.prompt_tags.get(item.key, ()), inside.prompts_have_middleware)
        for item in surface.items_of_kind(PROMPT)
        if item.digest is not None
    )


def evidence_of(tool: KnownTool | None) -> dict[str, str]:
    """How each fact of a tool is known."""
    seen = dict.fromkeys(("description", "inputSchema", "outputSchema", "annotations", "agentLimitMax"), LIVE)
    inside = UNKNOWN if tool is None or not tool.asked_inside else IN_MEMORY
    code = SOURCE if tool is not None and tool.entitlements is not None else UNKNOWN
    return {
        **seen,
        "tags": LIVE if inside == UNKNOWN else IN_MEMORY,
        "middlewareChain": inside,
        "egressMaxBytes": inside,
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
    """How an answer may swell: without bound if a list without ``maxItems`` is in it, or an object of any members.

    The original takes every answer with a field for unbounded, and no list of plain values.
    """
    unbounded = _is_unbounded(output, output, iter(range(_MOST_PARTS)))
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


def _is_unbounded(schema: Mapping[str, Any], whole: Mapping[str, Any], budget: Iterator[int], depth: int = 0) -> bool:
    if next(budget, None) is None or depth > _DEEPEST:
        return True  # what refers to itself, or is too large to be looked through, has no bound that is known
    if schema.get("type") == "array" or "items" in schema:
        inner = _resolved(schema.get("items"), whole)
        return type(schema.get("maxItems")) is not int or _is_unbounded(inner, whole, budget, depth + 1)
    more = schema.get("additionalProperties")
    if isinstance(more, dict) and more and type(schema.get("maxProperties")) is not int:
        return True
    parts = [*_member(schema, "properties").values()]
    for keyword in ("anyOf", "oneOf", "allOf"):
        value = schema.get(keyword)
        parts += value if isinstance(value, list) else []
    return any(_is_unbounded(_resolved(part, whole), whole, budget, depth + 1) for part in parts)


_MOST_PARTS, _DEEPEST = 2000, 32
"""Limits of the walk through a schema: parts, and depth."""


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
    """The values of a parameter named ``action`` that has a fixed set of them; else the one action of every tool."""
    properties = _member(_member(wire, "inputSchema"), "properties")
    values = _member(properties, _DISCRIMINATOR).get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return tuple(dict.fromkeys(values))
    return (_DEFAULT_ACTION,)


def _unwrapped(schema: Any) -> Mapping[str, Any]:
    """The schema of what is answered: both frameworks put a value that is no object into ``{"result": …}``."""
    if not isinstance(schema, dict):
        return {}
    properties = schema.get("properties")
    if isinstance(properties, dict) and list(properties) == ["result"] and _is_wrapper(schema):
        return _resolved(properties["result"], schema)
    return schema


def _is_wrapper(schema: Mapping[str, Any]) -> bool:
    title = schema.get("title")
    return schema.get("x-fastmcp-wrap-result") is True or (isinstance(title, str) and title.endswith("Output"))


def _resolved(part: Any, whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema, or what it refers to inside the same document."""
    if not isinstance(part, dict):
        return {}
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        definition = _member(_member(whole, "$defs"), reference.removeprefix("#/$defs/"))
        return {**definition, "$defs": whole.get("$defs")}
    return {**part, "$defs": whole.get("$defs")}


def _field_names(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the fields that an answer has: of the object, or of the objects in the list."""
    if schema.get("type") == "array":
        schema = _resolved(schema.get("items"), schema)
    return tuple(_member(schema, "properties"))


def _egress_schema_digest(names: Iterable[str]) -> str | None:
    """The original digests the names of the output's fields and not their types; None if there are none."""
    distinct = set(names)
    return hex_of_text(",".join(utf16_sorted(distinct))) if distinct else None


def _rules_fingerprint(rules: Any) -> str:
    if not isinstance(rules, list) or not rules or not all(isinstance(rule, str) for rule in rules):
        return "none"
    return f"static:{hex_of_text(','.join(utf16_sorted(set(rules))))}"


def _wire_tags(wire: Mapping[str, Any]) -> tuple[str, ...]:
    """Tags as fastmcp sends them, or a list of the author's own under ``_meta.tags``."""
    meta = _member(wire, "_meta")
    for place in (_member(meta, "fastmcp"), _member(meta, "_fastmcp"), meta):
        tags = place.get("tags")
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
