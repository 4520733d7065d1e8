"""Every string of a JSON value, member names included: what a model or host may come to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from pinwarden.core.json_pointer import escape_pointer_token
from pinwarden.surface.scan.plain_text import HARMLESS, word_set

# What schemas are made of. These strings say nothing of their own, wherever they stand.
VOCABULARY = word_set(
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


_ESCAPES = {b"\\n": b" ", b"\\t": b" ", b'\\"': b"'"}


def pieces_of(value: Any) -> list[str]:
    """Texts of which one holds every phrase that a string of ``value`` holds; and others.

    They are cut from the JSON text of the value, which is made far faster than its strings are collected. One look
    at them can settle that nothing is to be found. Quotes inside them are single ones, and lines one line.
    """
    try:
        data = orjson.dumps(value)
    except (TypeError, ValueError):  # a lone surrogate, a huge integer, too many levels
        return _collected(value)
    escapes = data.count(b"\\")
    if escapes:
        if escapes != sum(map(data.count, _ESCAPES)):
            return _collected(value)
        for escape, character in _ESCAPES.items():
            data = data.replace(escape, character)
    text = data.decode()
    return (text if text.isascii() else text.translate(HARMLESS)).split('"')


def _collected(value: Any) -> list[str]:
    return [text.replace('"', "'").translate(HARMLESS) for _, text in places_of(value)]


def places_of(value: Any, pointer: str = "") -> Iterator[tuple[str, str]]:
    """JSON Pointer and text of the same strings, in the order sent. A member name has the pointer of its member."""
    waiting: list[tuple[str, Any]] = [(pointer, value)]
    while waiting:
        place, here = waiting.pop()
        if type(here) is str:
            if here not in VOCABULARY:
                yield place, here
        elif type(here) is dict:
            inner = [(f"{place}/{escape_pointer_token(name)}", name, member) for name, member in here.items()]
            yield from ((within, name) for within, name, _ in inner if name not in VOCABULARY)
            waiting += [(within, member) for within, _, member in reversed(inner)]
        elif type(here) is list:
            waiting += [(f"{place}/{number}", here[number]) for number in range(len(here) - 1, -1, -1)]
