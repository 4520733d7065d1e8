"""Shadowing between servers: a tool that copies another server's tool, or text that commands its use.

A shared name is normal (two servers may both ``list_models``). It is evidence only together with a description that
says the same, or with text that reaches over to a tool which its own server does not offer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from pinwarden.core.record import Record
from pinwarden.surface.scan.plain_text import fold_word, plain, word_set
from pinwarden.surface.scan.toolpin import CALL_GATE
from pinwarden.surface.surface import TOOL, Item, Surface

_ALIKE = 0.6
"""Share of common words from which two descriptions say the same. Honest namesakes stay below one half."""
_MIN_WORDS = 3  # two words in common prove nothing
_WORD = re.compile(r"[^\W_]{2,}")
_FILLERS = word_set(
    "a an the of to in on for and or with by from into at as is are be it its this that tool function via using use "
    "used given specified"
)
_COMMAND = re.compile(
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


class Neighbourhood(Record):
    """The tools of other servers, by the way their names look."""

    tools: Mapping[str, tuple[tuple[str, Item], ...]]
    own: frozenset[str]

    @classmethod
    def around(cls, surface: Surface, neighbours: Sequence[tuple[str, Surface]]) -> Neighbourhood:
        """The tools of all neighbours that are not the same server seen twice."""
        tools: dict[str, list[tuple[str, Item]]] = {}
        own_digest = surface.digest if neighbours else None
        for server, neighbour in neighbours:
            if own_digest is not None and neighbour.digest == own_digest:
                continue
            for item in neighbour.list_of(TOOL):
                tools.setdefault(fold_word(item.name), []).append((server, item))
        own = frozenset(fold_word(item.name) for item in surface.list_of(TOOL)) if tools else frozenset[str]()
        return cls(tools={name: tuple(items) for name, items in tools.items()}, own=own)

    def clones_of(self, item: Item) -> Iterator[tuple[str, str]]:
        """Why and by what text ``item`` is a copy of a neighbour's tool: the look of its name, and what it says."""
        if not self.tools:
            return
        for server, other in self.tools.get(fold_word(item.name), ()):
            share = _common_share(_description(item), _description(other))
            if share >= _ALIKE:
                yield f"name and description of {other.name} of {server}", _description(item)

    def may_be_referred_to(self, has: Callable[[frozenset[bytes]], bool]) -> bool:
        """Whether text can command the use of a neighbour's tool; ``has`` tells of its words."""
        return bool(self.tools) and has(_REFERENCE_GATE)

    def references_in(self, text: str) -> Iterator[tuple[str, str]]:
        """Why and by what words ``text`` commands to use a neighbour's tool, or to leave it for another."""
        for found in _COMMAND.finditer(text) if self.tools else ():
            name = fold_word(found[1].rstrip(".:!?"))
            if name in self.own or name not in self.tools:
                continue
            if not _is_distinctive(name) and not found[2]:
                continue  # "use search": a verb, or a tool? Only a mark or the word "tool" tells
            server, item = self.tools[name][0]
            yield f"directs the agent to or from {item.name} of {server}", found[0] + found[1]


def _is_distinctive(name: str) -> bool:
    return not name.isalpha()


def _description(item: Item) -> str:
    text = item.value.get("description") if isinstance(item.value, dict) else None
    return text if isinstance(text, str) else ""


def _common_share(one: str, other: str) -> float:
    """How much two descriptions have in common: shared words by all words, fillers aside."""
    mine, theirs = (frozenset(_WORD.findall(plain(text).text)) - _FILLERS for text in (one, other))
    if len(mine & theirs) < _MIN_WORDS:
        return 0.0
    return len(mine & theirs) / len(mine | theirs)
