"""Refuses approvals from inside a server or a client of the gateway.

A process must not approve in two cases:

- It or an ancestor has the environment variable that every started server gets.
- It descends from a running gateway or from the client of one, or is in the login session of such a process. Gateways
  register their own process and their client's. On Linux, an ancestor that has a gateway as a child is detected even if
  it is not registered.

These checks are a tripwire, not a security boundary. A program that runs as the same user without a sandbox can evade
both checks, and can write to the lock and the store directly. docs/guides/gateway.md says how to prevent that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.system.processes import find_child_pids, iter_ancestor_pids, read_proc_strings, read_process_identity

if TYPE_CHECKING:
    from pinwarden.project.server_start import ServerCommand

MARK = "PINWARDEN_STARTED_SERVER"
"""The environment variable that every started server gets, with the server's name as value."""


def mark_as_server(command: ServerCommand, server: str) -> ServerCommand:
    """Return the command with the environment variable that marks its process as a server."""
    return replace(command, environment={**command.environment, MARK: server})


@contextmanager
def register_gateway(folder: Path, *, client: int | None) -> Iterator[None]:
    """Register this process as a gateway, and ``client`` as its client, while the context is open."""
    registration = folder / f"{os.getpid()}.gateway"
    lines = [read_process_identity(os.getpid()), *([read_process_identity(client)] if client is not None else [])]
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # mkdir applies the mode to the last folder only
        folder.mkdir(mode=0o700, exist_ok=True)
        registration.write_text("\n".join(line for line in lines if line) + "\n")
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"the gateway cannot register itself in {registration}: {err}") from err
    try:
        yield
    finally:
        with suppress(OSError):
            registration.unlink()


def get_running_folder(state_folder: Path) -> Path:
    """Return the folder in which all running gateways of a user register, whatever database they use."""
    return state_folder / "running"


def refuse_inside_server(state_folder: Path, variables: Mapping[str, str]) -> None:
    """Raise ``REVIEW_FROM_SERVER`` if this process descends from a server, a gateway or a gateway's client."""
    if MARK in variables:
        _refuse(f"this process runs inside the server {variables[MARK][:120]!a}")
    registered = _read_registered_identities(get_running_folder(state_folder))
    for pid in dict.fromkeys(_list_ancestors()):
        if read_process_identity(pid) in registered:
            _refuse(f"its ancestor process {pid} is a gateway or the client of one")
        if _has_mark(pid):
            _refuse(f"its ancestor process {pid} is a server")
        if not _is_systemd(pid) and any(map(_is_gateway, find_child_pids(pid))):
            _refuse(f"its ancestor process {pid} is the client of a gateway")


def _list_ancestors() -> Iterator[int]:
    """Yield the ancestors of this process and of its session leader.

    A process whose parent ended stays in its session, and every server has its own session.
    """
    yield from iter_ancestor_pids(os.getpid())
    leader = os.getsid(0) if hasattr(os, "getsid") else 0
    if leader > 1 and leader != os.getpid():
        yield leader
        yield from iter_ancestor_pids(leader)


def _refuse(reason: str) -> NoReturn:
    raise PinwardenError("REVIEW_FROM_SERVER", f"this process must not approve: {reason}")


def _read_registered_identities(folder: Path) -> set[str]:
    """Return the process identities that running gateways registered: pid and start time, because pids are reused."""
    identities: set[str] = set()
    for registration in folder.glob("*.gateway") if folder.is_dir() else ():
        try:
            lines = registration.read_text().split("\n")
        except OSError:
            continue
        pid = lines[0].partition(" ")[0]
        if pid.isdigit() and lines[0] == read_process_identity(int(pid)):
            identities.update(line for line in lines if line)
        else:
            with suppress(OSError):
                registration.unlink()  # its gateway was killed
    return identities


def _is_gateway(pid: int) -> bool:
    """Whether a process is ``pinwarden run``, by its command line. The parent of such a process is a client."""
    words = read_proc_strings(pid, "cmdline")
    for index, word in enumerate(words[:-1]):
        if word.rpartition(b"/")[2] in (b"pinwarden", b"pinwarden.exe"):
            return words[index + 1] == b"run"
    return False


def _is_systemd(pid: int) -> bool:
    """Whether a process is systemd, which becomes the parent of orphaned processes and is not a client."""
    return read_proc_strings(pid, "cmdline")[:1] in ([b"/lib/systemd/systemd"], [b"/usr/lib/systemd/systemd"])


def _has_mark(pid: int) -> bool:
    return any(variable.startswith(f"{MARK}=".encode()) for variable in read_proc_strings(pid, "environ"))
