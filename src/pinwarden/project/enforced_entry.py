"""Plan how one client starts one locked server through ``pinwarden run``: its new entries in the file and in the lock.

In a client's file, only the command or address changes; variables and other members stay as they are. The approved
command or address moves into the lock entry. Secrets are never copied into the lock: the header values of a
remote address stay in the client's file, as variables of its entry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.clients.command_line import parse_locked_start, parse_run_command
from pinwarden.clients.config import ConfiguredServer, parse_target
from pinwarden.clients.documents import build_config
from pinwarden.clients.enforceable import find_command_obstacle, list_server_arguments, read_remote_entry
from pinwarden.clients.entry_edit import replace_command, to_command_entry
from pinwarden.clients.files import ConfigEdits
from pinwarden.clients.table import Client, get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import (
    LaunchCommand,
    LockExtension,
    RemoteLaunch,
    has_surface,
    read_extension,
    with_extension,
)
from pinwarden.lock.locked_config import read_config_origin, read_locked_config
from pinwarden.lock.locked_launch import (
    LockedLaunch,
    is_remote,
    read_locked_launch,
    starts_local_command,
    to_launch_command,
)
from pinwarden.lock.lockfile import Lock, put_entries
from pinwarden.project.configs import compare_with_lock, is_only_started_directly
from pinwarden.project.configured_servers import identify_entry
from pinwarden.project.locked_servers import resolve_start
from pinwarden.system.own_program import build_install_command, find_outside_environment
from pinwarden.system.redaction import redact_entry
from pinwarden.system.target import HttpTarget

if TYPE_CHECKING:
    from pinwarden.project.project import Project

FILLED_BY_CLIENT = re.compile(r"\$\{[^}]*\}|%[A-Za-z_]+%")
"""Placeholders that only the client can fill in."""


class EntryPlan(Record):
    """How one client will start one locked server."""

    entry: Entry
    """The current lock entry."""
    sealed: Entry
    """The new lock entry."""
    words: tuple[str, ...]
    """The new command."""
    server: ConfiguredServer | None = None
    """The server in the client's file; None if the file does not have it."""
    configured: dict[str, Any] | None = field(default=None, repr=False)
    """The new entry of the server in the client's file."""

    @property
    def action(self) -> str:
        """What changes: the client's file, only the lock, or nothing."""
        if self.server is not None and self.configured != self.server.entry:
            return "updated"
        return "unchanged" if self.sealed.document == self.entry.document else "locked only"


class EnforceOptions(Record):
    """How to rewrite one client entry as a part of another edit."""

    project: Project
    servers: tuple[ConfiguredServer, ...]
    """The servers configured in this project and for this user."""
    now: str
    edits: ConfigEdits = field(default_factory=ConfigEdits)
    """Collects the edits of client files. The caller makes them."""


def enforce_entry(options: EnforceOptions, entry: Entry, configured: ConfiguredServer | None = None) -> None:
    """Make one client start one locked server through ``pinwarden run``, in a draft of the lock.

    If this raises, the caller drops the draft and the collected edits.
    ``configured`` is the server to use instead of the one in the client's file, for callers that update it as well.
    """
    project = options.project
    lock = lock_store.read(project.lock)
    if lock is None:
        raise lock_store.missing_lock_error(project.lock)
    plan = plan_entry(project, lock, entry, options.servers, configured)
    if plan.server is not None and plan.configured is not None:
        options.edits.replace_entry(plan.server, plan.configured)
    lock_store.update(project.lock, lambda old: lock_store.LockWrite(lock=put_entries(old, [plan.sealed], options.now)))


def plan_entry(
    project: Project,
    lock: Lock,
    entry: Entry,
    servers: Sequence[ConfiguredServer],
    configured: ConfiguredServer | None = None,
) -> EntryPlan:
    """Plan how one client will start one locked server. Raises if it cannot be started through ``pinwarden run``.

    1. Check that the lock has the server's bytes, command or address, and that the server is configured as approved.
    2. Build the new command, and check that ``pinwarden run`` resolves it to this server.
    3. Build the new entries of the client's file and of the lock.
    """
    extension = read_extension(entry)
    if extension is not None and extension.bundle is not None:
        return EntryPlan(entry=entry, sealed=entry, words=())
    if extension is None:
        raise PinwardenError("BYTES_NOT_LOCKED", f"the bytes of {entry.name[:120]!a} are not locked yet")
    where = read_config_origin(entry)
    client = get_client(where.client if where else entry.client)
    launch = None if is_remote(entry) else read_locked_launch(entry)
    if launch is not None and _is_started_by_hand(launch):
        return EntryPlan(entry=entry, sealed=entry, words=())
    if launch is not None:
        _refuse_unstartable(entry, extension, launch)
    approved = read_locked_config(entry.key, entry.document).approved
    server = configured or _find_approved_server(project, entry, client, servers)
    bundled = extension.bundle_tree is not None  # a bundle's manifest has its arguments
    arguments = () if launch is None or bundled else list_server_arguments(launch.command)
    approved_surface = has_surface(entry)
    words = build_entry_command(project, entry.name, client, entry.scope, arguments, approved=approved_surface)
    _check_resolves(lock, entry, words)
    source = approved if server is None else server.entry
    changed, record = _rewrite(source, client, words, extension.launch, launch)
    fragment = build_config(client, entry.name, redact_entry(changed))
    # In lockfileVersion 2 the member `locked` is optional.
    copy = entry.document.get("locked")
    kept = {"locked": {**copy, "config": fragment}} if isinstance(copy, dict) else {}
    document = {**entry.document, "config": fragment, **kept}
    sealed = with_extension(
        lock_entry.with_integrity(replace(entry, document=document)), replace(extension, launch=record)
    )
    return EntryPlan(
        entry=entry,
        sealed=sealed,
        words=tuple(words),
        server=server,
        configured=None if server is None else changed,
    )


