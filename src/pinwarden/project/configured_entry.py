"""The lock entry of a server that stands in a client's configuration, and in no registry that we asked."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from pinwarden.clients.config import ConfiguredServer, config_with
from pinwarden.clients.launch.launched import what_runs
from pinwarden.clients.table import client_of
from pinwarden.core.errors import PinwardenError
from pinwarden.lock import entry as lock_entry
from pinwarden.lock.configured import NO_RELEASE, SOURCE
from pinwarden.lock.plan import Installation, install_plan
from pinwarden.lock.server_entry import from_value
from pinwarden.lock.shape import LOCK_CLIENTS
from pinwarden.system.masking import lockable_entry
from pinwarden.system.target import HttpTarget

_REGISTRY_TYPES = {"npm": "npm", "pypi": "pypi", "oci": "oci", "nuget": "nuget"}


def lock_client(client: str) -> str:
    """The client as lockfileVersion 2 knows it; those that it does not know speak the same dialect as ``generic``."""
    return client if client in LOCK_CLIENTS else "generic"


def entry_of(server: ConfiguredServer, now: str) -> lock_entry.Entry:
    """The lock entry of a configured server."""
    made_up = from_value({"server": _server_json(server), "_meta": {}}, source=SOURCE)
    client = lock_client(server.client)
    how = Installation(scope="global" if server.scope == "global" else "project")
    plan = install_plan(made_up, client, now=now, how=how)
    fragment = fragment_of(server)
    plan["config"] = fragment
    plan["locked"]["config"] = deepcopy(fragment)
    plan["notes"] = [f"Configured by hand in {server.client}."]
    return lock_entry.with_integrity(lock_entry.Entry(key=lock_entry.entry_key(server.name, client), document=plan))


def _server_json(server: ConfiguredServer) -> dict[str, Any]:
    target = server.target
    if target is None:
        raise PinwardenError("CONFIG_INVALID", f"{server.name[:80]!a} cannot be used: {server.problem}")
    launched = what_runs(target)
    document: dict[str, Any] = {
        "name": server.name,
        "description": "",
        "version": launched.version if launched.version and launched.pinned else NO_RELEASE,
    }
    if isinstance(target, HttpTarget):
        kind = "sse" if target.transport == "sse" else "streamable-http"
        return {**document, "remotes": [{"type": kind, "url": launched.identity}]}
    package = launched.via or launched
    identifier = f"{package.identity}@{package.digest}" if package.digest else package.identity
    row: dict[str, Any] = {
        "registryType": _REGISTRY_TYPES.get(package.kind, package.kind),
        "identifier": identifier,
        "transport": {"type": "stdio"},
    }
    if package.version:
        row["version"] = package.version
    return {**document, "packages": [row]}


def fragment_of(server: ConfiguredServer) -> dict[str, Any]:
    """The entry inside its client's root, without any literal value that could be a secret."""
    return config_with(client_of(server.client), server.name, lockable_entry(server.entry))
