"""Strict JSON parsing, which refuses every text that two parsers could read differently.

``parse_json`` is the strict parser. It runs jiter, which is fast and refuses repeated members, and then refuses very
long numbers and numbers that overflow to infinity. If jiter fails or a check is unsure, ``_parse_exactly`` decides with
the parser of the standard library, which is slower. ``parse_last_wins`` parses like JavaScript or Python, for digests
of other tools that are computed over such a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any, NoReturn

import jiter
import libipld

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record


class Limits(Record):
    """Limits on the size and structure of one JSON text."""

    max_bytes: int = 32 * 1024 * 1024
    """The largest tool list we know is below 1 MiB. Parsing 32 MiB takes well under a second."""

    max_depth: int = 200
    """Levels of nested objects and arrays. Real schemas have fewer than 30, and encoders stop at 254."""

    max_digits: int = 1000
    """Longest run of digits in a number. Converting digits to an integer takes quadratic time."""

    max_values: int = 8_000_000
    """Estimated memory of all values in units of 64 bytes: a comma or colon counts 1, an array 2, an object 5. A parsed
    text needs at most 512 MiB in addition to its strings. Real tool lists stay below 200,000 units. Texts of at most
    64 KiB, or with fewer bytes than this limit, are not counted, because they cannot exceed it."""


DEFAULT_LIMITS = Limits()


JITER_DEPTH = 200  # jiter's maximum depth; an empty array or object can be one level deeper
SHORT_TEXT_BYTES = 2 * JITER_DEPTH
"""A text of at most this many bytes cannot exceed the limits on nesting and on the length of numbers."""

# Maps digits to 0 and E to e, so that a substring search finds long numbers and, without plus signs, large exponents.
_DIGITS_TO_ZERO = bytes.maketrans(b"0123456789E", b"0000000000e")
# A double overflows at 309 digits. With fewer than 209 digits, it overflows only with a three-digit exponent.
_LONG_NUMBER = 209
_LONG_RUN = b"0" * _LONG_NUMBER
_SMALL_TEXT = 1 << 16  # a text of at most this many bytes cannot have too many values
_PIECE_BYTES = 1 << 16
# Above this number of members, encoding the value is faster than jiter's search for repeated members.
_MANY_MEMBERS = 50_000
_from_json = jiter.from_json


def parse_json(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Any:
    """Parse strict JSON: UTF-8 without byte order mark, no repeated members, only finite numbers, within limits."""
    if type(data) is not bytes:
        _check_size(data, limits)
    size = len(data)
    if size > _SMALL_TEXT or size > limits.max_bytes:
        _check_size(data, limits)
    shape = data.translate(_DIGITS_TO_ZERO, b"+")
    if limits.max_digits < _LONG_NUMBER or (size >= _LONG_NUMBER and _LONG_RUN in shape and _has_long_number(shape)):
        return _parse_exactly(data, limits)
    many = size > _SMALL_TEXT and data.count(b":") > _MANY_MEMBERS
    try:
        value = _from_json(data, allow_inf_nan=False, catch_duplicate_keys=not many, cache_mode="keys")
    except ValueError as err:
        _parse_exactly(data, limits)
        raise PinwardenError("JSON_PARSE_ERROR", f"not strict JSON: {err}") from err
    if many and not _surely_repeats_no_member(data, value):
        return _parse_exactly(data, limits)  # reports the repeated member
    if b"0e000" in shape and not _is_surely_finite(value):
        return _parse_exactly(data, limits)
    if limits.max_depth < JITER_DEPTH:
        _check_depth(value, limits)
    return value


def _has_long_number(shape: bytes) -> bool:
    """Whether the text has a long number outside of strings. May be wrong for invalid JSON, which is refused later."""
    text = shape.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in shape else shape
    outside = 0  # an offset that is not inside a string
    while (run := text.find(_LONG_RUN, outside)) >= 0:
        if not text.count(b'"', outside, run) & 1:
            return True
        outside = text.find(b'"', run) + 1
        if not outside:
            return True
    return False


def parse_last_wins(data: bytes, limits: Limits = DEFAULT_LIMITS, *, constants: bool = False) -> Any:
    """Parse JSON where the last of several equal members wins. ``constants`` allows NaN and Infinity, as in Python."""
    _check_size(data, limits)
    value = _parse_with_stdlib(data, limits, repeated=None, constants=constants)
    _check_depth(value, limits)
    return value


def _check_size(data: bytes, limits: Limits) -> None:
    if not isinstance(data, bytes):
        raise PinwardenError("JSON_PARSE_ERROR", f"JSON text must be bytes, not {type(data).__name__}")
    if len(data) > limits.max_bytes:
        _refuse_excess("bytes", len(data), limits.max_bytes)
    if len(data) > _SMALL_TEXT and len(data) > limits.max_values:  # a smaller text cannot be too heavy
        _check_weight(data, limits)


def _check_weight(data: bytes, limits: Limits) -> None:
    """Refuse a text whose values would need too much memory, before parsing it.

    The first count includes the content of strings, which is fast. Only if it is too high, strings are excluded. For
    invalid JSON the count can be wrong, but only after the position where a parser would stop.
    """
    if _estimate_weight(data) <= limits.max_values:
        return
    weight = 0
    for part in _iter_outside_strings(data):
        weight += _estimate_weight(part)
        if weight > limits.max_values:
            _refuse_excess("values", weight, limits.max_values)


def _iter_outside_strings(data: bytes) -> Iterator[bytes]:
    """Yield the text without its strings, in pieces."""
    text = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    inside = False
    for start in range(0, len(text), _PIECE_BYTES):
        parts = text[start : start + _PIECE_BYTES].split(b'"')
        yield b"".join(parts[inside::2])
        inside ^= not len(parts) & 1


def _surely_repeats_no_member(data: bytes, value: Any) -> bool:
    from orjson import dumps  # only large texts are worth its import

    try:
        return has_unique_members(data, dumps(value))
    except TypeError:  # an integer above 64 bits
        return False


def has_unique_members(data: bytes, text: bytes) -> bool:
    """Whether a JSON text repeats no member; False if unsure. ``text`` is its parsed value as encoded by orjson."""
    # Every member has one colon outside of strings. A colon inside a string is in both texts, unless it is escaped in
    # ``data``. So ``data`` has more colons exactly if it has more members.
    return text.count(b":") == data.count(b":") and b"\\u003" not in data


def _estimate_weight(text: bytes) -> int:
    return text.count(b",") + text.count(b":") + 2 * text.count(b"[") + 5 * text.count(b"{")


def _is_surely_finite(value: Any) -> bool:
    """Whether all numbers are finite. Also False for large integers, because the encoder of DAG-CBOR refuses both."""
    try:
        libipld.encode_dag_cbor(value)
    except ValueError:
        return False
    return True


def _parse_exactly(data: bytes, limits: Limits) -> Any:
    repeated: list[str] = []
    value = _parse_with_stdlib(data, limits, repeated=repeated, constants=False)
    _check_depth(value, limits)
    # The text is well formed; from here on it is refused only if it is ambiguous.
    if repeated:
        raise PinwardenError(
            "JSON_CANONICALIZATION_ERROR",
            f"member {repeated[0][:80]!a} occurs more than once in one object",
        )
    _refuse_lone_surrogates(value)
    return value


def _refuse_lone_surrogates(value: Any) -> None:
    """Raise if any string or member name is not valid Unicode."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, str) and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError as err:
                raise PinwardenError(
                    "JSON_CANONICALIZATION_ERROR", f"a string contains the lone surrogate {item[err.start]!a}"
                ) from err


