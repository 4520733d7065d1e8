"""Make clients start locked servers through ``pinwarden run``, by rewriting their configuration and the lock.

`plan_enforcement` computes all edits and writes nothing. `apply_enforcement` backs up every file and writes the lock,
then the clients' files; if anything fails, everything is restored. ``undo_enforcement.py`` takes an edit back.

Only what an entry starts changes in a client's file; variables and other members stay unchanged. The approved command
or address moves into the lock entry. Secrets are never copied into the lock: the header values of a remote address stay
in the client's file, as variables of its entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.clients.command_line import PROGRAM, parse_locked_start
from pinwarden.clients.config import ConfiguredServer
from pinwarden.clients.documents import build_config
from pinwarden.clients.drift import compare_entries
from pinwarden.clients.entry_edit import read_remote_entry, replace_command, to_command_entry
from pinwarden.clients.files import ConfigEdits, edit_entry, read_server_file, write_if_unchanged
from pinwarden.clients.table import Client, get_client
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.report import Report, Row, hints_for_failures, plural, row_to_json
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lock_store, lockfile
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
from pinwarden.lock.locked_launch import LockedLaunch, is_remote, read_locked_launch, to_launch_command
from pinwarden.lock.lockfile import Lock, put_entries, refuse_if_tampered, verify
from pinwarden.project.config_diff import FileEdit, diff_config
from pinwarden.project.configured_servers import identify_entry
from pinwarden.project.edit_backups import BackupServer, complete_backup, hold_backups, write_backup
from pinwarden.project.locked_servers import not_locked_error, resolve_start
from pinwarden.project.server_start import prepare_run_probe, probe_server
from pinwarden.project.server_target import with_store_variables
from pinwarden.project.undo_enforcement import recover_interrupted, restore_backup
from pinwarden.system.own_program import find_own_program
from pinwarden.system.redaction import redact_entry
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.project.project import Project
    from pinwarden.surface.probe.probe import ProbeOptions

_PACKAGE_KINDS = ("npm", "pypi", "oci")
_UNLOCKABLE_KINDS = (
    "nuget",
    "jsr",
    "source",
)  # packages that Pinwarden cannot pin; they are reported
_FILLED_BY_CLIENT = re.compile(r"\$\{[^}]*\}|%[A-Za-z_]+%")
# Clients that start servers in any folder have a placeholder for the project's folder.
_PROJECT_FOLDER = re.compile(r"\$\{workspaceFolder\}")
_PROJECT_PLACEHOLDERS = {"vscode": "${workspaceFolder}", "cursor": "${workspaceFolder}"}


class EntryPlan(Record):
    """How one client will start one locked server."""

    entry: Entry
    """The lock entry as it is."""
    sealed: Entry
    """The lock entry as it will be."""
    words: tuple[str, ...]
    """The new command."""
    server: ConfiguredServer | None = None
    """The server in the client's file; None if the file does not have it."""
    configured: dict[str, Any] | None = field(default=None, repr=False)
    """Its entry in the client's file as it will be."""

    @property
    def action(self) -> str:
        """What changes: the client's file, only the lock, or nothing."""
        if self.server is not None and self.configured != self.server.entry:
            return "updated"
        return "unchanged" if self.sealed.document == self.entry.document else "locked only"


class EnforcementPlan(Record):
    """All edits, computed but not made."""

    project: Project
    entries: tuple[EntryPlan, ...]
    refused: tuple[tuple[Entry, PinwardenError], ...]
    """Entries that stay as they are, and why."""
    files: tuple[FileEdit, ...]
    """The clients' files that change."""
    lock: FileEdit
    notes: tuple[str, ...] = ()
    now: str = ""

    @property
    def changes_anything(self) -> bool:
        """Whether applying the plan edits a file."""
        return bool(self.files) or self.lock.before != self.lock.after

    @property
    def diffs(self) -> tuple[tuple[str, str], ...]:
        """The edit of each client's file as a unified diff, by the file's path for display."""
        shown = ((self.project.display_path(edit.path), edit) for edit in self.files)
        return tuple((name, diff_config(name, edit.before, edit.after)) for name, edit in shown)

    @property
    def servers_to_start(self) -> tuple[str, ...]:
        """The names of the servers whose command changes."""
        return tuple(dict.fromkeys(plan.entry.name for plan in self.entries if plan.action == "updated"))


class EnforceOptions(Record):
    """How to rewrite one client entry as a part of another edit."""

    project: Project
    servers: tuple[ConfiguredServer, ...]
    """The servers configured in this project and for this user."""
    now: str
    edits: ConfigEdits = field(default_factory=ConfigEdits)
    """The edits to client files. If one fails, all of them are undone."""


