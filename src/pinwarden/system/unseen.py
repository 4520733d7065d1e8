"""Which members of a lockable entry say nothing, so that nobody can see a change of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NAMED_VALUES = ("env", "environment", "headers", "http_headers")
"""Members that hold values by name: variables and headers."""


def unseen_members(lockable: Any) -> list[str]:
    """The members of a lockable entry whose literal text it leaves out, so that nobody can see a change of it.

    Variables and headers are not among them: that their values are left out is what a lock promises.
    """
    if type(lockable) is not dict:
        return []
    return [path for name, value in lockable.items() for path in _left_out(name, name, value)]


def _left_out(path: str, name: str, value: Any) -> Iterator[str]:
    if type(value) is dict and name not in NAMED_VALUES:
        for each, part in value.items():
            yield from _left_out(f"{path}.{each}", each, part)
    elif type(value) is list:
        for place, part in enumerate(value):
            yield from _left_out(f"{path}.{place}", name, part)
    elif type(value) is str and (value.startswith(f"<{path}>") or value.endswith(f"/<{path}>")):
        yield path
