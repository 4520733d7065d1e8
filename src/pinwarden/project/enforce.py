"""Make clients start locked servers through ``pinwarden run``, by rewriting their configuration and the lock.

Only the command and its arguments change in a client's file; variables and other members stay unchanged. The approved
command moves into the lock entry. Secrets are never copied into the lock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.clients.command_line import PROGRAM, parse_locked_start
from pinwarden.clients.config import ConfiguredServer
from pinwarden.clients.documents import build_config
from pinwarden.clients.drift import compare_entries
from pinwarden.clients.files import ConfigEdits, refuse_uneditable
from pinwarden.clients.table import Client, get_client
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.report import Report, Row, hints_for_failures, plural, row_to_json
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import has_surface, read_extension, with_extension
from pinwarden.lock.locked_config import read_config_origin, read_locked_config
from pinwarden.lock.locked_launch import LockedLaunch, read_locked_launch, to_launch_command
from pinwarden.lock.lockfile import put_entries, refuse_if_tampered, verify
from pinwarden.project.configured_servers import identify_entry
from pinwarden.project.locked_servers import not_locked_error, resolve_start
from pinwarden.project.server_start import prepare_run_probe, probe_server
from pinwarden.project.server_target import with_store_variables
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


class EnforceOptions(Record):
    """How to rewrite client entries."""

    project: Project
    servers: tuple[ConfiguredServer, ...]
    """The servers configured in this project and for this user."""
    now: str
    probe: ProbeOptions | None = None
    """If given, Pinwarden starts each server once with its new command before it writes anything."""
    edits: ConfigEdits = field(default_factory=ConfigEdits)
    """The edits to client files. If one fails, all of them are undone."""


def enforce(project: Project, names: Sequence[str], now: str, probe: ProbeOptions | None = None) -> Report:
    """Rewrite the configurations of locked servers, and the lock with them.

    An entry is rewritten only if ``pinwarden run`` resolves the new command to the same server. With ``probe``, the
    server must also respond when it is started with that command.
    """
    lock = lock_store.read(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name}")
    refuse_if_tampered(verify(lock))
    unknown = [name for name in names if not any(entry.name == name for entry in lock.entries)]
    if unknown:
        raise not_locked_error(lock.entries, unknown[0])
    servers = project.find_servers()
    options = EnforceOptions(project=project, servers=servers, now=now, probe=probe)
    done: list[dict[str, str]] = []
    rows: list[Row] = []
    failures: list[tuple[str, PinwardenError]] = []
    for entry in lock.entries:
        if names and entry.name not in names:
            continue
        try:
            done.append(enforce_entry(options, entry))
        except PinwardenError as err:
            rows.append(_build_row(entry, err))
            failures.append((entry.name, err))
    return Report(
        command="enforce",
        subject=project.lock.name,
        summary=f"{plural(len(done), 'entry', 'entries')} started through pinwarden run, {len(rows)} unchanged",
        exit_code=EXIT_REFUSED if any(row.severity != "info" for row in rows) else EXIT_CLEAN,
        rows=tuple(rows),
        notes=(*hints_for_failures(failures), *_describe_starts(done, probe)),
        facts={"entries": done, "findings": [row_to_json(row) for row in rows]},
    )


def enforce_entry(options: EnforceOptions, entry: Entry, configured: ConfiguredServer | None = None) -> dict[str, str]:
    """Make one client start one locked server through ``pinwarden run``. If this raises, nothing was changed.

    ``configured`` is the server to use instead of the one in the client's file, for callers that update it as well.

    1. Check that the lock has the server's bytes, and that the server is configured as approved.
    2. Resolve the new command. With ``options.probe``, start the server with it once.
    3. Write the lock, then the client's file. If writing the file fails, restore the lock.
    """
    project, extension = options.project, read_extension(entry)
    facts = {"server": entry.name, "client": entry.client}
    if extension is not None and extension.bundle is not None:
        return {**facts, "action": "unchanged"}
    launch = read_locked_launch(entry)
    _refuse_local_program(entry, launch)
    bundled = extension is not None and extension.bundle_tree is not None
    if extension is None or (extension.closure is None and extension.image is None and not bundled):
        raise PinwardenError("BYTES_NOT_LOCKED", f"the bytes of {entry.name[:120]!a} are not locked yet")
    where = read_config_origin(entry)
    client = get_client(where.client if where else entry.client)
    approved = read_locked_config(entry.key, entry.document).entry
    server = configured or _find_approved_server(entry, client, approved, options.servers)
    arguments = () if bundled else launch.launch.arguments  # a bundle's manifest has its arguments
    words = _build_entry_command(project, entry, client, arguments)
    _check_start(options, entry, words, server)
    lock_form = replace_command(approved if server is None else redact_entry(server.entry), client, words)
    fragment = build_config(client, entry.name, lock_form)
    # In lockfileVersion 2 the member `locked` is optional.
    copy = entry.document.get("locked")
    kept = {"locked": {**copy, "config": fragment}} if isinstance(copy, dict) else {}
    document = {**entry.document, "config": fragment, **kept}
    changed = lock_entry.with_integrity(replace(entry, document=document))
    sealed = with_extension(changed, replace(extension, launch=to_launch_command(launch)))
    raw = None if server is None else replace_command(server.entry, client, words)
    if server is not None and raw is not None:
        refuse_uneditable(server, raw)
    with lock_store.restore_on_error(project.lock, [entry.key]):
        lock_store.update(project.lock, lambda old: lock_store.LockWrite(lock=put_entries(old, [sealed], options.now)))
        if server is None or raw is None:
            return {**facts, "action": "unchanged" if approved == lock_form else "locked only"}
        return {**facts, "file": project.display_path(server.path), "action": options.edits.replace_entry(server, raw)}


def build_run_command(project: Project, name: str, client: str, scope: str, *, approved: bool = False) -> list[str]:
    """Build the ``pinwarden run`` command for a client. With an ``approved`` surface, it has ``--require-lock``."""
    words = [PROGRAM, "run", name, *(("--require-lock",) if approved else ())]
    if project.scope != "project":
        words += ["--scope", project.scope]
        if project.scope == "local":
            words += ["--project", str(project.root.resolve())]
    elif scope == "global":
        words += ["--project", str(project.root.resolve())]
    elif client in _PROJECT_PLACEHOLDERS:
        words += ["--project", _PROJECT_PLACEHOLDERS[client]]
    return words


def replace_command(entry: Any, client: Client, words: Sequence[str]) -> dict[str, Any]:
    """Replace the command of a client's entry, in the form that the entry uses."""
    command = entry.get("command") if isinstance(entry, dict) else None
    if isinstance(command, list) and "args" not in entry:
        return {**entry, "command": list(words)}
    if isinstance(command, str):
        return {**entry, "command": words[0], "args": list(words[1:])}
    if isinstance(command, dict) and isinstance(command.get("path"), str):
        return {**entry, "command": {**command, "path": words[0], "args": list(words[1:])}}
    raise PinwardenError("CONFIG_UNEDITABLE", f"the command of an entry of {client.title} has an unknown form")


