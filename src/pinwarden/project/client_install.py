"""Write locked servers into client configurations, update them there, and remove them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.clients.config import ConfiguredServer, parse_configured_server
from pinwarden.clients.drift import compare_entries
from pinwarden.clients.table import Client, get_client
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import FindingKinds, Report, Row, build_kind_table
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry, is_for_client
from pinwarden.lock.locked_config import read_config_origin, read_locked_config
from pinwarden.lock.lockfile import remove_entries
from pinwarden.project.client_edits import ServerEdits, plan_lock_edit, write_locked_servers
from pinwarden.project.lock import change_entries, plan_registry_lock, write_entries
from pinwarden.project.locked_servers import not_locked_error
from pinwarden.system.redaction import redact_entry

if TYPE_CHECKING:
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.lock import LockOptions, LockRequest
    from pinwarden.project.project import Policies, Project

_REMOVAL_TEXT = {"removed": "no longer names it", "missing": "did not name it"}


def add_server(project: Project, request: LockRequest, policies: Policies, lock_options: LockOptions) -> Report:
    """Lock a server from an MCP registry, and write its configuration into the file of each client, or do neither.

    If its surface has warnings that are not approved, it is locked without the surface, and no client's file changes.
    """
    planned = plan_registry_lock(project, request, policies, lock_options)
    report = planned.report
    if report.exit_code != EXIT_CLEAN:
        write_entries(project, planned.entries, planned.candidate, lock_options)
        return replace(report, command="add", summary=f"{report.summary}; no client configuration was changed")
    paths = {client: project.find_install_path(client, request.scope) for client in request.clients}
    change_lock = change_entries(planned.entries, planned.candidate, lock_options)
    done = write_locked_servers(project, "add", planned.entries, change_lock, paths)
    files_text = ", ".join(f"{row['file']} {row['action']}" for row in done)
    return replace(
        report, command="add", summary=f"{report.summary}; {files_text}", facts={**report.facts, "installed": done}
    )


def remove_server(project: Project, name: str, clients: Sequence[str], now: str, *, keep_config: bool) -> Report:
    """Remove a server from the lock and from the files of its clients, for the given clients or all, or do neither."""
    removed: list[Entry] = []

    def change_lock(old: Lock | None) -> lock_store.LockWrite:
        if old is None:
            raise lock_store.missing_lock_error(project.lock)
        removed.extend(
            entry
            for entry in old.entries
            if entry.name == name and (not clients or any(is_for_client(entry, client) for client in clients))
        )
        if not removed:
            raise not_locked_error(old.entries, name)
        return lock_store.LockWrite(lock=remove_entries(old, [entry.key for entry in removed], now))

    lock_edit = plan_lock_edit(project.lock, change_lock)
    paths = {} if keep_config else project.find_install_paths()
    edits = ServerEdits(project)
    done: list[dict[str, str]] = []
    for entry in removed:
        if (entry.client, entry.scope) in paths:
            path = Path(paths[entry.client, entry.scope])
            action = edits.remove(entry, path)
            done.append({"client": entry.client, "file": project.display_path(path), "action": action})
    edits.write("remove", lock_edit)
    keys = [entry.key for entry in removed]
    files_text = "".join(f"; {row['file']} {_REMOVAL_TEXT[row['action']]}" for row in done)
    return Report(
        command="remove",
        subject=name,
        summary=f"removed {', '.join(keys)}{files_text}",
        exit_code=EXIT_CLEAN,
        facts={"removed": keys, "configs": done},
    )


class ClientEntries:
    """The entries in client files, as they were before an update changed the lock."""

    def __init__(self, project: Project, entries: Sequence[Entry]) -> None:
        servers = project.find_servers()
        self._earlier = {entry.key: (entry, _find_configured_server(entry, servers)) for entry in entries}

    def refuse_changed(self, key: str) -> None:
        """Raise CONFIG_UNEDITABLE if a server is configured differently than approved."""
        entry, server = self._earlier[key]
        if server is not None and not is_as_approved(entry, server, get_client(entry.client)):
            raise PinwardenError("CONFIG_UNEDITABLE", "it is configured differently than approved")

    def build_updated_server(self, fresh: Entry) -> ConfiguredServer | None:
        """Return the server as its client's file must have it now; None if it is locked but not configured there.

        ``fresh`` is the updated lock entry.
        """
        entry, server = self._earlier[fresh.key]
        if server is None:
            return None
        merged = replace_launch(server.entry, read_locked_config(fresh.key, fresh.document).approved)
        target = parse_configured_server(server.name, merged, get_client(entry.client)).target
        return replace(server, entry=merged, target=target)


def replace_launch(entry: Any, approved: Any) -> dict[str, Any]:
    """Replace the command or address of a client's entry by the approved one. Values of variables and headers stay."""
    if not isinstance(entry, dict) or not isinstance(approved, dict):
        raise PinwardenError("CONFIG_UNEDITABLE", "the configuration of the server has an unknown form")
    kept = {member: value for member, value in entry.items() if member not in _LAUNCH_MEMBERS}
    filled = {
        member: {**approved[member], **{key: kept[member][key] for key in approved[member] if key in kept[member]}}
        for member in _VALUE_MEMBERS
        if isinstance(kept.get(member), dict) and isinstance(approved.get(member), dict)
    }
    return {**kept, **approved, **filled}


def is_as_approved(entry: Entry, server: ConfiguredServer, client: Client) -> bool:
    """Whether a client's file has the server as approved, apart from differences of severity ``info``."""
    approved = read_locked_config(entry.key, entry.document).approved
    changes = compare_entries(entry.name, approved, redact_entry(server.entry), client)
    return all(change.severity == "info" for change in changes)


def read_locked_entry(project: Project, key: str) -> Entry:
    """Return an entry as the lock has it now."""
    lock = lock_store.read(project.lock)
    entry = next((entry for entry in (lock.entries if lock is not None else ()) if entry.key == key), None)
    if entry is None:
        raise PinwardenError("SERVER_NOT_LOCKED", f"{key[:120]!a} is not locked")
    return entry


def build_not_updated_row(name: str, message: str) -> Row:
    """Report a server that was not updated, neither in the lock nor in any client's file."""
    return Row(
        code=NOT_UPDATED,
        severity=CLIENT_UPDATE_KINDS[NOT_UPDATED].severity,
        entity="config",
        name=name,
        path="",
        message=message,
    )


NOT_UPDATED = "config_not_updated"
CLIENT_UPDATE_KINDS: FindingKinds = build_kind_table(
    review=(
        (
            NOT_UPDATED,
            "A newer release was not written, neither into the lock nor into any client's configuration.",
        ),
    )
)
_LAUNCH_MEMBERS = ("command", "args", "url", "serverUrl", "httpUrl", "type", "transport")
_VALUE_MEMBERS = ("env", "environment", "headers")


def _find_configured_server(entry: Entry, servers: Sequence[ConfiguredServer]) -> ConfiguredServer | None:
    where = read_config_origin(entry)
    client = get_client(where.client if where else entry.client)
    return next((server for server in servers if server.name == entry.name and server.client == client.id), None)
