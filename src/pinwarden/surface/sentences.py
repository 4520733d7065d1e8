"""Split the text of a server into sentences.

A sentence is the unit of review: a person approved each of them, and only new ones have to be read again. Ends of lines
and list items end a sentence, because a phrase does not continue from one list item into the next. Sentences are
compared in a normalised form, so that other spaces, punctuation marks or letter case do not make a sentence new.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from unicodedata import normalize

from pinwarden.core.json_values import escape_pointer_token
from pinwarden.core.text import INVISIBLE
from pinwarden.surface.scan.hidden_text import parse_words

MAX_SENTENCE = 2_000
"""The maximum number of characters of a sentence. Longer text without an end is split at a space."""

# Keywords and values of JSON Schema and MCP, which are harmless by themselves.
VOCABULARY = parse_words(
    "type description title name properties required items enum const default examples additionalProperties "
    "inputSchema outputSchema annotations readOnlyHint destructiveHint idempotentHint openWorldHint minimum maximum "
    "exclusiveMinimum exclusiveMaximum minLength maxLength minItems maxItems pattern format anyOf oneOf allOf not "
    "$schema $ref $defs definitions patternProperties propertyNames additionalItems uniqueItems multipleOf nullable "
    "arguments uri uriTemplate mimeType _meta icons src sizes theme execution taskSupport string number integer "
    "boolean object array null"
) | {
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
}


class SplitSentence(NamedTuple):
    """The position of a sentence in a text, and its normalised form."""

    start: int
    end: int
    normalised: str


def walk_strings(value: Any, pointer: str = "") -> Iterator[tuple[str, str]]:
    """Yield the JSON Pointer and text of every string that is not in ``VOCABULARY``.

    Member names are included, with the pointer of the member.
    """
    pending: list[tuple[str, Any]] = [(pointer, value)]
    while pending:
        location, current = pending.pop()
        if type(current) is str:
            if current not in VOCABULARY:
                yield location, current
        elif isinstance(current, Mapping):
            inner = [(f"{location}/{escape_pointer_token(name)}", name, member) for name, member in current.items()]
            yield from ((inner_pointer, name) for inner_pointer, name, _ in inner if name not in VOCABULARY)
            pending += [(inner_pointer, member) for inner_pointer, _, member in reversed(inner)]
        elif type(current) is list:
            pending += [(f"{location}/{index}", current[index]) for index in range(len(current) - 1, -1, -1)]


_LIST_ITEM = re.compile(r"[-*+>|#=~\u2022\u2023\u25aa\u25cf\u2219\u00b7\u2013\u2014]|\(?(?:\d{1,3}|[a-zA-Z])[.)][ \t]")
# A mark with a space after it, so not within an address or a number; marks of other scripts; a list on one line.
_SENTENCE_END = re.compile(
    r"(?<![.!?\u2026])[.!?\u2026]+[\"'`*_)\]}\u2019\u201d\u00bb]{0,4}(?=\s)"
    r"|[\u3002\uff01\uff1f\uff61\u0964\u0965\u061f\u06d4]+[\u300d\u300f\u201d\u2019\"')]{0,2}"
    r"|[ \t][\u2022\u25aa\u25cf][ \t]"
)
_LAST_WORD = re.compile(r"[^\s(\[{\"'`*]*$")
_ABBREVIATIONS = parse_words(
    "e.g i.e etc vs cf approx resp incl excl max min no nr fig eq sec st dr mr mrs ms inc ltd corp dept est al "
    "z.b d.h bzw ca p.ej ej par ex"
)
_MIN_WRAPPED_LINE = 40  # only a line of this length can continue on the next line


def split_sentences(text: str) -> tuple[SplitSentence, ...]:
    """Split a text into its sentences, without the spaces around them. Takes time linear in the length of the text."""
    return _split_cached(text) if len(text) <= _MAX_CACHED_TEXT else tuple(_iter_sentences(text))


def _iter_sentences(text: str) -> Iterator[SplitSentence]:
    for start, end in _find_spans(text):
        normalised = normalise(text[start:end])
        if normalised:
            yield SplitSentence(start, end, normalised)


_MAX_CACHED_TEXT = 4_096
_split_cached = lru_cache(maxsize=4_096)(lambda text: tuple(_iter_sentences(text)))


def _find_spans(text: str) -> Iterator[tuple[int, int]]:
    for first, last in _join_wrapped_lines(text):
        start = first
        for match in _SENTENCE_END.finditer(text, first, last):
            if not _is_abbreviation(text, start, match):
                yield from _cut_span(text, start, match.end())
                start = match.end()
        yield from _cut_span(text, start, last)


def _cut_span(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the span without the spaces around it, in several parts if it is too long."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    while end - start > MAX_SENTENCE:
        cut = text.rfind(" ", start + MAX_SENTENCE // 2, start + MAX_SENTENCE) + 1 or start + MAX_SENTENCE
        yield start, cut
        start = cut
    if start < end:
        yield start, end


def _join_wrapped_lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each line. A long line that continues in lower case is joined with the line after it."""
    position = first = last = 0
    line = ""
    for part in text.splitlines(keepends=True):
        following = part.strip()
        if not (line and following and _continues(line, following)):
            if first < last:
                yield first, last
            first = position
        position += len(part)
        last, line = position, following
    if first < last:
        yield first, last


def _continues(line: str, following: str) -> bool:
    return (
        len(line) >= _MIN_WRAPPED_LINE
        and following[0].islower()
        and line[-1] not in ".!?:;|}>"
        and _LIST_ITEM.match(following) is None
        and not line.startswith(("#", "|"))
    )


def _is_abbreviation(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether the full stop belongs to an abbreviation or to the number of a list item."""
    if match[0] == ".)":
        return text[match.end() + 1 : match.end() + 2].islower()
    if match[0] != ".":
        return False
    last_word = _LAST_WORD.search(text, max(start, match.start() - 12), match.start())
    word = last_word[0].casefold() if last_word else ""
    if len(word) == 1 and word.isalpha():
        return True
    if word in _ABBREVIATIONS:
        return not (word == "etc" and text[match.end() + 1 : match.end() + 2].isupper())
    return word.isdigit() and len(word) <= 3 and not text[start : match.start() - len(word)].strip()


_EDGE_PUNCTUATION = (
    ".,;:!?'\"`*_()[]{}|#\u2026\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u2022\u25aa\u25cf\u00b7"
    "\u3001\u3002\u300c\u300d\u300e\u300f\u3010\u3011\u0964\u061f\u060c\u06d4\u2190\u2192"
)
_DASHES = frozenset("-\u2010\u2011\u2012\u2013\u2014\u2015")


def normalise(text: str, *, keep_case: bool = False) -> str:
    """Return the form in which sentences are compared.

    Unicode compatibility forms are replaced (NFKC). Letter case, invisible characters, spaces and the punctuation at
    the edges of words do not count. Punctuation within a word does, as in an address, a path or a number.
    """
    if not text.isascii():
        text = INVISIBLE.sub(_keep_space, normalize("NFKC", text))
    words = (word.strip(_EDGE_PUNCTUATION) for word in (text if keep_case else text.casefold()).split())
    return " ".join(word for word in words if word and word not in _DASHES)


def _keep_space(match: re.Match[str]) -> str:
    return " " if match[0].isspace() else ""
