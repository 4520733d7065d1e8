"""Edits of JSON text that leave everything else byte for byte as the sender wrote it.

Functions that take ``place`` expect the offset of the object in ``text``.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

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
