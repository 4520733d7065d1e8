"""A lock entry in words: what it installs, and how it is configured. Nothing that could be a secret is in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.clients.config import configured_server
from pinwarden.clients.drift import shown_server
from pinwarden.clients.table import client_of
from pinwarden.lock.configured import NO_RELEASE, SOURCE
from pinwarden.lock.entry import Entry
from pinwarden.lock.locked_config import locked_config
from pinwarden.lock.record import extension_of
from pinwarden.system.masking import shown_address, shown_text

_KINDS = {"oci": "image", "mcpb": "bundle"}
_OF_THIS_MACHINE = {"script": "script", "path": "program", "module": "module", "shell": "shell command"}


def target_in_words(target: Mapping[str, Any]) -> str:
    """The selected target: a package with its release, or an address."""
    if target.get("kind") == "remote":
        return f"{target.get('type')} {shown_address(str(target.get('url')))}"
    kind, version = str(target.get("registryType")), target.get("version")
    identifier = shown_text(str(target.get("identifier")))
    release = f" {version}" if isinstance(version, str) and version not in identifier else ""
    if kind in _OF_THIS_MACHINE:
        return f"{_OF_THIS_MACHINE[kind]} {identifier}{release}"
    return f"{kind} {_KINDS.get(kind, 'package')} {identifier}{release}"


def config_in_words(entry: Entry) -> dict[str, Any] | None:
    """The approved configuration: command or address, and the names of variables and headers."""
    locked = locked_config(entry.key, entry.document)
    if locked.entry is None:
        return None
    shown = shown_server(configured_server(entry.name, locked.entry, client_of(entry.client)))
    return {member: value for member, value in shown.items() if member not in ("client", "scope", "file")}


def release_of(entry: Entry) -> str | None:
    """The release that is locked; None where a configuration leaves it open."""
    return None if entry.source == SOURCE and entry.version == NO_RELEASE else entry.version


def approved_by(entry: Entry) -> str | None:
    """Who approved the entry; None if the lock does not say."""
    extension = extension_of(entry)
    return extension.approval.by if extension and extension.approval else None


def surface_is_pinned(entry: Entry) -> bool:
    """Whether all that the server tells the model is pinned, text included."""
    extension = extension_of(entry)
    return extension is not None and extension.surface is not None
