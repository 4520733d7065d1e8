"""Bringing a client's configuration up to a newer release that was agreed to.

Only what says what is started changes. Values that the user filled in, and switches of the client, stay as they are. A
configuration that was not as approved is left alone, and said. A server that its client starts through ``pinwarden
run`` goes on being started so: its new bytes are pinned first. If that fails, its configuration stays as it is, which
starts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.adapters import lock_store
from pinwarden.adapters.clients import exchange_entry
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.documents.clients.config import ConfiguredServer
from pinwarden.documents.clients.table import Client, client_of
from pinwarden.documents.lock.configured import configured_in
from pinwarden.documents.lock.entry import Entry
from pinwarden.documents.lock.locked_config import locked_config
from pinwarden.documents.lock.locked_launch import LAUNCH
from pinwarden.documents.lock.record import extension_of
from pinwarden.flows.config.view import view_of
from pinwarden.flows.report import Row
from pinwarden.rules.config.drift import compare_entries
from pinwarden.rules.config.masking import lockable_entry
from pinwarden.rules.finding_kinds import Kinds, kind_table

if TYPE_CHECKING:
    from pinwarden.flows.artifacts.closing import Workshop
    from pinwarden.flows.project import Project

NOT_UPDATED = "config_not_updated"
REINSTALLING_KINDS: Kinds = kind_table(
    review=((NOT_UPDATED, "A client's configuration still names the older release, because it is not as approved."),)
)
_STARTS = ("command", "args", "url", "serverUrl", "httpUrl", "type", "transport")
_FILLED_IN = ("env", "environment", "headers")


class Installed:
    """What the clients had before the lock changed."""

    def __init__(self, project: Project, entries: Sequence[Entry]) -> None:
        self._project = project
        servers = view_of(project, (), project.configs()).servers  # not those of the user's other projects
        self._before = {(entry.name, entry.client): (entry, _of(entry, servers)) for entry in entries}

    def follow(self, name: str, client: str, shop: Workshop | None, now: str) -> Row | None:
        """Bring one client's configuration up to its new entry; a row if that was not done."""
        entry, server = self._before[name, client]
        if server is None:
            return None  # it was only locked, and never installed there
        known = client_of(client)
        if not is_as_approved(entry, server, known):
            return not_updated(
                name, f"{client} has it configured otherwise than it was approved; that was left as it is"
            )
        extension = extension_of(entry)
        enforced = extension is not None and LAUNCH in extension.others
        if enforced and not self._proved(name, shop, now):
            return not_updated(
                name, f"{client} starts it through pinwarden run, and its new bytes are not pinned: prove it"
            )
        fresh = _locked(self._project, name, client)
        merged = with_fresh_start(server.entry, locked_config(fresh.key, fresh.document).entry)
        from pinwarden.flows.artifacts.enforcing import enforce

        exchange_entry(server, merged)
        if enforced and enforce(self._project, [name], now).exit_code != EXIT_CLEAN:
            return not_updated(name, f"{client} does not start it through pinwarden run any more: enforce it")
        return None

    def _proved(self, name: str, shop: Workshop | None, now: str) -> bool:
        if shop is None:
            return False
        from pinwarden.flows.artifacts.proving import prove

        return prove(self._project, [name], shop, now).exit_code == EXIT_CLEAN


def with_fresh_start(entry: Any, approved: Any) -> dict[str, Any]:
    """A client's entry that starts what was approved; what the user filled in stays, and so do switches."""
    if not isinstance(entry, dict) or not isinstance(approved, dict):
        raise PinwardenError("CONFIG_UNEDITABLE", "the configuration of the server is in an unknown form")
    kept = {member: value for member, value in entry.items() if member not in _STARTS}
    filled = {
        member: {**approved[member], **{key: kept[member][key] for key in approved[member] if key in kept[member]}}
        for member in _FILLED_IN
        if isinstance(kept.get(member), dict) and isinstance(approved.get(member), dict)
    }
    return {**kept, **approved, **filled}


def _of(entry: Entry, servers: Sequence[ConfiguredServer]) -> ConfiguredServer | None:
    where = configured_in(entry)
    client = client_of(where["client"] if where else entry.client)
    return next((each for each in servers if each.name == entry.name and each.client == client.id), None)


def is_as_approved(entry: Entry, server: ConfiguredServer, client: Client) -> bool:
    """Whether a server stands in its client's file as it was approved."""
    approved = locked_config(entry.key, entry.document).entry
    changes = compare_entries(entry.name, approved, lockable_entry(server.entry), client)
    return all(change.severity == "info" for change in changes)


def _locked(project: Project, name: str, client: str) -> Entry:
    lock = lock_store.read(project.lock)
    entry = lock.entry(name, client) if lock is not None else None
    if entry is None:
        raise PinwardenError("SERVER_NOT_LOCKED", f"{name[:120]!a} is not locked for {client}")
    return entry


def not_updated(name: str, message: str) -> Row:
    """What is told about a configuration that stays at the older release."""
    return Row(
        code=NOT_UPDATED,
        level=REINSTALLING_KINDS[NOT_UPDATED].severity,
        entity="config",
        name=name,
        path="",
        message=message,
    )
