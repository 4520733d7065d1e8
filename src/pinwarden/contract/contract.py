"""The contract types: the preimages of the lockfile's digests.

A ``ToolContract`` has four sections, each hashed separately: surface, behavior, token economics, entitlements. Much of
it is hashed but not written (``docs/reference/fusion-differences.md``), so a lockfile can only be verified with the
contracts. Absent members are None; ``contract/digests.py`` decides which are hashed as null and which are omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

RISKS = ("low", "medium", "high", "critical")


class ActionContract(Record):
    """One operation of a tool. A tool without a discriminator has one, named ``default``."""

    description: str | None = None
    destructive: bool = False
    idempotent: bool = False
    read_only: bool = False
    required_fields: tuple[str, ...] = ()
    """In schema order, which is part of the hash."""
    presenter_name: str | None = None
    input_schema_digest: str
    """Bare hex over the names of the required fields; see ``required_fields_digest``."""
    has_middleware: bool = False


class SurfaceContract(Record):
    """The part of a tool that a model sees."""

    name: str
    """The tool's own name, which may differ from its key in the map of contracts."""
    description: str | None = None
    tags: tuple[str, ...] = ()
    actions: Mapping[str, ActionContract]
    input_schema_digest: str
    """Bare hex."""


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
    """How large a tool's results may become."""

    schema_field_count: int = 0
    unbounded_collection: bool = False
    base_overhead_tokens: int = 0
    inflation_risk: str = "low"


class EntitlementContract(Record):
    """What a tool's handlers can reach. ``raw`` has the identifiers in the code.

    A flag is None if the code was not analysed completely, which is not the same as False.
    """

    filesystem: bool | None = False
    network: bool | None = False
    subprocess: bool | None = False
    crypto: bool | None = False
    code_evaluation: bool | None = False
    raw: tuple[str, ...] = ()

    def with_unknown_flags(self) -> EntitlementContract:
        """A copy with None instead of False, for code that could not be analysed completely."""
        return EntitlementContract(
            filesystem=self.filesystem or None,
            network=self.network or None,
            subprocess=self.subprocess or None,
            crypto=self.crypto or None,
            code_evaluation=self.code_evaluation or None,
            raw=self.raw,
        )

    def flags(self) -> dict[str, bool | None]:
        """The flags by the format's names."""
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
"""For tools whose code was not analysed."""


