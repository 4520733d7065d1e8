"""Bytes to values that have one meaning, and members of values that may lack them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.bundle.shape import read
from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError

_PARSE = "JSON_PARSE_ERROR"


def read_all(named: Mapping[str, bytes]) -> dict[str, Any]:
    """Each document's value. Bytes that are no JSON answer before JSON that has no single meaning."""
    found: dict[str, Any] = {}
    failures: list[PinwardenError] = []
    for name, data in named.items():
        try:
            found[name] = read(data)
            canonicalize(found[name], "rulebook")
        except PinwardenError as err:
            failures.append(
                PinwardenError(err.code, f"the {name} {err.message}", hint=err.hint, data={"document": name})
            )
    for failure in sorted(failures, key=lambda err: err.code != _PARSE):
        raise failure
    return found


def member(value: Any, *path: str) -> Any:
    """What lies under a path of members; None where it does not go on."""
    for name in path:
        value = value.get(name) if type(value) is dict else None
    return value


def listed(value: Any, name: str) -> list[Any]:
    """The list under a member; an empty one where there is none."""
    found = member(value, name)
    return found if type(found) is list else []


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON. Python takes true for 1; their canonical forms differ."""
    return one == other and canonicalize(one, "rulebook") == canonicalize(other, "rulebook")
