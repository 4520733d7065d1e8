"""Restore the entry of one server in its client's file and in the lock, when the whole file cannot be restored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.clients.command_line import parse_locked_start
from pinwarden.clients.config import ConfiguredServer, read_config
from pinwarden.clients.documents import build_config
from pinwarden.clients.entry_edit import replace_command
from pinwarden.clients.files import edit_entry, edit_word, put_entry, remove_entry
from pinwarden.clients.table import get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock import entry as lock_entry
from pinwarden.lock.extension import LaunchCommand, LockExtension, read_extension, with_extension
from pinwarden.lock.locked_config import CONFIG_SOURCE, read_config_origin, read_locked_config
from pinwarden.lock.locked_launch import read_locked_launch
from pinwarden.project.client_install import is_as_approved
from pinwarden.project.configured_entry import build_plain_entry
from pinwarden.project.configured_servers import RELEASE_INDEX, identify_entry
from pinwarden.project.edit_backups import Backup, BackupServer
from pinwarden.system.redaction import redact_entry
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry

ENTRY_COMMANDS = ("add", "install", "remove")
"""The commands that add and remove entries. The others edit an entry that stays."""
EXACT, IN_PLACE, LOCK_ONLY, NOT_UNDONE = "restored", "edited", "lock only", "not undone"


class UndoneServer(Record):
    """A server and what undoing an edit means for it."""

    edited: BackupServer
    how: str
    """Whether the client's file is ``restored`` exactly, its entry is ``edited``, only the lock is changed, or the edit
    is ``not undone``."""
    reason: str = ""
    """Why the file is not restored exactly."""


class EntryVersions(Record):
    """A server in its client's file: before and after the edit, and now. None if the file did not have it."""

    before: ConfiguredServer | None
    after: ConfiguredServer | None
    now: ConfiguredServer | None


def find_server(data: bytes | None, wanted: BackupServer) -> ConfiguredServer | None:
    """Find a server in the bytes of its client's file; None if they do not have it."""
    if data is None:
        return None
    client = get_client(wanted.client)
    found: list[ConfiguredServer] = []
    for location in client.locations:
        if not (location.settings or location.code or location.agents):
            found += read_config(data, client=client, location=location, path=str(wanted.path)).servers
    named = [server for server in found if server.name == wanted.name]
    exact = next((server for server in named if server.pointer == wanted.pointer), None)
    if exact is None and client.entry_format.named_list:  # the pointer is a position in a list
        return next(iter(named), None)
    return exact


def restore_entry(
    backup: Backup, server: BackupServer, versions: EntryVersions, data: bytes | None, newer: Sequence[str] | None
) -> tuple[UndoneServer, bytes | None]:
    """Restore the entry of a server in the bytes of its client's file. Everything else in the file stays.

    ``newer`` is the command of a release that was locked after the edit.
    """
    name = Path(str(server.path)).name
    before, now = versions.before, versions.now
    if backup.command in ENTRY_COMMANDS:
        return _restore_presence(server, versions, data)
    if now is None or before is None or data is None:
        return UndoneServer(edited=server, how=LOCK_ONLY, reason=f"{name} no longer has it"), data
    starts_through_run = isinstance(now.target, StdioTarget) and parse_locked_start(now.target.command) is not None
    if backup.command == "enforce":
        if not starts_through_run:
            reason = "it is not started through pinwarden run any more"
            return UndoneServer(edited=server, how=LOCK_ONLY, reason=reason), data
        entry = _merge_entry(now, before)
        if newer is not None:
            entry = replace_command(entry, get_client(server.client), newer)
        return UndoneServer(edited=server, how=IN_PLACE), edit_entry(data, now, entry)
    if now.entry == before.entry:
        return UndoneServer(edited=server, how=EXACT), data
    if starts_through_run:
        reason = "it is started through pinwarden run; first run: pinwarden enforce --undo"
        return UndoneServer(edited=server, how=NOT_UNDONE, reason=reason), data
    if versions.after is None or _command(now) != _command(versions.after):
        reason = f"its command in {name} was changed in the meantime"
        return UndoneServer(edited=server, how=NOT_UNDONE, reason=reason), data
    return UndoneServer(edited=server, how=IN_PLACE), _replace_release(data, now, before)


