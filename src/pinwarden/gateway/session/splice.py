"""Edits of JSON text that leave all other bytes as the sender wrote them.

Functions that take ``offset`` expect the offset of the object in ``text``.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_slices import JsonSpan, find_array_spans, find_object_spans

Edit = tuple[int, int, str]
"""An edit of a text: start and end offset, and the replacement."""


def find_member(text: str, offset: int, name: str) -> JsonSpan | None:
    """Find a member of the object; None if it has no member of that name."""
    return next((span for span in find_object_spans(text, offset) if span.name == name), None)


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Apply edits to a text. The edits must not overlap."""
    pieces: list[str] = []
    offset = 0
    for start, end, replacement in sorted(edits):
        pieces += (text[offset:start], replacement)
        offset = end
    pieces.append(text[offset:])
    return "".join(pieces)


def build_element_removals(text: str, array: JsonSpan, removed: Container[int]) -> list[Edit]:
    """Return the edits that remove the array elements at these indexes."""
    return _build_removals(find_array_spans(text, array.start), removed, array.start + 1)


def build_member_removals(text: str, offset: int, removed: Container[str]) -> list[Edit]:
    """Return the edits that remove the object's members with these names."""
    spans = find_object_spans(text, offset)
    indexes = {index for index, span in enumerate(spans) if span.name in removed}
    return _build_removals(spans, indexes, text.index("{", offset) + 1)


def _build_removals(spans: Sequence[JsonSpan], removed: Container[int], content_start: int) -> list[Edit]:
    """Return edits that remove members or elements with the preceding comma; at the start, with the following one."""
    edits: list[Edit] = []
    end = content_start
    keeps_any = False
    for index, span in enumerate(spans):
        if index not in removed:
            if not keeps_any and index:
                edits.append((content_start, span.name_start, ""))  # all removed spans before the first one that stays
            keeps_any = True
        elif keeps_any:
            edits.append((end, span.end, ""))
        end = span.end
    if not keeps_any and spans:
        edits.append((content_start, end, ""))
    return edits


def build_member_insertion(text: str, offset: int, name: str, value: str) -> Edit:
    """Return the edit that adds a member at the start of the object. The object must not have a member of that name."""
    content_start = text.index("{", offset) + 1
    comma = "," if find_object_spans(text, offset) else ""
    return content_start, content_start, f'"{name}":{value}{comma}'


_BEFORE_ID = frozenset({b"{", b'{"jsonrpc":"2.0",', b'{"jsonrpc": "2.0", '})
_ID = b'"id":'


def replace_id(data: bytes, request_id: int, replacement: int) -> bytes | None:
    """Replace the id of a message, if the id is at the start or the end, as usual; otherwise return None.

    The message must be well-formed and have this id. At the end of a message, the quote before ``id`` can only begin a
    member name, and the last brace closes the message itself.
    """
    text = b"%d" % request_id
    start = data.find(_ID)
    if data[:start] in _BEFORE_ID:
        offset = start + 6 if data[start + 5 : start + 6] == b" " else start + 5
        end = offset + len(text)
        if data[offset:end] != text or data[end : end + 1] not in (b",", b"}"):
            return None
        return data[:offset] + b"%d" % replacement + data[end:]
    offset = len(data) - len(text) - 1
    if data[offset:] != text + b"}":
        return None
    has_space = data[offset - 1 : offset] == b" "
    start = offset - has_space - 5
    if start < 2 or data[start : start + 5] != _ID or data[start - 1 : start] not in (b",", b" "):
        return None
    return data[:offset] + b"%d}" % replacement


def replace_value(data: bytes, path: tuple[str, ...], value: bytes) -> bytes:
    """Replace the value at a path of a message. Raises ``JSON_PARSE_ERROR`` if the path does not exist."""
    text = data.decode()
    offset = 0
    span = None
    for name in path:
        span = find_member(text, offset, name)
        if span is None:
            raise PinwardenError("JSON_PARSE_ERROR", f"the message has no member {name}")
        offset = span.start
    return data if span is None else apply_edits(text, [(span.start, span.end, value.decode())]).encode()
