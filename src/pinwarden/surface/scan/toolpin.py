"""The six advisory codes of ToolPin 0.5.4, string by string, as that version defines them.

JavaScript's idea of white space and of word boundaries is part of the definition, so it is spelt out here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from pinwarden.core.record import Record

_SPACE = "[\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace(" ", f"{_SPACE}+"), re.IGNORECASE | re.ASCII)


class Advisory(Record):
    """What one of the codes says."""

    code: str
    severity: str
    message: str


OVERRIDE = Advisory(
    code="agent_instruction_override",
    severity="warning",
    message="asks the agent to ignore higher-priority instructions",
)
HIDDEN_BEHAVIOR = Advisory(
    code="agent_hidden_behavior", severity="warning", message="asks the agent to hide behavior from the user"
)
FORCED_ORDER = Advisory(
    code="agent_forced_tool_order", severity="info", message="forces tool ordering in descriptive metadata"
)
HIDDEN_CHARACTERS = Advisory(
    code="hidden_control_characters", severity="warning", message="description contains hidden or control characters"
)

_HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_PRINTABLE = bytes(range(0x20, 0x7F))
_PATTERNS = (
    (
        OVERRIDE,
        frozenset((b"ignore", b"disregard", b"override")),
        _pattern(r"\b(?:ignore|disregard|override) (?:all )?(?:previous|prior|above|system|developer) instructions?\b"),
    ),
    (
        HIDDEN_BEHAVIOR,
        frozenset((b"tell", b"inform", b"notify", b"mention", b"reveal")),
        _pattern(r"\b(?:do not|don't|never) (?:tell|inform|notify|mention|reveal) (?:the )?user\b"),
    ),
    (
        FORCED_ORDER,
        frozenset((b"always", b"must")),
        # "required to" is written with one plain space in the definition.
        re.compile(
            rf"\b(?:always|must|required[ ]to){_SPACE}+(?:call|use|invoke|run){_SPACE}+[a-zA-Z0-9_.:/-]+"
            rf"(?:{_SPACE}+first)?\b",
            re.IGNORECASE | re.ASCII,
        ),
    ),
)
_CALL = _pattern(r"\b(?:call|use|invoke|run) ")
_LOWER_CALL = re.compile(rf"(?:call|use|invoke|run){_SPACE}+")  # no boundary and no case: the engine can skip ahead
CALL_GATE = frozenset((b"call", b"use", b"invoke", b"run"))
"""Words without which text cannot command the use of a tool."""
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_HEAD = 4  # letters by which names are filed
_MAX_NAME = 256  # MCP asks for 128 at most; a longer name is not looked for in other texts


def advisories_of(text: str) -> Iterator[tuple[Advisory, int, int]]:
    """The advisories of one text, with their positions."""
    hidden = _HIDDEN.search(text)
    if hidden:
        yield HIDDEN_CHARACTERS, *hidden.span()
    for advisory, _, pattern in _PATTERNS:
        found = pattern.search(text)
        if found:
            yield advisory, *found.span()


def may_earn_advisories(text: str, has: Callable[[frozenset[bytes]], bool]) -> bool:
    """Whether any part of ``text`` can earn one; False is certain. ``has`` tells whether one of some words is there."""
    if (not text.isascii() or text.encode().translate(None, _PRINTABLE)) and _HIDDEN.search(text):
        return True
    if "required to" in text.lower():  # not a gate word: schemas are full of "required"
        return True
    return any(has(gate) and pattern.search(text) is not None for _, gate, pattern in _PATTERNS)


def duplicate_name(count: int) -> Advisory:
    """The advisory for a name that ``count`` tools of one server share."""
    message = f"tool name appears {count} times in this server's tools/list response"
    return Advisory(code="duplicate_tool_name", severity="warning", message=message)


def cross_tool(name: str) -> Advisory:
    """The advisory for text that commands the use of the tool ``name``."""
    message = f"description instructs the agent to use sibling tool {name}"
    return Advisory(code="cross_tool_instruction", severity="info", message=message)


class ToolNames:
    """Names of tools, looked for after ``call``, ``use``, ``invoke`` and ``run``.

    The time depends on the text and on how many lengths names with the same beginning have, and not on how many
    names there are.
    """

    __slots__ = ("_by_fold", "_lengths")

    def __init__(self, names: Iterable[str]) -> None:
        by_fold: dict[str, list[str]] = {}
        lengths: dict[str, set[int]] = {}
        for name in dict.fromkeys(names):
            if 0 < len(name) <= _MAX_NAME:
                fold = _upper(name)
                by_fold.setdefault(fold, []).append(name)
                lengths.setdefault(fold[:_HEAD], set()).add(len(fold))
        self._by_fold = by_fold
        self._lengths = {head: sorted(known) for head, known in lengths.items()}

    def commanded_in(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Each name that ``text`` commands to use, and where it does so first."""
        known: set[str] = set()
        for begin, start in _calls(text):
            for length in self._possible_lengths(_upper(text[start : start + _HEAD])):
                for name in self._by_fold.get(_upper(text[start : start + length]), ()):
                    if name not in known and _is_boundary(text, start + length):
                        known.add(name)
                        yield name, begin, start + length

    def _possible_lengths(self, head: str) -> Iterator[int]:
        for size in range(1, len(head) + 1):  # names shorter than the head are filed under themselves
            for length in self._lengths.get(head[:size], ()):
                if size in (_HEAD, length):
                    yield length


def _calls(text: str) -> Iterator[tuple[int, int]]:
    """Where a command to use something begins, and where what it names does."""
    if not text.isascii():
        for found in _CALL.finditer(text):
            yield found.span()
        return
    for found in _LOWER_CALL.finditer(text.lower()):
        if not found.start() or text[found.start() - 1] not in _WORD:
            yield found.span()


def _is_boundary(text: str, place: int) -> bool:
    after = text[place] if place < len(text) else ""
    return (text[place - 1] in _WORD) != (after in _WORD)


def _upper(text: str) -> str:
    """Upper case where it keeps the length, as JavaScript compares without regard to case."""
    if text.isascii():
        return text.upper()
    return "".join(upper if len(upper := character.upper()) == 1 else character for character in text)
