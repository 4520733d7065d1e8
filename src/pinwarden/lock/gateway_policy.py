"""The policy of the gateway: the table ``[policy.gateway]`` of ``pinwarden.toml``.

Without a policy the gateway blocks everything that was not approved. ``[[policy.gateway.rules]]`` holds rules for some
servers, tools or clients; for each key the first matching rule that sets it wins, then the table itself, then
``DEFAULTS``. ``[[policy.gateway.allow]]`` lists digests allowed in addition to the approved ones; several for one tool
let two releases run side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock.call_rules import CALL_KEYS, CallCondition, parse_call_settings, parse_condition
from pinwarden.lock.policy_table import GlobPattern, PolicyTable, policy_error

ENFORCEMENT_MODES = ("audit", "warn", "block")
"""How the gateway treats a change at level ``block-at`` or above: record it, also warn the client, or block it."""
UNKNOWN_ITEM_MODES = ("allow_degraded", "warn", "block")
"""How the gateway treats an item whose name was never approved."""
DRIFT_LEVELS = ("info", "review", "critical")
"""The levels of surface/drift, from least to worst."""
ALLOWLIST_PROFILES = ("pinwarden", "hangar", "hangar-1.2")
HIDDEN_CHARACTER_MODES = ("relay", "flag", "strip")
INTERCEPTOR_MODES = ("answer", "announce")
"""Whether the gateway only responds to interceptor requests, or also announces interceptors as a capability."""
ARGUMENT_MODES = ("omit", "record")
"""Whether the audit log records the arguments of calls."""
FOUR_EYES_MODES = ("never", "critical", "always")
"""Which changes need the approvals of two people."""

_ALIASES = {"allow_unverified": "allow_degraded"}
_RULE_KEYS = (
    *("enforcement", "unknown", "block-at", "sampling", "elicitation", "roots", "url-hosts", "max-rounds"),
    *("interceptors", "arguments"),
    *CALL_KEYS,
)
_CONDITIONS = ("team", "read-only", "destructive")
_FOUR_EYES = "four-eyes"
_REQUEST_KEYS = ("sampling", "elicitation", "roots", "url-hosts", "max-rounds")
_RESULT_KEYS = ("max-bytes", "hidden-characters")
_KEYS = (*_RULE_KEYS, _FOUR_EYES, "relist-seconds", "relist-calls", "results", "rules", "allow")
_REQUEST_MODES = ("allow", "deny")
_ALLOWED_VALUES = {
    "enforcement": ENFORCEMENT_MODES,
    "unknown": UNKNOWN_ITEM_MODES,
    "block-at": DRIFT_LEVELS,
    "interceptors": INTERCEPTOR_MODES,
    "arguments": ARGUMENT_MODES,
    **dict.fromkeys(("sampling", "elicitation", "roots"), _REQUEST_MODES),
}
DEFAULTS: Mapping[str, Any] = {
    "enforcement": "block",
    "unknown": "block",
    "block-at": "review",
    **dict.fromkeys(("sampling", "elicitation", "roots"), "allow"),
    "url-hosts": (),
    "max-rounds": 10,
    "relist-seconds": 30,
    "relist-calls": 100,
    _FOUR_EYES: "never",
    "hidden-characters": "relay",
}
"""The value of each key that a policy does not set."""
_ANY = GlobPattern(text="**")


class AllowedDigest(Record):
    """A digest that is allowed for items of a name, in addition to the approved one."""

    tool: str
    """A name or a glob. The digest covers the name too."""
    digest: Digest
    profile: str = "pinwarden"
    server: GlobPattern = _ANY
    client: GlobPattern = _ANY

    def applies_to(self, tool: str) -> bool:
        """Whether the digest is allowed for this tool."""
        return self.tool == tool or GlobPattern(text=self.tool).matches(tool)


class ItemPolicy(Record):
    """The settings that apply to one item of one server, for one client."""

    enforcement: str = DEFAULTS["enforcement"]
    unknown: str = DEFAULTS["unknown"]
    block_at: str = DEFAULTS["block-at"]
    allowlist: tuple[AllowedDigest, ...] = ()


class ServerRequestPolicy(Record):
    """The requests that a server may send to the client."""

    sampling: bool = True
    elicitation: bool = True
    roots: bool = True
    url_hosts: tuple[GlobPattern, ...] = ()
    """The hosts of URLs that an elicitation may ask the user to open; none by default."""
    max_rounds: int = DEFAULTS["max-rounds"]
    """How many requests a server may send to the client before it responds to a call."""


class ResultPolicy(Record):
    """How the gateway checks the results of calls."""

    max_bytes: int = 0
    """The maximum size of a result, above which the gateway refuses it; 0 for no limit."""
    hidden_characters: str = DEFAULTS["hidden-characters"]
    """Whether the gateway relays, flags or strips control and invisible characters in results."""


class GatewayRule(Record):
    """Settings for some servers, tools and clients."""

    server: GlobPattern
    item: GlobPattern
    client: GlobPattern
    settings: dict[str, Any]
    condition: CallCondition = CallCondition()

    def applies_to(self, server: str, client: str) -> bool:
        """Whether the rule applies to this server and client."""
        return self.server.matches(server) and self.client.matches(client)


class GatewayPolicy(Record):
    """The whole table ``[policy.gateway]``."""

    settings: dict[str, Any]
    rules: tuple[GatewayRule, ...] = ()
    allowlist: tuple[AllowedDigest, ...] = ()
    results: ResultPolicy = ResultPolicy()
    relist_seconds: int = DEFAULTS["relist-seconds"]
    """How long a list is valid before the gateway requests it again."""
    relist_calls: int = DEFAULTS["relist-calls"]
    """For how many calls a list is valid; 0 for no limit."""
    digest: str = ""
    """Identifies the policy in the audit log."""
    tightened_by: GatewayPolicy | None = None
    """A second policy whose stricter settings apply too (`tighten`)."""

    def get_item_policy(self, server: str, item: str, client: str) -> ItemPolicy:
        """Return the settings that apply to one item."""
        rules = [rule for rule in self.rules if rule.applies_to(server, client) and rule.item.matches(item)]
        keys = ("enforcement", "unknown", "block-at")
        settings = _merge_settings(keys, (*rules, self))
        if self.tightened_by is not None:
            other = self.tightened_by
            more = [rule for rule in other.rules if rule.applies_to(server, client) and rule.item.matches(item)]
            settings = _merge_stricter(settings, _merge_settings(keys, (*more, other)))
        settings = {**DEFAULTS, **settings}
        return ItemPolicy(
            enforcement=settings["enforcement"],
            unknown=settings["unknown"],
            block_at=settings["block-at"],
            allowlist=tuple(
                allowed
                for allowed in self.allowlist
                if allowed.applies_to(item) and allowed.server.matches(server) and allowed.client.matches(client)
            ),
        )

    def describe_unblocked_content(self) -> str:
        """Return a sentence about unapproved content that this table does not block; empty if it blocks all.

        Rules for some servers, items or clients are not considered.
        """
        settings = {**DEFAULTS, **self.settings}
        enforcement, unknown = settings["enforcement"], settings["unknown"]
        if enforcement != "block":
            also = ", and reported to clients" if enforcement == "warn" else ""
            return f'the policy says enforcement = "{enforcement}": changes are recorded{also}, but not blocked'
        if unknown != "block":
            return f'the policy says unknown = "{unknown}": unapproved items pass'
        return ""

    def describe_loosened_settings(self) -> list[str]:
        """Return sentences about settings that are looser than the default."""
        sentences: list[str] = []
        for prefix, settings in (("", self.settings), *(("a rule of ", rule.settings) for rule in self.rules)):
            for key in ("enforcement", "unknown", "block-at"):
                default = DEFAULTS[key]
                word = settings.get(key, default)
                if _STRICTNESS[key].index(word) < _STRICTNESS[key].index(default):
                    sentences.append(f'{prefix}the policy says {key} = "{word}"')
        sentences += [
            f"the policy allows a digest of {allowed.tool[:120]!a} in addition to the approved one"
            for allowed in self.allowlist
        ]
        if self.relist_seconds > DEFAULT_GATEWAY_POLICY.relist_seconds:
            sentences.append(
                f"the policy says relist-seconds = {self.relist_seconds}, which delays the detection of changes"
            )
        if self.relist_calls == 0 or self.relist_calls > DEFAULT_GATEWAY_POLICY.relist_calls:
            sentences.append(
                f"the policy says relist-calls = {self.relist_calls}, which delays the detection of changes"
            )
        return list(dict.fromkeys(sentences))

    def records_arguments(self, server: str, item: str, client: str) -> bool:
        """Whether the audit log records the arguments of an item's calls."""
        rules = [rule for rule in self.rules if rule.applies_to(server, client) and rule.item.matches(item)]
        return _merge_settings(("arguments",), (*rules, self)).get("arguments") == "record"

    def get_server_request_policy(self, server: str, client: str) -> ServerRequestPolicy:
        """Return the requests that a server may send to a client. Rules for single items do not apply."""
        rules = [rule for rule in self.rules if rule.applies_to(server, client) and rule.item.text == "**"]
        settings = _merge_settings(_REQUEST_KEYS, (*rules, self))
        if self.tightened_by is not None:
            other = self.tightened_by
            more = [rule for rule in other.rules if rule.applies_to(server, client) and rule.item.text == "**"]
            settings = _merge_stricter(settings, _merge_settings(_REQUEST_KEYS, (*more, other)))
        settings = {**DEFAULTS, **settings}
        return ServerRequestPolicy(
            sampling=settings["sampling"] == "allow",
            elicitation=settings["elicitation"] == "allow",
            roots=settings["roots"] == "allow",
            url_hosts=settings["url-hosts"],
            max_rounds=settings["max-rounds"],
        )

    def announces_interceptors(self, server: str, client: str) -> bool:
        """Whether the gateway announces its gates as interceptors to a client."""
        rules = [rule for rule in self.rules if rule.applies_to(server, client) and rule.item.text == "**"]
        return _merge_settings(("interceptors",), (*rules, self)).get("interceptors") == "announce"


