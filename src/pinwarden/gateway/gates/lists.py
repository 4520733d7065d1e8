"""Decisions about lists: one verdict per item, independent of the other items.

An unreadable item, a duplicate name or an unapproved tool affects only that item. Every list is compared with the
approved surface, never with an earlier list. Therefore a blocked item does not change later decisions, and a tool that
disappears and comes back is still compared with its approved definition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pinwarden.core.digest import Digest, tool_digest
from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.gates.verdict import ALLOW, AUDIT, BLOCK, WARN, Verdict
from pinwarden.lock.gateway_policy import DRIFT_LEVELS, AllowedDigest, ItemPolicy
from pinwarden.surface.drift.changes import CHANGE_KINDS, CRITICAL, REVIEW, SEVERITIES, Change
from pinwarden.surface.surface import TOOL, Item, ItemKind, Surface

NOT_LISTED = "not_listed"
METHOD_UNKNOWN = "method_unknown"
LIST_FAILED = "list_failed"
"""The gateway could not get or parse the server's list, so it does not know the definition of the item."""
PUBLISHED_DIGEST_CHANGED = "published_digest_changed"
"""The server publishes another digest for a tool (SEP-1766) than it did at approval."""

DIGEST_NOT_ALLOWED = "digest_not_allowed"
"""The policy's allowlist names the item with other digests, and no definition of it is approved."""

PolicyLookup = Callable[[str], ItemPolicy]
"""Returns the policy for the item with this key."""

_ACTIONS = {"allow_degraded": ALLOW, "allow_unverified": ALLOW, "audit": AUDIT, "warn": WARN, "block": BLOCK}
_STRICTNESS = (ALLOW, AUDIT, WARN, BLOCK)
_UNDIGESTABLE = "undigestable"
_DUPLICATE = "duplicate_name"


def check_list(  # noqa: PLR0913  the list, what it is compared with, and who may change it
    kind: ItemKind,
    items: Sequence[Item],
    approved: Surface,
    find_policy: PolicyLookup,
    server: Mapping[str, Any] | None = None,
    *,
    read_neighbours: Callable[[], Sequence[tuple[str, Surface]]] = tuple,
) -> tuple[Verdict, ...]:
    """Return a verdict for each item of a complete list, in order.

    ``server`` contains the server's current instructions, capabilities and serverInfo. ``read_neighbours`` returns the
    names and approved surfaces of the other servers; it is called only if an item differs from its approved version.
    """
    pins = _collect_pinned_digests(approved.items_of_kind(kind))
    occurrences = Counter(item.key for item in items)
    differing = {
        id(item)
        for item in items
        if item.digest is None or occurrences[item.key] > 1 or str(item.digest) not in pins.get(item.key, ())
    }
    find_changes = _compare_items(kind, items, approved, server, read_neighbours()) if differing else None
    return tuple(
        _build_allow_verdict(item, pins[item.key])
        if find_changes is None or id(item) not in differing
        else _check_item(item, pins, find_policy(item.key), find_changes(item), is_duplicate=occurrences[item.key] > 1)
        for item in items
    )


def check_unlisted_item(kind: ItemKind, key: str, approved: Surface, policy: ItemPolicy) -> Verdict:
    """Return the verdict about the use of an item that the server does not list."""
    expected = _collect_pinned_digests(approved.items_of_kind(kind)).get(key, ())
    setting = policy.enforcement if expected else policy.unknown
    return Verdict(
        entity=kind.entity,
        key=key,
        value=None,
        digest=None,
        action=_ACTIONS[setting],
        level=REVIEW,
        code=NOT_LISTED,
        reason="The server does not list this item, so its definition cannot be checked.",
        expected=expected,
    )


def check_unknown_task(policy: ItemPolicy, *, of_other_client: bool = False) -> Verdict:
    """Return the verdict about a request for a task whose call the gateway did not see; its tool may be unapproved.

    A task of another client is always blocked, with the same reason, so that the client does not learn that the task
    exists. The verdict omits the task id, because the id may suffice to get the result.
    """
    return Verdict(
        entity="task",
        key="of an unknown call",
        value=None,
        digest=None,
        action=BLOCK if of_other_client else _ACTIONS[policy.unknown],
        level=REVIEW,
        code="task_unknown",
        reason="The gateway did not see the call that started this task, so the tool behind it is unknown.",
    )