def _describe_starts(done: Sequence[Mapping[str, str]], probe: ProbeOptions | None) -> Iterator[str]:
    if done and probe is None:
        yield "no server was started; pinwarden enforce --allow-execute starts each once with its new command"
    elif done:
        yield "each server was started once with its new command, and responded"


def _build_row(entry: Entry, err: PinwardenError) -> Row:
    level = "info" if err.code == "NOTHING_TO_RUN" else "review"
    return Row(code=err.code.lower(), severity=level, entity="server", name=entry.name, path="", message=err.message)


def _check_start(options: EnforceOptions, entry: Entry, words: Sequence[str], server: ConfiguredServer | None) -> None:
    """Check that the new command resolves to the same server. With ``options.probe``, start the server with it."""
    project = options.project
    lock, start = lock_store.read(project.lock), parse_locked_start(words)
    if lock is None or start is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name}")
    resolved = resolve_start(start, lock.entries)
    if identify_entry(resolved) != identify_entry(entry):
        raise PinwardenError(
            "CONFIG_UNEDITABLE", f"{' '.join(words)[:200]} would start a different server than the approved one"
        )
    if options.probe is None or server is None:
        return
    folder = str(project.root.resolve())
    command = tuple(_PROJECT_FOLDER.sub(lambda _: folder, word) for word in words)
    if any(_FILLED_BY_CLIENT.search(word) for word in command):
        return  # only the client can fill in the placeholders
    from tempfile import TemporaryDirectory

    env = server.target.env if isinstance(server.target, StdioTarget) else {}
    with TemporaryDirectory(prefix="pinwarden-") as state:  # starting it once must not record trust on first use
        target = StdioTarget(command=command, env={**env, "PINWARDEN_STATE": state}, cwd=folder)
        try:
            probe_server(prepare_run_probe(project, with_store_variables(target), options.probe))
        except PinwardenError as err:
            message = f"{' '.join(words)[:200]} does not start the server: {err.message}; its entry was not changed"
            raise PinwardenError(err.code, message, hint=err.hint, data=err.data) from err


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
    raise PinwardenError("NOTHING_TO_RUN", f"it starts {runs.identity[:120]!a}, which is not from a registry")


def _find_approved_server(
    entry: Entry, client: Client, approved: Any, servers: Sequence[ConfiguredServer]
) -> ConfiguredServer | None:
    """Find the server in its client's file; None if the file does not have it. Raises if it is not as approved."""
    for server in servers:
        if server.name == entry.name and server.client == client.id and server.target is not None:
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