def parse_gateway_policy(value: Any) -> GatewayPolicy:
    """Build the gateway policy from its parsed table."""
    table = PolicyTable(value, "policy.gateway")
    table.refuse_unknown(_KEYS)
    if not table.value:
        raise policy_error(table.path, "is empty")
    results = table.table("results", _RESULT_KEYS)
    seconds, calls = table.optional_integer("relist-seconds", 86_400), table.optional_integer("relist-calls", 1_000_000)
    if seconds == 0:
        table.fail("relist-seconds", "is 0, so silent changes would never be detected")
    four_eyes = {_FOUR_EYES: table.one_of(_FOUR_EYES, FOUR_EYES_MODES)} if _FOUR_EYES in table else {}
    return GatewayPolicy(
        settings=_parse_settings(table) | four_eyes,
        rules=tuple(map(_parse_rule, table.objects("rules", default=[]))),
        allowlist=tuple(map(_parse_allowed_digest, table.objects("allow", default=[]))),
        results=_parse_result_policy(results) if results else ResultPolicy(),
        relist_seconds=DEFAULTS["relist-seconds"] if seconds is None else seconds,
        relist_calls=DEFAULTS["relist-calls"] if calls is None else calls,
        digest=str(Digest.of_bytes(canonicalize(table.value))),
    )


