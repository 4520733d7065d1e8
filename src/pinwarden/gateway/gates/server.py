"""Decisions about a server's description of itself: instructions, capabilities and serverInfo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.gateway.audit.event import SERVER_ITEM
from pinwarden.gateway.gates.lists import choose_change_action
from pinwarden.gateway.gates.verdict import ALLOW, AUDIT, BLOCK, Verdict
from pinwarden.lock.gateway_policy import ItemPolicy
from pinwarden.surface.drift.changes import ABSENT, CHANGE_KINDS, CRITICAL, SEVERITIES, Change
from pinwarden.surface.surface import SERVER_MEMBERS, Surface

CAPABILITY_OF_METHOD = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "completion": "completions",
    "logging": "logging",
    "tasks": "tasks",
}
"""The capability that a method needs, by the method's name before the slash."""


EXTENSION_OF_METHOD = {"tasks": "io.modelcontextprotocol/tasks"}
"""The protocol extension that can offer a method instead of a capability, by the method's name before the slash."""


def check_server(
    served: Mapping[str, Any],
    approved: Surface,
    policy: ItemPolicy,
    *,
    read_neighbours: Callable[[], Sequence[tuple[str, Surface]]] = tuple,
) -> tuple[Verdict, ...]:
    """Return a verdict for each member that the server sends now or that was approved.

    ``read_neighbours`` returns the names and approved surfaces of the other servers; it is called only if a member
    differs from its approved value.
    """
    changes: dict[str, list[Change]] = {}
    if not _is_as_approved(served, approved):
        from pinwarden.surface.drift.compare import compare

        for change in compare(approved, replace(approved, server=served), read_neighbours()):
            if change.entity != "server":
                continue
            changes.setdefault(change.field, []).append(change)
    before = approved.server or {}
    return tuple(
        _build_verdict(name, before.get(name, ABSENT), served.get(name, ABSENT), tuple(changes.get(name, ())), policy)
        for name in SERVER_MEMBERS
        if name in served or name in before
    )


def _is_as_approved(served: Mapping[str, Any], approved: Surface) -> bool:
    """Whether all members are identical to the approved members; False for a value without a canonical form."""
    try:
        return canonicalize(dict(served)) == canonicalize(dict(approved.server or {}))
    except PinwardenError:
        return False


def select_approved_capabilities(served: Any, approved: Surface) -> dict[str, Any]:
    """Return the approved value of each capability that the server offers now. Unapproved capabilities are omitted."""
    recorded = (approved.server or {}).get("capabilities")
    before = recorded if isinstance(recorded, dict) else {}
    return {name: before[name] for name in served if name in before} if isinstance(served, dict) else {}


def needs_unapproved_capability(method: str, served: Mapping[str, Any], approved: Mapping[str, Any]) -> bool:
    """Whether a method needs a capability or extension that the server offers now but that is not approved."""
    family = method.partition("/")[0]
    capability = CAPABILITY_OF_METHOD.get(family)
    if capability is not None and capability in served:
        return capability not in approved
    extension = EXTENSION_OF_METHOD.get(family)
    return extension is not None and extension in read_extensions(served) and extension not in read_extensions(approved)


def read_extensions(capabilities: Any) -> Mapping[str, Any]:
    """Return the protocol extensions that capabilities declare; empty if there are none."""
    extensions = capabilities.get("extensions") if isinstance(capabilities, dict) else None
    return extensions if isinstance(extensions, dict) else {}


def _build_verdict(name: str, old: Any, new: Any, changes: tuple[Change, ...], policy: ItemPolicy) -> Verdict:
    expected = () if old is ABSENT else (_format_value_digest(old),)
    value = None if new is ABSENT else new
    digest = None if new is ABSENT else _compute_digest(new)
    action, level, code = ALLOW, "", ""
    if changes:
        most_severe = min(changes, key=lambda change: SEVERITIES.index(change.severity))
        level, code = most_severe.severity, most_severe.kind
        action = choose_change_action(policy, level)
    if new is not ABSENT and digest is None:
        action, level, code = BLOCK, CRITICAL, "undigestable"
    if new is ABSENT and action != ALLOW:
        action = AUDIT  # the member was removed, so there is nothing to block
    return Verdict(
        entity=SERVER_ITEM,
        key=name,
        value=value,
        digest=digest,
        action=action,
        level=level,
        code=code,
        reason=CHANGE_KINDS[code].reason if code else "",
        expected=expected,
        changes=changes,
    )


def _compute_digest(value: Any) -> Digest | None:
    try:
        return Digest.of_bytes(canonicalize(value))
    except PinwardenError:
        return None


def _format_value_digest(value: Any) -> str:
    digest = _compute_digest(value)
    return "" if digest is None else str(digest)
