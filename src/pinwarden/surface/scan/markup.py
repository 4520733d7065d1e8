"""What markup does behind a reader's back: text that no page shows, and addresses that carry data away."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pinwarden.core.lazy_regex import pattern

_UNSEEN = pattern(
    r"<\w{1,16}\b[^<>]{0,200}(?:display ?: ?none|visibility ?: ?hidden|font-size ?: ?0|opacity ?: ?0(?![.\d]*[1-9])"
    r"|color ?: ?(?:transparent|white|#fff)\b|\bhidden\b)[^<>]{0,200}>([^<]{12,2000})",
    re.IGNORECASE,
)
_WORD = pattern(r"[^\W\d_]{2,}")
_FEWEST_WORDS = 4
# Comments are for whoever writes the text. One that is for whoever reads it speaks to somebody, or about the user.
_SPEAKS_TO = pattern(
    r"\b(?:assistants?|ai(?: agents?)?|agents?|llms?|chatbots?|you must|your|user's|do not tell|secretly|silently"
    r"|instructions?)\b",
    re.IGNORECASE,
)
# A placeholder in an address that is to be filled with what was said, or with a secret of a named owner.
_FILLED_ADDRESS = pattern(
    r"\b(?:https?|wss?|ftp)://[^\s'\"`<>{}$]{3,200}?(?:[{<$]|%7b)[^}>]{0,60}?(?:conversation|history|chat|transcript"
    r"|cookie|password|passwd|credential|system[ _-]?prompt|messages?\b|env\b|environ|(?:github|aws|openai|anthropic"
    r"|slack|npm|google|azure|session|user)[ _-]?\w{0,16}(?:token|secret|key)|secret|clipboard|user[ '_-]{0,2}s?[ _-]?"
    r"(?:data|e-?mail|input|query))",
    re.IGNORECASE,
)
_QUERY = pattern(r"[?&#;=]")


def unseen_text(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of text in comments and in elements that are styled away."""
    for start, end in _comments(text):
        content = text[start + 4 : end]
        if _SPEAKS_TO.search(content) and _says_something(content):
            yield start, end
    for found in _UNSEEN.finditer(text):
        if _says_something(found[1]):
            yield found.span()


def _comments(text: str) -> Iterator[tuple[int, int]]:
    """Where comments stand; one without an end hides all the rest."""
    start = text.find("<!--")
    while start >= 0:
        end = text.find("-->", start + 4)
        yield start, end + 3 if end >= 0 else len(text)
        start = text.find("<!--", end) if end >= 0 else -1


def filled_addresses(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of addresses whose query is to be filled with something private."""
    for found in _FILLED_ADDRESS.finditer(text):
        if _QUERY.search(found[0]):
            yield found.span()


def _says_something(content: str) -> bool:
    return len(_WORD.findall(content)) >= _FEWEST_WORDS
