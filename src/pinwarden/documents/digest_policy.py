"""What the gateway enforces: the table ``[policy.gateway]`` of ``pinwarden.toml``.

Without a policy everything is as strict as it can be: what was not approved is withheld and refused. Rules for some
servers, tools or clients stand in ``[[policy.gateway.rules]]``; for each question the first rule that fits and answers
it counts, then the table itself, then the default. Digests that are allowed beside the approved text stand in
``[[policy.gateway.allow]]``; there may be several for one tool, for the days in which two releases run side by side.
"""

from __future__ import annotations

from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.core.record import Record
from pinwarden.documents.policy_table import Pattern

ENFORCEMENTS = ("audit", "warn", "block")
"""What happens to a change that reaches the level ``block-at``: recorded; also told to the client; prevented."""
UNKNOWNS = ("allow_degraded", "warn", "block")
"""The same for an item of a name that nobody approved."""
LEVELS = ("info", "review", "critical")
"""The levels of rules/drift, from least to worst."""
TOOL_PROFILES = ("pinwarden", "hangar", "hangar-1.2")
HIDDEN = ("relay", "flag", "strip")

_ALIASES = {"allow_unverified": "allow_degraded"}
_RULE_KEYS = ("enforcement", "unknown", "block-at", "sampling", "elicitation", "roots", "url-hosts", "max-rounds")
_RESULT_KEYS = ("max-bytes", "hidden-characters")
_KEYS = (*_RULE_KEYS, "relist-seconds", "relist-calls", "results", "rules", "allow")


class AllowedDigest(Record):
    """A digest that is allowed for the items of a name, beside what was approved."""

    tool: str
    digest: Digest
    profile: str = "pinwarden"
    server: Pattern = Pattern(text="**")


class DigestPolicy(Record):
    """What holds for one item of one server and one client."""

    enforcement: str = "block"
    unknown: str = "block"
    block_at: str = "review"
    allowlist: tuple[AllowedDigest, ...] = ()


class RequestPolicy(Record):
    """What a server may ask of the client."""

    sampling: bool = True
    elicitation: bool = True
    roots: bool = True
    url_hosts: tuple[Pattern, ...] = ()
    """The hosts to which an elicitation may send the user; none unless they are named."""
    max_rounds: int = 10
    """How often in a row a server may ask for more before it answers."""


class ResultPolicy(Record):
    """What is looked at in results."""

    max_bytes: int = 0
    """Larger results are refused; 0 for no limit."""
    hidden_characters: str = "relay"
    """What happens to control and invisible characters in results: nothing, the client is told, or they are removed."""


class GatewayRule(Record):
    """Answers for some servers, tools and clients."""

    server: Pattern
    item: Pattern
    client: Pattern
    answers: dict[str, Any]


class GatewayPolicy(Record):
    """The whole table."""

    answers: dict[str, Any]
    rules: tuple[GatewayRule, ...] = ()
    allowlist: tuple[AllowedDigest, ...] = ()
    results: ResultPolicy = ResultPolicy()
    relist_seconds: int = 30
    """How long a list counts before it is asked for again behind the client's back."""
    relist_calls: int = 100
    """And for how many calls at most; 0 for no limit."""
    digest: str = ""
    """Names the policy in the audit log."""

    def for_item(self, server: str, item: str, client: str) -> DigestPolicy:
        """What holds for one item."""
        raise NotImplementedError

    def for_requests(self, server: str, client: str) -> RequestPolicy:
        """What a server may ask of a client."""
        raise NotImplementedError


def gateway_policy(value: Any) -> GatewayPolicy:
    """The policy of the gateway from the values of its table."""
    raise NotImplementedError


DEFAULT_POLICY = GatewayPolicy(answers={})
