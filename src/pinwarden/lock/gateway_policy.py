"""What the gateway enforces: the table ``[policy.gateway]`` of ``pinwarden.toml``.

Without a policy the gateway blocks everything that was not approved. ``[[policy.gateway.rules]]`` holds rules for some
servers, tools or clients; for each key the first matching rule that sets it wins, then the table itself, then
``DEFAULTS``. ``[[policy.gateway.allow]]`` lists digests allowed in addition to the approved ones; several for one tool
let two releases run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock.policy_table import Pattern, Table, invalid

ENFORCEMENTS = ("audit", "warn", "block")
"""What happens to a change at level ``block-at`` or above: recorded, also reported to the client, or blocked."""
UNKNOWNS = ("allow_degraded", "warn", "block")
"""The same for an item whose name was never approved."""
LEVELS = ("info", "review", "critical")
"""The levels of surface/drift, from least to worst."""
ALLOWLIST_PROFILES = ("pinwarden", "hangar", "hangar-1.2")
HIDDEN = ("relay", "flag", "strip")
INTERCEPTORS = ("answer", "announce")
"""Whether the gates that answer as interceptors are only there, or also named among the server's capabilities."""
ARGUMENTS = ("omit", "record")
"""Whether the audit log keeps the arguments of calls."""

_ALIASES = {"allow_unverified": "allow_degraded"}
_RULE_KEYS = (
    *("enforcement", "unknown", "block-at", "sampling", "elicitation", "roots", "url-hosts", "max-rounds"),
    *("interceptors", "arguments"),
)
_REQUEST_KEYS = ("sampling", "elicitation", "roots", "url-hosts", "max-rounds")
_RESULT_KEYS = ("max-bytes", "hidden-characters")
_KEYS = (*_RULE_KEYS, "relist-seconds", "relist-calls", "results", "rules", "allow")
_LEAVE = ("allow", "deny")
_WORDS = {
    "enforcement": ENFORCEMENTS,
    "unknown": UNKNOWNS,
    "block-at": LEVELS,
    "interceptors": INTERCEPTORS,
    "arguments": ARGUMENTS,
    **dict.fromkeys(("sampling", "elicitation", "roots"), _LEAVE),
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
    "hidden-characters": "relay",
}
"""What holds where a policy does not answer."""
_ANY = Pattern(text="**")
_Row = TypeVar("_Row")


class AllowedDigest(Record):
    """A digest that is allowed for the items of a name, beside what was approved."""

    tool: str
    """A name, or a glob of names: the digest covers the name itself."""
    digest: Digest
    profile: str = "pinwarden"
    server: Pattern = _ANY
    client: Pattern = _ANY

    def is_for(self, tool: str) -> bool:
        """Whether it speaks of a tool."""
        return self.tool == tool or Pattern(text=self.tool).matches(tool)


class DigestPolicy(Record):
    """What holds for one item of one server and one client."""

    enforcement: str = DEFAULTS["enforcement"]
    unknown: str = DEFAULTS["unknown"]
    block_at: str = DEFAULTS["block-at"]
    allowlist: tuple[AllowedDigest, ...] = ()


class RequestPolicy(Record):
    """What a server may ask of the client."""

    sampling: bool = True
    elicitation: bool = True
    roots: bool = True
    url_hosts: tuple[Pattern, ...] = ()
    """The hosts to which an elicitation may send the user; none unless they are named."""
    max_rounds: int = DEFAULTS["max-rounds"]
    """How often in a row a server may ask for more before it answers."""


class ResultPolicy(Record):
    """Checks of results."""

    max_bytes: int = 0
    """Larger results are refused; 0 for no limit."""
    hidden_characters: str = DEFAULTS["hidden-characters"]
    """Control and invisible characters in results: relayed, flagged to the client, or stripped."""


class GatewayRule(Record):
    """Answers for some servers, tools and clients."""

    server: Pattern
    item: Pattern
    client: Pattern
    answers: dict[str, Any]

    def fits(self, server: str, client: str) -> bool:
        """Whether the rule speaks of this server and client."""
        return self.server.matches(server) and self.client.matches(client)


