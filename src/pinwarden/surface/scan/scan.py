"""The advisory scan, which finds text of a server that a person should review.

Six codes, with their messages and patterns, come from ToolPin, but Pinwarden applies them to every string and not only
to names and descriptions. The other codes are Pinwarden's own: the cues of ``cues.py``, look-alike names, and tools
that imitate the tools of another server.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pinwarden.core.json_values import is_json_equal
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Row
from pinwarden.surface import interop as toolpin
from pinwarden.surface.interop import CALL_GATE
from pinwarden.surface.scan.classifier import measure_steering
from pinwarden.surface.scan.cues import ATTACK_CODES, Cue, Words, find_cues, may_have_cues
from pinwarden.surface.scan.hidden_text import PLAIN_PUNCTUATION, fold_text, fold_word, parse_words
from pinwarden.surface.sentences import VOCABULARY, split_sentences, walk_strings
from pinwarden.surface.surface import TOOL, Item, Surface

Severity = Literal["info", "warning"]
_MAX_EXCERPT = 120
_BORDERLINE = -2.5
"""The log-odds, relative to what a warning needs, from which a sentence is borderline. Of 100 attacks, 74 have a
warning, and 20 of the others such a sentence; of 60 published servers, 6 have one, and none more than three."""
_HIDDEN_CODES = frozenset({"hidden_characters", "terminal_escape"})

MESSAGES: Mapping[str, str] = {
    "agent_instruction": "gives the model instructions instead of describing the item",
    "concealment": "asks the model to hide something from the user",
    "exfiltration": "asks the model to send private data somewhere else",
    "impersonation": "poses as the system, the user or a message of the conversation",
    "steering": "tries to make the model do something that the user did not ask for",
    "hidden_characters": "contains characters that a model reads but a person does not see",
    "terminal_escape": "contains control characters that change what a terminal shows",
    "homoglyph": "contains letters of another script that look like Latin letters",
    "encoded_payload": "contains encoded text that decodes to a command or an instruction",
    "oversized_text": "is too long to be checked completely",
    "secret": "mentions a secret, or a file that contains secrets",
    "destination": "contains an address",
    "lookalike_name": "looks like the name of another tool of this server",
    "tool_shadowing": "interferes with a tool of another server",
}
"""The message of each of Pinwarden's own codes."""


class ScanFinding(Record):
    """One finding of the scan."""

    code: str
    severity: Severity
    entity: str
    """``server``, or the kind of item."""
    name: str
    path: str
    """JSON Pointer to the string in the item or in the server information."""
    message: str
    excerpt: str
    """The suspicious text, shortened but not escaped. Callers must escape it for output."""

    @property
    def subject(self) -> str:
        """The item that the finding is about, in ToolPin's notation, such as ``tool:search``."""
        return f"{self.entity}:{self.name}"


def scan(surface: Surface, neighbours: Sequence[tuple[str, Surface]] = ()) -> tuple[ScanFinding, ...]:
    """Scan every string of a surface. Returns the findings in the order in which the server sent the strings.

    ``neighbours`` are the names and surfaces of the other servers of the same client. The scan reports tools that
    imitate one of their tools.
    """
    names = Counter(item.name for item in surface.items_of_kind(TOOL))
    scanner = _Scanner(
        siblings=toolpin.ToolNameFinder(names), neighbour_tools=NeighbourTools.from_surfaces(surface, neighbours)
    )
    findings: list[ScanFinding] = []
    if surface.server:
        findings += scanner.scan_value("server", "", surface.server)
    for item in surface.all_items():
        findings += scanner.scan_value(item.kind.entity, item.label, item.value)
        if item.kind is TOOL:
            findings += [
                _build_shadowing_finding(reason, excerpt).at_location("tool", item.name, "/description")
                for reason, excerpt in scanner.neighbour_tools.find_clones(item)
            ]
    findings += _find_duplicate_names(names, "tool")
    findings += _find_look_alike_names(names)
    return tuple(findings)


class BorderlineSentence(Record):
    """A sentence that comes close to a warning, so that a person should read it first."""

    entity: str
    """``server``, or the kind of item."""
    name: str
    text: str
    """The sentence, neither shortened nor escaped."""