def _parse_with_stdlib(data: bytes, limits: Limits, *, repeated: list[str] | None, constants: bool) -> Any:
    """Parse with the standard library. If ``repeated`` is a list, it collects the names of repeated members."""
    import json

    def parse_integer(token: str) -> int:
        _check_digits(token, limits)
        return int(token)

    def parse_fraction(token: str) -> float:
        _check_digits(token, limits)
        number = float(token)
        if repeated is not None and not isfinite(number):
            raise PinwardenError("JSON_PARSE_ERROR", f"the number {token[:40]} is too large to be finite")
        return number

    def refuse_constant(token: str) -> NoReturn:
        raise PinwardenError("JSON_PARSE_ERROR", f"{token} is not JSON")

    def collect_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if repeated is not None and len(result) != len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    repeated.append(name)
                    break
                seen.add(name)
        return result

    try:
        # Decoded here because json.loads(bytes) also accepts UTF-16, UTF-32 and a byte order mark.
        text = data.decode("utf-8", "strict")
        return json.loads(
            text,
            object_pairs_hook=collect_members,
            parse_int=parse_integer,
            parse_float=parse_fraction,
            parse_constant=None if constants else refuse_constant,
        )
    except UnicodeDecodeError as err:
        raise PinwardenError("JSON_PARSE_ERROR", f"not UTF-8 at byte {err.start}") from err
    except RecursionError as err:
        raise PinwardenError("JSON_PARSE_ERROR", "the JSON is nested too deeply") from err
    except ValueError as err:
        raise PinwardenError("JSON_PARSE_ERROR", f"not JSON: {err}") from err


def _check_digits(token: str, limits: Limits) -> None:
    if len(token) <= limits.max_digits:
        return
    run = longest = 0
    for character in token:
        run = run + 1 if character.isdigit() else 0
        longest = max(longest, run)
    if longest > limits.max_digits:
        _refuse_excess("digits in a row", longest, limits.max_digits)


def nesting_depth(value: Any) -> int:
    """Return the number of levels of objects and arrays in a value, computed without recursion."""
    depth = 0
    level = [value] if isinstance(value, dict | list) else []
    while level:
        depth += 1
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
    return depth


def _check_depth(value: Any, limits: Limits) -> None:
    allowed = min(limits.max_depth, JITER_DEPTH)
    depth = nesting_depth(value)
    if depth > allowed:
        _refuse_excess("levels", depth, allowed)


def _refuse_excess(what: str, actual: int, allowed: int) -> NoReturn:
    raise PinwardenError(
        "JSON_PARSE_ERROR",
        f"too many {what}: {actual}; the limit is {allowed}",
        data={"limit": what, "found": actual, "allowed": allowed},
    )


def encode_json_file(value: Any) -> bytes:
    """Encode JSON for Pinwarden's own files: sorted, indented by two spaces, with invisible characters escaped."""
    import json

    from pinwarden.core.text import escape_invisible_json

    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return (escape_invisible_json(text) + "\n").encode()