class GatewayPolicy(Record):
    """The whole table."""

    answers: dict[str, Any]
    rules: tuple[GatewayRule, ...] = ()
    allowlist: tuple[AllowedDigest, ...] = ()
    results: ResultPolicy = ResultPolicy()
    relist_seconds: int = DEFAULTS["relist-seconds"]
    """How long a list counts before it is asked for again behind the client's back."""
    relist_calls: int = DEFAULTS["relist-calls"]
    """And for how many calls at most; 0 for no limit."""
    digest: str = ""
    """Names the policy in the audit log."""
    tightened_by: GatewayPolicy | None = None
    """A second policy whose answers apply only where they are stricter (`tightened`)."""

    def for_item(self, server: str, item: str, client: str) -> DigestPolicy:
        """What holds for one item."""
        rules = [rule for rule in self.rules if rule.fits(server, client) and rule.item.matches(item)]
        keys = ("enforcement", "unknown", "block-at")
        answers = _first_answers(keys, (*rules, self))
        if self.tightened_by is not None:
            other = self.tightened_by
            more = [rule for rule in other.rules if rule.fits(server, client) and rule.item.matches(item)]
            answers = _stricter_answers(answers, _first_answers(keys, (*more, other)))
        answers = {**DEFAULTS, **answers}
        return DigestPolicy(
            enforcement=answers["enforcement"],
            unknown=answers["unknown"],
            block_at=answers["block-at"],
            allowlist=tuple(
                allowed
                for allowed in self.allowlist
                if allowed.is_for(item) and allowed.server.matches(server) and allowed.client.matches(client)
            ),
        )

    def lets_pass(self) -> str:
        """A sentence about unapproved content that this policy lets pass; empty if it blocks everything."""
        answers = {**DEFAULTS, **self.answers}
        enforcement, unknown = answers["enforcement"], answers["unknown"]
        if enforcement != "block":
            also = ", and reported to clients" if enforcement == "warn" else ""
            return f'the policy says enforcement = "{enforcement}": changes are recorded{also}, but not blocked'
        if unknown != "block":
            return f'the policy says unknown = "{unknown}": unapproved items pass'
        return ""

    def loosened(self) -> list[str]:
        """What the policy allows beyond the default, as sentences: only what lets pass text that was not approved."""
        sentences: list[str] = []
        for where, answers in (("", self.answers), *(("a rule of ", rule.answers) for rule in self.rules)):
            for key in ("enforcement", "unknown", "block-at"):
                default = DEFAULTS[key]
                word = answers.get(key, default)
                if _STRICTNESS[key].index(word) < _STRICTNESS[key].index(default):
                    sentences.append(f'{where}the policy says {key} = "{word}"')
        sentences += [
            f"the policy allows a digest of {allowed.tool[:120]!a} beside the approved one"
            for allowed in self.allowlist
        ]
        if self.relist_seconds > DEFAULT_POLICY.relist_seconds:
            sentences.append(f"the policy says relist-seconds = {self.relist_seconds}, so that changes are seen later")
        if self.relist_calls == 0 or self.relist_calls > DEFAULT_POLICY.relist_calls:
            sentences.append(f"the policy says relist-calls = {self.relist_calls}, so that changes are seen later")
        return list(dict.fromkeys(sentences))

    def records_arguments(self, server: str, item: str, client: str) -> bool:
        """Whether the audit log keeps what an item is called with."""
        rules = [rule for rule in self.rules if rule.fits(server, client) and rule.item.matches(item)]
        return _first_answers(("arguments",), (*rules, self)).get("arguments") == "record"

    def for_requests(self, server: str, client: str) -> RequestPolicy:
        """What a server may ask of a client. Rules for some items only say nothing about it."""
        rules = [rule for rule in self.rules if rule.fits(server, client) and rule.item.text == "**"]
        answers = _first_answers(_REQUEST_KEYS, (*rules, self))
        if self.tightened_by is not None:
            other = self.tightened_by
            more = [rule for rule in other.rules if rule.fits(server, client) and rule.item.text == "**"]
            answers = _stricter_answers(answers, _first_answers(_REQUEST_KEYS, (*more, other)))
        answers = {**DEFAULTS, **answers}
        return RequestPolicy(
            sampling=answers["sampling"] == "allow",
            elicitation=answers["elicitation"] == "allow",
            roots=answers["roots"] == "allow",
            url_hosts=answers["url-hosts"],
            max_rounds=answers["max-rounds"],
        )

    def announces(self, server: str, client: str) -> bool:
        """Whether the gateway announces its gates as interceptors to a client."""
        rules = [rule for rule in self.rules if rule.fits(server, client) and rule.item.text == "**"]
        return _first_answers(("interceptors",), (*rules, self)).get("interceptors") == "announce"


def gateway_policy(value: Any) -> GatewayPolicy:
    """The policy of the gateway from the values of its table."""
    table = Table(value, "policy.gateway")
    table.refuse_unknown(_KEYS)
    if not table.value:
        invalid(table.path, "is empty")
    results = table.table("results", _RESULT_KEYS)
    seconds, calls = table.number("relist-seconds", 86_400), table.number("relist-calls", 1_000_000)
    if seconds == 0:
        table.invalid("relist-seconds", "is 0, so that a silent change would never be seen")
    return GatewayPolicy(
        answers=_answers(table),
        rules=_rows(table, "rules", _rule),
        allowlist=_rows(table, "allow", _allowed),
        results=_results(results) if results else ResultPolicy(),
        relist_seconds=DEFAULTS["relist-seconds"] if seconds is None else seconds,
        relist_calls=DEFAULTS["relist-calls"] if calls is None else calls,
        digest=str(Digest.of_bytes(canonicalize(table.value))),
    )


