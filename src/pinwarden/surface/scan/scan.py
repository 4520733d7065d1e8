"""The advisory scan: what in a server's text a person should look at. Findings inform; they never fail by themselves.

Two sets of codes. ToolPin's six keep its names, messages and patterns, over every string and not only names and
descriptions. The others are our own: the cues of :mod:`pinwarden.surface.scan.cues`, names that look alike, and
tools that shadow those of another server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pinwarden.core.record import Record, replace
from pinwarden.surface.scan import toolpin
from pinwarden.surface.scan.cues import ATTACK_CODES, Cue, Words, find_cues, may_hold_cues
from pinwarden.surface.scan.plain_text import fold_word
from pinwarden.surface.scan.shadowing import Neighbourhood
from pinwarden.surface.scan.strings import VOCABULARY, pieces_of, places_of
from pinwarden.surface.surface import TOOL, Surface

Severity = Literal["info", "warning"]
_MAX_EXCERPT = 120
_HIDDEN_CODES = frozenset({"hidden_characters", "terminal_escape"})

MESSAGES: Mapping[str, str] = {
    "agent_instruction": "commands the agent beyond describing what is offered",
    "concealment": "asks to keep something from the user",
    "exfiltration": "asks to pass private data to where it leaves the user's control",
    "impersonation": "poses as the system, the user or the chat itself",
    "hidden_characters": "holds characters that a person does not see and a model reads",
    "terminal_escape": "holds control characters that change what a terminal shows",
    "homoglyph": "holds letters that only look like the ones they stand for",
    "encoded_payload": "holds encoded text that decodes to a command or an instruction",
    "oversized_text": "is too long to be examined to its end",
    "secret": "names a place or kind of secrets",
    "destination": "names an address",
    "lookalike_name": "looks like the name of another tool of this server",
    "tool_shadowing": "interferes with a tool of another server",
}
"""What each of our own codes says."""


class Finding(Record):
    """One thing to look at."""

    code: str
    severity: Severity
    entity: str
    """``server``, or what kind of item it is."""
    name: str
    path: str
    """JSON Pointer of the string inside the item or the server's facts."""
    message: str
    excerpt: str
    """The text there, unescaped and cut off: escape it before showing it."""

    @property
    def subject(self) -> str:
        """How ToolPin names what a finding is about."""
        return f"{self.entity}:{self.name}"


def scan(surface: Surface, neighbours: Sequence[tuple[str, Surface]] = ()) -> tuple[Finding, ...]:
    """Every finding in every string of a surface, in the order sent.

    ``neighbours`` are the other servers that the same agent uses, by name; with them, tools that shadow are found.
    """
    names = Counter(item.name for item in surface.list_of(TOOL))
    scanner = _Scanner(siblings=toolpin.ToolNames(names), beside=Neighbourhood.around(surface, neighbours))
    findings: list[Finding] = []
    if surface.server:
        findings += scanner.findings_in("server", "", surface.server)
    for item in surface.all_items():
        findings += scanner.findings_in(item.kind.entity, item.name, item.value)
        if item.kind is TOOL:
            findings += [
                _shadowing(why, excerpt).found("tool", item.name, "/description")
                for why, excerpt in scanner.beside.clones_of(item)
            ]
    findings += _duplicates(names, "tool")
    findings += _alike(names)
    return tuple(findings)


class _Fact(Record):
    """What is to be said about a text, wherever it stands."""

    code: str
    severity: Severity
    message: str
    excerpt: str
    tool: str | None = None
    """The tool that the text commands to use; what a tool says of itself is no finding."""

    def found(self, entity: str, name: str, path: str) -> Finding:
        """The finding that it makes of a place."""
        return Finding(
            code=self.code,
            severity=self.severity,
            entity=entity,
            name=name,
            path=path,
            message=self.message,
            excerpt=self.excerpt[:_MAX_EXCERPT],
        )


def _advised(advisory: toolpin.Advisory, excerpt: str, tool: str | None = None) -> _Fact:
    severity: Severity = "warning" if advisory.severity == "warning" else "info"
    return _Fact(code=advisory.code, severity=severity, message=advisory.message, excerpt=excerpt, tool=tool)


