"""Constants of the Model Context Protocol: revisions, methods, ``_meta`` members, error codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.surface.surface import PROMPT, RESOURCE, TEMPLATE, TOOL, ItemKind

STATELESS_VERSIONS = ("2026-07-28",)
"""Protocol revisions without a handshake, newest first."""
HANDSHAKE_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Protocol revisions with an ``initialize`` handshake, newest first."""
BATCH_VERSION = "2025-03-26"
"""The only protocol revision that allows batches of JSON-RPC messages."""

META = "io.modelcontextprotocol/"
VERSION_META = f"{META}protocolVersion"
CLIENT_META = f"{META}clientInfo"
CAPABILITIES_META = f"{META}clientCapabilities"
SERVER_META = f"{META}serverInfo"
SUBSCRIPTION_META = f"{META}subscriptionId"

CANCELLED = "notifications/cancelled"
INITIALIZED = "notifications/initialized"
PROGRESS = "notifications/progress"
LIST_CHANGED: Mapping[str, tuple[ItemKind, ...]] = {
    "notifications/tools/list_changed": (TOOL,),
    "notifications/prompts/list_changed": (PROMPT,),
    "notifications/resources/list_changed": (RESOURCE, TEMPLATE),
}
TASK_NOTIFICATIONS = frozenset({"notifications/tasks", "notifications/tasks/status"})
"""Notifications about the state of a task. ``notifications/tasks`` may also contain the result."""
CAPABILITY: Mapping[ItemKind, str] = {TOOL: "tools", PROMPT: "prompts", RESOURCE: "resources", TEMPLATE: "resources"}
"""The capability that a server declares for each list."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
"""Pinwarden also uses this code for blocked requests, as SEP-2624 proposes; ``data`` has the details."""
INTERNAL_ERROR = -32603
SERVER_UNAVAILABLE = -32000
"""The error code for a server that cannot be reached, exited or timed out."""
HEADER_MISMATCH = -32020
CAPABILITY_MISSING = -32021
VERSION_UNSUPPORTED = -32022
URL_REQUIRED = -32042
"""The error code for a request that the client may repeat after the user opened a URL."""


def choose_stateless_version(supported: Any) -> str:
    """Return the newest stateless revision in a server's list of versions; empty if it has none."""
    versions = supported if isinstance(supported, list) else ()
    return next((version for version in STATELESS_VERSIONS if version in versions), "")


def read_supported_versions(error: Any) -> list[str]:
    """Return the versions that a server names in its error about an unsupported version; empty for other errors."""
    data = error.get("data") if isinstance(error, dict) and error.get("code") == VERSION_UNSUPPORTED else None
    supported = data.get("supported") if isinstance(data, dict) else None
    return [version for version in supported if isinstance(version, str)] if isinstance(supported, list) else []
