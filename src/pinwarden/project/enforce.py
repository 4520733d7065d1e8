"""Letting clients start locked servers through ``pinwarden run``: in their configuration, and in the lock.

Only the command and its arguments change. Variables, switches and everything else stay as they are in the client's
file, whose secrets never pass through the lock. The command that was approved moves into our record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.clients.config import ConfiguredServer, config_with
from pinwarden.clients.drift import compare_entries
from pinwarden.clients.files import ConfigEdits, refuse_uneditable
from pinwarden.clients.launch.parse import PROGRAM
from pinwarden.clients.launch.run_command import parse_locked_start
from pinwarden.clients.table import Client, client_of
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.report import Report, Row, hints_for_failures, plural, row_facts
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import extended, extension_of, has_surface
from pinwarden.lock.locked_config import configured_in, locked_config
from pinwarden.lock.locked_launch import LockedLaunch, launch_command, locked_launch
from pinwarden.lock.relock import relock
from pinwarden.lock.verification import refuse_if_tampered, verify
from pinwarden.project.configs import view_of
from pinwarden.project.configured_entry import resolved_start
from pinwarden.project.locked_servers import not_locked
from pinwarden.project.server_identity import entry_identity
from pinwarden.project.server_start import ask, finding_its_store, prepare_run_probe
from pinwarden.system.redaction import redact_entry
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.project.project import Project
    from pinwarden.surface.probe.probe import ProbeOptions

_STARTED = ("npm", "pypi", "oci")
_FETCHED_ANEW = ("nuget", "jsr", "source")  # packages, too: that nobody can hold them to their bytes is worth a word
_FILLED_BY_CLIENT = re.compile(r"\$\{[^}]*\}|%[A-Za-z_]+%")
# Clients that start servers wherever they like say where the project is by a word of their own.
_PROJECT_FOLDER = re.compile(r"\$\{workspaceFolder\}")
_PROJECT_WORDS = {"vscode": "${workspaceFolder}", "cursor": "${workspaceFolder}"}


class Enforcing(Record):
    """How entries are rewritten."""

    project: Project
    servers: tuple[ConfiguredServer, ...]
    """What is configured now, in this project and for this user."""
    now: str
    probe: ProbeOptions | None = None
    """If given, each server is started once by the command that its client gets, before that is written."""
    edits: ConfigEdits = field(default_factory=ConfigEdits)
    """What else is edited with it, and taken back with it."""


def enforce(project: Project, names: Sequence[str], now: str, probe: ProbeOptions | None = None) -> Report:
    """Rewrite the configurations of locked servers, and the lock with them.

    An entry is only touched if ``pinwarden run`` finds its server in the lock by the command that is written; with
    ``probe`` also only if the server answers when it is started by that command.
    """
    lock = lock_store.read(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name} here")
    refuse_if_tampered(verify(lock))
    unknown = [name for name in names if not any(entry.name == name for entry in lock.entries)]
    if unknown:
        raise not_locked(lock.entries, unknown[0])
    servers = view_of(project, (), project.configs()).servers  # not those of the user's other projects
    how = Enforcing(project=project, servers=servers, now=now, probe=probe)
    done: list[dict[str, str]] = []
    rows: list[Row] = []
    failures: list[tuple[str, PinwardenError]] = []
    for entry in lock.entries:
        if names and entry.name not in names:
            continue
        try:
            done.append(enforce_entry(how, entry))
        except PinwardenError as err:
            rows.append(_row(entry, err))
            failures.append((entry.name, err))
    return Report(
        command="enforce",
        subject=project.lock.name,
        summary=f"{plural(len(done), 'entry', 'entries')} started through pinwarden run, {len(rows)} left as they are",
        exit_code=EXIT_REFUSED if any(row.severity != "info" for row in rows) else EXIT_CLEAN,
        rows=tuple(rows),
        notes=(*hints_for_failures(failures), *_start_note(done, probe)),
        facts={"entries": done, "findings": [row_facts(row) for row in rows]},
    )


def _start_note(done: Sequence[Mapping[str, str]], probe: ProbeOptions | None) -> Iterator[str]:
    if done and probe is None:
        yield "no server was started; pinwarden enforce --allow-execute starts each once by its new command"
    elif done:
        yield "each server was started once by its new command, and answered"


def _row(entry: Entry, err: PinwardenError) -> Row:
    level = "info" if err.code == "NOTHING_TO_RUN" else "review"
    return Row(code=err.code.lower(), severity=level, entity="server", name=entry.name, path="", message=err.message)


def enforce_entry(how: Enforcing, entry: Entry, configured: ConfiguredServer | None = None) -> dict[str, str]:
    """Let one client start one locked server through us; tells what was done. If it raises, nothing is changed.

    ``configured`` stands for what the client's file holds, for those who write a newer command and this one at once.

    1. See that the server can be started from the lock, and is configured as approved.
    2. Find it by the very command that is to be written, and start it once, if that was allowed.
    3. Write the lock, then the client's file; if that fails, the lock is put back.
    """
    project, extension = how.project, extension_of(entry)
    told = {"server": entry.name, "client": entry.client}
    if extension is not None and extension.bundle is not None:
        return {**told, "action": "unchanged"}
    launch = locked_launch(entry)
    _refuse_local(entry, launch)
    bundled = extension is not None and extension.bundle_tree is not None
    if extension is None or (extension.closure is None and extension.image is None and not bundled):
        raise PinwardenError("BYTES_NOT_LOCKED", f"the bytes of {entry.name[:120]!a} are not locked yet")
    where = configured_in(entry)
    client = client_of(where.client if where else entry.client)
    approved = locked_config(entry.key, entry.document).entry
    server = configured or _as_approved(entry, client, approved, how.servers)
    arguments = () if bundled else launch.runs.arguments  # a bundle's manifest says what it is started with
    words = _words(project, entry, client, arguments)
    _check_start(how, entry, words, server)
    lock_form = with_command(approved if server is None else redact_entry(server.entry), client, words)
    fragment = config_with(client, entry.name, lock_form)
    # Version 2 lets an entry leave its locked copy out; then there is none to keep in step.
    copy = entry.document.get("locked")
    kept = {"locked": {**copy, "config": fragment}} if isinstance(copy, dict) else {}
    document = {**entry.document, "config": fragment, **kept}
    made = lock_entry.with_integrity(replace(entry, document=document))
    sealed = extended(made, replace(extension, launch=launch_command(launch)))
    raw = None if server is None else with_command(server.entry, client, words)
    if server is not None and raw is not None:
        refuse_uneditable(server, raw)
    with lock_store.restored_on_error(project.lock, [entry.key]):
        lock_store.update(project.lock, lambda old: lock_store.LockWrite(lock=relock(old, [sealed], how.now)))
        if server is None or raw is None:
            return {**told, "action": "unchanged" if approved == lock_form else "locked only"}
        return {**told, "file": project.shown(server.path), "action": how.edits.exchange(server, raw)}


def _check_start(how: Enforcing, entry: Entry, words: Sequence[str], server: ConfiguredServer | None) -> None:
    """Find the server by the command that its client gets, and start it by that, if that was allowed."""
    project = how.project
    lock, start = lock_store.read(project.lock), parse_locked_start(words)
    if lock is None or start is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name} here")
    found = resolved_start(start, lock.entries)
    if entry_identity(found) != entry_identity(entry):
        raise PinwardenError(
            "CONFIG_UNEDITABLE", f"{' '.join(words)[:200]} would start another server than was approved"
        )
    if how.probe is None or server is None:
        return
    folder = str(project.root.resolve())
    command = tuple(_PROJECT_FOLDER.sub(lambda _: folder, word) for word in words)
    if any(_FILLED_BY_CLIENT.search(word) for word in command):
        return  # only the client knows what it fills in
    from tempfile import TemporaryDirectory

    env = server.target.env if isinstance(server.target, StdioTarget) else {}
    with TemporaryDirectory(prefix="pinwarden-") as state:  # nothing is trusted for good because it was tried
        target = StdioTarget(command=command, env={**env, "PINWARDEN_STATE": state}, cwd=folder)
        try:
            ask(prepare_run_probe(project, finding_its_store(target), how.probe))
        except PinwardenError as err:
            message = f"{' '.join(words)[:200]} does not start the server: {err.message}; its entry was left as it is"
            raise PinwardenError(err.code, message, hint=err.hint, data=err.data) from err


def _refuse_local(entry: Entry, launch: LockedLaunch) -> None:
    """Stop at programs of this machine, which ``pinwarden run`` does not start: they have no bytes to be held to."""
    runs = launch.runs.via or launch.runs
    if entry.selected_target.get("registryType") == "mcpb" or runs.kind in _STARTED or runs.kind in _FETCHED_ANEW:
        if not launch.runs.wrappers:
            return
        raise PinwardenError("NOTHING_TO_RUN", f"it is started by {launch.runs.wrappers[0]}, which cannot be repeated")
    raise PinwardenError("NOTHING_TO_RUN", f"it starts {runs.identity[:120]!a}, which comes from no registry")


def _as_approved(
    entry: Entry, client: Client, approved: Any, servers: Sequence[ConfiguredServer]
) -> ConfiguredServer | None:
    """The server in its client's file, if it is there; one that is not as it was approved is not touched."""
    for server in servers:
        if server.name == entry.name and server.client == client.id and server.target is not None:
            changes = compare_entries(entry.name, approved, redact_entry(server.entry), client)
            if all(change.severity == "info" for change in changes):
                return server
            raise PinwardenError(
                "CONFIG_UNEDITABLE", f"{entry.name[:120]!a} is configured otherwise than it was approved"
            )
    return None


