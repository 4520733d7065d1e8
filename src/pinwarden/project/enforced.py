"""Configured servers that their client starts through ``pinwarden run``: what they run stands in the lock alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pinwarden.bundle.bundle_pin import BUNDLE
from pinwarden.clients.findings import ConfigFinding, start_unresolved
from pinwarden.clients.launch.launched import PROGRAM
from pinwarden.clients.launch.own_command import OwnStart, is_enforced_start, own_start, own_words
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.lock import entry as lock_entry
from pinwarden.lock.extension import Extension, extended
from pinwarden.lock.locked_launch import LAUNCH, is_enforced, launch_record, locked_launch, with_bytes_of
from pinwarden.lock.record import extension_of, has_surface
from pinwarden.project.configured_entry import entry_of, fragment_of, lock_client
from pinwarden.project.locked_servers import approve_command, locked_server
from pinwarden.system.masking import shown_name
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfiguredServer
    from pinwarden.lock.entry import Entry
    from pinwarden.project.project import Project

_PROJECT_FOLDERS = ("${workspaceFolder}",)
"""What clients put the project's folder for."""


def resolved_start(start: OwnStart, entries: Iterable[Entry]) -> Entry:
    """The entry that a command of ours starts; raises what ``pinwarden run`` would refuse it with."""
    known = tuple(entries)
    server = locked_server(known, start.name, start.client, "run")
    entry = server.entry
    name = start.name[:120]
    if start.requires_lock and not any(map(has_surface, server.entries)):
        raise PinwardenError(
            "SERVER_NOT_LOCKED",
            f"nothing that {name!a} tells the model is approved in the lock",
            hint=f"Look at it and approve it: {approve_command(entry, known)}",
        )
    extension = extension_of(entry)
    if extension is not None and BUNDLE in extension.others:
        return entry
    if own_words(locked_launch(entry).command) is not None:
        raise PinwardenError("NOTHING_TO_RUN", f"the lock says that {name!a} starts Pinwarden itself")
    if extension is None or not extension.has_bytes:
        raise PinwardenError("BYTES_NOT_LOCKED", f"the bytes of {name!a} are not locked yet")
    return entry


def unresolved_starts(
    project: Project, entries: Iterable[Entry], servers: Iterable[ConfiguredServer]
) -> Iterator[ConfigFinding]:
    """Every configured server of this lock that ``pinwarden run`` would refuse to start."""
    known = tuple(entries)
    for server in servers:
        start = own_start(server.target.command) if isinstance(server.target, StdioTarget) else None
        if start is None or not _leads_here(project, start):
            continue
        try:
            resolved_start(start, known)
        except PinwardenError as err:
            yield start_unresolved(server, f"{err.message}; {err.hint}" if err.hint else err.message)


def _leads_here(project: Project, start: OwnStart) -> bool:
    """Whether a command takes its server from this project's lock."""
    root = project.root.resolve()
    try:
        folder = root if start.project in (None, *_PROJECT_FOLDERS) else (root / str(start.project)).resolve()
        lock = folder / (start.file or project.lock.name)
        return lock.resolve() == project.lock.resolve()
    except (ValueError, OSError, RuntimeError):  # no path, or links without an end
        return False


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


def entry_behind(server: ConfiguredServer, key: str, entries: Iterable[Entry]) -> Entry | None:
    """The entry that says what a configured server starts through us; None if it does not start through us.

    Raises if no entry does: the lock that did is gone, another client's server is meant and it is not known which, or
    the command is Pinwarden itself. Such a command is never a server of its own.
    """
    command = server.target.command if isinstance(server.target, StdioTarget) else ()
    if not command or own_words(command) is None:
        return None
    start, known = own_start(command), tuple(entries)
    if start is None:
        raise PinwardenError("NOTHING_TO_RUN", "its command is Pinwarden itself, which is no MCP server")
    if command[0] != PROGRAM:  # any file may have that name
        message = "its command starts Pinwarden in another way than pinwarden enforce writes: pinwarden run NAME"
        raise PinwardenError("NOTHING_TO_RUN", message)
    own = next((entry for entry in known if entry.key == key), None)
    if own is not None and own.name == start.name and _says_what_starts(own):
        return own
    shown = shlex.quote(shown_name(start.name))
    try:
        entry = resolved_start(start, (each for each in known if each.key != key))
    except PinwardenError as err:
        raise PinwardenError(err.code, _restore(shown)) from err
    if not _says_what_starts(entry):
        raise PinwardenError("NOTHING_TO_RUN", _restore(shown))
    return entry


def locked_as(server: ConfiguredServer, behind: Entry | None, extension: Extension, now: str) -> Entry:
    """The lock entry of a configured server. ``behind`` is the entry that says what it starts through us, if it does.

    The entry of another client gives its bytes along: both start the same server.
    """
    if behind is None:
        return extended(entry_of(server, now), extension)
    known = extension_of(behind) or Extension()
    if BUNDLE in known.others:
        others = {**known.others, **extension.others}
        return extended(_same_bundle(server, behind), replace(extension, registry=known.registry, others=others))
    made = entry_of(as_enforced(server, behind), now)
    if behind.key == made.key:
        return extended(made, extension)
    variables = tuple(sorted(server.target.env)) if isinstance(server.target, StdioTarget) else ()
    launch = launch_record(replace(locked_launch(behind), variables=variables))
    shared = with_bytes_of(known, extension, same=False)
    return extended(made, replace(shared, others={**shared.others, LAUNCH: launch}))


def _same_bundle(server: ConfiguredServer, behind: Entry) -> Entry:
    client, fragment = lock_client(server.client), fragment_of(server)
    scope = "global" if server.scope == "global" else "project"
    copy = behind.document.get("locked")
    locked = {"locked": {**copy, "config": fragment}} if isinstance(copy, dict) else {}
    document = {**behind.document, "client": client, "scope": scope, "config": fragment, **locked}
    return lock_entry.with_integrity(replace(behind, key=lock_entry.entry_key(server.name, client), document=document))


def _restore(shown: str) -> str:
    return (
        f"its command is pinwarden run {shown}, and the lock does not say what that starts; restore the lock from "
        f"version control, or write the server's own command here again, then run pinwarden init, "
        f"pinwarden prove {shown} and pinwarden enforce {shown}"
    )


def _says_what_starts(entry: Entry) -> bool:
    """Whether an entry says what ``pinwarden run`` starts for it."""
    extension = extension_of(entry)
    return is_enforced(entry) or (extension is not None and BUNDLE in extension.others)
