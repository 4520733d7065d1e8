"""The policy of the gateway: the table ``[policy.gateway]`` of ``pinwarden.toml``.

Without a policy the gateway blocks everything that was not approved. ``[[policy.gateway.rules]]`` holds rules for some
servers, tools or clients; for each key the first matching rule that sets it wins, then the table itself, then
``DEFAULTS``. ``[[policy.gateway.allow]]`` lists digests allowed in addition to the approved ones; several for one tool
let two releases run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock.call_rules import (
    CALL_KEYS,
    CONDITIONS,
    CallCondition,
    describe_limit,
    parse_access,
    parse_condition,
    parse_daily,
    parse_rate,
)
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

_REQUEST_MODES = ("allow", "deny")
_ALIASES = {"allow_unverified": "allow_degraded"}

ITEM, SERVER, TABLE, RESULTS = "item", "server", "table", "results"
"""Where a key may be set: in rules for single items too, in rules for whole servers too, only in the table itself, or
only in its table ``results``."""


class PolicyKey(Record):
    """One key of the policy. A new key is a row of `KEYS`; what it causes is up to the code that reads it."""

    name: str
    default: Any
    parse: Callable[[PolicyTable, str], Any]
    """Reads the key from a table that has it."""
    scope: str = ITEM
    """`ITEM`, `SERVER`, `TABLE` or `RESULTS`."""
    choose_stricter: Callable[[Any, Any], Any] | None = None
    """Returns the stricter of two values; None if `tighten` leaves the key alone (see `decide_call`)."""
    describe: Callable[[Any], str] = str
    """Returns a value as text."""


def _mode_key(
    name: str, modes: tuple[str, ...], default: str, *, scope: str = ITEM, strictness: tuple[str, ...] = ()
) -> PolicyKey:
    """Return a key with one of some values. ``strictness`` has the values from the loosest to the strictest."""

    def parse_mode(table: PolicyTable, key: str) -> Any:
        value = table.value[key]
        value = _ALIASES.get(value, value) if isinstance(value, str) else value
        if value not in modes:
            table.fail(key, f"is not one of {', '.join(modes)}")
        return value

    def choose_stricter(mode: str, other: str) -> str:
        return max(mode, other, key=strictness.index)

    return PolicyKey(
        name=name,
        default=default,
        parse=parse_mode,
        scope=scope,
        choose_stricter=choose_stricter if strictness else None,
    )


def _count_key(name: str, default: int, maximum: int, *, scope: str, zero_is_none: bool = False) -> PolicyKey:
    """Return a key with an integer, of which the lower one is stricter. With ``zero_is_none``, 0 means no limit."""

    def parse_count(table: PolicyTable, key: str) -> int:
        return table.integer(key, maximum=maximum)

    def choose_lower(count: int, other: int) -> int:
        return min(count, other) if not zero_is_none or (count and other) else max(count, other)

    return PolicyKey(name=name, default=default, parse=parse_count, scope=scope, choose_stricter=choose_lower)


def _parse_hosts(table: PolicyTable, key: str) -> tuple[GlobPattern, ...]:
    return tuple(table.pattern(host.lower()) for host in table.nonempty_strings(key) or ())


def _intersect(hosts: tuple[GlobPattern, ...], others: tuple[GlobPattern, ...]) -> tuple[GlobPattern, ...]:
    return tuple(host for host in hosts if host in others)


def _describe_hosts(hosts: tuple[GlobPattern, ...]) -> str:
    return ", ".join(host.text for host in hosts) or "none"


def _parse_relist_seconds(table: PolicyTable, key: str) -> int:
    seconds = table.integer(key, maximum=86_400)
    if seconds == 0:
        table.fail(key, "is 0, so silent changes would never be detected")
    return seconds


KEYS = (
    _mode_key("enforcement", ENFORCEMENT_MODES, "block", strictness=ENFORCEMENT_MODES),
    _mode_key("unknown", UNKNOWN_ITEM_MODES, "block", strictness=UNKNOWN_ITEM_MODES),
    _mode_key("block-at", DRIFT_LEVELS, "review", strictness=DRIFT_LEVELS[::-1]),
    _mode_key("sampling", _REQUEST_MODES, "allow", scope=SERVER, strictness=_REQUEST_MODES),
    _mode_key("elicitation", _REQUEST_MODES, "allow", scope=SERVER, strictness=_REQUEST_MODES),
    _mode_key("roots", _REQUEST_MODES, "allow", scope=SERVER, strictness=_REQUEST_MODES),
    PolicyKey(
        name="url-hosts",
        default=(),
        parse=_parse_hosts,
        scope=SERVER,
        choose_stricter=_intersect,
        describe=_describe_hosts,
    ),
    _count_key("max-rounds", 10, 1000, scope=SERVER),
    _mode_key("interceptors", INTERCEPTOR_MODES, "answer"),
    _mode_key("arguments", ARGUMENT_MODES, "omit"),
    PolicyKey(name="access", default="allow", parse=parse_access),
    PolicyKey(name="rate", default=None, parse=parse_rate, describe=describe_limit),
    PolicyKey(name="daily", default=None, parse=parse_daily, describe=describe_limit),
    _mode_key("four-eyes", FOUR_EYES_MODES, "never", scope=TABLE, strictness=FOUR_EYES_MODES),
    PolicyKey(name="relist-seconds", default=30, parse=_parse_relist_seconds, scope=TABLE, choose_stricter=min),
    _count_key("relist-calls", 100, 1_000_000, scope=TABLE, zero_is_none=True),
    _count_key("max-bytes", 0, 1 << 30, scope=RESULTS, zero_is_none=True),
    _mode_key("hidden-characters", HIDDEN_CHARACTER_MODES, "relay", scope=RESULTS, strictness=HIDDEN_CHARACTER_MODES),
)
"""All keys of the policy, in the order in which they are shown."""
_BY_NAME = {key.name: key for key in KEYS}
DEFAULTS: Mapping[str, Any] = {key.name: key.default for key in KEYS}
"""The value of each key that a policy does not set."""


def _list_names(*scopes: str) -> tuple[str, ...]:
    return tuple(key.name for key in KEYS if key.scope in scopes)


_RULE_NAMES, _SERVER_NAMES = _list_names(ITEM, SERVER), _list_names(SERVER)
_ITEM_POLICY_NAMES = ("enforcement", "unknown", "block-at")
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
    """How many requests for input the server may send in a row without returning a result."""


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

    def applies_to_item(self, server: str, item: str, client: str) -> bool:
        """Whether the rule applies to this item of the server, and this client."""
        return self.applies_to(server, client) and self.item.matches(item)

    def applies_to_server(self, server: str, client: str) -> bool:
        """Whether the rule applies to this client and the server as a whole, and not only to some of its items."""
        return self.applies_to(server, client) and self.item == _ANY


class GatewayPolicy(Record):
    """The whole table ``[policy.gateway]``."""

    settings: dict[str, Any]
    """The keys that the table and its table ``results`` set."""
    rules: tuple[GatewayRule, ...] = ()
    allowlist: tuple[AllowedDigest, ...] = ()
    digest: str = ""
    """Identifies the policy in the audit log."""
    relist_seconds: int = DEFAULTS["relist-seconds"]
    """How long a list is valid before the gateway requests it again."""
    relist_calls: int = DEFAULTS["relist-calls"]
    """For how many calls a list is valid; 0 for no limit."""
    max_result_bytes: int = DEFAULTS["max-bytes"]
    """The maximum size of a result, above which the gateway refuses it; 0 for no limit."""
    hidden_characters: str = DEFAULTS["hidden-characters"]
    """Whether the gateway relays, flags or strips control and invisible characters in results."""
    tightened_by: GatewayPolicy | None = None
    """A second policy whose stricter settings apply too (`tighten`)."""

    def get(self, key: str) -> Any:
        """Return the value of a key of the table, or its default."""
        return self.settings.get(key, DEFAULTS[key])

    def get_item_policy(self, server: str, item: str, client: str) -> ItemPolicy:
        """Return the settings that apply to one item."""
        settings = self._find_settings(_ITEM_POLICY_NAMES, lambda rule: rule.applies_to_item(server, item, client))
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
        enforcement, unknown = self.get("enforcement"), self.get("unknown")
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
            for key in _ITEM_POLICY_NAMES:
                default = DEFAULTS[key]
                word = settings.get(key, default)
                if word != default and _merge_stricter({key: word}, {key: default})[key] == default:
                    sentences.append(f'{prefix}the policy says {key} = "{word}"')
        sentences += [
            f"the policy allows a digest of {allowed.tool[:120]!a} in addition to the approved one"
            for allowed in self.allowlist
        ]
        if self.relist_seconds > DEFAULTS["relist-seconds"]:
            sentences.append(
                f"the policy says relist-seconds = {self.relist_seconds}, which delays the detection of changes"
            )
        if self.relist_calls == 0 or self.relist_calls > DEFAULTS["relist-calls"]:
            sentences.append(
                f"the policy says relist-calls = {self.relist_calls}, which delays the detection of changes"
            )
        return list(dict.fromkeys(sentences))

    def records_arguments(self, server: str, item: str, client: str) -> bool:
        """Whether the audit log records the arguments of an item's calls."""
        settings = self._find_settings(("arguments",), lambda rule: rule.applies_to_item(server, item, client))
        return bool(settings["arguments"] == "record")

    def get_server_request_policy(self, server: str, client: str) -> ServerRequestPolicy:
        """Return the requests that a server may send to a client. Rules for single items do not apply."""
        settings = self._find_settings(_SERVER_NAMES, lambda rule: rule.applies_to_server(server, client))
        return ServerRequestPolicy(
            sampling=settings["sampling"] == "allow",
            elicitation=settings["elicitation"] == "allow",
            roots=settings["roots"] == "allow",
            url_hosts=settings["url-hosts"],
            max_rounds=settings["max-rounds"],
        )

    def announces_interceptors(self, server: str, client: str) -> bool:
        """Whether the gateway announces its gates as interceptors to a client."""
        settings = self._find_settings(("interceptors",), lambda rule: rule.applies_to_server(server, client))
        return bool(settings["interceptors"] == "announce")

    def _find_settings(self, names: tuple[str, ...], applies: Callable[[GatewayRule], bool]) -> dict[str, Any]:
        """Return the value of each key: that of the first rule that applies and sets it, of the table, or the default.

        Where the policy that tightens this one sets a stricter value, that is the result.
        """
        return {**{name: DEFAULTS[name] for name in names}, **self._find_stated(names, applies)}

    def _find_stated(self, names: tuple[str, ...], applies: Callable[[GatewayRule], bool]) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        levels: tuple[GatewayRule | GatewayPolicy, ...] = (*filter(applies, self.rules), self)
        for level in levels:
            for name in names:
                if name in level.settings:
                    settings.setdefault(name, level.settings[name])
        other = self.tightened_by
        return settings if other is None else _merge_stricter(settings, other._find_stated(names, applies))


