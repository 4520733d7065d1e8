"""A classifier for sentences: does this sentence try to steer the model, or does it describe the item?

The classifier is a linear model over the words, pairs of words and roles of a sentence (`sentence_features.py`).
`tools/train_classifier.py` writes its weights, ``classifier.weights``. docs/model-card.md describes the data, the
results and the limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from math import inf
from pkgutil import get_data
from typing import NamedTuple

from pinwarden.core.record import Record
from pinwarden.surface.scan.hidden_text import PLAIN_PUNCTUATION, fold_text
from pinwarden.surface.scan.sentence_features import extract_features
from pinwarden.surface.sentences import split_sentences

_MIN_LENGTH = 8  # no shorter sentence or name can be an order
_MAX_WORDS = 3  # how many words a reason quotes
_MAX_FILLER = 3  # words of up to this length, such as "the", explain nothing

# What a sentence tries to make the model do, and the roles that show it. A role counts in pairs with another one.
_INTENTS: tuple[tuple[str, str], ...] = (
    ("hand over private data", "put read secret conversation personal entire"),
    ("send data somewhere else", "send outside link email"),
    ("hide something from the user", "tell hide not"),
    ("act without asking the user", "ask already not"),
    ("ignore instructions or limits that it was given", "ignore rules priority persona"),
    ("call a tool that the user did not ask for", "call tool identifier before after always"),
    ("prefer this tool over others", "prefer disparage other tool"),
    ("change what the user asked for", "replace money"),
    ("delete or disable something", "destroy"),
    ("run a command", "command"),
    ("keep orders for later sessions", "persist"),
    ("obey text that a tool returns", "result"),
    ("take the text for a message of the user or the system", "system user model"),
    ("do what suits the publisher", "promote norm"),
)


class SteeringSentence(Record):
    """A sentence that tries to steer the model. ``start`` and ``end`` are positions in its text."""

    start: int
    end: int
    message: str
    """What the sentence tries to make the model do, and the words that show it most."""


class _Model(NamedTuple):
    bias: int
    threshold: int
    support: int
    step: float
    """The unit of weights and thresholds, in log-odds."""
    weights: Mapping[str, int]


def find_steering(text: str) -> tuple[SteeringSentence, ...]:
    """Find the sentences of a text that try to steer the model."""
    if len(text) < _MIN_LENGTH:
        return ()
    plain = _to_plain(text)
    return tuple(
        SteeringSentence(start=start, end=end, message=message)
        for start, end, _ in split_sentences(plain)
        if (message := _judge(plain[start:end]))
    )


@lru_cache(maxsize=32_768)  # schemas repeat many sentences, and a gateway sees the same lists again
def _judge(sentence: str) -> str:
    """Return what a sentence tries to make the model do; empty if it describes the item."""
    model = _load()
    features = _extract(sentence)
    return _describe(features, model.weights) if _score(features, model) >= model.threshold else ""


@lru_cache(maxsize=4_096)
def measure_steering(sentence: str) -> float:
    """Return the log-odds that a sentence steers the model, relative to what the scan needs for a warning."""
    if len(sentence) < _MIN_LENGTH:
        return -inf
    model = _load()
    return (_score(_extract(_undo_disguise(_to_plain(sentence))), model) - model.threshold) * model.step


def supports_phrase(text: str, start: int, end: int) -> bool:
    """Whether a suspicious phrase is in a sentence that could steer the model. A phrase alone is no evidence."""
    plain = _to_plain(text)
    model = _load()
    return any(
        _score(_extract(_undo_disguise(plain[first:last])), model) >= model.support
        for first, last, _ in split_sentences(plain)
        if first < end and start < last
    )


def _to_plain(text: str) -> str:
    """Replace quotation marks and typographic punctuation, as `scan.extract_texts` does."""
    plain = text.replace('"', "'")
    return plain if plain.isascii() else plain.translate(PLAIN_PUNCTUATION)


def _undo_disguise(sentence: str) -> str:
    return sentence if sentence.isascii() else fold_text(sentence).text


# Base64, as in an image of a data: URL. The rules of `hidden_text.py` decode it; as words it means nothing.
_ENCODED = re.compile(r"[A-Za-z0-9+/=]{80,}")


def _extract(sentence: str) -> set[str]:
    return extract_features(sentence if len(sentence) < _MIN_ENCODED else _ENCODED.sub(" ", sentence))


_MIN_ENCODED = 80


def _score(features: set[str], model: _Model) -> int:
    return model.bias + sum([model.weights.get(feature, 0) for feature in features])


@cache
def _load() -> _Model:
    import orjson  # a ci without new text to judge does not load it

    document = orjson.loads(get_data(__package__, "classifier.weights") or b"")
    return _Model(**{name: document[name] for name in _Model._fields})


def _describe(features: set[str], weights: Mapping[str, int]) -> str:
    """Say what a sentence tries to make the model do, from the features with the largest weights."""
    evidence: dict[str, int] = {}
    words: list[tuple[int, str]] = []
    for feature in features:
        weight = weights.get(feature, 0)
        roles = feature.replace(">", "+").split("+") if " " not in feature and feature[0] not in "=^<" else []
        if len(roles) == 2:
            for role in roles:
                evidence[role] = evidence.get(role, 0) + weight
        elif weight > 0 and len(feature) > _MAX_FILLER and feature.isalpha():
            words.append((-weight, feature))
    intent = max(_INTENTS, key=lambda intent: sum(evidence.get(role, 0) for role in intent[1].split()))[0]
    reasons = ", ".join(word for _, word in sorted(words)[:_MAX_WORDS])
    return f"tries to make the model {intent}" + (f" (words: {reasons})" if reasons else "")
