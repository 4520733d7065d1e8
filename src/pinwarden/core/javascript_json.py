"""JSON text exactly as ``JSON.stringify(value, null, 2)`` writes it, for files that ToolPin writes too.

Members keep their order, except that names which are array indexes come first, as in every JavaScript object.
Text is raw UTF-8, not our own files' spelling of invisible characters: one escape more and the files would differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.core.canonical import encode_plain
from pinwarden.core.errors import PinwardenError
from pinwarden.core.numbers import ecmascript_number
from pinwarden.core.patterns import pattern

_INDEX_NAME = pattern(rb'\n *"(?:0|[1-9][0-9]{0,9})": ')  # no string holds a raw line feed, so this is a name
_MAX_INDEX = 2**32 - 2


def to_javascript_file(value: Any) -> bytes:
    """The text of a file: two spaces, a final line feed."""
    if encode_plain(value) is not None:  # no floating-point numbers: orjson writes the same bytes
        import orjson

        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        if not _INDEX_NAME.search(text):
            return text
    return ("".join(_pieces(value, "\n")) + "\n").encode("utf-8", "backslashreplace")  # a lone surrogate is escaped


def _pieces(value: Any, newline: str) -> list[str]:
    from json.encoder import encode_basestring

    if isinstance(value, str):
        return [encode_basestring(value)]
    if value is None:
        return ["null"]
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, int | float):
        return [_number(value)]
    inner = newline + "  "
    pieces: list[str] = []
    if isinstance(value, dict):
        for name, member in property_order(value):
            pieces += [",", inner, encode_basestring(name), ": ", *_pieces(member, inner)]
        return ["{", *pieces[1:], newline, "}"] if pieces else ["{}"]
    if isinstance(value, list | tuple):
        for element in value:
            pieces += [",", inner, *_pieces(element, inner)]
        return ["[", *pieces[1:], newline, "]"] if pieces else ["[]"]
    raise PinwardenError("JSON_CANONICALIZATION_ERROR", f"{type(value).__name__} is not a JSON value")


def _number(value: float) -> str:
    try:
        return ecmascript_number(float(value))
    except (OverflowError, ValueError):  # JavaScript has no such number
        return "null"


def property_order(value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The members of an object in the order in which JavaScript lists them: array indexes first, by number."""
    indexes = {name: int(name) for name in value if _is_index(name)}
    if not indexes:
        return list(value.items())
    first = sorted(indexes, key=indexes.__getitem__)
    return [(name, value[name]) for name in (*first, *(name for name in value if name not in indexes))]


def _is_index(name: str) -> bool:
    plain = name.isascii() and name.isdigit() and len(name) <= 10 and (name == "0" or name[0] != "0")
    return plain and int(name) <= _MAX_INDEX
