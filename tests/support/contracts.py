"""Contracts, surfaces and lockfiles for the tests of the author's lock."""

from __future__ import annotations

from typing import Any

from pinwarden.contract.contract import ActionContract, SurfaceContract, ToolContract
from pinwarden.contract.digests import hash_required_fields, hash_value
from pinwarden.contract.extension import ContractExtension, ToolExtension, with_extension
from pinwarden.contract.lockfile import Lockfile, generate_lockfile
from pinwarden.core.record import replace
from pinwarden.surface.surface import TOOL, Surface, surface_from_listing

FLAGS = ("filesystem", "network", "subprocess", "crypto", "codeEvaluation")
"""The entitlements of a contract."""
MADE_AT = "2026-05-01T10:00:00.000Z"


def wire_tool(name: str, description: str = "Read a note.", **members: Any) -> dict[str, Any]:
    """A tool as a client sees it."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return {"name": name, "description": description, "inputSchema": schema, **members}


def listing(*tools: dict[str, Any], **members: Any) -> dict[str, Any]:
    """What a server tells of itself."""
    return {"serverInfo": {"name": "notes", "version": "1.0"}, "capabilities": {}, "tools": list(tools), **members}


def contracts_of_surface(surface: Surface) -> dict[str, ToolContract]:
    """The contracts of a server that is only seen from outside."""
    return {item.key: contract_of(item.value) for item in surface.items_of_kind(TOOL) if item.digest}


def contract_of(tool: dict[str, Any]) -> ToolContract:
    """The contract of a tool with one operation."""
    hints = tool.get("annotations", {})
    required = tuple(tool["inputSchema"].get("required", ()))
    action = ActionContract(
        destructive=hints.get("destructiveHint") is True,
        read_only=hints.get("readOnlyHint") is True,
        required_fields=required,
        input_schema_digest=hash_required_fields(required),
    )
    surface = SurfaceContract(
        name=tool["name"],
        description=tool.get("description"),
        actions={"default": action},
        input_schema_digest=hash_value(tool["inputSchema"]),
    )
    return ToolContract(surface=surface)


def extension_of(told: dict[str, Any], **facts: ToolExtension) -> ContractExtension:
    """What our member of the lockfile says of that server."""
    surface = surface_from_listing(told)
    return ContractExtension(surface=surface, contracts=contracts_of_surface(surface), evidence="live", tools=facts)


def locked(told: dict[str, Any], **facts: ToolExtension) -> Lockfile:
    """The lockfile of that server, with extension."""
    extension = extension_of(told, **facts)
    return with_extension(generate_lockfile("notes", extension.contracts, generated_at=MADE_AT), extension)


def with_action(contract: ToolContract, key: str, action: ActionContract) -> ToolContract:
    """The contract with one operation more, or another one under that key."""
    surface = replace(contract.surface, actions={**contract.surface.actions, key: action})
    return replace(contract, surface=surface)
