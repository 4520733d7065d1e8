"""Whether this process was started from inside a server or a client of the gateway: such a one must not approve.

Two signs are looked for. A variable that every started server gets, in this process and in those above it; and the
processes themselves: nobody below a running gateway, or below the client that started one, may approve, and nobody in
the session of such a process. Gateways write down both; and on Linux a process above us that has a gateway for a child
is found whatever the variables say.

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
from pinwarden.system.processes import ancestor_pids, child_pids, process_identity, read_proc_strings

MARK = "PINWARDEN_STARTED_SERVER"
"""The variable that a started server gets; its value is the server's name."""


@contextmanager
def running_gateway(folder: Path, *, client: int | None) -> Iterator[None]:
    """Write down that this process is a gateway, and which process is its client, as long as it runs."""
    note = folder / f"{os.getpid()}.gateway"
    lines = [process_identity(os.getpid()), *([process_identity(client)] if client is not None else [])]
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # a mode is for the last folder only
        folder.mkdir(mode=0o700, exist_ok=True)
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
    for number in dict.fromkeys(_above()):
        if process_identity(number) in noted:
            _refuse(f"process {number}, which started it, is a gateway or the client of one")
        if _has_mark(number):
            _refuse(f"process {number}, which started it, is a server")
        if not _adopts(number) and any(map(_is_gateway, child_pids(number))):
            _refuse(f"process {number}, which started it, is the client of a gateway")


def _above() -> Iterator[int]:
    """The processes above this one, and above the first of its session.

    A process whose parent ended is no longer below it, but stays in its session; and every server has its own.
    """
    yield from ancestor_pids(os.getpid())
    leader = os.getsid(0) if hasattr(os, "getsid") else 0
    if leader > 1 and leader != os.getpid():
        yield leader
        yield from ancestor_pids(leader)


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
        if number.isdigit() and lines[0] == process_identity(int(number)):
            found.update(line for line in lines if line)
        else:
            with suppress(OSError):
                note.unlink()  # left by one that was killed
    return found


def _is_gateway(number: int) -> bool:
    """Whether a process is ``pinwarden run``, whose client is the process that started it, by its words."""
    words = read_proc_strings(number, "cmdline")
    for place, word in enumerate(words[:-1]):
        if word.rpartition(b"/")[2] in (b"pinwarden", b"pinwarden.exe"):
            return words[place + 1] == b"run"
    return False


def _adopts(number: int) -> bool:
    """Whether a process takes in those whose own parent has gone: it is nobody's client, and above everything."""
    return read_proc_strings(number, "cmdline")[:1] in ([b"/lib/systemd/systemd"], [b"/usr/lib/systemd/systemd"])


def _has_mark(number: int) -> bool:
    return any(each.startswith(f"{MARK}=".encode()) for each in read_proc_strings(number, "environ"))