def find_borderline_sentences(surface: Surface) -> tuple[BorderlineSentence, ...]:
    """Find the sentences that nearly look like an attack, the closest first. What has a warning is not among them."""
    found: dict[str, tuple[float, BorderlineSentence]] = {}
    values = [("server", "", surface.server or {}), *((i.kind.entity, i.label, i.value) for i in surface.all_items())]
    for entity, name, value in values:
        for text in dict.fromkeys(text for _, text in walk_strings(value)):
            for start, end, normalised in split_sentences(text):
                if normalised in found or normalised.count(" ") < _MIN_WORDS - 1:
                    continue
                measure = measure_steering(text[start:end])
                if _BORDERLINE <= measure < 0:
                    found[normalised] = measure, BorderlineSentence(entity=entity, name=name, text=text[start:end])
    return tuple(sentence for _, sentence in sorted(found.values(), key=lambda pair: -pair[0]))


class _TextFinding(Record):
    """A finding about a string, which may occur at several locations."""

    code: str
    severity: Severity
    message: str
    excerpt: str
    tool: str | None = None
    """The tool that the text tells the agent to use. A tool that mentions itself is not a finding."""

    def at_location(self, entity: str, name: str, path: str) -> ScanFinding:
        """Build the finding for one location of the string."""
        return ScanFinding(
            code=self.code,
            severity=self.severity,
            entity=entity,
            name=name,
            path=path,
            message=self.message,
            excerpt=self.excerpt[:_MAX_EXCERPT],
        )


def _build_advisory_finding(advisory: toolpin.Advisory, excerpt: str, tool: str | None = None) -> _TextFinding:
    severity: Severity = "warning" if advisory.severity == "warning" else "info"
    return _TextFinding(code=advisory.code, severity=severity, message=advisory.message, excerpt=excerpt, tool=tool)


def _build_shadowing_finding(reason: str, excerpt: str) -> _TextFinding:
    message = f"{MESSAGES['tool_shadowing']}: {reason}"
    return _TextFinding(code="tool_shadowing", severity="warning", message=message, excerpt=excerpt)


class _Scanner:
    """Scans all items of one surface. Each distinct string is checked once, because schemas repeat many strings."""

    __slots__ = ("_cleared", "_findings_by_text", "_siblings", "_suspect", "neighbour_tools")

    def __init__(self, siblings: toolpin.ToolNameFinder, neighbour_tools: NeighbourTools) -> None:
        self.neighbour_tools = neighbour_tools
        self._siblings = siblings
        self._findings_by_text: dict[str, tuple[_TextFinding, ...]] = {}
        self._cleared: set[str] = set(VOCABULARY)
        self._suspect: set[str] = set()

    def scan_value(self, entity: str, name: str, value: Any) -> Iterator[ScanFinding]:
        """Scan all strings of one item."""
        if not self._is_suspect(value):
            return
        for path, text in walk_strings(value):
            text_findings = self._findings_by_text.get(text)
            if text_findings is None:
                text_findings = self._findings_by_text[text] = tuple(self._check_text(text))
            for finding in text_findings:
                if entity != "tool" or finding.tool is None or finding.tool != name:
                    yield finding.at_location(entity, name, path)

    def _is_suspect(self, value: Any) -> bool:
        """Quickly check all new strings of an item together. Nearly every item is cleared by this check."""
        unknown = frozenset(extract_texts(value)) - self._cleared
        fresh = unknown - self._suspect
        if len(fresh) == len(unknown) and not self._may_have_findings('"'.join(fresh)):
            self._cleared |= fresh
            return False
        for piece in fresh:
            (self._suspect if self._may_have_findings(piece) else self._cleared).add(piece)
        return True

    def _may_have_findings(self, texts: str) -> bool:
        words = Words(texts)
        return (
            may_have_cues(texts, words)
            or toolpin.may_have_advisories(texts, words.contain_any)
            or (words.contain_any(toolpin.CALL_GATE) and any(self._siblings.find_commands(texts)))
            or self.neighbour_tools.can_be_referenced(words.contain_any)
        )

    def _check_text(self, text: str) -> Iterator[_TextFinding]:
        cues = tuple(find_cues(text))
        for advisory, start, end in toolpin.find_advisories(text):
            finding = _build_advisory_finding(advisory, text[start:end])
            if finding.code == toolpin.HIDDEN_CHARACTERS.code and not any(cue.code in _HIDDEN_CODES for cue in cues):
                finding = replace(finding, severity="info")  # ToolPin also reports joiners in emoji, which are harmless
            yield finding
        for sibling, start, end in self._siblings.find_commands(text):
            yield _build_advisory_finding(toolpin.build_cross_tool_advisory(sibling), text[start:end], sibling)
        yield from _report_cues(cues)
        for reason, excerpt in self.neighbour_tools.find_references(text):
            yield _build_shadowing_finding(reason, excerpt)