def four_eyes_levels(policy: GatewayPolicy) -> frozenset[str]:
    """Return the severities of changes that need the approvals of two people."""
    mode = policy.settings.get(_FOUR_EYES, DEFAULTS[_FOUR_EYES])
    return frozenset({"never": (), "critical": ("critical",), "always": DRIFT_LEVELS}[mode])


def _merge_settings(keys: tuple[str, ...], levels: tuple[GatewayRule | GatewayPolicy, ...]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for level in levels:
        for key in keys:
            if key in level.settings:
                settings.setdefault(key, level.settings[key])
    return settings


_STRICTNESS: dict[str, tuple[str, ...]] = {
    "enforcement": ENFORCEMENT_MODES,
    "unknown": UNKNOWN_ITEM_MODES,
    "block-at": DRIFT_LEVELS[::-1],
    **dict.fromkeys(("sampling", "elicitation", "roots"), _REQUEST_MODES),
    _FOUR_EYES: FOUR_EYES_MODES,
}
"""The values of each key, from the loosest to the strictest."""


def tighten(policy: GatewayPolicy, other: GatewayPolicy) -> GatewayPolicy:
    """Return a policy that also applies the stricter settings of ``other``.

    Looser settings and allowed digests of ``other`` have no effect.
    """
    sizes = [size for size in (policy.results.max_bytes, other.results.max_bytes) if size]
    calls = [most for most in (policy.relist_calls, other.relist_calls) if most]
    hidden = max(policy.results.hidden_characters, other.results.hidden_characters, key=HIDDEN_CHARACTER_MODES.index)
    return replace(
        policy,
        settings={**policy.settings, **_merge_stricter(policy.settings, other.settings)},
        results=ResultPolicy(max_bytes=min(sizes, default=0), hidden_characters=hidden),
        relist_seconds=min(policy.relist_seconds, other.relist_seconds),
        relist_calls=min(calls, default=0),
        digest=str(Digest.of_bytes(canonicalize([policy.digest, other.digest]))),
        tightened_by=other,
    )


def _merge_stricter(settings: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the stricter setting of the two policies for each key."""
    stricter = dict(settings)
    for key, values in _STRICTNESS.items():
        if key in other:
            stricter[key] = max(stricter.get(key, DEFAULTS[key]), other[key], key=values.index)
    if "url-hosts" in other:
        stricter["url-hosts"] = tuple(
            host for host in stricter.get("url-hosts", DEFAULTS["url-hosts"]) if host in other["url-hosts"]
        )
    if "max-rounds" in other:
        stricter["max-rounds"] = min(stricter.get("max-rounds", DEFAULTS["max-rounds"]), other["max-rounds"])
    return stricter


def _parse_settings(table: PolicyTable) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, allowed in _ALLOWED_VALUES.items():
        if key in table:
            value = table.value[key]
            value = _ALIASES.get(value, value) if isinstance(value, str) else value
            if value not in allowed:
                table.fail(key, f"is not one of {', '.join(allowed)}")
            settings[key] = value
    hosts = table.nonempty_strings("url-hosts")
    if hosts is not None:
        settings["url-hosts"] = tuple(table.pattern(host.lower()) for host in hosts)
    rounds = table.optional_integer("max-rounds", 1000)
    if rounds is not None:
        settings["max-rounds"] = rounds
    return settings | parse_call_settings(table)


def _parse_rule(table: PolicyTable) -> GatewayRule:
    table.refuse_unknown(("server", "item", "client", *_CONDITIONS, *_RULE_KEYS))
    settings = _parse_settings(table)
    if not settings:
        raise policy_error(table.path, "has no settings")
    item = _parse_pattern(table, "item")
    if item != _ANY:
        for key in _REQUEST_KEYS:
            if key in settings:  # in a rule for single items, the key would have no effect
                table.fail(key, "applies to whole servers; use a rule without item")
    condition = parse_condition(table)
    if condition.is_set and (other := next((key for key in settings if key not in CALL_KEYS), None)):
        table.fail(other, f"cannot depend on a team or a hint; only {', '.join(CALL_KEYS)} can")
    return GatewayRule(
        server=_parse_pattern(table, "server"),
        item=item,
        client=_parse_pattern(table, "client"),
        settings=settings,
        condition=condition,
    )


def _parse_allowed_digest(table: PolicyTable) -> AllowedDigest:
    table.refuse_unknown(("server", "client", "tool", "digest", "profile"))
    text = table.required_text("digest")
    try:
        digest = Digest.parse(text if ":" in text or "-" in text else f"sha256:{text}")
    except PinwardenError:
        table.fail("digest", "is not a digest")
    tool = table.required_text("tool")
    return AllowedDigest(
        tool=tool,
        digest=digest,
        profile=table.one_of("profile", ALLOWLIST_PROFILES, default="pinwarden"),
        server=_parse_pattern(table, "server"),
        client=_parse_pattern(table, "client"),
    )


def _parse_result_policy(table: PolicyTable) -> ResultPolicy:
    hidden = table.one_of("hidden-characters", HIDDEN_CHARACTER_MODES, default=DEFAULTS["hidden-characters"])
    return ResultPolicy(max_bytes=table.optional_integer("max-bytes", 1 << 30) or 0, hidden_characters=hidden)


def _parse_pattern(table: PolicyTable, key: str) -> GlobPattern:
    return table.pattern(table.required_text(key)) if key in table else _ANY


DEFAULT_GATEWAY_POLICY = GatewayPolicy(settings={}, digest=str(Digest.of_bytes(canonicalize({}))))
"""The policy that applies if none is configured. It has a digest, so the audit log can name it."""
