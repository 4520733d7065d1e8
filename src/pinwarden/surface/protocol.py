"""Constants of the Model Context Protocol: revisions, methods, ``_meta`` members, error codes."""

from __future__ import annotations

from collections.abc import Mapping

from pinwarden.surface.surface import PROMPT, RESOURCE, TEMPLATE, TOOL, ItemKind

STATELESS_VERSIONS = ("2026-07-28",)
"""Revisions without a handshake."""
HANDSHAKE_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Revisions with an ``initialize`` handshake, newest first."""
BATCH_VERSION = "2025-03-26"
"""The only revision with batches of messages."""

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
"""Notifications about the state of a task; the first may contain its result."""
CAPABILITY: Mapping[ItemKind, str] = {TOOL: "tools", PROMPT: "prompts", RESOURCE: "resources", TEMPLATE: "resources"}
"""The capability that a server declares for each list."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
"""Also for blocked requests, which count as failed validation (SEP-2624); ``data`` has the details."""
INTERNAL_ERROR = -32603
SERVER_UNAVAILABLE = -32000
"""The server is unreachable, exited or timed out."""
HEADER_MISMATCH = -32020
CAPABILITY_MISSING = -32021
VERSION_UNSUPPORTED = -32022
URL_REQUIRED = -32042
"""The user has to visit an address before the request is repeated."""
