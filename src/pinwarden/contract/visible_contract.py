"""What can be read of a contract in a lockfile without our extension: the visible part, nothing of the hidden one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.contract.contract import ToolContract, tool_contract_from_json
from pinwarden.contract.lockfile import Lockfile

_HIDDEN = ""
"""Stands for a digest that the file does not hold: equal on both sides, so that it is never told as a change."""


def visible_contracts(lockfile: Lockfile) -> dict[str, ToolContract]:
    """The contracts as far as they are written. Raises ``CONTRACT_INVALID`` if an entry is malformed."""
    return {name: _contract(name, entry) for name, entry in lockfile.tools.items()}


def _contract(name: str, entry: Mapping[str, Any]) -> ToolContract:
    surface, behavior, tokens = (_part(entry, part) for part in ("surface", "behavior", "tokenEconomics"))
    destructive, read_only = behavior.get("destructiveActions") or (), behavior.get("readOnlyActions") or ()
    return tool_contract_from_json(
        {
            "surface": {
                "name": name,
                "description": surface.get("description"),
                "tags": surface.get("tags"),
                "actions": {
                    key: {
                        "destructive": key in destructive,
                        "readOnly": key in read_only,
                        "requiredFields": [],
                        "inputSchemaDigest": _HIDDEN,
                    }
                    for key in surface.get("actions") or ()
                    if isinstance(key, str)
                },
                "inputSchemaDigest": surface.get("inputSchemaDigest"),
            },
            "behavior": {**behavior, "embeddedPresenters": []},
            "tokenEconomics": {**tokens, "baseOverheadTokens": 0},
            "entitlements": {**_part(entry, "entitlements"), "raw": []},
        },
        f"capabilities.tools.{name}",
    )


def _part(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = entry.get(name)
    return part if isinstance(part, Mapping) else {}
