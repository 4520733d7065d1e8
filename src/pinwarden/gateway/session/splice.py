"""Edits of JSON text that leave everything else byte for byte as the sender wrote it.

Functions that take ``place`` expect the offset of the object in ``text``.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_slices import JsonSpan, array_spans, object_spans

Edit = tuple[int, int, str]
"""Start and end offset, and the replacement text."""


def member(text: str, place: int, name: str) -> JsonSpan | None:
    """Find a member of the object; None if it has no member of that name."""
    return next((span for span in object_spans(text, place) if span.name == name), None)


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Apply edits, which must not overlap."""
    pieces: list[str] = []
    offset = 0
    for start, end, replacement in sorted(edits):
        pieces += (text[offset:start], replacement)
        offset = end
    pieces.append(text[offset:])
    return "".join(pieces)


def without_elements(text: str, array: JsonSpan, gone: Container[int]) -> list[Edit]:
    """Return the edits that remove the array elements at the indexes ``gone``."""
    return _without(array_spans(text, array.start), gone, array.start + 1)


def without_members(text: str, place: int, gone: Container[str]) -> list[Edit]:
    """Return the edits that remove the object's members with the names ``gone``."""
    spans = object_spans(text, place)
    indexes = {index for index, span in enumerate(spans) if span.name in gone}
    return _without(spans, indexes, text.index("{", place) + 1)


def _without(spans: Sequence[JsonSpan], gone: Container[int], content_start: int) -> list[Edit]:
    """Remove parts together with the comma before them; at the start of the content, with the comma after them."""
    edits: list[Edit] = []
    end = content_start
    keeps_any = False
    for index, span in enumerate(spans):
        if index not in gone:
            if not keeps_any and index:
                edits.append((content_start, span.name_start, ""))  # everything before the first kept part
            keeps_any = True
        elif keeps_any:
            edits.append((end, span.end, ""))
        end = span.end
    if not keeps_any and spans:
        edits.append((content_start, end, ""))
    return edits


def with_member(text: str, place: int, name: str, value: str) -> Edit:
    """Return the edit that adds a member to the object, which must not have one of that name."""
    content_start = text.index("{", place) + 1
    comma = "," if object_spans(text, place) else ""
    return content_start, content_start, f'"{name}":{value}{comma}'


_BEFORE_ID = frozenset({b"{", b'{"jsonrpc":"2.0",', b'{"jsonrpc": "2.0", '})
_ID = b'"id":'


def replace_id(data: bytes, request_id: int, replacement: int) -> bytes | None:
    """A message with another id, if the id is at the very start or end as usual; otherwise None.

    The message must be well-formed, and have this id. At the end: a quote that no backslash precedes and that is not
    the end of a string begins one, and what the last brace closes is the message itself.
    """
    text = b"%d" % request_id
    start = data.find(_ID)
    if data[:start] in _BEFORE_ID:
        place = start + 6 if data[start + 5 : start + 6] == b" " else start + 5
        end = place + len(text)
        if data[place:end] != text or data[end : end + 1] not in (b",", b"}"):
            return None
        return data[:place] + b"%d" % replacement + data[end:]
    place = len(data) - len(text) - 1
    if data[place:] != text + b"}":
        return None
    before = data[place - 1 : place] == b" "
    start = place - before - 5
    if start < 2 or data[start : start + 5] != _ID or data[start - 1 : start] not in (b",", b" "):
        return None
    return data[:place] + b"%d}" % replacement


def replace_value(data: bytes, path: tuple[str, ...], value: bytes) -> bytes:
    """The message with another value at a path, which must exist. All other bytes stay the same."""
    text = data.decode()
    place = 0
    span = None
    for name in path:
        span = member(text, place, name)
        if span is None:
            raise PinwardenError("JSON_PARSE_ERROR", f"the member {name} is missing")
        place = span.start
    return data if span is None else edited(text, [(span.start, span.end, value.decode())]).encode()
