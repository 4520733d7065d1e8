"""The real ToolPin 0.5.4 over a lock with hashes of live tools, where its answer is the reason for ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pinwarden.lock import lockfile
from pinwarden.lock.entry import Entry, with_integrity
from pinwarden.lock.lockfile import Lock
from tests.cli.run import pinwarden
from tests.conformance.vectors import vectors_dir
from tests.judge.toolpin import ToolPin

VECTORS = vectors_dir() / "toolpin"
NAME = "io.fixture/live-stdio"


@pytest.fixture
def toolpin(tmp_path: Path) -> ToolPin:
    for name in ("tiny_mcp_server.py", "tools-current.json"):
        shutil.copy(VECTORS / name, tmp_path / name)
    return ToolPin(tmp_path)


def live(toolpin: ToolPin) -> tuple[bool, bool]:
    """Whether ToolPin passes, and whether we do, both with consent to start the server."""
    theirs = toolpin.run("ci", "--no-policy", "--json", "--verify", "--allow-execute")
    ours = pinwarden(
        *("ci", "--live", "--offline", "--allow-execute", "--format", "json"),
        cwd=toolpin.folder,
        env={"HOME": str(toolpin.folder / "home")},
    )
    return bool(json.loads(theirs.stdout)["ok"]), bool(json.loads(ours.out)["ok"])


def forge_coverage(path: Path) -> None:
    lock = lockfile.parse(path.read_bytes())
    (entry,) = lock.entries
    document: dict[str, Any] = json.loads(json.dumps(entry.document))
    for manifest in (document["capabilityManifest"], document["locked"]["capabilityManifest"]):
        manifest["toolSurfaceHash"]["coverage"] = ["name"]
    forged = with_integrity(Entry(key=entry.key, document=document))
    path.write_bytes(
        lockfile.to_bytes(Lock(generated_at=lock.generated_at, updated_at=lock.updated_at, entries=(forged,)))
    )


def test_hashes_of_live_tools_that_we_write_are_hashes_to_it(toolpin: ToolPin) -> None:
    asked = ("lock", NAME, "--offline", "--live", "--allow-execute", "--plain-v2")
    assert pinwarden(*asked, cwd=toolpin.folder, env={"HOME": str(toolpin.folder / "home")}).code == 0
    assert live(toolpin) == (True, True)
    shutil.copy(VECTORS / "tools-desc-changed.json", toolpin.folder / "tools-current.json")
    assert live(toolpin) == (False, False)


def test_it_passes_a_changed_tool_under_a_hash_that_claims_to_cover_less_and_we_do_not(toolpin: ToolPin) -> None:
    shutil.copy(VECTORS / "locks/live-stdio.live.mcp-lock.json", toolpin.lock)
    forge_coverage(toolpin.lock)
    shutil.copy(VECTORS / "tools-desc-changed.json", toolpin.folder / "tools-current.json")
    assert live(toolpin) == (True, False)
