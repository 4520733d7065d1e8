"""Whether this process was started from inside a server or a client of the gateway: such a one must not approve.

Two signs are looked for. A variable that every started server gets, in this process and in those above it; and the
processes themselves: running gateways write down their number and that of the client that started them, and nobody
below either may approve.

This is a tripwire, not a wall. A program that runs as the same user without a sandbox can shed both signs, and can
write to the lock and the store directly. What such a program cannot do is in docs/guides/gateway.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from pinwarden.core.errors import PinwardenError

MARK = "PINWARDEN_STARTED_SERVER"
"""The variable that a started server gets; its value is the server's name."""

_MOST_ANCESTORS = 200
_MOST_BYTES = 1 << 20  # of an environment; the system's own limit is about that


@contextmanager
def running_gateway(folder: Path, *, client: int | None) -> Iterator[None]:
    """Write down that this process is a gateway, and which process is its client, as long as it runs."""
    note = folder / f"{os.getpid()}.gateway"
    lines = [_identity(os.getpid()), *([_identity(client)] if client is not None else [])]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        note.write_text("\n".join(line for line in lines if line) + "\n")
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{note}: {err.strerror or err}") from err
    try:
        yield
    finally:
        with suppress(OSError):
            note.unlink()


def refuse_inside_server(folder: Path, variables: Mapping[str, str]) -> None:
    """Raise if this process runs below a server, a gateway or the client of one."""
    if MARK in variables:
        _refuse(f"it runs inside the server {variables[MARK][:120]!a}")
    noted = _noted(folder)
    for number in _ancestors(os.getpid()):
        if _identity(number) in noted:
            _refuse(f"process {number}, which started it, is a gateway or the client of one")
        if _has_mark(number):
            _refuse(f"process {number}, which started it, is a server")


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("REVIEW_FROM_SERVER", f"nothing is approved from here: {why}")


def _noted(folder: Path) -> set[str]:
    """The processes that running gateways named. A number that now belongs to another process has another start."""
    found: set[str] = set()
    for note in folder.glob("*.gateway") if folder.is_dir() else ():
        try:
            lines = note.read_text().split("\n")
        except OSError:
            continue
        number = lines[0].partition(" ")[0]
        if number.isdigit() and lines[0] == _identity(int(number)):
            found.update(line for line in lines if line)
        else:
            with suppress(OSError):
                note.unlink()  # left by one that was killed
    return found


def _ancestors(number: int) -> Iterator[int]:
    for _ in range(_MOST_ANCESTORS):
        number = _parent(number)
        if number <= 1:
            return
        yield number


def _stat(number: int) -> list[str]:
    """The fields of a process behind its name, as Linux tells them; none elsewhere, or if it is gone."""
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


def _identity(number: int) -> str:
    """A process, told apart from a later one of the same number by when it started."""
    fields = _stat(number)
    return f"{number} {fields[19]}" if len(fields) > 19 else f"{number}"


def _has_mark(number: int) -> bool:
    try:
        with Path(f"/proc/{number}/environ").open("rb") as stream:
            data = stream.read(_MOST_BYTES)
    except OSError:
        return False
    return any(each.startswith(f"{MARK}=".encode()) for each in data.split(b"\0"))
