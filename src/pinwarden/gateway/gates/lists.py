"""Judging a whole list: a verdict for each item, whatever the others are.

One item that cannot be read, a name that occurs twice or a tool that nobody approved is a matter of that item. The
measure is what was approved, each time; what was served before is none, so that nothing is learned from a list that was
blocked, and a tool that comes back after it was gone is held against its old pin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.tool_digest import tool_digest
from pinwarden.gateway.gates.verdict import ALLOW, AUDIT, BLOCK, WARN, Verdict
from pinwarden.lock.gateway_policy import LEVELS, AllowedDigest, DigestPolicy
from pinwarden.surface.drift.changes import CHANGE_KINDS, CRITICAL, REVIEW, SEVERITIES, Change
from pinwarden.surface.surface import TOOL, Item, ItemKind, Surface

NOT_LISTED = "not_listed"
METHOD_UNKNOWN = "method_unknown"
LIST_FAILED = "list_failed"
"""The server's list cannot be had or read, so that nobody can say what would be used."""
PUBLISHED_DIGEST_CHANGED = "published_digest_changed"
"""The digest that a server states for a tool (SEP-1766) is not the one that was approved."""

DIGEST_NOT_ALLOWED = "digest_not_allowed"
"""Nothing but the policy speaks of it, and that allows other digests of it."""

PolicyFor = Callable[[str], DigestPolicy]
"""The policy for the item of a key."""

_ACTIONS = {"allow_degraded": ALLOW, "allow_unverified": ALLOW, "audit": AUDIT, "warn": WARN, "block": BLOCK}
_STRICTNESS = (ALLOW, AUDIT, WARN, BLOCK)
_UNDIGESTABLE = "undigestable"
_DUPLICATE = "duplicate_name"


def judge_list(
    kind: ItemKind,
    items: Sequence[Item],
    approved: Surface,
    policy_for: PolicyFor,
    server: Mapping[str, Any] | None = None,
) -> tuple[Verdict, ...]:
    """A verdict for each item of a complete list, in its order. ``server`` is what the server says of itself now."""
    pins = _pins(approved.items_of_kind(kind))
    times: dict[str, int] = {}
    for item in items:
        times[item.key] = times.get(item.key, 0) + 1
    doubted = {
        id(item)
        for item in items
        if item.digest is None or times[item.key] > 1 or str(item.digest) not in pins.get(item.key, ())
    }
    changes_of = _changes_of(kind, items, approved, server) if doubted else None
    return tuple(
        _exact(item, pins[item.key])
        if changes_of is None or id(item) not in doubted
        else _judged(item, pins, policy_for(item.key), changes_of(item), double=times[item.key] > 1)
        for item in items
    )


def judge_use(kind: ItemKind, key: str, approved: Surface, policy: DigestPolicy) -> Verdict:
    """The verdict about the use of an item that the server does not list: nobody can say what it is."""
    expected = _pins(approved.items_of_kind(kind)).get(key, ())
    word = policy.enforcement if expected else policy.unknown
    return Verdict(
        entity=kind.entity,
        key=key,
        value=None,
        digest=None,
        action=_ACTIONS[word],
        level=REVIEW,
        code=NOT_LISTED,
        reason="The server does not list it, so that nobody can say what would be used.",
        expected=expected,
    )


def judge_unknown_task(policy: DigestPolicy, *, of_another: bool = False) -> Verdict:
    """The verdict about a task whose call was not seen: it may be one of a tool that is not approved.

    One that is known to be another client's is nobody else's, whatever the policy says; that it is there, is not told.
    Its id is no part of the verdict: it may be all that it takes to get the result.
    """
    return Verdict(
        entity="task",
        key="of an unknown call",
        value=None,
        digest=None,
        action=BLOCK if of_another else _ACTIONS[policy.unknown],
        level=REVIEW,
        code="task_unknown",
        reason="The call that it belongs to was not seen here, so that nobody can say which tool it is of.",
    )


def judge_unknown_method(method: str, sender: str, policy: DigestPolicy, *, why_not: str) -> Verdict:
    """The verdict about a message of a method that no revision of MCP knows. Where it passes, that is worth a word.

    ``why_not`` is a reason to refuse it whatever the policy says, if there is one.
    """
    reason = f"No revision of MCP knows this from a {sender}, so that nobody can say what it does."
    return Verdict(
        entity="method",
        key=method,
        value=None,
        digest=None,
        action=BLOCK if why_not else strictest(AUDIT, _ACTIONS[policy.unknown]),
        level=REVIEW,
        code=METHOD_UNKNOWN,
        reason=why_not or reason,
    )


def strictest(*actions: str) -> str:
    """The action that prevents most."""
    return max(actions, key=_STRICTNESS.index)


def enforced(policy: DigestPolicy, level: str) -> str:
    """What is done about a change of something that was approved."""
    return _ACTIONS[policy.enforcement] if LEVELS.index(level) >= LEVELS.index(policy.block_at) else ALLOW


def _pins(approved: Sequence[Item]) -> dict[str, tuple[str, ...]]:
    pins: dict[str, tuple[str, ...]] = {}
    for item in approved:
        if item.digest is not None:
            pins[item.key] = (*pins.get(item.key, ()), str(item.digest))
    return pins


def _exact(item: Item, expected: tuple[str, ...]) -> Verdict:
    return Verdict(
        entity=item.kind.entity, key=item.key, value=item.value, digest=item.digest, action=ALLOW, expected=expected
    )


