"""What a locked server starts or contacts on this machine, with the values of its client's file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile
    from pinwarden.lock.entry import Entry
    from pinwarden.system.target import Target

_STORE_VARIABLES = {"PINWARDEN_STORE": "${PINWARDEN_STORE:-}", "XDG_DATA_HOME": "${XDG_DATA_HOME:-}"}


def find_probe_target(entry: Entry, files: Sequence[ConfigFile]) -> Target:
    """Find the target of an entry: from the client's file if that is as approved, else from the lock."""
    from pinwarden.clients.config import parse_configured_server
    from pinwarden.clients.drift import compare_entries
    from pinwarden.clients.table import get_client
    from pinwarden.lock.locked_config import read_config_origin, read_locked_config
    from pinwarden.system.redaction import redact_entry

    where = read_config_origin(entry)
    client = get_client(where.client if where else entry.client)
    approved = read_locked_config(entry.key, entry.document).approved
    for file in files:
        for server in file.servers:
            if server.name == entry.name and server.client == client.id and server.target is not None:
                changes = compare_entries(entry.name, approved, redact_entry(server.entry), client)
                if all(change.severity == "info" for change in changes):
                    return _find_direct_target(entry, server.target)
    server = parse_configured_server(entry.name, approved, client)
    if server.target is None:
        raise PinwardenError("CONFIG_INVALID", f"{entry.name[:120]!a} cannot be probed: {server.problem}")
    return _find_direct_target(entry, server.target)


def _find_direct_target(entry: Entry, target: Target) -> Target:
    """Return the address or local command of a server that its client starts through ``pinwarden run``.

    Other targets stay as they are, apart from the variables for the store.
    """
    from pinwarden.lock.extension import is_enforced
    from pinwarden.lock.locked_launch import find_remote_launch, starts_local_command, with_locked_launch
    from pinwarden.system.target import StdioTarget

    has_no_bytes = find_remote_launch(entry) is not None or (is_enforced(entry) and starts_local_command(entry))
    if has_no_bytes and isinstance(target, StdioTarget):
        return with_locked_launch(target, entry)
    return with_store_variables(target)


def with_store_variables(target: Target) -> Target:
    """Pass the location of this user's store to a server that is started through ``pinwarden run``."""
    from pinwarden.system.target import StdioTarget, program_name

    if isinstance(target, StdioTarget) and (program_name(target.command[0]), *target.command[1:2]) == (
        "pinwarden",
        "run",
    ):
        return replace(target, env={**_STORE_VARIABLES, **target.env})
    return target