def parse_gateway_policy(value: Any) -> GatewayPolicy:
    """Build the gateway policy from its parsed table."""
    table = PolicyTable(value, "policy.gateway")
    table.refuse_unknown((*_list_names(ITEM, SERVER, TABLE), RESULTS, "rules", "allow"))
    if not table.value:
        raise policy_error(table.path, "is empty")
    results = table.table(RESULTS, _list_names(RESULTS))
    settings = _parse_settings(table, ITEM, SERVER, TABLE)
    settings |= {} if results is None else _parse_settings(results, RESULTS)
    return GatewayPolicy(
        settings=settings,
        **_read_fields(settings),
        rules=tuple(map(_parse_rule, table.objects("rules", default=[]))),
        allowlist=tuple(map(_parse_allowed_digest, table.objects("allow", default=[]))),
        digest=str(Digest.of_bytes(canonicalize(table.value))),
    )


def four_eyes_levels(policy: GatewayPolicy) -> frozenset[str]:
    """Return the severities of changes that need the approvals of two people."""
    return frozenset({"never": (), "critical": ("critical",), "always": DRIFT_LEVELS}[policy.get("four-eyes")])


def describe_setting(key: str, value: Any) -> str:
    """Return the value of a key as text."""
    return _BY_NAME[key].describe(value)