def _judged(
    item: Item,
    pins: Mapping[str, tuple[str, ...]],
    policy: DigestPolicy,
    own: tuple[Change, ...],
    *,
    double: bool,
) -> Verdict:
    expected = (*pins.get(item.key, ()), *(str(each.digest) for each in policy.allowlist))
    if item.digest is not None and not double and any(_is_allowed(item, each) for each in policy.allowlist):
        return _exact(item, expected)
    if item.digest is None:
        action, level, code = BLOCK, CRITICAL, _UNDIGESTABLE  # it cannot be passed on: two readers may differ on it
    elif double:
        action, level, code = enforced(policy, CRITICAL), CRITICAL, _DUPLICATE
    else:
        level, code = _worst(own)
        action = _action(policy, level, known=bool(expected))
    reason = CHANGE_KINDS[code].reason
    if _published_digest_changed(own):
        code = PUBLISHED_DIGEST_CHANGED
        reason = "The server states another digest of its code for this tool than when it was approved."
    elif code == "item_added" and policy.allowlist:
        code, reason = DIGEST_NOT_ALLOWED, _none_of_these(item, policy.allowlist)
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
        changes=own,
    )


def _action(policy: DigestPolicy, level: str, *, known: bool) -> str:
    if known:
        return enforced(policy, level)
    unknown = _ACTIONS[policy.unknown]
    # What looks like an attack is more than unknown.
    return strictest(unknown, enforced(policy, level)) if level == CRITICAL else unknown


def _worst(changes: Sequence[Change]) -> tuple[str, str]:
    if not changes:
        return REVIEW, "changed"
    worst = min(changes, key=lambda change: SEVERITIES.index(change.severity))
    return worst.severity, worst.kind


def _is_allowed(item: Item, allowed: AllowedDigest) -> bool:
    if allowed.profile == "pinwarden":
        return item.digest == allowed.digest
    return item.kind is TOOL and digest_or_none(item.value, allowed.profile) == allowed.digest


def _none_of_these(item: Item, allowlist: Sequence[AllowedDigest]) -> str:
    """Why no digest of the policy fits, with the digest as those that are not our own are computed."""
    profiles = dict.fromkeys(each.profile for each in allowlist if each.profile != "pinwarden")
    others = [f" As {profile} computes it: {digest_or_none(item.value, profile)}." for profile in profiles]
    return "Its digest is none of those that the policy allows." + "".join(others)


def _published_digest_changed(changes: Sequence[Change]) -> bool:
    return any(change.path == "/digest" and isinstance(change.before, str) for change in changes)


def _changes_of(
    kind: ItemKind, items: Sequence[Item], approved: Surface, server: Mapping[str, Any] | None
) -> Callable[[Item], tuple[Change, ...]]:
    """What gives the changes of an item.

    In changes items go by their names. What is known by an address may take the name of another, so an approved
    address is held against what was approved at that address, whatever is called like it.
    """
    # Only now: a server that is as it was approved starts without everything that judges differences.
    from pinwarden.surface.drift.compare import compare
    from pinwarden.surface.drift.item import item_changes

    before = Surface(server=approved.server, items={kind.member: approved.items_of_kind(kind)}, observed={})
    after = Surface(server=server, items={kind.member: tuple(items)}, observed={})
    found: dict[str, list[Change]] = {}
    for change in compare(before, after):
        if change.entity == kind.entity and change.kind != "item_removed":
            found.setdefault(change.name, []).append(change)
    known: dict[str, list[Item]] = {}
    for item in approved.items_of_kind(kind) if kind.key != "name" else ():
        known.setdefault(item.key, []).append(item)

    def changes_of(item: Item) -> tuple[Change, ...]:
        was = known.get(item.key)
        if was is None or item.digest is None:
            return tuple(found.get(item.name, ()))
        return tuple(change for each in was if each.digest is not None for change in item_changes(each, item))

    return changes_of


def digest_text(digest: Digest | None) -> str:
    """A digest as it stands in facts and messages; empty for an item that has none."""
    return "" if digest is None else str(digest)


def digest_or_none(tool: Any, profile: str) -> Digest | None:
    """The digest of a tool; None if it has none in this form."""
    try:
        return tool_digest(tool, profile)
    except PinwardenError:
        return None


_NOTHING = Surface(server=None, items={}, observed={})


def without_attacks(seen: Surface) -> Surface:
    """A surface without the items and texts that would alarm somebody who never saw the server.

    A first use is not reviewed, so anything that deserves a warning is blocked and waits for a review.
    """
    from pinwarden.surface.drift.compare import compare
    from pinwarden.surface.scan.scan import new_warnings, server_member

    alarming = {
        (change.entity, change.field if change.entity == "server" else change.name)
        for change in compare(_NOTHING, seen)
        if change.severity == CRITICAL
    }
    alarming |= {
        (warning.entity, server_member(warning) if warning.entity == "server" else warning.name)
        for warning in new_warnings(seen)
    }
    if not alarming:
        return seen

    def harmless(item: Item) -> bool:
        return (item.kind.entity, item.name) not in alarming

    server = seen.server
    if server is not None:
        server = {name: value for name, value in server.items() if ("server", name) not in alarming}
    items = {member: tuple(filter(harmless, listed)) for member, listed in seen.items.items()}
    return Surface(server=server, items=items, observed=seen.observed)