class ToolContract(Record):
    """All four sections of one tool."""

    surface: SurfaceContract
    behavior: BehaviorContract = BehaviorContract()
    token_economics: TokenContract = TokenContract()
    entitlements: EntitlementContract = EntitlementContract()

    def to_json(self) -> dict[str, Any]:
        """The contract as the original writes it; absent members are omitted."""
        return {
            "surface": _surface_json(self.surface),
            "behavior": _behavior_json(self.behavior),
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
    """The pinned part of one prompt. The original does not pin icons."""

    name: str
    description: str | None = None
    title: str | None = None
    tags: tuple[str, ...] = ()
    arguments: tuple[PromptArgument, ...] = ()
    has_middleware: bool = False
    hydration_timeout: int | float | None = None


Contracts = Mapping[str, ToolContract]
"""The tools of a server by exported name, in the order of registration."""


def tool_contract_from_json(value: Any, where: str = "contract") -> ToolContract:
    """Parse a contract. ``CONTRACT_INVALID`` names the member that has the wrong type."""
    reader = _Reader(value, where)
    behavior, tokens, granted = (reader.inside(name) for name in ("behavior", "tokenEconomics", "entitlements"))
    guardrails = behavior.inside("cognitiveGuardrails")
    return ToolContract(
        surface=_surface_from(reader.inside("surface")),
        behavior=BehaviorContract(
            egress_schema_digest=behavior.text_or_none("egressSchemaDigest"),
            system_rules_fingerprint=behavior.text("systemRulesFingerprint"),
            agent_limit_max=guardrails.number_or_none("agentLimitMax"),
            egress_max_bytes=guardrails.number_or_none("egressMaxBytes"),
            middleware_chain=behavior.texts("middlewareChain"),
            state_sync_fingerprint=behavior.text_or_none("stateSyncFingerprint"),
            concurrency_fingerprint=behavior.text_or_none("concurrencyFingerprint"),
            affordance_topology=behavior.texts("affordanceTopology"),
            embedded_presenters=behavior.texts("embeddedPresenters"),
        ),
        token_economics=TokenContract(
            schema_field_count=tokens.count("schemaFieldCount"),
            unbounded_collection=tokens.flag("unboundedCollection"),
            base_overhead_tokens=tokens.count("baseOverheadTokens"),
            inflation_risk=tokens.text("inflationRisk"),
        ),
        entitlements=EntitlementContract(
            filesystem=granted.flag_or_none("filesystem"),
            network=granted.flag_or_none("network"),
            subprocess=granted.flag_or_none("subprocess"),
            crypto=granted.flag_or_none("crypto"),
            code_evaluation=granted.flag_or_none("codeEvaluation"),
            raw=granted.texts("raw"),
        ),
    )


def contracts_from_json(value: Any, where: str = "contracts") -> dict[str, ToolContract]:
    """Parse a mapping of contracts; the order is kept."""
    if not isinstance(value, Mapping):
        _malformed(where, "an object")
    return {name: tool_contract_from_json(contract, f"{where}.{name}") for name, contract in value.items()}


def _surface_from(reader: _Reader) -> SurfaceContract:
    actions = reader.inside("actions")
    return SurfaceContract(
        name=reader.text("name"),
        description=reader.text_or_none("description"),
        tags=reader.texts("tags"),
        actions={key: _action_from(actions.inside(key)) for key in actions.value},
        input_schema_digest=reader.text("inputSchemaDigest"),
    )


def _action_from(reader: _Reader) -> ActionContract:
    return ActionContract(
        description=reader.text_or_none("description"),
        destructive=reader.flag("destructive"),
        idempotent=reader.flag("idempotent"),
        read_only=reader.flag("readOnly"),
        required_fields=reader.texts("requiredFields"),
        presenter_name=reader.text_or_none("presenterName"),
        input_schema_digest=reader.text("inputSchemaDigest"),
        has_middleware=reader.flag("hasMiddleware"),
    )


def _surface_json(surface: SurfaceContract) -> dict[str, Any]:
    return {
        "name": surface.name,
        **_stated("description", surface.description),
        "tags": list(surface.tags),
        "actions": {key: _action_json(action) for key, action in surface.actions.items()},
        "inputSchemaDigest": surface.input_schema_digest,
    }


def _action_json(action: ActionContract) -> dict[str, Any]:
    return {
        **_stated("description", action.description),
        "destructive": action.destructive,
        "idempotent": action.idempotent,
        "readOnly": action.read_only,
        "requiredFields": list(action.required_fields),
        **_stated("presenterName", action.presenter_name),
        "inputSchemaDigest": action.input_schema_digest,
        "hasMiddleware": action.has_middleware,
    }


def _behavior_json(behavior: BehaviorContract) -> dict[str, Any]:
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


def _stated(name: str, value: str | None) -> dict[str, str]:
    return {} if value is None else {name: value}


class _Reader:
    """Typed access to the members of one JSON object."""

    __slots__ = ("value", "where")

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            _malformed(where, "an object")
        self.value = value
        self.where = where

    def inside(self, name: str) -> _Reader:
        return _Reader(self.value.get(name), f"{self.where}.{name}")

    def text(self, name: str) -> str:
        value = self.value.get(name)
        return value if isinstance(value, str) else self._wrong(name, "text")

    def text_or_none(self, name: str) -> str | None:
        return None if self.value.get(name) is None else self.text(name)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.value.get(name)
        if not isinstance(value, list | tuple) or not all(isinstance(finding, str) for finding in value):
            self._wrong(name, "a list of texts")
        return tuple(value)

    def flag(self, name: str) -> bool:
        value = self.value.get(name, False)
        return value if isinstance(value, bool) else self._wrong(name, "true or false")

    def flag_or_none(self, name: str) -> bool | None:
        return None if self.value.get(name, False) is None else self.flag(name)

    def count(self, name: str) -> int:
        value = self.value.get(name)
        return value if type(value) is int else self._wrong(name, "a whole number")

    def number_or_none(self, name: str) -> int | float | None:
        value = self.value.get(name)
        if value is None or type(value) is int or type(value) is float:
            return value
        self._wrong(name, "a number or null")

    def _wrong(self, name: str, kind: str) -> NoReturn:
        _malformed(f"{self.where}.{name}", kind)


def _malformed(where: str, kind: str) -> NoReturn:
    raise PinwardenError("CONTRACT_INVALID", f"{where[:200]} is not {kind}")
