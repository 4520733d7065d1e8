"""Putting what is locked into the clients' configurations, and taking it out again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.clients.files import install_entry, remove_entry
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import Report
from pinwarden.lock import lock_store
from pinwarden.project.lock import remove_from_lock

if TYPE_CHECKING:
    from pinwarden.project.lock import Wanted
    from pinwarden.project.project import Project


def install_locked(project: Project, wanted: Wanted, locked: Report) -> Report:
    """Write the locked configuration of a server into the file of each client."""
    lock = lock_store.read(project.lock)
    paths = project.config_paths()
    done: list[dict[str, str]] = []
    for client in wanted.clients:
        entry = lock.entry(wanted.name, client) if lock else None
        if entry is None:
            raise PinwardenError("SERVER_NOT_LOCKED", f"{wanted.name[:120]!a} is not locked for {client}")
        path = _path(paths, client, wanted.scope)
        action = install_entry(path, client, wanted.name, entry.config)
        done.append({"client": client, "file": project.shown(path), "action": action})
    told = ", ".join(f"{row['file']} {row['action']}" for row in done)
    return replace(
        locked, command="add", summary=f"{locked.summary}; {told}", facts={**locked.facts, "installed": done}
    )


_TOLD = {"removed": "no longer names it", "missing": "did not name it"}


def remove_server(project: Project, name: str, clients: Sequence[str], now: str, *, keep_config: bool) -> Report:
    """Take a server out of the configurations and out of the lock."""
    lock = lock_store.read(project.lock)
    entries = [entry for entry in (lock.entries if lock else ()) if entry.name == name]
    done: list[dict[str, str]] = []
    if not keep_config:
        paths = project.config_paths()
        for entry in entries:
            if (not clients or entry.client in clients) and (entry.client, entry.scope) in paths:
                path = Path(paths[entry.client, entry.scope])
                done.append(
                    {
                        "client": entry.client,
                        "file": project.shown(path),
                        "action": remove_entry(path, entry.client, name),
                    }
                )
    gone = remove_from_lock(project, name, clients, now)
    return Report(
        command="remove",
        subject=name,
        summary=f"removed {', '.join(gone)}" + "".join(f"; {row['file']} {_TOLD[row['action']]}" for row in done),
        exit_code=EXIT_CLEAN,
        facts={"removed": gone, "configs": done},
    )


def _path(paths: dict[tuple[str, str], str], client: str, scope: str) -> Path:
    if (client, scope) not in paths:
        raise PinwardenError("USAGE", f"{client} has no configuration file of scope {scope}")
    return Path(paths[client, scope])
