"""What the ToolPin vectors were made from: the servers, the frozen clock and the live tools."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pinwarden.core.javascript import encode_javascript_json
from pinwarden.lock import server_entry
from pinwarden.lock.install_plan import ConfigFragment
from pinwarden.lock.server_entry import ServerEntry
from pinwarden.lock.target_verification import (
    SKIPPED,
    ArtifactOutcome,
    LiveOutcome,
    VerificationReport,
    verify_target,
)
from pinwarden.lock.trust_tiers import ARTIFACT_CODES, TrustIssue
from tests.conformance.vectors import load, vectors_dir

ARTIFACT_ISSUES = ("npm_", "oci_digest_", "mcpb_sha256_")


def folder() -> Path:
    return vectors_dir() / "toolpin"


def files(pattern: str) -> list[Path]:
    """The files of that pattern. None at all would be a suite that cannot fail."""
    paths = sorted(folder().glob(pattern))
    assert paths, f"no vectors {pattern}"
    return paths


@cache
def clock() -> str:
    moment: str = load("toolpin/MANIFEST.json")["clock"]
    return moment


@cache
def entry(identifier: str) -> ServerEntry:
    return server_entry.parse_server_entry(json.loads((folder() / "servers" / f"{identifier}.json").read_bytes()))


@cache
def entry_named(name: str, source: str) -> ServerEntry:
    for path in files("servers/*.json"):
        value = json.loads(path.read_bytes())
        if value["server"]["name"] == name:
            return server_entry.parse_server_entry(value, source=source)
    raise AssertionError(f"no server {name}")


def current_tools() -> tuple[dict[str, Any], ...]:
    listed = load("toolpin/tools-current.json")
    return tuple(listed["tools"] if isinstance(listed, dict) else listed)


LIVE = {"skip-live": "skipped", "verified": "skipped", "no-allow-execute": "not-executed", "live": "listed"}


def verification(about: ServerEntry, kind: str, seen: dict[str, Any]) -> VerificationReport:
    """The verification that a vector of this kind shows. What a fetch found is given, as an adapter would give it."""
    live = LiveOutcome(state="listed", tools=current_tools()) if LIVE[kind] == "listed" else SKIPPED
    if LIVE[kind] == "not-executed":
        live = LiveOutcome(state="not-executed")
    rows = tuple(row for row in seen["evidence"] if row["code"] in ARTIFACT_CODES and row.get("trustedAnchor") is True)
    issues = tuple(TrustIssue(**row) for row in seen["issues"] if row["code"].startswith(ARTIFACT_ISSUES))
    fetched = ArtifactOutcome(evidence=rows, issues=issues) if rows else None
    return verify_target(about, now=clock(), live=live, artifact=fetched)


def assert_prints(made: ConfigFragment, expected: str) -> None:
    """That ToolPin prints this configuration: as JSON byte for byte, as TOML and YAML with the same values."""
    if made.client == "codex":  # ToolPin leaves out empty tables, and TOML has no null
        servers = {
            name: {member: value for member, value in server.items() if value not in (None, {})}
            for name, server in made.config["mcp_servers"].items()
        }
        assert tomllib.loads(expected) == {"mcp_servers": servers}
    elif made.client == "continue":
        assert yaml.safe_load(expected) == made.config
    else:
        assert encode_javascript_json(made.config).decode() == expected