def _report_cues(cues: Iterable[Cue]) -> Iterator[_TextFinding]:
    """Yield one finding per code, for the first cue that is not only quoted, or else for the first cue."""
    chosen: dict[str, Cue] = {}
    for cue in cues:
        known = chosen.get(cue.code)
        if known is None or (known.is_quoted and not cue.is_quoted):
            chosen[cue.code] = cue
    for code, cue in chosen.items():
        severity: Severity = "warning" if code in ATTACK_CODES and not cue.is_quoted else "info"
        message = cue.message or MESSAGES[code]
        if cue.is_quoted:
            message += ", but only as a quotation"
        yield _TextFinding(code=code, severity=severity, message=message, excerpt=cue.excerpt)


def _find_duplicate_names(names: Mapping[str, int], entity: str) -> Iterator[ScanFinding]:
    for name, count in names.items():
        if count > 1:
            yield _build_advisory_finding(toolpin.build_duplicate_name_advisory(count), name).at_location(
                entity, name, "/name"
            )


def _find_look_alike_names(names: Iterable[str]) -> Iterator[ScanFinding]:
    first: dict[str, str] = {}
    for name in names:
        earlier = first.setdefault(fold_word(name).replace("-", "_"), name)
        if earlier != name:
            message = f"{MESSAGES['lookalike_name']}: {earlier}"
            yield _TextFinding(code="lookalike_name", severity="warning", message=message, excerpt=name).at_location(
                "tool", name, "/name"
            )


_ESCAPES = {b"\\n": b"\n", b"\\t": b" ", b'\\"': b"'"}


def extract_texts(value: Any) -> list[str]:
    """Return texts that together contain every phrase in the strings of ``value``, for a quick check.

    The JSON text of the value is split at its quotes, which is much faster than collecting its strings. In the texts,
    double quotes become single quotes, and tabs become spaces.
    """
    import orjson  # a ci without a surface to scan does not load it

    try:
        data = orjson.dumps(value)
    except (TypeError, ValueError):  # the value has a lone surrogate, a huge integer or too many levels
        return _collect_strings(value)
    escapes = data.count(b"\\")
    if escapes:
        if escapes != sum(map(data.count, _ESCAPES)):
            return _collect_strings(value)
        for escape, character in _ESCAPES.items():
            data = data.replace(escape, character)
    text = data.decode()
    return (text if text.isascii() else text.translate(PLAIN_PUNCTUATION)).split('"')


def _collect_strings(value: Any) -> list[str]:
    return [text.replace('"', "'").translate(PLAIN_PUNCTUATION) for _, text in walk_strings(value)]


_MIN_COMMON_SHARE = 0.6
"""The share of common words from which a description counts as copied. Unrelated tools share less than half."""
_MIN_WORDS = 3  # fewer common words of descriptions are too few to compare, and fewer words of a sentence no order
_DESCRIPTION_WORD = re.compile(r"[^\W_]{2,}")
_FILLERS = parse_words(
    "a an the of to in on for and or with by from into at as is are be it its this that tool function via using use "
    "used given specified"
)
_TOOL_REFERENCE = re.compile(
    r"\b(?:call|use|invoke|run|execute|trigger|supersedes?|replaces?|overrides?|instead of|rather than|never use)"
    r"[\s`'\"*]{1,4}(?:the[\s`'\"*]{1,4})?(?=([^\s`'\"*,;()]{1,256})([`'\"]?\s+tool\b|[`'\"])?)",
    re.IGNORECASE,
)
_REFERENCE_GATE = CALL_GATE | {
    b"execute",
    b"trigger",
    b"supersede",
    b"supersedes",
    b"replace",
    b"replaces",
    b"override",
    b"overrides",
    b"instead",
    b"rather",
}