def _first_answers(keys: tuple[str, ...], levels: tuple[GatewayRule | GatewayPolicy, ...]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for level in levels:
        for key in keys:
            if key in level.answers:
                answers.setdefault(key, level.answers[key])
    return answers


_STRICTNESS: dict[str, tuple[str, ...]] = {
    "enforcement": ENFORCEMENTS,
    "unknown": UNKNOWNS,
    "block-at": LEVELS[::-1],
    **dict.fromkeys(("sampling", "elicitation", "roots"), _LEAVE),
}
"""The answers to each question, from the loosest to the strictest."""


def tightened(policy: GatewayPolicy, other: GatewayPolicy) -> GatewayPolicy:
    """A policy with the stricter answers of another one. What the other one allows beyond it does not count: neither
    looser answers nor digests beside the approved ones."""
    sizes = [size for size in (policy.results.max_bytes, other.results.max_bytes) if size]
    calls = [most for most in (policy.relist_calls, other.relist_calls) if most]
    hidden = max(policy.results.hidden_characters, other.results.hidden_characters, key=HIDDEN.index)
    return replace(
        policy,
        answers={**policy.answers, **_stricter_answers(policy.answers, other.answers)},
        results=ResultPolicy(max_bytes=min(sizes, default=0), hidden_characters=hidden),
        relist_seconds=min(policy.relist_seconds, other.relist_seconds),
        relist_calls=min(calls, default=0),
        digest=str(Digest.of_bytes(canonicalize([policy.digest, other.digest]))),
        tightened_by=other,
    )


def _stricter_answers(answers: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The answers, each replaced by that of the other policy where that one is stricter."""
    stricter = dict(answers)
    for key, words in _STRICTNESS.items():
        if key in other:
            stricter[key] = max(stricter.get(key, DEFAULTS[key]), other[key], key=words.index)
    if "url-hosts" in other:
        stricter["url-hosts"] = tuple(
            host for host in stricter.get("url-hosts", DEFAULTS["url-hosts"]) if host in other["url-hosts"]
        )
    if "max-rounds" in other:
        stricter["max-rounds"] = min(stricter.get("max-rounds", DEFAULTS["max-rounds"]), other["max-rounds"])
    return stricter


def _rows(table: Table, key: str, read: Callable[[Table], _Row]) -> tuple[_Row, ...]:
    rows = table.value.get(key, [])
    if not isinstance(rows, list):
        table.invalid(key, "is not a list of tables")
    return tuple(read(Table(row, f"{table.path}.{key}[{index}]")) for index, row in enumerate(rows))


def _answers(table: Table) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for key, known in _WORDS.items():
        if key in table.value:
            word = table.value[key]
            word = _ALIASES.get(word, word) if isinstance(word, str) else word
            if word not in known:
                table.invalid(key, f"is not one of {', '.join(known)}")
            answers[key] = word
    hosts = table.texts("url-hosts")
    if hosts is not None:
        answers["url-hosts"] = tuple(table.pattern(host.lower()) for host in hosts)
    rounds = table.number("max-rounds", 1000)
    if rounds is not None:
        answers["max-rounds"] = rounds
    return answers


def _rule(table: Table) -> GatewayRule:
    table.refuse_unknown(("server", "item", "client", *_RULE_KEYS))
    answers = _answers(table)
    if not answers:
        invalid(table.path, "says nothing")
    item = _pattern_or_any(table, "item")
    if item != _ANY:
        for key in _REQUEST_KEYS:
            if key in answers:  # it would be read and never heeded
                table.invalid(key, "is about what a server asks for, which is for no item; write a rule without item")
    return GatewayRule(
        server=_pattern_or_any(table, "server"),
        item=item,
        client=_pattern_or_any(table, "client"),
        answers=answers,
    )


def _allowed(table: Table) -> AllowedDigest:
    table.refuse_unknown(("server", "client", "tool", "digest", "profile"))
    text = table.required_text("digest")
    try:
        digest = Digest.parse(text if ":" in text or "-" in text else f"sha256:{text}")
    except PinwardenError:
        table.invalid("digest", "is not a digest")
    profile = table.value.get("profile", "pinwarden")
    if profile not in ALLOWLIST_PROFILES:
        table.invalid("profile", f"is not one of {', '.join(ALLOWLIST_PROFILES)}")
    tool = table.required_text("tool")
    return AllowedDigest(
        tool=tool,
        digest=digest,
        profile=profile,
        server=_pattern_or_any(table, "server"),
        client=_pattern_or_any(table, "client"),
    )


def _results(table: Table) -> ResultPolicy:
    hidden = table.value.get("hidden-characters", DEFAULTS["hidden-characters"])
    if hidden not in HIDDEN:
        table.invalid("hidden-characters", f"is not one of {', '.join(HIDDEN)}")
    return ResultPolicy(max_bytes=table.number("max-bytes", 1 << 30) or 0, hidden_characters=hidden)


def _pattern_or_any(table: Table, key: str) -> Pattern:
    return table.pattern(table.required_text(key)) if key in table.value else _ANY


DEFAULT_POLICY = GatewayPolicy(answers={}, digest=str(Digest.of_bytes(canonicalize({}))))
"""The policy without configuration. It has a digest, so the audit log can name it."""
