"""Find sentences that lost a safeguard or now say the opposite of an approved sentence.

Only function words decide: negations, restrictions, quantifiers, pairs of opposites, and words of caution. The rest of
the sentence must be nearly the same, so that a new subject never counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from pinwarden.core.record import Record
from pinwarden.surface.scan.hidden_text import parse_words

_WORD = re.compile(r"[^\s,;:()\[\]{}\"`*]+")
_MAX_COMPARED = 40  # sentences that left a text, with which a new sentence is compared
_MAX_SHORT_SENTENCE = 16
_MIN_WORDS = 2  # content words of a sentence that can be recognised as the same

_NEGATIONS = parse_words(
    "not no never none nothing neither nor without cannot can't don't doesn't didn't won't isn't aren't wasn't mustn't "
    "shouldn't needn't nowhere dont cant wont avoid refuse refuses"
)
_RESTRICTIONS = parse_words("only solely exclusively unless except until")
_QUANTIFIERS = parse_words("all any every each some one single selected specific given both either whole entire")
_FILLERS = parse_words(
    "a an the do does did be is are was were been will would can could to of that it its this these from in on at for"
)
_CAUTION = parse_words(
    "read-only readonly confirm confirms confirmed confirmation permission permissions approval approve approved "
    "consent explicit explicitly sandbox sandboxed restricted restrict restricts limited allowed allowlist authorized "
    "dry-run dryrun preview backup irreversible permanent permanently warning caution careful carefully destructive "
    "dangerous validated validate validates sanitize sanitized verify verified redacted masked must require requires "
    "required ask asks prompt trusted local locally"
)
"""Words of caution. A sentence with one of them may be a safeguard."""
_STRONG_CAUTION = parse_words(
    "confirm confirms confirmed confirmation consent read-only readonly irreversible undone permanently destructive "
    "dangerous sandbox sandboxed never"
)
_UNIVERSAL = parse_words("all any every everything anything anyone everyone whatever unrestricted unlimited arbitrary")
_GUARDS = _NEGATIONS | _RESTRICTIONS | _QUANTIFIERS | _CAUTION
# Words of which each pair or group says the opposite of each other. The first member stands for the group.
_OPPOSITES = tuple(
    map(
        str.split,
        (
            "before after",
            "with without",
            "enabled disabled",
            "enable disable",
            "enables disables",
            "allow deny forbid block",
            "allows denies forbids blocks",
            "allowed denied forbidden blocked",
            "include exclude omit skip",
            "includes excludes omits skips",
            "included excluded omitted skipped",
            "inside outside",
            "within beyond",
            "true false",
            "public private",
            "local remote",
            "optional required mandatory",
            "safe unsafe",
            "keep delete discard",
            "keeps deletes discards",
            "read-only writable",
            "reversible irreversible",
            "minimum maximum",
            "accept reject",
            "accepts rejects",
            "requires ignores bypasses skips",
            "require ignore bypass skip",
            "preserves overwrites",
            "preserve overwrite",
            "encrypted unencrypted",
            "trusted untrusted",
            "manual automatic",
            "manually automatically",
            "ask assume",
            "asks assumes",
            "must may",
        ),
    )
)
_OPPOSITE_GROUP = {word: group[0] for group in _OPPOSITES for word in group}


class _Sentence(Record):
    """The words of a sentence by what they do."""

    words: tuple[str, ...]
    content: Counter[str]
    negations: int
    guards: int
    """How many restrictions and words of caution it has."""
    quantifiers: Counter[str]
    opposites: Counter[str]

    @classmethod
    def parse(cls, sentence: str) -> _Sentence:
        """Sort the words of a normalised sentence."""
        words = [word.strip("'.!?") for word in _WORD.findall(sentence)]
        return cls(
            words=tuple(words),
            content=Counter(
                _stem(word)
                for word in words
                if word not in _FILLERS and word not in _GUARDS and word not in _OPPOSITE_GROUP
            ),
            negations=sum(word in _NEGATIONS for word in words),
            guards=sum(word in _RESTRICTIONS or word in _CAUTION for word in words),
            quantifiers=Counter(word for word in words if word in _QUANTIFIERS),
            opposites=Counter(word for word in words if word in _OPPOSITE_GROUP),
        )


def is_reversed(sentence: str, gone: Sequence[str], *, widens: bool = False) -> bool:
    """Whether a new sentence says the opposite of one that is gone, or lost its safeguard, and is otherwise the same.

    All sentences are normalised. With ``widens``, a sentence that only lost words counts as well: a tool that deletes
    "all cached files" must not start to delete "all files".
    """
    new = _Sentence.parse(sentence)
    for other in gone[:_MAX_COMPARED]:
        old = _Sentence.parse(other)
        if new.content.total() >= _MIN_WORDS and _is_opposite(new, old):
            return True
        if _lifts_restriction(new, old) or (widens and _is_shortened(new, old)):
            return True
    return False


def _lifts_restriction(new: _Sentence, old: _Sentence) -> bool:
    """Whether two sentences begin or end alike, and one that had a restriction now says "all" or "any"."""
    universal = _UNIVERSAL.intersection(new.words) - _UNIVERSAL.intersection(old.words)
    is_short = max(len(new.words), len(old.words)) <= _MAX_SHORT_SENTENCE
    shorter = min(new.content.total(), old.content.total())
    is_alike = (new.content & old.content).total() * 2 >= max(shorter, 2)
    return bool(universal) and is_short and is_alike and new.guards < old.guards


def _is_shortened(new: _Sentence, old: _Sentence) -> bool:
    remaining = iter(old.words)
    is_part = 1 < len(new.words) < len(old.words) and all(word in remaining for word in new.words)
    return is_part and (new.guards < old.guards or not _UNIVERSAL.isdisjoint(new.words))


def lost_safeguard(gone: Sequence[str], added: Sequence[str], kept: int) -> bool:
    """Whether the only change of a text is that a sentence of caution is gone."""
    if added or not kept or len(gone) > 2:
        return False
    return any(not _STRONG_CAUTION.isdisjoint(_WORD.findall(sentence)) for sentence in gone)


def _is_opposite(new: _Sentence, old: _Sentence) -> bool:
    difference = (new.content - old.content).total() + (old.content - new.content).total()
    if difference > max(new.content.total(), old.content.total()) // 4:
        return False
    if new.negations % 2 != old.negations % 2 or new.guards < old.guards:
        return True
    if bool(_UNIVERSAL.intersection(new.quantifiers)) > bool(_UNIVERSAL.intersection(old.quantifiers)):
        return bool(old.quantifiers)  # one or a given thing became all
    groups = [Counter(_OPPOSITE_GROUP[word] for word in side.elements()) for side in (new.opposites, old.opposites)]
    return new.opposites != old.opposites and groups[0] == groups[1]


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending).rstrip("e")
    return word.rstrip("e") if len(word) > 3 else word