def check_unknown_method(method: str, sender: str, policy: ItemPolicy, *, block_reason: str) -> Verdict:
    """Return the verdict about a message whose method no revision of MCP defines.

    A message that the policy allows is still recorded. A non-empty ``block_reason`` overrides the policy.
    """
    reason = f"No revision of MCP defines this method for messages from a {sender}, so its effect is unknown."
    return Verdict(
        entity="method",
        key=method,
        value=None,
        digest=None,
        action=BLOCK if block_reason else choose_strictest_action(AUDIT, _ACTIONS[policy.unknown]),
        level=REVIEW,
        code=METHOD_UNKNOWN,
        reason=block_reason or reason,
    )


def choose_strictest_action(*actions: str) -> str:
    """Return the strictest action, from allow (lenient) to block (strict)."""
    return max(actions, key=_STRICTNESS.index)


def choose_change_action(policy: ItemPolicy, level: str) -> str:
    """Return the action for a change of this severity to an approved item."""
    return _ACTIONS[policy.enforcement] if DRIFT_LEVELS.index(level) >= DRIFT_LEVELS.index(policy.block_at) else ALLOW


def _collect_pinned_digests(approved: Sequence[Item]) -> dict[str, tuple[str, ...]]:
    pins: dict[str, tuple[str, ...]] = {}
    for item in approved:
        if item.digest is not None:
            pins[item.key] = (*pins.get(item.key, ()), str(item.digest))
    return pins


def _build_allow_verdict(item: Item, expected: tuple[str, ...]) -> Verdict:
    return Verdict(
        entity=item.kind.entity, key=item.key, value=item.value, digest=item.digest, action=ALLOW, expected=expected
    )


def _check_item(
    item: Item,
    pins: Mapping[str, tuple[str, ...]],
    policy: ItemPolicy,
    changes: tuple[Change, ...],
    *,
    is_duplicate: bool,
) -> Verdict:
    expected = (*pins.get(item.key, ()), *(str(allowed.digest) for allowed in policy.allowlist))
    if item.digest is not None and not is_duplicate and any(_has_digest(item, allowed) for allowed in policy.allowlist):
        return _build_allow_verdict(item, expected)
    if item.digest is None:
        action, level, code = BLOCK, CRITICAL, _UNDIGESTABLE  # two JSON parsers could read it differently
    elif is_duplicate:
        action, level, code = choose_change_action(policy, CRITICAL), CRITICAL, _DUPLICATE
    else:
        level, code = _find_most_severe(changes)
        action = _decide_action(policy, level, is_approved=bool(expected))
    reason = CHANGE_KINDS[code].reason
    if _has_changed_published_digest(changes):
        code = PUBLISHED_DIGEST_CHANGED
        reason = "The server now publishes another digest of this tool's code than it did at approval."
    elif code == "item_added" and policy.allowlist:
        code, reason = DIGEST_NOT_ALLOWED, _explain_digest_mismatch(item, policy.allowlist)
    return Verdict(
        entity=item.kind.entity,
        key=item.key,
        value=item.value,
        digest=item.digest,
        action=action,
        level=level,
        code=code,
        reason=reason,
        expected=expected,
        changes=changes,
    )


def _decide_action(policy: ItemPolicy, level: str, *, is_approved: bool) -> str:
    if is_approved:
        return choose_change_action(policy, level)
    unknown = _ACTIONS[policy.unknown]
    # A lenient setting for unknown items must not admit a new item that looks like an attack.
    return choose_strictest_action(unknown, choose_change_action(policy, level)) if level == CRITICAL else unknown


def _find_most_severe(changes: Sequence[Change]) -> tuple[str, str]:
    """Return severity and kind of the most severe change."""
    if not changes:
        return REVIEW, "changed"
    worst = min(changes, key=lambda change: SEVERITIES.index(change.severity))
    return worst.severity, worst.kind


