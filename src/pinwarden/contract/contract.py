"""The types of contracts. The lockfile has digests of contracts.

A ``ToolContract`` has four sections: surface, behavior, token economics and entitlements. Each is hashed separately.
The lockfile contains only some members of a contract (``docs/reference/fusion-differences.md``), so verifying it
needs the complete contract. Absent members are None; ``contract/digests.py`` hashes them as null or omits them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.typed_json import JsonObject

RISKS = ("low", "medium", "high", "critical")


class ActionContract(Record):
    """One operation of a tool. A tool without an ``action`` parameter has one action, named ``default``."""

    description: str | None = None
    destructive: bool = False
    idempotent: bool = False
    read_only: bool = False
    required_fields: tuple[str, ...] = ()
    """The names of required fields, in the order of the schema. The order is part of the hash."""
    presenter_name: str | None = None
    input_schema_digest: str
    """The hash of the names of the required fields, as hex without a prefix; see ``hash_required_fields``."""
    has_middleware: bool = False


class SurfaceContract(Record):
    """The part of a tool that a model sees."""

    name: str
    """The tool's own name, which may differ from its key in the map of contracts."""
    description: str | None = None
    tags: tuple[str, ...] = ()
    actions: Mapping[str, ActionContract]
    input_schema_digest: str
    """The hash of the input schema, as hex without a prefix."""


class BehaviorContract(Record):
    """Limits and rules for a tool's results."""

    egress_schema_digest: str | None = None
    system_rules_fingerprint: str = "none"
    agent_limit_max: int | float | None = None
    egress_max_bytes: int | float | None = None
    middleware_chain: tuple[str, ...] = ()
    state_sync_fingerprint: str | None = None
    concurrency_fingerprint: str | None = None
    affordance_topology: tuple[str, ...] = ()
    embedded_presenters: tuple[str, ...] = ()


class TokenContract(Record):
    """Estimates of how large a tool's results may become."""

    schema_field_count: int = 0
    unbounded_collection: bool = False
    base_overhead_tokens: int = 0
    inflation_risk: str = "low"


class EntitlementContract(Record):
    """The entitlements of a tool's code. ``raw`` lists the called functions that need them.

    A flag is None (unknown) if the code was not analysed completely and the entitlement was not found.
    """

    filesystem: bool | None = False
    network: bool | None = False
    subprocess: bool | None = False
    crypto: bool | None = False
    code_evaluation: bool | None = False
    raw: tuple[str, ...] = ()

    def with_unknown_flags(self) -> EntitlementContract:
        """Return a copy with None instead of False, for code that was not analysed completely."""
        return EntitlementContract(
            filesystem=self.filesystem or None,
            network=self.network or None,
            subprocess=self.subprocess or None,
            crypto=self.crypto or None,
            code_evaluation=self.code_evaluation or None,
            raw=self.raw,
        )

    def flags(self) -> dict[str, bool | None]:
        """Return the flags, by their names in the lockfile."""
        return {
            "filesystem": self.filesystem,
            "network": self.network,
            "subprocess": self.subprocess,
            "crypto": self.crypto,
            "codeEvaluation": self.code_evaluation,
        }


UNKNOWN_ENTITLEMENTS = EntitlementContract(
    filesystem=None, network=None, subprocess=None, crypto=None, code_evaluation=None
)
"""The entitlements of a tool whose code was not analysed."""


class ToolContract(Record):
    """The contract of one tool, in four sections."""

    surface: SurfaceContract
    behavior: BehaviorContract = BehaviorContract()
    token_economics: TokenContract = TokenContract()
    entitlements: EntitlementContract = EntitlementContract()

    def to_json(self) -> dict[str, Any]:
        """Return the contract as MCP Fusion writes it; absent members are omitted."""
        return {
            "surface": _surface_to_json(self.surface),
            "behavior": _behavior_to_json(self.behavior),
            "tokenEconomics": {
                "schemaFieldCount": self.token_economics.schema_field_count,
                "unboundedCollection": self.token_economics.unbounded_collection,
                "baseOverheadTokens": self.token_economics.base_overhead_tokens,
                "inflationRisk": self.token_economics.inflation_risk,
            },
            "entitlements": {**self.entitlements.flags(), "raw": list(self.entitlements.raw)},
        }


class PromptArgument(Record):
    """One argument of a prompt."""

    name: str
    description: str | None = None
    required: bool = False


class PromptContract(Record):
    """The members of a prompt that a lockfile pins. Icons are not pinned, as in MCP Fusion."""

    name: str
    description: str | None = None
    title: str | None = None
    tags: tuple[str, ...] = ()
    arguments: tuple[PromptArgument, ...] = ()
    has_middleware: bool = False
    hydration_timeout: int | float | None = None


Contracts = Mapping[str, ToolContract]
"""The tools of a server by exported name, in the order of registration."""


def tool_contract_from_json(value: Any, path: str = "contract") -> ToolContract:
    """Parse a contract. Raises ``CONTRACT_INVALID`` with the path of the wrong member."""
    return _parse_contract(JsonObject(value, path, _build_error, separator="."))


