"""JSON values side by side: equality as JSON means it, the strings inside, and steps of a JSON Pointer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinwarden.core.canonical import canonicalize
from pinwarden.core.json_pointer import escape_pointer_token


def json_equal(one: Any, other: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, but true is not 1, which Python's ``==`` takes for equal."""
    if one is other:
        return True
    if type(one) is bool or type(other) is bool:
        return False
    if type(one) is dict:
        return (
            type(other) is dict
            and len(one) == len(other)
            and all(name in other and json_equal(value, other[name]) for name, value in one.items())
        )
    if type(one) is list:
        return type(other) is list and len(one) == len(other) and all(map(json_equal, one, other))
    return bool(one == other)


def json_identity(value: Any) -> bytes:
    """A key for sets and tables: equal exactly where the values are the same."""
    return canonicalize(value)


def strings_in(value: Any) -> Iterator[str]:
    """Every string in a value, member names included, in the order sent."""
    if type(value) is str:
        yield value
    elif type(value) is dict:
        for name, member in value.items():
            yield name
            yield from strings_in(member)
    elif type(value) is list:
        for element in value:
            yield from strings_in(element)


def child_pointer(pointer: str, token: str | int) -> str:
    """The JSON Pointer one level further down (RFC 6901)."""
    return f"{pointer}/{escape_pointer_token(token)}"
