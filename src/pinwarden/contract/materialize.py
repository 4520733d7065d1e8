"""From what a framework declares to a contract: the original's rules, dialect by dialect.

Several of them are wrong by design and kept, because a digest is only compatible if its defects are. What they miss
(types of the output, middleware of the whole tool, limits, rule functions) is in our extension.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pinwarden.contract.canonical import hex_of, hex_of_text, utf16_sorted
from pinwarden.contract.contract import (
    ActionContract,
    BehaviorContract,
    EntitlementContract,
    PromptArgument,
    PromptContract,
    SurfaceContract,
    TokenContract,
    ToolContract,
)
from pinwarden.contract.dialect import Dialect
from pinwarden.contract.digests import required_fields_digest
from pinwarden.core.record import Record


class DeclaredAction(Record):
    """One operation as the framework declares it."""

    key: str
    description: str | None = None
    destructive: bool = False
    idempotent: bool = False
    read_only: bool = False
    required_fields: tuple[str, ...] = ()
    has_middleware: bool = False
    presenter_name: str | None = None
    presenter_fields: tuple[str, ...] = ()
    presenter_rules: tuple[str, ...] = ()
    presenter_rules_are_computed: bool = False


class DeclaredTool(Record):
    """One tool as the framework declares it."""

    name: str
    description: str | None = None
    input_schema: Any
    tags: tuple[str, ...] = ()
    actions: tuple[DeclaredAction, ...]
    agent_limit_max: int | float | None = None
    egress_max_bytes: int | float | None = None


def tool_contract(
    tool: DeclaredTool, dialect: Dialect, entitlements: EntitlementContract | None = None
) -> ToolContract:
    """The contract of a declared tool. Entitlements come from elsewhere, as the code does."""
    rules = rules_fingerprint(tool.actions, dialect)
    count = schema_field_count(tool.actions)
    return ToolContract(
        surface=SurfaceContract(
            name=tool.name,
            description=tool.description,
            tags=tool.tags,
            actions={each.key: _action(each) for each in tool.actions},
            input_schema_digest=hex_of(tool.input_schema),
        ),
        behavior=BehaviorContract(
            egress_schema_digest=egress_schema_digest(name for each in tool.actions for name in each.presenter_fields),
            system_rules_fingerprint=rules,
            agent_limit_max=tool.agent_limit_max,
            egress_max_bytes=tool.egress_max_bytes,
            middleware_chain=tuple(f"{each.key}:mw" for each in tool.actions if each.has_middleware),
        ),
        token_economics=token_contract(count, rules, bounded=tool.agent_limit_max is not None),
        entitlements=entitlements or EntitlementContract(),
    )


def egress_schema_digest(names: Iterable[str]) -> str | None:
    """The digest of the output's field names, nothing of their types; None if there are none."""
    distinct = set(names)
    return hex_of_text(",".join(utf16_sorted(distinct))) if distinct else None


def rules_fingerprint(actions: Sequence[DeclaredAction], dialect: Dialect) -> str:
    """What stands for the rules given to the model with each answer."""
    computed = any(each.presenter_rules_are_computed for each in actions)
    fields = {name for each in actions for name in each.presenter_fields}
    rules = {rule for each in actions for rule in each.presenter_rules}
    if dialect.rules == "rules":
        if rules:
            return f"{'dynamic' if computed else 'static'}:{_joined(rules)}"
        return "dynamic" if computed else "none"
    if computed:
        return "dynamic"
    if not fields:
        return "none"
    return f"static:{_joined(fields if dialect.rules == 'schema-keys' else rules)}"


def schema_field_count(actions: Iterable[DeclaredAction]) -> int:
    """The fields of all presenters; of presenters of the same name only the first counts."""
    seen: dict[str, int] = {}
    for action in actions:
        if action.presenter_name:
            seen.setdefault(action.presenter_name, len(action.presenter_fields))
    return sum(seen.values())


def token_contract(field_count: int, rules: str, *, bounded: bool = False, affordances: int = 0) -> TokenContract:
    """The economics of a tool whose output has so many fields."""
    unbounded = not bounded and field_count > 0
    if unbounded:
        risk = "critical" if field_count > 10 else "high"
    else:
        risk = "medium" if field_count > 20 else "low"
    return TokenContract(
        schema_field_count=field_count,
        unbounded_collection=unbounded,
        base_overhead_tokens=(0 if rules == "none" else 50) + 20 * affordances,
        inflation_risk=risk,
    )


def declared_tool_from_json(tool: Mapping[str, Any]) -> DeclaredTool:
    """A tool from the framework's own description of it: a tool definition and metadata of its actions."""
    definition = tool["toolDefinition"]
    return DeclaredTool(
        name=tool["name"],
        description=definition.get("description"),
        input_schema=definition["inputSchema"],
        tags=tuple(tool.get("tags", ())),
        actions=tuple(_declared_action(each) for each in tool["actionMetadata"]),
    )


def prompt_contract_from_json(prompt: Mapping[str, Any]) -> PromptContract:
    """A prompt from the framework's own description of it."""
    definition = prompt["definition"]
    arguments = definition.get("arguments") or ()
    return PromptContract(
        name=prompt.get("name", definition["name"]),
        description=definition.get("description"),
        title=definition.get("title"),
        tags=tuple(prompt.get("tags", ())),
        arguments=tuple(
            PromptArgument(
                name=each["name"], description=each.get("description"), required=each.get("required") or False
            )
            for each in arguments
        ),
        has_middleware=prompt.get("hasMiddleware", False),
        hydration_timeout=prompt.get("hydrationTimeout"),
    )


def _declared_action(each: Mapping[str, Any]) -> DeclaredAction:
    return DeclaredAction(
        key=each["key"],
        description=each.get("description"),
        destructive=each["destructive"],
        idempotent=each["idempotent"],
        read_only=each["readOnly"],
        required_fields=tuple(each["requiredFields"]),
        has_middleware=each["hasMiddleware"],
        presenter_name=each.get("presenterName"),
        presenter_fields=tuple(each.get("presenterSchemaKeys") or ()),
        presenter_rules=tuple(each.get("presenterStaticRules") or ()),
        presenter_rules_are_computed=each.get("presenterHasContextualRules", False),
    )


def _action(each: DeclaredAction) -> ActionContract:
    return ActionContract(
        description=each.description,
        destructive=each.destructive,
        idempotent=each.idempotent,
        read_only=each.read_only,
        required_fields=each.required_fields,
        presenter_name=each.presenter_name,
        input_schema_digest=required_fields_digest(each.required_fields),
        has_middleware=each.has_middleware,
    )


def _joined(texts: set[str]) -> str:
    return hex_of_text(",".join(utf16_sorted(texts)))
