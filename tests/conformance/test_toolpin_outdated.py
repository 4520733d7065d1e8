"""What ToolPin says about newer releases: which entries have one, what an update would do, which versions there are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pinwarden import PinwardenError
from pinwarden.artifacts.environments.store import Store
from pinwarden.project.fetch_context import FetchContext, PackageSources
from pinwarden.project.lock import LockOptions
from pinwarden.project.project import Policies, Project
from pinwarden.project.update import UpdateRequest, outdated, update
from pinwarden.system.net.fetch import Fetcher, FetchRules
from tests.conformance.toolpin_world import clock, files, folder
from tests.conformance.vectors import load

REPORTS = [*files("outdated/*.json"), *files("drift/*.outdated.json")]


def world(tmp_path: Path, case: str) -> Project:
    shutil.copytree(folder() / "dot-toolpin", tmp_path / ".toolpin")
    if case != "whole":
        shutil.copy(folder() / "drift" / f"{case}.registry-cache.json", tmp_path / ".toolpin" / "registry-cache.json")
    shutil.copy(folder() / "locks" / "whole.mcp-lock.json", tmp_path / "mcp-lock.json")
    return Project(root=tmp_path, lock=tmp_path / "mcp-lock.json", home=tmp_path / "home")


def offline_shop(project: Project) -> FetchContext:
    """Looks up packages without a request."""
    return FetchContext(
        project=project,
        sources=PackageSources.from_project(project),
        fetcher=Fetcher(FetchRules(offline=True), {}),
        store=Store(project.home / "store"),
    )


def status(row: dict[str, Any]) -> str:
    """Our facts about an entry in ToolPin's word for them."""
    return "unknown" if row["problem"] else "update-available" if row["outdated"] else "current"


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.name)
def test_the_same_entries_are_behind_by_the_same_release(tmp_path: Path, path: Path) -> None:
    expected = json.loads(path.read_bytes())
    project = world(tmp_path, path.name.split(".")[0])
    report = outdated(project, offline_shop(project), offline=True)
    rows = [
        (row["name"], row["client"], row["locked"], row["latest"] or "unknown", status(row))
        for row in report.facts["entries"]
    ]
    members = ("name", "client", "locked", "latest", "status")
    assert rows == [tuple(row[member] for member in members) for row in expected["servers"]]
    assert len(rows) == expected["checked"]
    assert sum(row["outdated"] for row in report.facts["entries"]) == expected["updates"]
    unknown = any(row["status"] == "unknown" for row in expected["servers"])
    assert report.exit_code == (3 if unknown else 0)  # ToolPin's is always 0


def test_an_update_is_planned_from_and_to_the_same_version_and_nothing_is_written(tmp_path: Path) -> None:
    expected = load("toolpin/drift/newer_release.update-dry-run.json")
    project = world(tmp_path, "newer_release")
    before = project.lock.read_bytes()
    wish = UpdateRequest(names=[expected["serverName"]], confirmed=False, fetch_context=offline_shop(project))
    report = update(project, wish, Policies(), LockOptions(now=clock(), offline=True))
    plans = {row["client"]: (row["name"], row["from"], row["to"]) for row in report.facts["updates"]}
    assert plans[expected["client"]] == (expected["targetName"], expected["fromVersion"], expected["toVersion"])
    assert report.facts["written"] is expected["lockfileWritten"] is False
    assert project.lock.read_bytes() == before


def test_a_registry_has_the_same_versions_of_a_server_and_the_same_latest(tmp_path: Path) -> None:
    expected = load("toolpin/drift/newer_release.versions.json")
    registries = world(tmp_path, "newer_release").load_registries(offline=True)
    source = expected["versions"][0]["source"]
    for row in expected["versions"]:
        assert registries.find(expected["name"], row["version"], source)["server"]["version"] == row["version"]
    (latest,) = (row["version"] for row in expected["versions"] if row["isLatest"])
    assert registries.find(expected["name"], None, source)["server"]["version"] == latest
    with pytest.raises(PinwardenError) as caught:
        registries.find(expected["name"], "0.0.1-absent", source)
    assert caught.value.code == "SERVER_NOT_FOUND"