class NeighbourTools(Record):
    """Tools of the client's other servers, by their folded name (`fold_word`)."""

    tools: Mapping[str, tuple[tuple[str, Item], ...]]
    own: frozenset[str]

    @classmethod
    def from_surfaces(cls, surface: Surface, neighbours: Sequence[tuple[str, Surface]]) -> NeighbourTools:
        """Collect the tools of all neighbours, except those with the same surface, which are the same server."""
        tools: dict[str, list[tuple[str, Item]]] = {}
        own_digest = surface.digest if neighbours else None
        for server, neighbour in neighbours:
            if own_digest is not None and neighbour.digest == own_digest:
                continue
            for item in neighbour.items_of_kind(TOOL):
                tools.setdefault(fold_word(item.name), []).append((server, item))
        own = frozenset(fold_word(item.name) for item in surface.items_of_kind(TOOL)) if tools else frozenset[str]()
        return cls(tools={name: tuple(items) for name, items in tools.items()}, own=own)

    def find_clones(self, item: Item) -> Iterator[tuple[str, str]]:
        """Find tools of other servers whose name and description ``item`` copies. Yields a reason and the text."""
        if not self.tools:
            return
        for server, other_tool in self.tools.get(fold_word(item.name), ()):
            share = _compute_common_share(_get_description(item), _get_description(other_tool))
            if share >= _MIN_COMMON_SHARE:
                yield f"copies name and description of {other_tool.name} of {server}", _get_description(item)

    def can_be_referenced(self, has: Callable[[frozenset[bytes]], bool]) -> bool:
        """Quickly check whether text could refer to a tool of another server.

        ``has`` says whether the text contains one of the given words.
        """
        return bool(self.tools) and has(_REFERENCE_GATE)

    def find_references(self, text: str) -> Iterator[tuple[str, str]]:
        """Find phrases that tell the model to use, or not to use, a tool of another server.

        Yields a reason and the phrase.
        """
        for match in _TOOL_REFERENCE.finditer(text) if self.tools else ():
            name = fold_word(match[1].rstrip(".:!?"))
            if name in self.own or name not in self.tools:
                continue
            if not _is_distinctive(name) and not match[2]:
                continue  # a common word such as search must be in quotes or followed by "tool" to be a tool name
            server, item = self.tools[name][0]
            yield f"tells the agent whether to use {item.name} of {server}", match[0] + match[1]


def _is_distinctive(name: str) -> bool:
    return not name.isalpha()


def _get_description(item: Item) -> str:
    text = item.value.get("description") if isinstance(item.value, dict) else None
    return text if isinstance(text, str) else ""


def _compute_common_share(first: str, second: str) -> float:
    """Compute the share of words that two descriptions have in common, without filler words."""
    first_words, second_words = (
        frozenset(_DESCRIPTION_WORD.findall(fold_text(text).text)) - _FILLERS for text in (first, second)
    )
    if len(first_words & second_words) < _MIN_WORDS:
        return 0.0
    return len(first_words & second_words) / len(first_words | second_words)


WARNING = "warning"


def build_scan_row(finding: ScanFinding, server: str = "") -> Row:
    """Build the report row of a scan finding. ``server`` is shown if it is given."""
    return Row(
        code=finding.code,
        severity=finding.severity,
        entity=finding.entity,
        server=server or None,
        name=finding.name,
        path=finding.path,
        message=finding.message,
        excerpt=finding.excerpt,
    )


def find_new_warnings(current: Surface, approved: Iterable[Surface] = ()) -> tuple[ScanFinding, ...]:
    """Find the warnings about a surface that its approved versions do not have.

    All warnings about a changed item are new, even if the approved version has them too: the scan reports only one
    location per code and text, so a repeated warning could be about new text.
    """
    warnings = tuple(finding for finding in scan(current) if finding.severity == WARNING)
    for surface in approved if warnings else ():
        before = frozenset(scan(surface))
        warnings = tuple(
            finding for finding in warnings if finding not in before or not _is_unchanged(finding, surface, current)
        )
    return warnings


def _is_unchanged(finding: ScanFinding, approved: Surface, current: Surface) -> bool:
    """Whether the item that the finding is about is the same in both surfaces."""
    if finding.entity == "server":
        member = get_server_member(finding)
        return is_json_equal((approved.server or {}).get(member), (current.server or {}).get(member))
    before, now = _list_digests(approved, finding), _list_digests(current, finding)
    return None not in now and before == now


def get_server_member(finding: ScanFinding) -> str:
    """Return the member of the server information that a finding is about, such as ``instructions``."""
    return finding.path.removeprefix("/").partition("/")[0].replace("~1", "/").replace("~0", "~")


def _list_digests(surface: Surface, finding: ScanFinding) -> list[str | None]:
    items = (item for item in surface.all_items() if (item.kind.entity, item.label) == (finding.entity, finding.name))
    return [None if item.digest is None else str(item.digest) for item in items]
