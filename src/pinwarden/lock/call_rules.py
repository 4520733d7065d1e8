"""Who may call which tool, and how often: the keys ``access``, ``rate`` and ``daily`` of the gateway's policy. Pure.

For each key the first matching rule that sets it decides, then the table ``[policy.gateway]`` itself. `decide_call`
also says which one that was. Without any of these keys, every approved tool may be called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pinwarden.core.record import Record, field

if TYPE_CHECKING:
    from pinwarden.lock.gateway_policy import GatewayPolicy, GatewayRule
    from pinwarden.lock.policy_table import PolicyTable

ACCESS_MODES = ("allow", "deny")
CALL_KEYS = ("access", "rate", "daily")
"""The keys that decide on calls. Only they can depend on a team or on hints."""
DAY = 86_400
_RATE = re.compile(r"([1-9][0-9]{0,6})/(second|minute|hour)")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600}
_UNLIMITED = "unlimited"
_MAX_DAILY = 100_000_000
_TABLE = "policy.gateway"


class CallLimit(Record):
    """How many calls a client may make of a tool in a period."""

    count: int
    seconds: int
    """A period of a day is a budget that starts with the first call; shorter ones refill evenly."""
    rule: str
    """The rule that sets the limit, such as ``policy.gateway.rules[2]``."""


class ToolHints(Record):
    """What a tool says about itself in its annotations. The defaults are those of MCP.

    Each field is also a condition of a rule (`CONDITIONS`) and a member of ``policy explain``.
    """

    read_only: bool = False
    destructive: bool = True
    open_world: bool = True
    """Whether the tool reaches other systems."""

    def to_json(self) -> dict[str, bool]:
        """Return the hints by name."""
        return {name: getattr(self, name) for name in HINT_NAMES}

    def describe(self) -> str:
        """Return the hints as a person reads them. A closed world is named, because it is not the default."""
        effect = "read-only" if self.read_only else "destructive" if self.destructive else "not destructive"
        return effect if self.open_world else f"{effect}, closed world"


HINT_NAMES = tuple(ToolHints.__annotations__)
CONDITIONS = ("team", *(name.replace("_", "-") for name in HINT_NAMES))
"""The keys of a rule that only apply to calls: a team of the client, and hints of the tool. See `parse_condition`."""


class CallFacts(Record):
    """A call to decide on."""

    server: str
    tool: str
    client: str
    teams: tuple[str, ...] = ()
    hints: ToolHints = ToolHints()


class CallDecision(Record):
    """Whether a call is allowed, within which limits, and which rules decided."""

    allowed: bool
    rule: str
    """The rule that decided on ``access``; empty if none did."""
    limits: tuple[CallLimit, ...] = ()


class CallCondition(Record):
    """The conditions of a rule that only apply to calls."""

    team: str = ""
    """A pattern; empty if the rule applies to all teams."""
    hints: Mapping[str, bool] = field(default_factory=dict)
    """By name of a hint, the value that the tool must have."""

    @property
    def is_set(self) -> bool:
        """Whether the rule has such a condition."""
        return bool(self.team or self.hints)


def read_hints(definition: Any) -> ToolHints:
    """Return the hints of an approved tool.

    Pass None for a definition that was not approved: its hints do not count, so the defaults apply.
    """
    annotations = definition.get("annotations") if isinstance(definition, Mapping) else None
    hints = annotations if isinstance(annotations, Mapping) else {}
    read_only = hints.get("readOnlyHint") is True
    return ToolHints(
        read_only=read_only,
        destructive=not read_only and hints.get("destructiveHint") is not False,
        open_world=hints.get("openWorldHint") is not False,
    )


def classify_tool(definition: Any) -> str:
    """Return the class of a tool by its hints: ``read_only``, ``write`` or ``destructive``. See `read_hints`."""
    hints = read_hints(definition)
    return "read_only" if hints.read_only else "destructive" if hints.destructive else "write"


def decide_call(policy: GatewayPolicy, call: CallFacts) -> CallDecision:
    """Decide on a call. A second policy that tightens the first one can deny calls and add limits."""
    matching = [(index, rule) for index, rule in enumerate(policy.rules) if _applies(rule, call)]
    found: dict[str, tuple[Any, str]] = {}
    for key in CALL_KEYS:
        for index, rule in matching:
            if key in rule.settings:
                found[key] = rule.settings[key], f"{_TABLE}.rules[{index}]"
                break
        else:
            if key in policy.settings:
                found[key] = policy.settings[key], _TABLE
    access, rule_name = found.get("access", ("allow", ""))
    limits = tuple(
        CallLimit(count=found[key][0][0], seconds=found[key][0][1], rule=found[key][1])
        for key in ("rate", "daily")
        if key in found and found[key][0]
    )
    decision = CallDecision(allowed=access == "allow", rule=rule_name, limits=limits)
    if policy.tightened_by is None:
        return decision
    other = decide_call(policy.tightened_by, call)
    rule_name = decision.rule if not decision.allowed or other.allowed else f"{other.rule} of the current folder"
    return CallDecision(
        allowed=decision.allowed and other.allowed, rule=rule_name, limits=(*decision.limits, *other.limits)
    )


def _applies(rule: GatewayRule, call: CallFacts) -> bool:
    from pinwarden.lock.policy_table import GlobPattern

    when = rule.condition
    team = GlobPattern(text=when.team)
    return (
        rule.applies_to(call.server, call.client)
        and rule.item.matches(call.tool)
        and (not when.team or any(map(team.matches, call.teams)))
        and all(getattr(call.hints, name) == value for name, value in when.hints.items())
    )


def parse_access(table: PolicyTable, key: str) -> str:
    """Read whether calls are allowed."""
    return table.one_of(key, ACCESS_MODES)


def parse_rate(table: PolicyTable, key: str) -> tuple[int, int] | None:
    """Read a rate such as ``60/minute`` as a count and seconds; None lifts the limit."""
    text = table.string(key)
    match = _RATE.fullmatch(text)
    if match is None and text != _UNLIMITED:
        table.fail(key, 'is not a number of calls per period, such as "60/minute", nor "unlimited"')
    return None if match is None else (int(match[1]), _SECONDS[match[2]])


def parse_daily(table: PolicyTable, key: str) -> tuple[int, int] | None:
    """Read a number of calls per day as a count and seconds; None lifts the limit."""
    if table.value[key] == _UNLIMITED:
        return None
    return table.integer(key, minimum=1, maximum=_MAX_DAILY), DAY


def describe_limit(limit: tuple[int, int] | None) -> str:
    """Return a limit as a policy states it."""
    if limit is None:
        return _UNLIMITED
    count, seconds = limit
    return next((f"{count}/{period}" for period, length in _SECONDS.items() if length == seconds), str(count))


def parse_condition(table: PolicyTable) -> CallCondition:
    """Read the conditions of a rule that only apply to calls."""
    return CallCondition(
        team=table.pattern(table.required_text("team")).text if "team" in table else "",
        hints={name: table.flag(key) for name, key in zip(HINT_NAMES, CONDITIONS[1:], strict=True) if key in table},
    )


def has_call_rules(policy: GatewayPolicy) -> bool:
    """Whether a policy decides on calls at all, so that other policies cost nothing."""
    levels = (policy.settings, *(rule.settings for rule in policy.rules))
    other = policy.tightened_by
    return any(key in settings for settings in levels for key in CALL_KEYS) or (
        other is not None and has_call_rules(other)
    )