def _restore_presence(
    server: BackupServer, versions: EntryVersions, data: bytes | None
) -> tuple[UndoneServer, bytes | None]:
    """Remove the entry that an edit added, or add the one that it removed, if the file has it as after the edit."""
    path = Path(str(server.path))
    servers = (versions.before, versions.after, versions.now)
    before, after, now = (None if known is None else known.entry for known in servers)
    if now == before:
        return UndoneServer(edited=server, how=EXACT), data
    if now != after:
        reason = f"it was changed in {path.name} in the meantime"
        return UndoneServer(edited=server, how=NOT_UNDONE, reason=reason), data
    if before is None:
        return UndoneServer(edited=server, how=IN_PLACE), remove_entry(data, path, server.client, server.name)
    fragment = build_config(get_client(server.client), server.name, before)
    return UndoneServer(edited=server, how=IN_PLACE), put_entry(data, path, server.client, server.name, fragment)


def find_newer_launch(before: Entry | None, now: Entry | None) -> Sequence[str] | None:
    """Return the command of a release that was locked after the client's file was edited; None if there is none."""
    extension = read_extension(now) if now is not None else None
    launch = extension.launch if extension is not None else None
    if not isinstance(launch, LaunchCommand) or before is None:
        return None
    return launch.command if launch.command != _read_command(before) else None


def restore_enforced_lock_entry(entry: Entry, before: Entry) -> Entry:
    """Return the lock entry with its configuration before enforcement. Approvals and pinned bytes since then stay."""
    extension = read_extension(entry) or LockExtension()
    earlier = read_extension(before) or LockExtension()
    fragment = before.document.get("config")
    launch = extension.launch
    if isinstance(launch, LaunchCommand) and launch.command != _read_command(before):
        where = read_config_origin(entry)
        client = get_client(where.client if where else entry.client)
        approved = read_locked_config(before.key, before.document).approved
        changed = redact_entry(replace_command(approved, client, launch.command))
        fragment = build_config(client, entry.name, changed)
    copy = entry.document.get("locked")
    kept = {"locked": {**copy, "config": fragment}} if isinstance(copy, dict) else {}
    document = {**entry.document, "config": fragment, **kept}
    plain = lock_entry.with_integrity(replace(entry, document=document))
    return with_extension(plain, replace(extension, launch=earlier.launch))


def restore_released_lock_entry(
    entry: Entry, after: ConfiguredServer | None, now: ConfiguredServer | None
) -> Entry | None:
    """Return the lock entry of a server whose client's file names no exact release any more; None if the entry stays.

    ``after`` is the server with the exact release, and ``now`` as its client's file will have it. The approved tools
    stay approved, as those of the release that they were read from. The bytes are not pinned any more: the client
    starts any release.
    """
    if after is None or now is None or entry.source != CONFIG_SOURCE:
        return None
    client = get_client(now.client)
    if not is_as_approved(entry, after, client) or is_as_approved(entry, now, client):
        return None
    known, identity = read_extension(entry), identify_entry(entry)
    fresh = build_plain_entry(now, entry.locked_at or "", entry.key)
    if known is None:
        return fresh
    parts = identity.launch_parts if identity is not None else ()
    release = str(parts[RELEASE_INDEX]) if len(parts) > RELEASE_INDEX else None
    extension = LockExtension(
        approval=known.approval,
        configured_in=known.configured_in,
        surface=known.surface,
        api_surface=known.api_surface,
        surface_of=known.surface_of,
        probed_release=release if known.surface is not None and known.surface_of is None else known.probed_release,
    )
    return with_extension(fresh, extension)


def _merge_entry(now: ConfiguredServer, before: ConfiguredServer) -> dict[str, Any]:
    """Return the earlier entry, with the members that the user changed since and that do not decide what is started."""
    client = get_client(now.client)
    form = client.entry_format
    if not isinstance(before.target, StdioTarget):  # a remote address has other members than a command
        return dict(before.entry)
    started = {form.command_member, "args", "type", *([form.wrapper_member] if form.wrapper_member else [])}
    kept = {name: value for name, value in now.entry.items() if name not in started}
    return {**{name: value for name, value in before.entry.items() if name in started or name in kept}, **kept}


def _replace_release(data: bytes, now: ConfiguredServer, before: ConfiguredServer) -> bytes:
    """Return the file with the earlier release. Comments stay where that is possible."""
    entry = _merge_entry(now, before)
    pairs = [pair for pair in zip(_command(now), _command(before), strict=False) if pair[0] != pair[1]]
    if len(pairs) == 1 and len(_command(now)) == len(_command(before)):
        return edit_word(data, now, entry, *pairs[0])
    return edit_entry(data, now, entry)


def _command(server: ConfiguredServer) -> tuple[str, ...]:
    return tuple(server.target.command) if isinstance(server.target, StdioTarget) else ()


def _read_command(entry: Entry) -> tuple[str, ...]:
    try:
        return tuple(read_locked_launch(entry).command)
    except PinwardenError:
        return ()
