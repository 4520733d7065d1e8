"""What Linux tells about processes; elsewhere little or nothing is known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MOST_ANCESTORS = 200
_MOST_BYTES = 1 << 20  # of an environment or a command line; the system's own limit is about that


def children_of(number: int) -> list[int]:
    """The processes that a process started and that still run."""
    found: list[int] = []
    with suppress(OSError, ValueError):
        for children in Path(f"/proc/{number}/task").glob("*/children"):
            found += [int(word) for word in children.read_text().split()]
    return found


def ancestors_of(number: int) -> Iterator[int]:
    """The processes above a process, but for the first of the system."""
    for _ in range(_MOST_ANCESTORS):
        number = _parent(number)
        if number <= 1:
            return
        yield number


def identity_of(number: int) -> str:
    """A process, told apart from a later one of the same number by when it started."""
    fields = _stat(number)
    return f"{number} {fields[19]}" if len(fields) > 19 else f"{number}"


def words_of(number: int, what: str) -> list[bytes]:
    """The texts in ``cmdline`` or ``environ`` of a process; none if it is gone or somebody else's."""
    try:
        with Path(f"/proc/{number}/{what}").open("rb") as stream:
            return stream.read(_MOST_BYTES).split(b"\0")
    except OSError:
        return []


def _stat(number: int) -> list[str]:
    """The fields of a process behind its name."""
    try:
        text = Path(f"/proc/{number}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _parent(number: int) -> int:
    fields = _stat(number)
    if fields:
        return int(fields[1])
    return os.getppid() if number == os.getpid() else 0
