"""Letting clients start locked servers through ``pinwarden run``: in their configuration, and in the lock.

Only the command and its arguments change. Variables, switches and everything else stay as they are in the client's
file, whose secrets never pass through the lock. The command that was approved moves into our record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.adapters import lock_store
from pinwarden.adapters.clients import exchange_entry, refuse_uneditable
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import replace
from pinwarden.documents.clients.config import ConfiguredServer, config_with
from pinwarden.documents.clients.table import Client, client_of
from pinwarden.documents.launch.own_launch import PROGRAM
from pinwarden.documents.lock import entry as lock_entry
from pinwarden.documents.lock.bundle_pin import BUNDLE
from pinwarden.documents.lock.configured import configured_in
from pinwarden.documents.lock.entry import Entry
from pinwarden.documents.lock.extension import BUNDLE_TREE, extended
from pinwarden.documents.lock.locked_config import locked_config
from pinwarden.documents.lock.locked_launch import LAUNCH, LockedLaunch, launch_record, locked_launch
from pinwarden.documents.lock.record import extension_of, has_surface
from pinwarden.documents.lock.relock import relock
from pinwarden.documents.lock.verification import refuse_if_tampered, verify
from pinwarden.flows.config.view import view_of
from pinwarden.flows.lock.not_locked import not_locked
from pinwarden.flows.report import Report, Row, advice, counted, row_facts
from pinwarden.rules.config.drift import compare_entries
from pinwarden.rules.config.masking import lockable_entry

if TYPE_CHECKING:
    from pinwarden.flows.project import Project

_STARTED = ("npm", "pypi", "oci")
_FETCHED_ANEW = ("nuget", "jsr", "source")  # packages, too: that nobody can hold them to their bytes is worth a word
_FILLED_BY_CLIENT = re.compile(r"\$\{[^}]*\}|%[A-Za-z_]+%")
# Clients that start servers wherever they like say where the project is by a word of their own.
_PROJECT_WORDS = {"vscode": "${workspaceFolder}", "cursor": "${workspaceFolder}"}


def enforce(project: Project, names: Sequence[str], now: str) -> Report:
    """Rewrite the configurations of locked servers, and the lock with them."""
    lock = lock_store.read(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name} here")
    refuse_if_tampered(verify(lock))
    unknown = [name for name in names if not any(entry.name == name for entry in lock.entries)]
    if unknown:
        raise not_locked(lock.entries, unknown[0])
    servers = view_of(project, (), project.configs()).servers  # not those of the user's other projects
    done: list[dict[str, str]] = []
    rows: list[Row] = []
    failures: list[tuple[str, PinwardenError]] = []
    for entry in lock.entries:
        if names and entry.name not in names:
            continue
        try:
            done.append(_enforce_one(project, entry, servers, now))
        except PinwardenError as err:
            rows.append(_row(entry, err))
            failures.append((entry.name, err))
    return Report(
        command="enforce",
        subject=project.lock.name,
        summary=f"{counted(len(done), 'entry', 'entries')} started through pinwarden run, {len(rows)} left as they are",
        exit_code=EXIT_REFUSED if any(row.level != "info" for row in rows) else EXIT_CLEAN,
        rows=tuple(rows),
        notes=advice(failures),
        facts={"entries": done, "findings": [row_facts(row) for row in rows]},
    )


def _row(entry: Entry, err: PinwardenError) -> Row:
    level = "info" if err.code == "NOTHING_TO_RUN" else "review"
    return Row(code=err.code.lower(), level=level, entity="server", name=entry.name, path="", message=err.message)


def _enforce_one(project: Project, entry: Entry, servers: Sequence[ConfiguredServer], now: str) -> dict[str, str]:
    extension = extension_of(entry)
    if extension is not None and BUNDLE in extension.others:
        return {"server": entry.name, "client": entry.client, "action": "unchanged"}
    launch = locked_launch(entry)
    _refuse_local(entry, launch)
    bundled = extension is not None and BUNDLE_TREE in extension.others
    if extension is None or (extension.closure is None and extension.image is None and not bundled):
        raise PinwardenError("BYTES_NOT_LOCKED", f"the bytes of {entry.name[:120]!a} are not locked yet")
    where = configured_in(entry)
    client = client_of(where["client"] if where else entry.client)
    told = {"server": entry.name, "client": entry.client}
    if LAUNCH in extension.others:
        return {**told, "action": "unchanged"}
    approved = locked_config(entry.key, entry.document).entry
    server = _as_approved(entry, client, approved, servers)
    arguments = () if bundled else launch.runs.arguments  # a bundle's manifest says what it is started with
    words = _words(project, entry, client, arguments)
    lock_form = with_command(approved if server is None else lockable_entry(server.entry), client, words)
    fragment = config_with(client, entry.name, lock_form)
    # Version 2 lets an entry leave its locked copy out; then there is none to keep in step.
    copy = entry.document.get("locked")
    kept = {"locked": {**copy, "config": fragment}} if isinstance(copy, dict) else {}
    document = {**entry.document, "config": fragment, **kept}
    made = lock_entry.with_integrity(replace(entry, document=document))
    sealed = extended(made, replace(extension, others={**extension.others, LAUNCH: launch_record(launch)}))
    if server is not None:
        raw = with_command(server.entry, client, words)
        refuse_uneditable(server, raw)
    # The lock first: a configuration that is ahead of its lock would be a finding, a lock ahead of it is drift too,
    # but one that says exactly what is to be done.
    lock_store.update(project.lock, lambda old: lock_store.LockWrite(lock=relock(old, [sealed], now)))
    if server is None:
        return {**told, "action": "locked only"}
    return {**told, "file": project.shown(server.path), "action": exchange_entry(server, raw)}


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
            changes = compare_entries(entry.name, approved, lockable_entry(server.entry), client)
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