def _shadowing(why: str, excerpt: str) -> _Fact:
    message = f"{MESSAGES['tool_shadowing']}: {why}"
    return _Fact(code="tool_shadowing", severity="warning", message=message, excerpt=excerpt)


class _Scanner:
    """What all items of one surface are scanned with, and what is known of its strings so far.

    Schemas repeat themselves: what was looked at once is not looked at again.
    """

    __slots__ = ("_facts", "_innocent", "_siblings", "_suspect", "beside")

    def __init__(self, siblings: toolpin.ToolNames, beside: Neighbourhood) -> None:
        self.beside = beside
        self._siblings = siblings
        self._facts: dict[str, tuple[_Fact, ...]] = {}
        self._innocent: set[str] = set(VOCABULARY)
        self._suspect: set[str] = set()

    def findings_in(self, entity: str, name: str, value: Any) -> Iterator[Finding]:
        """Every finding in the strings of one item."""
        if not self._is_suspect(value):
            return
        for path, text in places_of(value):
            facts = self._facts.get(text)
            if facts is None:
                facts = self._facts[text] = tuple(self._facts_of(text))
            for fact in facts:
                if entity != "tool" or fact.tool is None or fact.tool != name:
                    yield fact.found(entity, name, path)

    def _is_suspect(self, value: Any) -> bool:
        """One look at all new strings together settles for nearly every item that nothing is there."""
        unknown = frozenset(pieces_of(value)) - self._innocent
        fresh = unknown - self._suspect
        if len(fresh) == len(unknown) and not self._may_say_something('"'.join(fresh)):
            self._innocent |= fresh
            return False
        for piece in fresh:
            (self._suspect if self._may_say_something(piece) else self._innocent).add(piece)
        return True

    def _may_say_something(self, texts: str) -> bool:
        words = Words(texts)
        return (
            may_hold_cues(texts, words)
            or toolpin.may_earn_advisories(texts, words.have)
            or (words.have(toolpin.CALL_GATE) and any(self._siblings.commanded_in(texts)))
            or self.beside.may_be_referred_to(words.have)
        )

    def _facts_of(self, text: str) -> Iterator[_Fact]:
        cues = tuple(find_cues(text))
        for advisory, start, end in toolpin.advisories_of(text):
            fact = _advised(advisory, text[start:end])
            if fact.code == toolpin.HIDDEN_CHARACTERS.code and not any(cue.code in _HIDDEN_CODES for cue in cues):
                fact = replace(fact, severity="info")  # the joiner of an emoji, which ToolPin takes for a hidden one
            yield fact
        for sibling, start, end in self._siblings.commanded_in(text):
            yield _advised(toolpin.cross_tool(sibling), text[start:end], sibling)
        yield from _cued(cues)
        for why, excerpt in self.beside.references_in(text):
            yield _shadowing(why, excerpt)


def _cued(cues: Iterable[Cue]) -> Iterator[_Fact]:
    """One fact per code: the first cue that is meant in earnest, or else the first."""
    chosen: dict[str, Cue] = {}
    for cue in cues:
        known = chosen.get(cue.code)
        if known is None or (known.mentioned and not cue.mentioned):
            chosen[cue.code] = cue
    for code, cue in chosen.items():
        severity: Severity = "warning" if code in ATTACK_CODES and not cue.mentioned else "info"
        message = f"{MESSAGES[code]}, as something talked about" if cue.mentioned else MESSAGES[code]
        yield _Fact(code=code, severity=severity, message=message, excerpt=cue.excerpt)


def _duplicates(names: Mapping[str, int], entity: str) -> Iterator[Finding]:
    for name, count in names.items():
        if count > 1:
            yield _advised(toolpin.duplicate_name(count), name).found(entity, name, "/name")


def _alike(names: Iterable[str]) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for name in names:
        earlier = first.setdefault(fold_word(name).replace("-", "_"), name)
        if earlier != name:
            message = f"{MESSAGES['lookalike_name']}: {earlier}"
            yield _Fact(code="lookalike_name", severity="warning", message=message, excerpt=name).found(
                "tool", name, "/name"
            )
