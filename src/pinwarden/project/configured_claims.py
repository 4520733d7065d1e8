"""What an entry from a configuration says of itself: hosts, packages, tier. All of it follows from what it runs.

A policy judges these words, and whoever can edit the lock can edit them and seal it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pinwarden.clients.config import configured_server
from pinwarden.clients.table import CLIENTS, client_of
from pinwarden.lock.configured import SOURCE, configured_in
from pinwarden.lock.locked_config import locked_config
from pinwarden.lock.tier import tier_rank
from pinwarden.lock.verification import same_json
from pinwarden.project.configured_entry import entry_of
from pinwarden.project.enforced import as_enforced

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.lockfile import Lock

FORGED = (
    "what the entry says of itself (hosts, packages, tier) does not follow from its configuration; restore the lock "
    "from version control, or if nobody edited it lock the server again: pinwarden remove NAME --keep-config, then "
    "pinwarden init"
)


def forged_entries(lock: Lock) -> Iterator[Entry]:
    """The entries from configurations that claim something else than what they run."""
    for entry in lock.entries:
        where = configured_in(entry)
        if entry.source == SOURCE and where is not None and where["client"] in CLIENTS:
            approved = locked_config(entry.key, entry.document).entry
            server = configured_server(entry.name, approved, client_of(where["client"]))
            said = None if server.target is None else entry_of(as_enforced(server, entry), entry.locked_at or "")
            if said is None or not same_json(_claims(said), _claims(entry)) or _is_raised(entry, said):
                yield entry


def _is_raised(entry: Entry, said: Entry) -> bool:
    stated, found = str(entry.trust.get("tier")), str(said.trust.get("tier"))
    return tier_rank(stated) > tier_rank(found) >= 0


def _claims(entry: Entry) -> dict[str, Any]:
    names = ("packageTypes", "transports", "remoteHosts")
    target = {name: entry.selected_target.get(name) for name in ("kind", "registryType", "identifier", "url")}
    return {"target": target, **{name: entry.manifest.get(name) for name in names}}