def plan_enforcement(
    project: Project, names: Sequence[str] = (), now: str | None = None, *, recover: bool = True
) -> EnforcementPlan:
    """Plan how clients will start locked servers through ``pinwarden run``. No names mean all servers.

    An entry is rewritten only if ``pinwarden run`` resolves the new command to the same server. With ``recover``, an
    earlier edit that was interrupted is rolled back first.
    """
    notes = recover_interrupted(project) if recover else ()
    lock = lock_store.read(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name}")
    refuse_if_tampered(verify(lock))
    unknown = [name for name in names if not any(entry.name == name for entry in lock.entries)]
    if unknown:
        raise not_locked_error(lock.entries, unknown[0])
    servers = project.find_servers()
    plans: list[EntryPlan] = []
    refused: list[tuple[Entry, PinwardenError]] = []
    for entry in lock.entries:
        if names and entry.name not in names:
            continue
        try:
            plan = plan_entry(project, lock, entry, servers)
            if plan.server is not None and plan.configured is not None:
                edit_entry(read_server_file(plan.server), plan.server, plan.configured)
            plans.append(plan)
        except PinwardenError as err:
            refused.append((entry, err))
    if now is None:
        from pinwarden.system import clock

        now = clock.now()
    return _combine_plans(project, lock, plans, refused, now, notes)


def apply_enforcement(
    plan: EnforcementPlan, probe: ProbeOptions | None = None, on_start: Callable[[str], None] = lambda _: None
) -> Report:
    """Back up all files and make the edits. If anything fails or is interrupted, everything is restored.

    With ``probe``, Pinwarden starts each server once with its new command before it edits anything. A server that does
    not respond keeps its entry. ``on_start`` is called with the name of each.
    """
    if probe is not None:
        plan = _try_starts(plan, probe, on_start)
    if not plan.changes_anything:
        return build_enforcement_report(plan, probe=probe, written=True)
    project = plan.project
    servers = [_to_backup_server(entry_plan) for entry_plan in plan.entries if entry_plan.action != "unchanged"]
    with hold_backups(project):
        backup = write_backup(project, plan.lock, plan.files, servers)
        try:
            _write_lock(plan)
            for edit in plan.files:
                write_if_unchanged(edit.path, edit.before, edit.after)
        except BaseException:
            restore_backup(project, backup)
            raise
        complete_backup(backup)
    return build_enforcement_report(plan, probe=probe, written=True)


def build_enforcement_report(plan: EnforcementPlan, *, probe: ProbeOptions | None = None, written: bool) -> Report:
    """Report what was written, or what would be."""
    rows = [_build_row(entry, err) for entry, err in plan.refused]
    entries = [
        {
            "server": entry_plan.entry.name,
            "client": entry_plan.entry.client,
            "action": entry_plan.action,
            **({"file": plan.project.display_path(entry_plan.server.path)} if entry_plan.server else {}),
        }
        for entry_plan in plan.entries
    ]
    verb = "started" if written else "would be started"
    unchanged = f", {len(rows)} unchanged" if rows else ""
    failures = [(entry.name, err) for entry, err in plan.refused]
    return Report(
        command="enforce",
        subject=plan.project.lock.name,
        summary=f"{plural(len(entries), 'entry', 'entries')} {verb} through pinwarden run{unchanged}",
        exit_code=EXIT_REFUSED if any(row.severity != "info" for row in rows) else EXIT_CLEAN,
        rows=tuple(rows),
        notes=(*plan.notes, *hints_for_failures(failures), *_describe_outcome(plan, probe, written=written)),
        facts={
            "entries": entries,
            "files": [{"file": name, "diff": diff} for name, diff in plan.diffs],
            "written": written and plan.changes_anything,
            "started": written and probe is not None,
            "findings": [row_to_json(row) for row in rows],
        },
    )


def enforce_entry(options: EnforceOptions, entry: Entry, configured: ConfiguredServer | None = None) -> None:
    """Make one client start one locked server through ``pinwarden run``. If this raises, nothing was changed.

    ``configured`` is the server to use instead of the one in the client's file, for callers that update it as well.
    """
    project = options.project
    lock = lock_store.read(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name}")
    plan = plan_entry(project, lock, entry, options.servers, configured)
    with lock_store.restore_on_error(project.lock, [entry.key]):
        lock_store.update(
            project.lock, lambda old: lock_store.LockWrite(lock=put_entries(old, [plan.sealed], options.now))
        )
        if plan.server is not None and plan.configured is not None:
            options.edits.replace_entry(plan.server, plan.configured)


