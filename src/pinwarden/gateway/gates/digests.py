"""Digests against an allowlist: the decision of a digest policy about one tool, with nothing but its pins known."""

from __future__ import annotations

from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.tool_digest import tool_digest
from pinwarden.lock.gateway_policy import DigestPolicy


class Validation(Record):
    """What a digest policy says about one tool."""

    tool_name: str
    valid: bool
    """Whether nothing is to be said against it: its digest is allowed, or unknown tools are allowed without a word."""
    blocked: bool
    enforcement: str | None = None
    """The word of the policy that decided; None if there is nothing to report."""
    expected: tuple[Digest, ...] = ()
    observed: Digest | None = None


def validate_tool(tool: Any, policy: DigestPolicy, profile: str = "pinwarden") -> Validation:
    """Hold one tool against the allowlist. ``profile`` is how an unpinned tool's digest is reported.

    A tool without a digest matches no pin. It is unknown as well as wrong, so that the stricter word counts.
    """
    name = tool.get("name") if isinstance(tool, dict) else None
    name = name if isinstance(name, str) else ""
    pins = [each for each in policy.allowlist if each.is_for(name)]
    expected = tuple(each.digest for each in pins)
    observed = digest_or_none(tool, pins[0].profile if pins else profile)
    if any(digest_or_none(tool, each.profile) == each.digest for each in pins):
        return Validation(tool_name=name, valid=True, blocked=False, expected=expected, observed=observed)
    if observed is None:
        word = "block" if "block" in (policy.enforcement, policy.unknown) else policy.enforcement
    elif pins:
        word = policy.enforcement
    elif policy.unknown in ("allow_degraded", "allow_unverified"):
        return Validation(tool_name=name, valid=True, blocked=False, observed=observed)
    else:
        word = policy.unknown
    return Validation(
        tool_name=name,
        valid=False,
        blocked=word == "block",
        enforcement=word,
        expected=expected,
        observed=observed,
    )


def digest_or_none(tool: Any, profile: str) -> Digest | None:
    """The digest of a tool; None if it has none in this form."""
    try:
        return tool_digest(tool, profile)
    except PinwardenError:
        return None