def start_words(project: Project, name: str, client: str, scope: str, *, held: bool = False) -> list[str]:
    """The command by which a client starts a locked server through us; ``held`` says that its text is approved."""
    words = [PROGRAM, "run", name, *(("--require-lock",) if held else ())]
    if scope == "global":
        words += ["--project", str(project.root.resolve())]
    elif client in _PROJECT_WORDS:
        words += ["--project", _PROJECT_WORDS[client]]
    return words


def _words(project: Project, entry: Entry, client: Client, arguments: Sequence[str]) -> list[str]:
    words = start_words(project, entry.name, client.id, entry.scope, held=has_surface(entry))
    words += ["--client", entry.client]  # another client may have, or get, another server of this name
    if any(_FILLED_BY_CLIENT.search(word) for word in arguments):
        words += ["--", *arguments]
    return words


def with_command(entry: Any, client: Client, words: Sequence[str]) -> dict[str, Any]:
    """A server's entry with another command, in the spelling that it has."""
    command = entry.get("command") if isinstance(entry, dict) else None
    if isinstance(command, list) and "args" not in entry:
        return {**entry, "command": list(words)}
    if isinstance(command, str):
        return {**entry, "command": words[0], "args": list(words[1:])}
    if isinstance(command, dict) and isinstance(command.get("path"), str):
        return {**entry, "command": {**command, "path": words[0], "args": list(words[1:])}}
    raise PinwardenError("CONFIG_UNEDITABLE", f"the command of an entry of {client.title} is in an unknown form")
