"""Published servers in two releases each, seen as drift: two in the default suite, thirty in ``make soak``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pinwarden.surface.drift.changes import CHANGE_KINDS
from tests.support.needs import needs

pytestmark = [
    needs("node", install="apt-get install nodejs npm"),
    needs("bwrap", install="apt-get install bubblewrap"),
]
THINKING = "@modelcontextprotocol/server-sequential-thinking"
NPM_SERVERS = (
    *(f"@modelcontextprotocol/server-{name}" for name in ("everything", "filesystem", "memory", "sequential-thinking")),
    *(f"@modelcontextprotocol/server-{name}" for name in ("brave-search", "everart", "gdrive", "github", "gitlab")),
    *(f"@modelcontextprotocol/server-{name}" for name in ("google-maps", "postgres", "puppeteer", "redis", "slack")),
    *("@upstash/context7-mcp", "@playwright/mcp", "chrome-devtools-mcp", "firecrawl-mcp", "tavily-mcp"),
    *("@notionhq/notion-mcp-server", "@eslint/mcp", "@stripe/mcp", "exa-mcp-server", "mcp-hello-world"),
)
PYTHON_SERVERS = ("mcp-server-time", "mcp-server-git", "mcp-server-fetch", "mcp-server-sqlite", "mcp-server-calculator")
MIN_COMPARED = 15
"""Some of the thirty need a key or an address before they answer; those are recorded as failed, with the reason."""


def launch(name: str, version: str) -> dict[str, Any]:
    if name in PYTHON_SERVERS:
        return {"command": "uvx", "args": [f"{name}=={version}"]}
    return {"command": "npx", "args": ["-y", f"{name}@{version}"]}


def observe(folder: Path, releases: dict[str, str]) -> dict[str, Any]:
    """Run a census over these servers in these releases."""
    servers = {name: launch(name, version) for name, version in releases.items()}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    variables = {"PINWARDEN_STORE": str(folder / "store"), "PINWARDEN_CENSUS": str(folder / "census.sqlite")}
    words = ("census", "run", "mcp.json", "--allow-execute", "--timeout", "120", "--jobs", "2", "--format", "json")
    done = subprocess.run(
        [sys.executable, "-m", "pinwarden", *words],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode in (0, 1, 3), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["done"] == len(releases)
    return report


def drift(report: dict[str, Any]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in report["findings"]:
        if finding["origin"] == "drift":
            found.setdefault(finding["server"], set()).add(finding["code"])
    return found


def test_two_published_servers_drift_from_one_release_to_another(tmp_path: Path) -> None:
    first = observe(tmp_path, {THINKING: "2025.7.1", "mcp-server-time": "2026.8.18"})
    assert (first["states"], first["findings"]) == ({"observed": 2}, [])
    second = observe(tmp_path, {THINKING: "2025.12.18", "mcp-server-time": "2026.8.18"})
    assert second["states"] == {"observed": 1, "unchanged": 1}
    found = drift(second)
    assert found.keys() == {THINKING}
    assert "text_changed" in found[THINKING]
    # Legitimate upgrades have no critical findings.
    assert {finding["severity"] for finding in second["findings"]} == {"review"}


def list_last_releases(name: str) -> list[str]:
    """The last two final releases of a server, as its registry lists them; empty if it has fewer."""
    if name in PYTHON_SERVERS:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", name, "--json"]
    else:
        command = ["npm", "view", name, "versions", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=dict(os.environ))
    if done.returncode:
        return []
    listed = json.loads(done.stdout)
    versions = list(reversed(listed["versions"])) if isinstance(listed, dict) else listed
    final = [version for version in versions if re.fullmatch(r"[0-9]+(\.[0-9]+)*", version)]
    return final[-2:] if len(final) > 1 else []


@pytest.mark.soak
def test_thirty_published_servers_drift_with_the_right_words(tmp_path: Path) -> None:
    releases = {name: list_last_releases(name) for name in (*NPM_SERVERS, *PYTHON_SERVERS)}
    releases = {name: versions for name, versions in releases.items() if versions}
    observe(tmp_path, {name: versions[0] for name, versions in releases.items()})
    second = observe(tmp_path, {name: versions[1] for name, versions in releases.items()})
    assert second["states"]["observed"] >= MIN_COMPARED
    found = drift(second)
    assert found
    assert set().union(*found.values()) <= {*CHANGE_KINDS}
    critical = [finding for finding in second["findings"] if finding["severity"] == "critical"]
    assert [finding for finding in critical if finding["origin"] == "drift"] == []
