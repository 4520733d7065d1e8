"""Entries and locks for tests: small, complete, and made by the code under test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.core.json_values import escape_pointer_token
from pinwarden.core.record import Record
from pinwarden.lock.entry import (
    EXTENSION,
    LOCK_INTEGRITY_EVIDENCE,
    Entry,
    build_entry_key,
    check_shape,
    reorder_members,
    with_integrity,
)
from pinwarden.lock.extension import (
    Artifact,
    ImagePin,
    LockApproval,
    LockExtension,
    format_surface_path,
    pin_surface,
    with_extension,
)
from pinwarden.surface.surface import Surface, surface_from_listing

NOON = "2026-07-20T12:00:00.000Z"
LATER = "2026-07-21T08:30:00.000Z"
_TARGET_ORDER = ("kind", "registryType", "identifier", "version", "fileSha256", "transport", "type", "url")
_TRUST_ORDER = (
    *("score", "overallScore", "metadataCompleteness", "tier", "capReason", "vetoes", "gates", "gatedBy"),
    *("verifiedProvenance", "pillars", "evidence", "badges", "issues"),
)
_MANIFEST_ORDER = (
    *("version", "serverName", "serverVersion", "registrySource", "packageTypes", "transports", "remoteHosts"),
    *("secrets", "generatedAt", "toolDescriptionHash", "toolSurfaceHash", "toolManifestHash", "toolDescriptionScan"),
)

SURFACE: Surface = surface_from_listing(
    {
        "serverInfo": {"name": "notes", "version": "1.2.3"},
        "capabilities": {"tools": {}},
        "instructions": "Keep notes.",
        "tools": [{"name": "add", "inputSchema": {"type": "object"}}, {"name": "list", "inputSchema": {}}],
    }
)


class InstallPlan(Record):
    """What is to be locked, before it is written down."""

    name: str
    version: str
    client: str
    selected_target: Mapping[str, Any]
    trust: Mapping[str, Any]
    config: Any
    notes: Sequence[str]
    manifest: Mapping[str, Any]
    source: str
    resolved_at: str
    scope: str = "project"


def new_entry(plan: InstallPlan, locked_at: str) -> Entry:
    """An entry with the member order, the copies and the integrity value that ToolPin writes."""
    target = reorder_members(plan.selected_target, _TARGET_ORDER)
    manifest = reorder_members(plan.manifest, _MANIFEST_ORDER)
    copied = {member: value for member, value in manifest.items() if member != EXTENSION}
    evidence = list(plan.trust.get("evidence", ()))
    if not any(row.get("code") == LOCK_INTEGRITY_EVIDENCE["code"] for row in evidence):
        evidence.append(dict(LOCK_INTEGRITY_EVIDENCE))
    document = {
        "name": plan.name,
        "version": plan.version,
        "client": plan.client,
        "scope": plan.scope,
        "selectedTarget": target,
        "trust": reorder_members({**plan.trust, "evidence": evidence}, _TRUST_ORDER),
        "config": plan.config,
        "notes": list(plan.notes),
        "capabilityManifest": manifest,
        "resolvedAt": plan.resolved_at,
        "lockedAt": locked_at,
        "resolved": {"source": plan.source, "name": plan.name, "version": plan.version},
        "original": {"name": plan.name, "version": plan.version, "client": plan.client},
        "locked": {"selectedTarget": target, "config": plan.config, "capabilityManifest": copied},
    }
    key = build_entry_key(plan.name, plan.client)
    check_shape(document, "/servers/" + escape_pointer_token(key))
    return with_integrity(Entry(key=key, document=document))


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


def record(name: str = "io.github.acme/notes", at: str = NOON, **changes: Any) -> LockExtension:
    """Our record with every member filled in but the closure, whose file would have to be there."""
    parts: dict[str, Any] = {
        "surface": pin_surface(SURFACE, format_surface_path(name)),
        "api_surface": "sha256:" + "ab" * 32,
        "artifacts": (Artifact(name="notes-1.2.3.tgz", digest=Digest.of_bytes(b"bytes", "sha512"), size=5),),
        "image": ImagePin(index=Digest.of_bytes(b"index"), platforms={"linux/amd64": Digest.of_bytes(b"amd64")}),
        "provenance": {"issuer": "https://token.actions.example", "repository": "https://git.example/acme/notes"},
        "registry": "https://registry.example/v0.1",
        "approval": LockApproval(by="ada@example.org", at=at, why="read every tool"),
    }
    return LockExtension(**{**parts, **changes})


def our_entry(name: str = "io.github.acme/notes", client: str = "claude", at: str = NOON, **changes: Any) -> Entry:
    """An entry with our record."""
    return with_extension(entry(name, client, at, **changes), record(name, at))


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