def tighten(policy: GatewayPolicy, other: GatewayPolicy) -> GatewayPolicy:
    """Return a policy that also applies the stricter settings of ``other``.

    Looser settings and allowed digests of ``other`` have no effect.
    """
    whole = {key.name: other.get(key.name) for key in KEYS if key.scope in (TABLE, RESULTS)}
    settings = _merge_stricter(policy.settings, {**whole, **other.settings})
    return replace(
        policy,
        settings=settings,
        **_read_fields(settings),
        digest=str(Digest.of_bytes(canonicalize([policy.digest, other.digest]))),
        tightened_by=other,
    )


def _merge_stricter(settings: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the stricter value for each key that ``other`` has."""
    stricter = dict(settings)
    for name, value in other.items():
        if (choose := _BY_NAME[name].choose_stricter) is not None:
            stricter[name] = choose(settings.get(name, DEFAULTS[name]), value)
    return stricter


def _read_fields(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a `GatewayPolicy` for the keys that the gateway reads at every message."""
    fields = {
        "relist_seconds": "relist-seconds",
        "relist_calls": "relist-calls",
        "max_result_bytes": "max-bytes",
        "hidden_characters": "hidden-characters",
    }
    return {field: settings.get(key, DEFAULTS[key]) for field, key in fields.items()}


def _parse_settings(table: PolicyTable, *scopes: str) -> dict[str, Any]:
    return {key.name: key.parse(table, key.name) for key in KEYS if key.scope in scopes and key.name in table}


def _parse_rule(table: PolicyTable) -> GatewayRule:
    table.refuse_unknown(("server", "item", "client", *CONDITIONS, *_RULE_NAMES))
    settings = _parse_settings(table, ITEM, SERVER)
    if not settings:
        raise policy_error(table.path, "has no settings")
    item = _parse_pattern(table, "item")
    if item != _ANY:
        for key in _SERVER_NAMES:
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


def _parse_pattern(table: PolicyTable, key: str) -> GlobPattern:
    return table.pattern(table.required_text(key)) if key in table else _ANY


DEFAULT_GATEWAY_POLICY = GatewayPolicy(settings={}, digest=str(Digest.of_bytes(canonicalize({}))))
"""The policy that applies if none is configured. It has a digest, so the audit log can name it."""
