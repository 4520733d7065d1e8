"""Renames: which of the new items stands where an approved one stood.

A pin is bound to a name. A server that drops an approved tool and offers much the same one under another name gets
rid of its pin, so such pairs are found by likeness. The cost stays linear: candidates come from an index of words, of
which only the rarest are looked up, and no word leads to more than a few candidates.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pinwarden.core.record import Record
from pinwarden.surface.drift.json_values import identity, texts_in
from pinwarden.surface.drift.names import name_words, skeleton
from pinwarden.surface.surface import Item

_LIKE_ENOUGH = 0.6
_TELLING_WORDS = 3  # a shorter description fits many tools
_MAX_WORDS = 60  # of a description; the first sentences say what a tool does
_MAX_LOOKUPS = 8  # words of one new item that are looked up
_MAX_BEARERS = 16  # approved items that one word may lead to
_MAX_CANDIDATES = 6  # approved items that one new item is compared with in full
_WORD = re.compile(r"\w{3,}")
_TRIGRAM = 3


class _Traits(Record):
    """What an item is recognised by."""

    bare_name: str
    name: frozenset[str]
    pieces: frozenset[str]
    """The trigrams of the bare name."""
    words: frozenset[str]
    parameters: frozenset[str]
    body: bytes
    """Everything but the name; empty if that is too little to know an item by."""

    def marks(self) -> set[str]:
        """The keys under which an item is found again; the prefix keeps a name from meeting a description."""
        return {
            *(f"n:{word}" for word in self.name),
            *(f"w:{word}" for word in self.words),
            *(f"p:{word}" for word in self.parameters),
        }


def find_renames(gone: Sequence[Item], fresh: Sequence[Item]) -> list[tuple[Item, Item]]:
    """Pairs of an approved item that is gone and the new one that replaces it; each item is in one pair at most."""
    if not gone or not fresh:
        return []
    old = dict(enumerate(map(_traits, gone)))
    new = dict(enumerate(map(_traits, fresh)))
    # 1. The same name in other dress, then the same item under another name.
    pairs = _equal_pairs(old, new, lambda traits: traits.bare_name)
    pairs += _equal_pairs(old, new, lambda traits: traits.body)
    # 2. Of those that are left, the most alike.
    index = _index(old)
    scored: list[tuple[float, int, int]] = []
    for number, traits in new.items():
        for candidate in _candidates(traits, index):
            likeness = _likeness(old[candidate], traits)
            if likeness >= _LIKE_ENOUGH:
                scored.append((-likeness, candidate, number))
    pairs += _best_pairs(scored)
    return [(gone[candidate], fresh[number]) for candidate, number in pairs]


def _equal_pairs(
    old: dict[int, _Traits], new: dict[int, _Traits], trait: Callable[[_Traits], str | bytes]
) -> list[tuple[int, int]]:
    """Pairs with an equal trait, taken out of both sides. An empty trait tells nothing."""
    bearers: dict[str | bytes, deque[int]] = {}
    for number, traits in old.items():
        bearers.setdefault(trait(traits), deque()).append(number)
    pairs: list[tuple[int, int]] = []
    for number, traits in list(new.items()):
        alike = bearers.get(trait(traits)) if trait(traits) else None
        if alike:
            pairs.append((alike.popleft(), number))
            del old[pairs[-1][0]], new[number]
    return pairs


def _best_pairs(scored: list[tuple[float, int, int]]) -> list[tuple[int, int]]:
    """The most alike first; whoever is taken is taken."""
    taken_old: set[int] = set()
    taken_new: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for _, candidate, number in sorted(scored):
        if candidate not in taken_old and number not in taken_new:
            taken_old.add(candidate)
            taken_new.add(number)
            pairs.append((candidate, number))
    return pairs


def _index(all_traits: dict[int, _Traits]) -> dict[str, list[int]]:
    index: dict[str, list[int]] = {}
    for number, traits in all_traits.items():
        for mark in traits.marks():
            index.setdefault(mark, []).append(number)
    return index


def _candidates(traits: _Traits, index: dict[str, list[int]]) -> list[int]:
    known = sorted((mark for mark in traits.marks() if mark in index), key=lambda mark: (len(index[mark]), mark))
    votes: dict[int, float] = {}
    for mark in known[:_MAX_LOOKUPS]:
        weight = 1 / len(index[mark])  # a word that few have says more
        for number in index[mark][:_MAX_BEARERS]:
            votes[number] = votes.get(number, 0.0) + weight
    ranked = sorted(votes.items(), key=lambda vote: (-vote[1], vote[0]))
    return [number for number, _ in ranked[:_MAX_CANDIDATES]]


def _likeness(old: _Traits, new: _Traits) -> float:
    """From 0 to 1. Names, descriptions and parameters count by how much they tell; what neither has does not."""
    name = max(_overlap(old.name, new.name), _overlap(old.pieces, new.pieces))
    parts = [(0.4, name)]
    if old.words or new.words:
        parts.append((0.35, _overlap(old.words, new.words)))
    if old.parameters or new.parameters:
        parts.append((0.25, _overlap(old.parameters, new.parameters)))
    return sum(weight * value for weight, value in parts) / sum(weight for weight, _ in parts)


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Dice's coefficient."""
    total = len(one) + len(other)
    return 2 * len(one & other) / total if total else 0.0


def _traits(item: Item) -> _Traits:
    value: dict[str, Any] = item.value
    bare = skeleton(item.key)
    description = value.get("description")
    words = _WORD.findall(description.lower())[:_MAX_WORDS] if isinstance(description, str) else []
    rest = {member: content for member, content in value.items() if member != item.kind.key}
    return _Traits(
        bare_name=bare,
        name=name_words(item.key),
        pieces=frozenset(bare[place : place + _TRIGRAM] for place in range(max(1, len(bare) - _TRIGRAM + 1))),
        words=frozenset(words),
        parameters=_parameters(value),
        body=identity(rest) if len(words) >= _TELLING_WORDS else b"",
    )


def _parameters(value: dict[str, Any]) -> frozenset[str]:
    schema = value.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if isinstance(properties, dict):
        return frozenset(properties)
    arguments = value.get("arguments")
    names = (
        [argument.get("name") for argument in arguments if isinstance(argument, dict)]
        if isinstance(arguments, list)
        else []
    )
    return frozenset(texts_in(names))