def describe_unfound_program(project: Project) -> str | None:
    """Return why clients do not find the program that the project's files name, with the fix; None if they find it.

    The files are committed, so they cannot name its path on this machine.
    """
    if find_outside_environment(project.variables) is not None:
        return None
    return (
        "the project's files start `pinwarden`, which a client does not find if it is started outside this virtual "
        f"environment; install it for all programs of yours: {build_install_command(project.variables)}"
    )


def _rewrite(
    source: Any,
    client: Client,
    words: Sequence[str],
    known: LaunchCommand | RemoteLaunch | None,
    launch: LockedLaunch | None,
) -> tuple[dict[str, Any], LaunchCommand | RemoteLaunch]:
    """Return the entry with the new command, and the command or address that the lock keeps for it."""
    if launch is not None:
        return replace_command(source, client, words), to_launch_command(launch)
    if isinstance(known, RemoteLaunch) and not isinstance(parse_target(source, client)[0], HttpTarget):
        return replace_command(source, client, words), known
    remote = read_remote_entry(source, client)
    record = RemoteLaunch(
        url=remote.url,
        transport=remote.target.transport,
        headers=remote.headers,
        url_variable=remote.url_variable,
    )
    return to_command_entry(source, client, remote, words), record


def _check_resolves(lock: Lock, entry: Entry, words: Sequence[str]) -> None:
    """Check that the new command resolves to the same server."""
    start = parse_locked_start(words)
    if start is None or identify_entry(resolve_start(start, lock.entries)) != identify_entry(entry):
        raise PinwardenError(
            "CONFIG_UNEDITABLE", f"{' '.join(words)[:200]} would start a different server than the approved one"
        )


def _is_started_by_hand(launch: LockedLaunch) -> bool:
    """Whether the approved command is already ``pinwarden run --name NAME -- COMMAND``, written by hand."""
    start = parse_run_command(launch.command)
    return start is not None and start.name is not None


def _refuse_unstartable(entry: Entry, extension: LockExtension, launch: LockedLaunch) -> None:
    """Raise if ``pinwarden run`` cannot start the command of an entry, or if it needs bytes that are not locked."""
    is_mcpb = entry.selected_target.get("registryType") == "mcpb"
    obstacle = None if is_mcpb else find_command_obstacle(launch.command)
    if obstacle is not None:
        raise PinwardenError("NOTHING_TO_RUN", obstacle)
    if starts_local_command(entry):
        return
    if extension.closure is None and extension.image is None and extension.bundle_tree is None:
        raise PinwardenError("BYTES_NOT_LOCKED", f"the bytes of {entry.name[:120]!a} are not locked yet")


def _find_approved_server(
    project: Project, entry: Entry, client: Client, servers: Sequence[ConfiguredServer]
) -> ConfiguredServer | None:
    """Find the server in its client's file; None if the file does not have it. Raises if it is not as approved."""
    where = read_config_origin(entry)
    named = [
        server
        for server in servers
        if server.name == entry.name and server.client == client.id and server.target is not None
    ]
    in_file = [server for server in named if where is not None and project.display_path(server.path) == where.file]
    for server in (in_file or named)[:1]:
        changes = compare_with_lock(entry, server.entry, client)
        if is_only_started_directly(changes) or all(change.severity == "info" for change in changes):
            return server
        raise PinwardenError("CONFIG_UNEDITABLE", f"{entry.name[:120]!a} is configured differently than approved")
    return None


def build_entry_command(  # noqa: PLR0913  what the command depends on
    project: Project, name: str, client: Client, scope: str, arguments: Sequence[str], *, approved: bool
) -> list[str]:
    """Build the command that a client's entry gets, with the arguments of the server that only the client fills in."""
    words = project.build_run_command(name, client.id, scope, approved=approved)
    words += ["--client", client.id]  # other clients may have another server of this name
    if any(FILLED_BY_CLIENT.search(word) for word in arguments):
        words += ["--", *arguments]
    return words
