"""Entries and locks for tests: small, complete, and made by the code under test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.lock.entry import Entry, InstallPlan, new_entry
from pinwarden.lock.extension import (
    Approval,
    Artifact,
    Extension,
    ImagePin,
    extended,
    pin_surface,
    surface_path,
)
from pinwarden.surface.surface import Surface, from_listing

NOON = "2026-07-20T12:00:00.000Z"
LATER = "2026-07-21T08:30:00.000Z"

SURFACE: Surface = from_listing(
    {
        "serverInfo": {"name": "notes", "version": "1.2.3"},
        "capabilities": {"tools": {}},
        "instructions": "Keep notes.",
        "tools": [{"name": "add", "inputSchema": {"type": "object"}}, {"name": "list", "inputSchema": {}}],
    }
)


def plan(name: str = "io.github.acme/notes", client: str = "claude", **changes: Any) -> InstallPlan:
    """A plan for an npm package."""
    parts: dict[str, Any] = {
        "name": name,
        "version": "1.2.3",
        "client": client,
        "selected_target": {
            "kind": "package",
            "registryType": "npm",
            "identifier": "@acme/notes",
            "version": "1.2.3",
            "transport": "stdio",
        },
        "trust": {
            "score": 68,
            "overallScore": 69,
            "metadataCompleteness": 68,
            "tier": "conditional",
            "capReason": "automated evidence incomplete",
            "vetoes": [],
            "gates": [],
            "gatedBy": [],
            "verifiedProvenance": True,
            "pillars": {"provenance": 85, "integrity": 50, "reputation": 80, "metadataCompleteness": 68},
            "evidence": [],
            "badges": ["npm"],
            "issues": [],
        },
        "config": {"mcpServers": {name: {"command": "npx", "args": ["-y", "@acme/notes@1.2.3"], "env": {}}}},
        "notes": ("Requires Node.js and npm/npx on PATH.",),
        "manifest": {
            "version": 1,
            "serverName": name,
            "serverVersion": "1.2.3",
            "registrySource": "official",
            "packageTypes": ["npm"],
            "transports": ["stdio"],
            "remoteHosts": [],
            "secrets": [],
            "generatedAt": NOON,
        },
        "source": "official",
        "resolved_at": NOON,
    }
    return InstallPlan(**{**parts, **changes})


def entry(name: str = "io.github.acme/notes", client: str = "claude", at: str = NOON, **changes: Any) -> Entry:
    """A plain v2 entry."""
    return new_entry(plan(name, client, **changes), at)


def record(name: str = "io.github.acme/notes", at: str = NOON, **changes: Any) -> Extension:
    """Our record with every member filled in but the closure, whose file would have to be there."""
    parts: dict[str, Any] = {
        "surface": pin_surface(SURFACE, surface_path(name)),
        "api_surface": "sha256:" + "ab" * 32,
        "artifacts": (Artifact(name="notes-1.2.3.tgz", digest=Digest.of(b"bytes", "sha512"), size=5),),
        "image": ImagePin(index=Digest.of(b"index"), platforms={"linux/amd64": Digest.of(b"amd64")}),
        "provenance": {"issuer": "https://token.actions.example", "repository": "https://git.example/acme/notes"},
        "registry": "https://registry.example/v0.1",
        "approval": Approval(by="ada@example.org", at=at, why="read every tool"),
    }
    return Extension(**{**parts, **changes})


def our_entry(name: str = "io.github.acme/notes", client: str = "claude", at: str = NOON, **changes: Any) -> Entry:
    """An entry with our record."""
    return extended(entry(name, client, at, **changes), record(name, at))


def deep_copy(value: Any) -> Any:
    """A copy of JSON that can be spoilt."""
    if isinstance(value, Mapping):
        return {name: deep_copy(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [deep_copy(inner) for inner in value]
    return value


def backwards(value: Mapping[str, Any]) -> dict[str, Any]:
    """The same members in the opposite order, which a writer has to put right."""
    return dict(reversed(list(value.items())))
