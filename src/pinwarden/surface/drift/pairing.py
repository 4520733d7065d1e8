"""Match the items of an approved list with the items of the current list, whatever their order.

Also finds renamed items, and names that look like other names.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pinwarden.core.json_values import iter_strings, json_identity
from pinwarden.core.record import Record, field
from pinwarden.core.text import lazy_pattern
from pinwarden.surface.drift.text_signals import split_name_words
from pinwarden.surface.scan.hidden_text import fold_word, parse_words
from pinwarden.surface.surface import RESOURCE, TEMPLATE, Item


class Pairing(Record):
    """The matched items of two lists of one kind."""

    changed: list[tuple[Item, Item]] = field(default_factory=list)
    """Pairs of an approved item and its changed current version."""
    duplicates: list[tuple[Item | None, Item]] = field(default_factory=list)
    """Current items whose name another current item already has, each with the approved item of that name, if any."""
    removed: list[Item] = field(default_factory=list)
    added: list[Item] = field(default_factory=list)
    undigestable: list[tuple[Item | None, Item]] = field(default_factory=list)
    """Current items without a digest, each with the approved item that has the same key, if any."""


def pair_items(before: Sequence[Item], after: Sequence[Item]) -> Pairing:
    """Match items by key, and resources also by name. Among items with the same key, exact copies match first."""
    pairing = Pairing()
    approved, offered = _group_by_key(before), _group_by_key(after)
    for key, items in offered.items():
        if key in approved:
            _pair_group(pairing, approved[key], items)
        else:
            pairing.added.append(items[0])
            pairing.duplicates.extend((None, item) for item in items[1:])
    missing = {key: items for key, items in approved.items() if key not in offered}
    _pair_undigestable(pairing, missing, after)
    pairing.removed.extend(item for items in missing.values() for item in items)
    if pairing.removed and pairing.added and pairing.removed[0].kind in (RESOURCE, TEMPLATE):
        _pair_moved(pairing)
    return pairing


def _group_by_key(items: Iterable[Item]) -> dict[str, list[Item]]:
    groups: dict[str, list[Item]] = {}
    for item in items:
        if item.digest is not None:
            groups.setdefault(item.key, []).append(item)
    return groups


def _pair_group(pairing: Pairing, approved: list[Item], offered: list[Item]) -> None:
    if len(approved) == 1 == len(offered):
        if _get_digest_bytes(approved[0]) != _get_digest_bytes(offered[0]):
            pairing.changed.append((approved[0], offered[0]))
        return
    approved_by_digest: dict[bytes, list[Item]] = {}
    for item in approved:
        approved_by_digest.setdefault(_get_digest_bytes(item), []).append(item)
    copies: list[Item] = []
    remaining: list[Item] = []
    for item in offered:
        exact_copies = approved_by_digest.get(_get_digest_bytes(item))
        if exact_copies:
            exact_copies.pop()
            copies.append(item)
        else:
            remaining.append(item)
    unmatched = [item for items in approved_by_digest.values() for item in items]
    pairs = min(len(unmatched), len(remaining))
    pairing.changed.extend(zip(unmatched[:pairs], remaining[:pairs], strict=True))
    # The order of duplicates decides which one a host calls, so even approved duplicates are reported.
    further = [*copies, *remaining][1:]
    pairing.duplicates.extend((approved[0], item) for item in further)
    pairing.removed.extend(unmatched[pairs:])


def _get_digest_bytes(item: Item) -> bytes:
    return item.digest.raw if item.digest else b""


def _pair_undigestable(pairing: Pairing, missing: dict[str, list[Item]], after: Sequence[Item]) -> None:
    """Match undigestable items by key, so that their approved versions do not count as removed."""
    for item in after:
        if item.digest is None:
            approved = missing.pop(item.key, None) if item.key else None
            pairing.undigestable.append((approved[0] if approved else None, item))


def _pair_moved(pairing: Pairing) -> None:
    """Match resources whose address changed: by name, if the name is unique in both lists."""
    old, new = _index_unique_names(pairing.removed), _index_unique_names(pairing.added)
    moved = old.keys() & new.keys()
    pairing.changed.extend((old[name], new[name]) for name in sorted(moved))
    pairing.removed[:] = [item for item in pairing.removed if item.name not in moved]
    pairing.added[:] = [item for item in pairing.added if item.name not in moved]


def _index_unique_names(items: Iterable[Item]) -> dict[str, Item]:
    by_name: dict[str, list[Item]] = {}
    for item in items:
        by_name.setdefault(item.name, []).append(item)
    return {name: items[0] for name, items in by_name.items() if len(items) == 1}


_MIN_SIMILARITY = 0.6
_MIN_WORDS = 3  # a description with fewer words could belong to many tools
_MAX_WORDS = 60  # only so many words of a description are compared: its first sentences say what a tool does
_MAX_LOOKUPS = 8  # index keys of one new item that are looked up
_MAX_ITEMS_PER_WORD = 16  # approved items that are considered for one index key
_MAX_CANDIDATES = 6  # approved items with which one new item is compared completely
_DESCRIPTION_WORD = re.compile(r"\w{3,}")
_TRIGRAM = 3
_COPIED_SHARE = 0.85  # the similarity of two descriptions from which one counts as a copy of the other


class _Traits(Record):
    """The features by which a renamed item is recognised."""

    skeleton: str
    """The name in the form that `compute_name_skeleton` gives it."""
    name: frozenset[str]
    """The words of the name."""
    trigrams: frozenset[str]
    """The trigrams of the skeleton."""
    words: frozenset[str]
    """The words of the description."""
    parameters: frozenset[str]
    body: bytes
    """The item without its name; empty if the description is too short to identify the item."""

    def list_index_keys(self) -> set[str]:
        """List the index keys of the item. Their prefixes distinguish words of names, descriptions and parameters."""
        return {
            *(f"n:{word}" for word in self.name),
            *(f"w:{word}" for word in self.words),
            *(f"p:{word}" for word in self.parameters),
        }


def find_renames(removed: Sequence[Item], added: Sequence[Item]) -> list[tuple[Item, Item]]:
    """Pair each removed item with the new item that replaces it. An item is in at most one pair."""
    if not removed or not added:
        return []
    old = dict(enumerate(map(_extract_traits, removed)))
    new = dict(enumerate(map(_extract_traits, added)))
    # 1. Pair items with the same name in another notation, then items with the same content under another name.
    pairs = _take_equal_pairs(old, new, lambda traits: traits.skeleton)
    pairs += _take_equal_pairs(old, new, lambda traits: traits.body)
    # 2. Pair the most similar of the remaining items.
    index = _build_index(old)
    scored: list[tuple[float, int, int]] = []
    for position, traits in new.items():
        for candidate in _find_candidates(traits, index):
            similarity = _compute_similarity(old[candidate], traits)
            if similarity >= _MIN_SIMILARITY:
                scored.append((-similarity, candidate, position))
    pairs += _choose_best_pairs(scored)
    return [(removed[candidate], added[position]) for candidate, position in pairs]


def _take_equal_pairs(
    old: dict[int, _Traits], new: dict[int, _Traits], trait: Callable[[_Traits], str | bytes]
) -> list[tuple[int, int]]:
    """Pair the items whose trait is equal, and remove them from both sides. Empty traits do not match."""
    by_trait: dict[str | bytes, deque[int]] = {}
    for position, traits in old.items():
        by_trait.setdefault(trait(traits), deque()).append(position)
    pairs: list[tuple[int, int]] = []
    for position, traits in list(new.items()):
        same_trait = by_trait.get(trait(traits)) if trait(traits) else None
        if same_trait:
            pairs.append((same_trait.popleft(), position))
            del old[pairs[-1][0]], new[position]
    return pairs


def _choose_best_pairs(scored: list[tuple[float, int, int]]) -> list[tuple[int, int]]:
    """Choose pairs, the most similar first, so that each item is in at most one pair."""
    taken_old: set[int] = set()
    taken_new: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for _, candidate, position in sorted(scored):
        if candidate not in taken_old and position not in taken_new:
            taken_old.add(candidate)
            taken_new.add(position)
            pairs.append((candidate, position))
    return pairs


def _build_index(all_traits: dict[int, _Traits]) -> dict[str, list[int]]:
    index: dict[str, list[int]] = {}
    for position, traits in all_traits.items():
        for index_key in traits.list_index_keys():
            index.setdefault(index_key, []).append(position)
    return index


def _find_candidates(traits: _Traits, index: dict[str, list[int]]) -> list[int]:
    known_keys = sorted(
        (index_key for index_key in traits.list_index_keys() if index_key in index),
        key=lambda index_key: (len(index[index_key]), index_key),
    )
    votes: dict[int, float] = {}
    for index_key in known_keys[:_MAX_LOOKUPS]:
        weight = 1 / len(index[index_key])  # rare words count more
        for position in index[index_key][:_MAX_ITEMS_PER_WORD]:
            votes[position] = votes.get(position, 0.0) + weight
    ranked = sorted(votes.items(), key=lambda vote: (-vote[1], vote[0]))
    return [position for position, _ in ranked[:_MAX_CANDIDATES]]


def _compute_similarity(old: _Traits, new: _Traits) -> float:
    """Compute the similarity of two items, from 0 to 1.

    It is the weighted mean for names, descriptions and parameters. Descriptions or parameters that both items lack do
    not count.
    """
    name = max(_compute_dice_coefficient(old.name, new.name), _compute_dice_coefficient(old.trigrams, new.trigrams))
    parts = [(0.4, name)]
    if old.words or new.words:
        parts.append((0.35, _compute_dice_coefficient(old.words, new.words)))
    if old.parameters or new.parameters:
        parts.append((0.25, _compute_dice_coefficient(old.parameters, new.parameters)))
    return sum(weight * value for weight, value in parts) / sum(weight for weight, _ in parts)


def _compute_dice_coefficient(first: frozenset[str], second: frozenset[str]) -> float:
    total = len(first) + len(second)
    return 2 * len(first & second) / total if total else 0.0


def _extract_traits(item: Item) -> _Traits:
    value: dict[str, Any] = item.value
    skeleton = compute_name_skeleton(item.key)
    description = value.get("description")
    words = _DESCRIPTION_WORD.findall(description.lower())[:_MAX_WORDS] if isinstance(description, str) else []
    rest = {member: content for member, content in value.items() if member != item.kind.key}
    return _Traits(
        skeleton=skeleton,
        name=split_name(item.key),
        trigrams=frozenset(skeleton[start : start + _TRIGRAM] for start in range(max(1, len(skeleton) - _TRIGRAM + 1))),
        words=frozenset(words),
        parameters=_list_parameter_names(value),
        body=json_identity(rest) if len(words) >= _MIN_WORDS else b"",
    )


def _list_parameter_names(value: dict[str, Any]) -> frozenset[str]:
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
    return frozenset(iter_strings(names))


_SEPARATORS = lazy_pattern(r"[\s_.\-/:]+")
_DIGITS_LIKE_LETTERS = str.maketrans("01", "ol")


def compute_name_skeleton(name: str) -> str:
    """Reduce a name to what a reader perceives: no case, no separators, plain letters for look-alike ones."""
    return _SEPARATORS.sub("", fold_word(name)).translate(_DIGITS_LIKE_LETTERS)


def find_look_alike_names(added: Iterable[str], present: Iterable[str]) -> dict[str, str]:
    """Map each ``added`` name to a ``present`` name that looks the same but is another name."""
    suspects = {name: compute_name_skeleton(name) for name in added}
    if not suspects:
        return {}
    wanted = set(suspects.values())
    by_skeleton: dict[str, list[str]] = {}
    for name in present:
        skeleton = compute_name_skeleton(name)
        if skeleton in wanted:
            by_skeleton.setdefault(skeleton, []).append(name)
    look_alikes: dict[str, str] = {}
    for name, skeleton in suspects.items():
        others = [other for other in by_skeleton.get(skeleton, ()) if other != name]
        if others:
            look_alikes[name] = min(others)
    return look_alikes


# Words that claim to be the better, newer or real version of something, and do not say what else a tool does.
_QUALIFIERS = parse_words(
    "new newer latest next safe safer secure secured trusted verified official real true better best improved enhanced "
    "smart fast faster quick pro plus premium ultra super proxy wrapper wrapped wrap fixed patched updated modern "
    "direct default primary main preferred recommended v"
)


def find_wrapped_names(added: Iterable[Item], approved: Iterable[Item]) -> dict[str, str]:
    """Map the key of each added item to an approved name that it wraps, as in ``secure_read_file``.

    The words around the approved name only praise it, or the description is that of the approved item.
    """
    by_words = {split_name(item.key): item for item in approved}
    wrapped: dict[str, str] = {}
    for item in added:
        words = split_name(item.key)
        plain = frozenset(word for word in words if word not in _QUALIFIERS)
        other = by_words.get(plain) if plain and plain != words else None
        if other is None:
            other = by_words.get(frozenset(word for word in plain if not word.isdigit()))
            other = other if other is not None and _mentions(item, other.key) else None
        if other is None and len(words) > 1:
            others = ((word, by_words.get(words - {word})) for word in words)
            other = next((one for word, one in others if one is not None and _is_copy(item, one, word)), None)
        if other is not None and other.key != item.key:
            wrapped[item.key] = other.key
    return wrapped


def _mentions(item: Item, name: str) -> bool:
    description = item.value.get("description")
    return isinstance(description, str) and name in description


def _is_copy(item: Item, other: Item, added_word: str) -> bool:
    """Whether an item has the description of another one, although its name has another word.

    A description that has the word too, such as "Create an issue comment", says that the item is for another thing.
    """
    first, second = _extract_traits(item).words, _extract_traits(other).words
    if added_word in first - second:
        return False
    return len(first | second) >= _MIN_WORDS and _compute_dice_coefficient(first, second) >= _COPIED_SHARE


def split_name(name: str) -> frozenset[str]:
    """Return the set of words of a name."""
    return frozenset(split_name_words(name))
