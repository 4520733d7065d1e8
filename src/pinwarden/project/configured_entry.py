"""Build the lock entries of servers that are configured in a client's file."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from pinwarden.clients.command_line import (
    PROGRAM,
    find_pinwarden_arguments,
    parse_locked_start,
)
from pinwarden.clients.config import ConfiguredServer
from pinwarden.clients.documents import build_config
from pinwarden.clients.table import GENERIC_CLIENT, get_client
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.lock import entry as lock_entry
from pinwarden.lock.entry import LOCK_CLIENTS, rank_tier, to_toolpin_scope
from pinwarden.lock.extension import (
    LaunchCommand,
    LockExtension,
    is_enforced,
    keep_optional_members,
    keep_pinned_bytes,
    read_extension,
    with_extension,
)
from pinwarden.lock.install_plan import PlanOptions, build_install_plan
from pinwarden.lock.locked_config import CONFIG_SOURCE
from pinwarden.lock.locked_launch import is_approved_run_command
from pinwarden.lock.server_entry import parse_server_entry
from pinwarden.project.configured_servers import build_server_json, read_locked_server, with_locked_command
from pinwarden.project.locked_servers import resolve_start
from pinwarden.system.masking import mask_name
from pinwarden.system.redaction import redact_entry
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry


def client_name_in_lock(client: str) -> str:
    """The client's name in lockfileVersion 2. Clients that this format does not know are ``generic``."""
    return client if client in LOCK_CLIENTS else GENERIC_CLIENT


def choose_entry_key(server: ConfiguredServer, clients: Mapping[str, str]) -> str:
    """Return the key of a configured server's lock entry. ``clients`` has the client of every key that is in use.

    Two clients that the format calls ``generic`` may both have a server of this name. The second one has its own name
    in the key.
    """
    usual = lock_entry.build_entry_key(server.name, client_name_in_lock(server.client))
    own = lock_entry.build_entry_key(server.name, server.client)
    return own if own in clients or clients.get(usual, server.client) != server.client else usual


def build_plain_entry(server: ConfiguredServer, now: str, key: str | None = None) -> lock_entry.Entry:
    """Build the lock entry of a configured server, without Pinwarden's extension fields.

    ``key`` is the key of the entry, if it is not the usual one.
    """
    declared_server = parse_server_entry({"server": build_server_json(server), "_meta": {}}, source=CONFIG_SOURCE)
    client = client_name_in_lock(server.client)
    installation = PlanOptions(scope=to_toolpin_scope(server.scope))
    plan = build_install_plan(declared_server, client, now=now, options=installation)
    fragment = build_config_fragment(server)
    plan["config"] = fragment
    plan["locked"]["config"] = deepcopy(fragment)
    plan["notes"] = [f"Configured by hand in {server.client}."]
    return lock_entry.with_integrity(
        lock_entry.Entry(key=key or lock_entry.build_entry_key(server.name, client), document=plan)
    )


def build_config_fragment(server: ConfiguredServer) -> dict[str, Any]:
    """Build the part of a client's file that configures this server, with placeholders for possible secrets."""
    return build_config(get_client(server.client), server.name, redact_entry(server.entry))


def find_started_entry(server: ConfiguredServer, key: str, entries: Iterable[Entry]) -> Entry | None:
    """Find the lock entry that a configured ``pinwarden run`` command starts. Returns None for other commands.

    Raises if the lock has no such entry, if the client is ambiguous, or if the command is not ``pinwarden run NAME``.
    """
    command = server.target.command if isinstance(server.target, StdioTarget) else ()
    if not command or find_pinwarden_arguments(command) is None:
        return None
    start, known = parse_locked_start(command), tuple(entries)
    if start is None:
        raise PinwardenError("NOTHING_TO_RUN", "its command is Pinwarden itself, which is not an MCP server")
    own = next((entry for entry in known if entry.key == key), None)
    named = own if own is not None and own.name == start.name and _has_launch(own) else None
    if named is not None and is_approved_run_command(named, server.target):
        return named
    if command[0] != PROGRAM:  # a program of that name in another folder may be anything
        message = "its command starts Pinwarden, but not as `pinwarden run NAME`, which pinwarden enforce writes"
        raise PinwardenError("NOTHING_TO_RUN", message)
    if named is not None:
        return named
    shown = shlex.quote(mask_name(start.name))
    try:
        entry = resolve_start(start, (entry for entry in known if entry.key != key))
    except PinwardenError as err:
        raise PinwardenError(err.code, _describe_missing_command(shown)) from err
    if not _has_launch(entry):
        raise PinwardenError("NOTHING_TO_RUN", _describe_missing_command(shown))
    return entry


def build_entry(
    server: ConfiguredServer, key: str, started_entry: Entry | None, extension: LockExtension, now: str
) -> Entry:
    """Build the lock entry of a configured server, with Pinwarden's extension fields.

    If the client starts the server through ``pinwarden run``, ``started_entry`` is the lock entry that this command
    resolves to. The new entry then shares the pinned bytes of that entry, because both start the same server.
    """
    if started_entry is None:
        return with_extension(build_plain_entry(server, now, key), extension)
    known = read_extension(started_entry) or LockExtension()
    if known.bundle is not None:
        merged = keep_optional_members(known, replace(extension, registry=known.registry))
        return with_extension(_build_bundle_entry(server, key, started_entry), merged)
    entry = build_plain_entry(with_locked_command(server, started_entry), now, key)
    if started_entry.key == entry.key:
        return with_extension(entry, extension)
    launch = known.launch
    if isinstance(launch, LaunchCommand):
        variables = tuple(sorted(server.target.env)) if isinstance(server.target, StdioTarget) else ()
        launch = replace(launch, variables=variables)
    shared = keep_pinned_bytes(known, extension, same_config=False)
    return with_extension(entry, replace(shared, launch=launch))


def _build_bundle_entry(server: ConfiguredServer, key: str, started_entry: Entry) -> Entry:
    client, fragment = client_name_in_lock(server.client), build_config_fragment(server)
    scope = to_toolpin_scope(server.scope)
    copy = started_entry.document.get("locked")
    locked = {"locked": {**copy, "config": fragment}} if isinstance(copy, dict) else {}
    document = {**started_entry.document, "client": client, "scope": scope, "config": fragment, **locked}
    return lock_entry.with_integrity(replace(started_entry, key=key, document=document))


def _describe_missing_command(shown: str) -> str:
    return (
        f"its command is pinwarden run {shown}, and the lock has no command for that; restore the lock from "
        f"version control, or write the server's own command here again, then run pinwarden init, "
        f"pinwarden prove {shown} and pinwarden enforce {shown}"
    )


def _has_launch(entry: Entry) -> bool:
    """Whether the lock has a command or a bundle that ``pinwarden run`` can start for this entry."""
    extension = read_extension(entry)
    return is_enforced(entry) or (extension is not None and extension.bundle is not None)


def has_raised_tier(entry: Entry) -> bool:
    """Whether a configured entry records a better tier than its configuration has."""
    server = read_locked_server(entry)
    if server is None or server.target is None:
        return False
    derived = build_plain_entry(server, entry.locked_at or "")
    stated, computed = str(entry.trust.get("tier")), str(derived.trust.get("tier"))
    return rank_tier(stated) > rank_tier(computed) >= 0
