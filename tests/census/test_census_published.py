"""Published servers in two releases each, seen as drift: two in the default suite, thirty in ``make soak``."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.needs import needs

pytestmark = [
    needs("node", install="apt-get install nodejs npm"),
    needs("bwrap", install="apt-get install bubblewrap"),
]
TIME = "mcp-server-time"
THINKING = "@modelcontextprotocol/server-sequential-thinking"
PUBLISHED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("published.json").read_text())
"""Servers of npm and PyPI that start without a key, two releases of each, and the codes of the drift between them."""


def launch(name: str, version: str) -> dict[str, Any]:
    known = PUBLISHED.get(name, {"kind": "pypi" if name == TIME else "npm", "arguments": []})
    if known["kind"] == "pypi":
        return {"command": "uvx", "args": [f"{name}=={version}", *known["arguments"]]}
    return {"command": "npx", "args": ["-y", f"{name}@{version}", *known["arguments"]]}


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


def drift(folder: Path, run: int) -> dict[str, dict[str, str]]:
    """The drift of each server in a run: code and severity."""
    sql = (
        "SELECT s.name, f.code, f.severity FROM census_findings f JOIN census_servers s ON s.server = f.server "
        "WHERE f.run = ? AND f.origin = 'drift'"
    )
    found: dict[str, dict[str, str]] = {}
    with sqlite3.connect(folder / "census.sqlite") as connection:
        for server, code, severity in connection.execute(sql, (run,)):
            found.setdefault(server, {})[code] = severity
    return found


def test_two_published_servers_drift_from_one_release_to_another(tmp_path: Path) -> None:
    first = observe(tmp_path, {THINKING: "2025.7.1", TIME: "2026.8.18"})
    assert (first["states"], first["findings"]) == ({"observed": 2}, [])
    second = observe(tmp_path, {THINKING: "2025.12.18", TIME: "2026.8.18"})
    assert second["states"] == {"observed": 1, "unchanged": 1}
    found = drift(tmp_path, 2)
    assert found.keys() == {THINKING}
    assert found[THINKING]["text_changed"] == "review"
    # Legitimate upgrades have no critical findings.
    assert {finding["severity"] for finding in second["findings"]} == {"review"}


@pytest.mark.soak
def test_thirty_published_servers_drift_with_the_right_words(tmp_path: Path) -> None:
    assert len(PUBLISHED) >= 30
    first = observe(tmp_path, {name: known["releases"][0] for name, known in PUBLISHED.items()})
    assert first["states"] == {"observed": len(PUBLISHED)}, first["failures"]
    second = observe(tmp_path, {name: known["releases"][1] for name, known in PUBLISHED.items()})
    assert second["states"] == {"observed": len(PUBLISHED)}, second["failures"]
    found = drift(tmp_path, 2)
    assert {name: sorted(codes) for name, codes in found.items()} == {
        name: known["drift"] for name, known in PUBLISHED.items() if known["drift"]
    }
    assert "critical" not in {severity for codes in found.values() for severity in codes.values()}
