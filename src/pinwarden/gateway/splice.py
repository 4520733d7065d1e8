"""Taking parts out of a message, or putting others in their place, without touching the bytes around them.

Messages are changed as text, at places that were found in it. What is not changed is passed on as the server wrote it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from pinwarden.core.json_slices import JsonSpan, array_spans, object_spans

Edit = tuple[int, int, str]
"""From a character to another, and what stands there instead."""


def member(text: str, place: int, name: str) -> JsonSpan | None:
    """Where a member of the object at a place stands; None if it has none of that name."""
    return next((span for span in object_spans(text, place) if span.name == name), None)


def edited(text: str, edits: Sequence[Edit]) -> str:
    """The text with all edits made; they must not overlap."""
    pieces: list[str] = []
    reached = 0
    for start, end, instead in sorted(edits):
        pieces += (text[reached:start], instead)
        reached = end
    pieces.append(text[reached:])
    return "".join(pieces)


def without_elements(text: str, array: JsonSpan, gone: Container[int]) -> list[Edit]:
    """What it takes to remove the elements of an array that have these numbers."""
    return _without(array_spans(text, array.start), gone, array.start + 1)


def without_members(text: str, place: int, gone: Container[str]) -> list[Edit]:
    """What it takes to remove the members of these names from the object at a place."""
    spans = object_spans(text, place)
    numbers = {number for number, span in enumerate(spans) if span.name in gone}
    return _without(spans, numbers, text.index("{", place) + 1)


def _without(spans: Sequence[JsonSpan], gone: Container[int], opened: int) -> list[Edit]:
    """Each part goes with the comma before it; if none before it stays, with the comma after it."""
    edits: list[Edit] = []
    end = opened
    kept = False
    for number, span in enumerate(spans):
        if number not in gone:
            if not kept and number:
                edits.append((opened, span.name_start, ""))  # everything before the first that stays
            kept = True
        elif kept:
            edits.append((end, span.end, ""))
        end = span.end
    if not kept and spans:
        edits.append((opened, end, ""))
    return edits


def with_member(text: str, place: int, name: str, value: str) -> Edit:
    """What it takes to add a member to the object at a place, which has none of that name."""
    opened = text.index("{", place) + 1
    comma = "," if object_spans(text, place) else ""
    return opened, opened, f'"{name}":{value}{comma}'