def contracts_from_json(value: Any, path: str = "contracts") -> dict[str, ToolContract]:
    """Parse contracts by tool name, in the order of the document."""
    contracts = JsonObject(value, path, _build_error, separator=".")
    return {name: _parse_contract(contract) for name, contract in contracts.members()}


def _parse_contract(contract: JsonObject) -> ToolContract:
    behavior, tokens, flags = (contract.object(name) for name in ("behavior", "tokenEconomics", "entitlements"))
    guardrails = behavior.object("cognitiveGuardrails")
    return ToolContract(
        surface=_parse_surface(contract.object("surface")),
        behavior=BehaviorContract(
            egress_schema_digest=behavior.optional_string("egressSchemaDigest"),
            system_rules_fingerprint=behavior.string("systemRulesFingerprint"),
            agent_limit_max=guardrails.optional_number("agentLimitMax"),
            egress_max_bytes=guardrails.optional_number("egressMaxBytes"),
            middleware_chain=behavior.strings("middlewareChain"),
            state_sync_fingerprint=behavior.optional_string("stateSyncFingerprint"),
            concurrency_fingerprint=behavior.optional_string("concurrencyFingerprint"),
            affordance_topology=behavior.strings("affordanceTopology"),
            embedded_presenters=behavior.strings("embeddedPresenters"),
        ),
        token_economics=TokenContract(
            schema_field_count=tokens.integer("schemaFieldCount", minimum=None),
            unbounded_collection=tokens.boolean("unboundedCollection", default=False),
            base_overhead_tokens=tokens.integer("baseOverheadTokens", minimum=None),
            inflation_risk=tokens.string("inflationRisk"),
        ),
        entitlements=EntitlementContract(
            filesystem=_parse_flag(flags, "filesystem"),
            network=_parse_flag(flags, "network"),
            subprocess=_parse_flag(flags, "subprocess"),
            crypto=_parse_flag(flags, "crypto"),
            code_evaluation=_parse_flag(flags, "codeEvaluation"),
            raw=flags.strings("raw"),
        ),
    )


def _parse_flag(flags: JsonObject, name: str) -> bool | None:
    return None if flags.value.get(name, False) is None else flags.boolean(name, default=False)


def _parse_surface(surface: JsonObject) -> SurfaceContract:
    return SurfaceContract(
        name=surface.string("name"),
        description=surface.optional_string("description"),
        tags=surface.strings("tags"),
        actions={name: _parse_action(action) for name, action in surface.object("actions").members()},
        input_schema_digest=surface.string("inputSchemaDigest"),
    )


def _parse_action(action: JsonObject) -> ActionContract:
    return ActionContract(
        description=action.optional_string("description"),
        destructive=action.boolean("destructive", default=False),
        idempotent=action.boolean("idempotent", default=False),
        read_only=action.boolean("readOnly", default=False),
        required_fields=action.strings("requiredFields"),
        presenter_name=action.optional_string("presenterName"),
        input_schema_digest=action.string("inputSchemaDigest"),
        has_middleware=action.boolean("hasMiddleware", default=False),
    )


def _build_error(path: str, problem: str) -> PinwardenError:
    return PinwardenError("CONTRACT_INVALID", f"{path[:200]} {problem}")


def _surface_to_json(surface: SurfaceContract) -> dict[str, Any]:
    return {
        "name": surface.name,
        **_build_optional_member("description", surface.description),
        "tags": list(surface.tags),
        "actions": {key: _action_to_json(action) for key, action in surface.actions.items()},
        "inputSchemaDigest": surface.input_schema_digest,
    }


def _action_to_json(action: ActionContract) -> dict[str, Any]:
    return {
        **_build_optional_member("description", action.description),
        "destructive": action.destructive,
        "idempotent": action.idempotent,
        "readOnly": action.read_only,
        "requiredFields": list(action.required_fields),
        **_build_optional_member("presenterName", action.presenter_name),
        "inputSchemaDigest": action.input_schema_digest,
        "hasMiddleware": action.has_middleware,
    }


def _behavior_to_json(behavior: BehaviorContract) -> dict[str, Any]:
    return {
        "egressSchemaDigest": behavior.egress_schema_digest,
        "systemRulesFingerprint": behavior.system_rules_fingerprint,
        "cognitiveGuardrails": {
            "agentLimitMax": behavior.agent_limit_max,
            "egressMaxBytes": behavior.egress_max_bytes,
        },
        "middlewareChain": list(behavior.middleware_chain),
        "stateSyncFingerprint": behavior.state_sync_fingerprint,
        "concurrencyFingerprint": behavior.concurrency_fingerprint,
        "affordanceTopology": list(behavior.affordance_topology),
        "embeddedPresenters": list(behavior.embedded_presenters),
    }


def _build_optional_member(name: str, value: str | None) -> dict[str, str]:
    return {} if value is None else {name: value}
