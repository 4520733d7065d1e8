"""Recognise an enforced server whose client starts it directly again, as it did before ``pinwarden enforce``.

That happens when someone restores an old copy of the client's file. Nothing unknown is started then, but Pinwarden does
not block changes any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pinwarden.clients.config import parse_configured_server
from pinwarden.clients.drift import build_direct_start_change, compare_entries
from pinwarden.clients.entry_edit import read_remote_entry, replace_command, to_command_entry
from pinwarden.core.errors import PinwardenError
from pinwarden.lock.extension import LaunchCommand, RemoteLaunch, read_extension
from pinwarden.lock.locked_config import read_locked_config
from pinwarden.surface.drift.changes import INFO
from pinwarden.system.redaction import redact_entry
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.clients.table import Client
    from pinwarden.lock.entry import Entry
    from pinwarden.surface.drift.changes import Change

STARTED_DIRECTLY = "started_directly"
_RELEASE_LEFT_OUT = "pin_loosened"


def compare_with_lock(entry: Entry, configured: Any, client: Client) -> tuple[Change, ...]:
    """Compare a client's entry with the approved one. Returns all changes, the most severe first.

    If the client starts the approved server directly instead of through ``pinwarden run``, that is one change of its
    own, and all others have the severity ``info``.
    """
    approved = read_locked_config(entry.key, entry.document).entry
    present = redact_entry(configured)
    changes = compare_entries(entry.name, approved, present, client)
    if all(change.severity == INFO for change in changes):
        return changes
    try:
        direct = _compare_direct_start(entry, approved, configured, client)
    except PinwardenError:
        return changes
    if direct is None or any(change.severity != INFO and change.kind != _RELEASE_LEFT_OUT for change in direct):
        return changes
    is_floating = any(change.kind == _RELEASE_LEFT_OUT for change in direct)
    informative = (change for change in direct if change.severity == INFO)
    return (build_direct_start_change(entry.name, approved, present, client, is_floating=is_floating), *informative)


def is_only_started_directly(changes: Iterable[Change]) -> bool:
    """Whether these changes say that a client starts the approved server directly, and nothing else of importance."""
    return any(change.kind == STARTED_DIRECTLY for change in changes)


def _compare_direct_start(entry: Entry, approved: Any, configured: Any, client: Client) -> tuple[Change, ...] | None:
    """Compare a client's entry with the approved server as it was before enforcement; None if it was not enforced."""
    extension = read_extension(entry)
    launch = extension.launch if extension is not None else None
    enforced = parse_configured_server(entry.name, approved, client).target
    if not isinstance(enforced, StdioTarget):
        return None
    if isinstance(launch, LaunchCommand):
        before = redact_entry(replace_command(approved, client, launch.command))
        return compare_entries(entry.name, before, redact_entry(configured), client)
    if isinstance(launch, RemoteLaunch):
        remote = read_remote_entry(configured, client)
        found = (remote.url, remote.target.transport, dict(remote.headers), remote.url_variable)
        if found != (launch.url, launch.transport, dict(launch.headers), launch.url_variable):
            return None
        after = to_command_entry(configured, client, remote, enforced.command)
        return compare_entries(entry.name, approved, redact_entry(after), client)
    return None
