"""The digest of a tool definition, as Pinwarden and as MCP Hangar compute it.

``pinwarden`` covers every member that the server sent, known or not. Hangar's two forms cover name, description,
inputSchema and outputSchema; they are needed to compare with Hangar's pins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pinwarden.core.canonical import canonicalize, get_profile
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import DEFAULT_LIMITS

_HANGAR_MEMBERS = ("name", "description", "inputSchema", "outputSchema")


def tool_digest(tool: Any, profile: str = "pinwarden") -> Digest:
    """The digest of a tool, given as a value or as JSON text in ``bytes``."""
    try:
        form, covered = TOOL_PROFILES[profile]
    except (KeyError, TypeError):
        known = ", ".join(TOOL_PROFILES)
        raise PinwardenError("PROFILE_UNKNOWN", f"unknown tool digest {profile!a}; known: {known}") from None
    if type(tool) is bytes:
        tool = get_profile(form).read(tool, DEFAULT_LIMITS)
    if type(tool) is not dict:
        raise PinwardenError("TOOL_INVALID", f"the tool is not an object but {type(tool).__name__}")
    return Digest.of_bytes(canonicalize(covered(tool), form))


def _every_member(tool: dict[str, Any]) -> dict[str, Any]:
    _require_name(tool)
    return tool


def _hangar_members(tool: dict[str, Any]) -> dict[str, Any]:
    _require_name(tool)
    chosen = {member: tool.get(member) for member in _HANGAR_MEMBERS}
    return {member: value for member, value in chosen.items() if value is not None and value not in ("", {}, [])}


def _hangar_1_2_members(tool: dict[str, Any]) -> dict[str, Any]:
    if not tool.get("name"):
        raise PinwardenError("TOOL_INVALID", "the tool has no name")
    return {member: tool[member] for member in _HANGAR_MEMBERS if tool.get(member) is not None}


def _require_name(tool: dict[str, Any]) -> None:
    name = tool.get("name")
    if type(name) is not str or not name:
        raise PinwardenError("TOOL_INVALID", "the tool has no name")


TOOL_PROFILES: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "pinwarden": ("jcs", _every_member),
    "hangar-1.2": ("hangar-1.2", _hangar_1_2_members),
    "hangar": ("hangar", _hangar_members),
}
