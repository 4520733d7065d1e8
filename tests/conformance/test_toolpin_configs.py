"""The configuration of each of ToolPin's twelve clients: JSON byte for byte, TOML and YAML by value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinwarden.lock.entry import LOCK_CLIENTS
from pinwarden.lock.install_plan import build_fragment
from tests.conformance.toolpin_world import assert_prints, entry, files
from tests.conformance.vectors import load

PATHS = files("configs/*/*.*")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_fragment_is_the_file_that_toolpin_prints(path: Path) -> None:
    assert_prints(build_fragment(entry(path.parent.name), path.stem), path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_notes_are_those_that_toolpin_prints(path: Path) -> None:
    out = f"configs/{path.parent.name}/{path.name}"
    runs = [run for run in load("toolpin/MANIFEST.json")["commands"] if run["out"] == out]
    for run in runs:
        assert run.get("stderr", "").strip() == "Notes: " + " ".join(
            build_fragment(entry(path.parent.name), path.stem).notes
        )


def test_every_client_has_vectors() -> None:
    assert {path.stem for path in PATHS} == set(LOCK_CLIENTS)
    assert all(json.loads(path.read_bytes()) for path in PATHS if path.suffix == ".json")
