"""From a server's own description to the descriptor of its bundle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.bundle.descriptor import MAX_TOOL_NAME, TOOL_NAME, Descriptor, SecurityPolicy
from pinwarden.bundle.profile import default_profile
from pinwarden.bundle.server_manifest import MANIFEST_NAME, ServerManifest
from pinwarden.core.errors import PinwardenError

NO_LICENSE = "NOASSERTION"
"""What SPDX has for a license that nobody stated."""
_RUNTIMES = {"bun": "node"}
"""Descriptors have no word for bun, which runs what node runs; ``entrypoint.engine`` names it."""
_PERMISSIONS = ("network", "filesystem", "exec")


def tool_name(server: str) -> str:
    """The name of a server as tools are named: ``@acme/notes`` is ``acme.notes``."""
    name = server.removeprefix("@").replace("/", ".")
    if len(name) > MAX_TOOL_NAME or not TOOL_NAME.fullmatch(name):
        raise PinwardenError(
            "SERVER_ENTRY_INVALID",
            f"{MANIFEST_NAME}: name is not one that a tool can have: {name[:80]!a}",
            hint="Begin it with a small letter; then small letters, digits, dots, hyphens and underscores.",
            data={"member": "name"},
        )
    return name


def describe(
    server: ServerManifest, policy: Mapping[str, str], root_cid: str, media_type: str, size: int
) -> Descriptor:
    """The descriptor of a server's bundle. What ``policy`` does not say is taken from the server's own file."""
    name = tool_name(server.name)
    return Descriptor(
        name=name,
        display_name=_text(server, "display_name") or server.name,
        version=server.version,
        description=server.description or "",
        license=_text(server, "license") or NO_LICENSE,
        root_cid=root_cid,
        cid_profile=default_profile(),
        media_type=media_type,
        size_bytes=size,
        runtime=_RUNTIMES.get(server.runtime, server.runtime),
        target=server.entry,
        policy=_policy(server, policy),
    )


def descriptor_extras(server: ServerManifest) -> dict[str, Any]:
    """What the descriptor says beyond its schema, inside objects that allow it: the engine, the author."""
    return {
        "entrypoint": {"engine": server.runtime} if server.runtime in _RUNTIMES else {},
        "tool": {"author": server.author} if server.author else {},
    }


def _policy(server: ServerManifest, given: Mapping[str, str]) -> SecurityPolicy:
    security = server.document.get("security", {})
    stated = security.get("policy", {}) if isinstance(security, dict) else None
    if not isinstance(stated, dict) or stated.keys() - set(_PERMISSIONS):
        raise PinwardenError(
            "SERVER_ENTRY_INVALID",
            f"{MANIFEST_NAME}: security.policy has something else than {', '.join(_PERMISSIONS)}",
            data={"member": "security"},
        )
    return SecurityPolicy(**{**stated, **given})


def _text(server: ServerManifest, member: str) -> str | None:
    value = server.document.get(member)
    if value is not None and not isinstance(value, str):
        raise PinwardenError("SERVER_ENTRY_INVALID", f"{MANIFEST_NAME}: {member} is not text", data={"member": member})
    return value