def plan_entry(
    project: Project,
    lock: Lock,
    entry: Entry,
    servers: Sequence[ConfiguredServer],
    configured: ConfiguredServer | None = None,
) -> EntryPlan:
    """Plan how one client will start one locked server. Raises if it cannot be started through ``pinwarden run``.

    1. Check that the lock has the server's bytes or address, and that the server is configured as approved.
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
    launch = None if is_remote(entry) else _find_startable(entry, extension)
    approved = read_locked_config(entry.key, entry.document).entry
    server = configured or _find_approved_server(project, entry, client, approved, servers)
    bundled = extension.bundle_tree is not None  # a bundle's manifest has its arguments
    arguments = () if launch is None or bundled else launch.launch.arguments
    words = _build_entry_command(project, entry, client, arguments)
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


def build_run_command(project: Project, name: str, client: str, scope: str, *, approved: bool = False) -> list[str]:
    """Build the ``pinwarden run`` command for a client. With an ``approved`` surface, it has ``--require-lock``.

    A file of the project is committed, so it names the program without a path. A file of the user names the program
    that runs now, because a desktop program rarely has the search path of a shell.
    """
    program = PROGRAM if project.scope == "project" else find_own_program(project.variables.get("PATH", ""))
    words = [program, "run", name, *(("--require-lock",) if approved else ())]
    if project.scope != "project":
        words += ["--scope", project.scope]
        if project.scope == "local":
            words += ["--project", str(project.root.resolve())]
    elif scope == "global":
        words += ["--project", str(project.root.resolve())]
    elif client in _PROJECT_PLACEHOLDERS:
        words += ["--project", _PROJECT_PLACEHOLDERS[client]]
    return words


def _rewrite(
    source: Any,
    client: Client,
    words: Sequence[str],
    known: LaunchCommand | RemoteLaunch | None,
    launch: LockedLaunch | None,
) -> tuple[dict[str, Any], LaunchCommand | RemoteLaunch]:
    """The entry with the new command, and what the lock records in its place."""
    if launch is not None:
        return replace_command(source, client, words), to_launch_command(launch)
    if isinstance(known, RemoteLaunch):
        return replace_command(source, client, words), known
    remote = read_remote_entry(source, client)
    record = RemoteLaunch(
        url=remote.url,
        transport=remote.target.transport,
        headers=remote.headers,
        url_variable=remote.url_variable,
    )
    return to_command_entry(source, client, remote, words), record


def _combine_plans(  # noqa: PLR0913, PLR0917  the parts of the plan
    project: Project,
    lock: Lock,
    plans: Sequence[EntryPlan],
    refused: Sequence[tuple[Entry, PinwardenError]],
    now: str,
    notes: tuple[str, ...] = (),
) -> EnforcementPlan:
    """The edits of several entries, file by file. A file may have several servers."""
    edits: dict[str, FileEdit] = {}
    for plan in plans:
        if plan.server is None or plan.configured is None or plan.action != "updated":
            continue
        path = plan.server.path
        edit = edits.get(path)
        if edit is None:
            data = read_server_file(plan.server)
            edit = FileEdit(path=Path(path), before=data, after=data)
        edits[path] = replace(edit, after=edit_entry(edit.after, plan.server, plan.configured))
    before = lock_store.read_bytes(project.lock)
    changed = put_entries(lock, [plan.sealed for plan in plans if plan.action != "unchanged"], now)
    after = before if changed is lock else lockfile.to_bytes(changed)
    return EnforcementPlan(
        project=project,
        entries=tuple(plans),
        refused=tuple(refused),
        files=tuple(edit for edit in edits.values() if edit.before != edit.after),
        lock=FileEdit(path=project.lock, before=before, after=after),
        notes=notes,
        now=now,
    )


def _write_lock(plan: EnforcementPlan) -> None:
    def change(old: Lock | None) -> lock_store.LockWrite:
        if old is None or lock_store.read_bytes(plan.project.lock) != plan.lock.before:
            raise PinwardenError("LOCK_BUSY", f"another program changed {plan.project.lock.name}; try again")
        return lock_store.LockWrite(lock=lockfile.parse(plan.lock.after))

    if plan.lock.before != plan.lock.after:
        lock_store.update(plan.project.lock, change)


def _to_backup_server(plan: EntryPlan) -> BackupServer:
    where = read_config_origin(plan.entry)
    return BackupServer(
        key=plan.entry.key,
        name=plan.entry.name,
        client=where.client if where else plan.entry.client,
        scope=plan.server.scope if plan.server else plan.entry.scope,
        path=None if plan.server is None else str(Path(plan.server.path).absolute()),
    )


def _describe_outcome(plan: EnforcementPlan, probe: ProbeOptions | None, *, written: bool) -> Iterator[str]:
    if not written:
        yield "nothing was written"
        return
    if plan.changes_anything:
        yield "undo with: pinwarden enforce --undo"
    if plan.entries and probe is None:
        yield "no server was started; pinwarden enforce --allow-execute starts each once with its new command"
    elif plan.entries:
        yield "each server was started once with its new command, and responded"


def _build_row(entry: Entry, err: PinwardenError) -> Row:
    level = "info" if err.code == "NOTHING_TO_RUN" else "review"
    return Row(code=err.code.lower(), severity=level, entity="server", name=entry.name, path="", message=err.message)


def _check_resolves(lock: Lock, entry: Entry, words: Sequence[str]) -> None:
    """Check that the new command resolves to the same server."""
    start = parse_locked_start(words)
    if start is None or identify_entry(resolve_start(start, lock.entries)) != identify_entry(entry):
        raise PinwardenError(
            "CONFIG_UNEDITABLE", f"{' '.join(words)[:200]} would start a different server than the approved one"
        )


def _try_starts(plan: EnforcementPlan, probe: ProbeOptions, on_start: Callable[[str], None]) -> EnforcementPlan:
    """Start each server with its new command. Returns the plan without the servers that do not respond."""
    kept: list[EntryPlan] = []
    refused = list(plan.refused)
    for entry_plan in plan.entries:
        try:
            if entry_plan.server is not None and entry_plan.words:
                on_start(entry_plan.entry.name)
                _try_start(plan.project, entry_plan, probe)
            kept.append(entry_plan)
        except PinwardenError as err:
            refused.append((entry_plan.entry, err))
    if len(kept) == len(plan.entries):
        return plan
    lock = lock_store.read(plan.project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {plan.project.lock.name}")
    return _combine_plans(plan.project, lock, kept, refused, plan.now, plan.notes)


def _try_start(project: Project, plan: EntryPlan, probe: ProbeOptions) -> None:
    from tempfile import TemporaryDirectory

    from pinwarden.clients.config import parse_target

    where = read_config_origin(plan.entry)
    client = get_client(where.client if where else plan.entry.client)
    target, _ = parse_target(plan.configured, client)
    folder = str(project.root.resolve())
    command = tuple(_PROJECT_FOLDER.sub(lambda _: folder, word) for word in plan.words)
    if any(_FILLED_BY_CLIENT.search(word) for word in command):
        return  # only the client can fill in the placeholders
    env = target.env if isinstance(target, StdioTarget) else {}
    with TemporaryDirectory(prefix="pinwarden-") as state:  # starting it once must not record trust on first use
        started = StdioTarget(command=command, env={**env, "PINWARDEN_STATE": state}, cwd=folder)
        try:
            probe_server(prepare_run_probe(project, with_store_variables(started), probe))
        except PinwardenError as err:
            message = (
                f"{' '.join(plan.words)[:200]} does not start the server: {err.message}; its entry was not changed"
            )
            raise PinwardenError(err.code, message, hint=err.hint, data=err.data) from err


def _find_startable(entry: Entry, extension: LockExtension) -> LockedLaunch:
    """The command of an entry. Raises if the lock does not have its bytes."""
    launch = read_locked_launch(entry)
    _refuse_local_program(entry, launch)
    if extension.closure is None and extension.image is None and extension.bundle_tree is None:
        raise PinwardenError("BYTES_NOT_LOCKED", f"the bytes of {entry.name[:120]!a} are not locked yet")
    return launch


def _refuse_local_program(entry: Entry, launch: LockedLaunch) -> None:
    """Refuse local programs. They have no pinned bytes, so ``pinwarden run`` does not start them."""
    runs = launch.launch.via or launch.launch
    if (
        entry.selected_target.get("registryType") == "mcpb"
        or runs.kind in _PACKAGE_KINDS
        or runs.kind in _UNLOCKABLE_KINDS
    ):
        if not launch.launch.wrappers:
            return
        raise PinwardenError(
            "NOTHING_TO_RUN", f"it is started by {launch.launch.wrappers[0]}, which Pinwarden cannot reproduce"
        )
    if runs.kind == "shell":
        raise PinwardenError("NOTHING_TO_RUN", f"it is a text for the shell {runs.identity[:40]!a}, not one command")
    raise PinwardenError("NOTHING_TO_RUN", f"it starts {runs.identity[:120]!a}, which is not from a registry")


def _find_approved_server(
    project: Project, entry: Entry, client: Client, approved: Any, servers: Sequence[ConfiguredServer]
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
        changes = compare_entries(entry.name, approved, redact_entry(server.entry), client)
        if all(change.severity == "info" for change in changes):
            return server
        raise PinwardenError("CONFIG_UNEDITABLE", f"{entry.name[:120]!a} is configured differently than approved")
    return None


def _build_entry_command(project: Project, entry: Entry, client: Client, arguments: Sequence[str]) -> list[str]:
    words = build_run_command(project, entry.name, client.id, entry.scope, approved=has_surface(entry))
    words += ["--client", entry.client]  # other clients may have another server of this name
    if any(_FILLED_BY_CLIENT.search(word) for word in arguments):
        words += ["--", *arguments]
    return words
