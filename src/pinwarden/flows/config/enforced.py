"""Configured servers that their client starts through ``pinwarden run``: what they run stands in the lock alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.core.record import replace
from pinwarden.documents.launch.own_launch import is_enforced_start, started_through_us
from pinwarden.documents.lock.bundle_pin import BUNDLE
from pinwarden.documents.lock.locked_launch import is_enforced, locked_launch
from pinwarden.documents.lock.record import extension_of
from pinwarden.documents.target import StdioTarget

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinwarden.documents.clients.config import ConfiguredServer
    from pinwarden.documents.lock.entry import Entry


def as_enforced(server: ConfiguredServer, entry: Entry | None) -> ConfiguredServer:
    """The server with the locked command in place of ``pinwarden run NAME``, which only stands for it.

    What an entry says of itself follows from what is started in the end. Any other command is taken as it is: a
    record of ours beside it does not make it harmless.
    """
    if entry is None or not is_enforced(entry) or not isinstance(server.target, StdioTarget):
        return server
    if not is_enforced_start(server.target.command, entry.name):
        return server
    return replace(server, target=replace(server.target, command=locked_launch(entry).command))


def starts_nothing(server: ConfiguredServer, key: str, entries: Iterable[Entry]) -> str | None:
    """The name that a server is started by through us, if no locked server would be started by it.

    Such a command says nothing about the server: the lock that did is gone, or somebody wrote the command by hand.
    """
    name = started_through_us(server.target.command) if isinstance(server.target, StdioTarget) else None
    if name is None or any(_holds(entry, key) for entry in entries if entry.name == name):
        return None
    return name


def _holds(entry: Entry, key: str) -> bool:
    """Whether an entry says what is started; the one that is about to be written says so only in our record."""
    extension = extension_of(entry)
    return entry.key != key or is_enforced(entry) or (extension is not None and BUNDLE in extension.others)