def _has_digest(item: Item, allowed: AllowedDigest) -> bool:
    if allowed.profile == "pinwarden":
        return item.digest == allowed.digest
    return item.kind is TOOL and try_tool_digest(item.value, allowed.profile) == allowed.digest


def _explain_digest_mismatch(item: Item, allowlist: Sequence[AllowedDigest]) -> str:
    """Explain that the allowlist does not contain the item's digest, and state the digest in each of its profiles."""
    profiles = dict.fromkeys(allowed.profile for allowed in allowlist if allowed.profile != "pinwarden")
    digests = [f" As {profile} computes it: {try_tool_digest(item.value, profile)}." for profile in profiles]
    return "The policy's allowlist does not contain the digest of this item." + "".join(digests)


def _has_changed_published_digest(changes: Sequence[Change]) -> bool:
    return any(change.path == "/digest" and isinstance(change.before, str) for change in changes)


def _compare_items(
    kind: ItemKind,
    items: Sequence[Item],
    approved: Surface,
    server: Mapping[str, Any] | None,
    neighbours: Sequence[tuple[str, Surface]],
) -> Callable[[Item], tuple[Change, ...]]:
    """Return a function that looks up the changes of an item.

    `compare` pairs items by name. A resource is identified by its URI and could take the name of another resource, so
    a resource with an approved URI is compared with the approved resource of that URI, whatever its name.
    """
    # Imported here because the comparison is slow to import and unchanged servers do not need it.
    from pinwarden.surface.drift.approved_text import ApprovedServer
    from pinwarden.surface.drift.compare import compare
    from pinwarden.surface.drift.item import compare_items
    from pinwarden.surface.scan.scan import NeighbourTools

    after = Surface(server=server, items={kind.member: tuple(items)}, observed={})
    changes_by_name: dict[str, list[Change]] = {}
    for change in compare(approved, after, neighbours):
        if change.entity == kind.entity and change.kind != "item_removed":
            changes_by_name.setdefault(change.name, []).append(change)
    approved_by_uri: dict[str, list[Item]] = {}
    for item in approved.items_of_kind(kind) if kind.key != "name" else ():
        approved_by_uri.setdefault(item.key, []).append(item)

    approved_server = ApprovedServer(approved, after, NeighbourTools.from_surfaces(after, neighbours))

    def find_changes(item: Item) -> tuple[Change, ...]:
        approved_items = approved_by_uri.get(item.key)
        if approved_items is None or item.digest is None:
            return tuple(changes_by_name.get(item.name, ()))
        return tuple(
            change
            for approved_item in approved_items
            if approved_item.digest is not None
            for change in compare_items(approved_item, item, approved_server)
        )

    return find_changes


def format_digest(digest: Digest | None) -> str:
    """Return the digest as text; empty for an item without a digest."""
    return "" if digest is None else str(digest)


def try_tool_digest(tool: Any, profile: str) -> Digest | None:
    """Compute a tool's digest in a profile; None if the tool has no canonical form there."""
    try:
        return tool_digest(tool, profile)
    except PinwardenError:
        return None


_EMPTY_SURFACE = Surface(server=None, items={}, observed={})


def remove_suspicious_items(surface: Surface) -> Surface:
    """Return the surface without the items and server members that show signs of an attack.

    Trust on first use approves without a review, so anything suspicious is left out and becomes a pending review.
    """
    from pinwarden.surface.drift.compare import compare
    from pinwarden.surface.scan.scan import find_new_warnings, get_server_member

    suspicious = {
        (change.entity, change.field if change.entity == "server" else change.name)
        for change in compare(_EMPTY_SURFACE, surface)
        if change.severity == CRITICAL
    }
    suspicious |= {
        (warning.entity, get_server_member(warning) if warning.entity == "server" else warning.name)
        for warning in find_new_warnings(surface)
    }
    if not suspicious:
        return surface

    def is_harmless(item: Item) -> bool:
        return suspicious.isdisjoint({(item.kind.entity, item.name), (item.kind.entity, item.label)})

    server = surface.server
    if server is not None:
        server = {name: value for name, value in server.items() if ("server", name) not in suspicious}
    items = {member: tuple(filter(is_harmless, listed)) for member, listed in surface.items.items()}
    return Surface(server=server, items=items, observed=surface.observed)
