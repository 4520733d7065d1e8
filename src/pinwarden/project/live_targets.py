"""What to ask when the live server of a lock entry is asked: the approved command, with this machine's own values.

The lock keeps placeholders where a configuration has values of variables and headers. Where the client's file holds
the server exactly as approved, its values are used; where it does not, the approved configuration is used as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.clients.config import configured_server
from pinwarden.clients.drift import compare_entries
from pinwarden.clients.table import client_of
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.lock.configured import configured_in
from pinwarden.lock.entry import Entry
from pinwarden.lock.locked_config import locked_config
from pinwarden.system.masking import lockable_entry

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile
    from pinwarden.system.target import Target


def live_target(entry: Entry, files: Sequence[ConfigFile]) -> Target:
    """What to start or contact for this entry."""
    where = configured_in(entry)
    client = client_of(where["client"] if where else entry.client)
    approved = locked_config(entry.key, entry.document).entry
    for file in files:
        for server in file.servers:
            if server.name == entry.name and server.client == client.id and server.target is not None:
                changes = compare_entries(entry.name, approved, lockable_entry(server.entry), client)
                if all(change.severity == "info" for change in changes):
                    return finding_its_store(server.target)
    server = configured_server(entry.name, approved, client)
    if server.target is None:
        raise PinwardenError("CONFIG_INVALID", f"{entry.name[:120]!a} cannot be asked: {server.problem}")
    return finding_its_store(server.target)


_STORE = {"PINWARDEN_STORE": "${PINWARDEN_STORE:-}", "XDG_DATA_HOME": "${XDG_DATA_HOME:-}"}


def finding_its_store(target: Target) -> Target:
    """A server that is started through ``pinwarden run`` is looked for in the store of this user."""
    from pinwarden.system.target import StdioTarget

    if isinstance(target, StdioTarget) and target.command[:2] == ("pinwarden", "run"):
        return replace(target, env={**_STORE, **target.env})
    return target
