"""Where reports and outputs may be written: never over the project's own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.project import ProjectFolder
from tests.support.targets import SCRIPTED


@pytest.fixture
def project(tmp_path: Path) -> ProjectFolder:
    folder = ProjectFolder(tmp_path)
    script = {"server": {"capabilities": {"tools": {}}}, "lists": {"tools": [[{"name": "search"}]]}}
    (folder.root / "script.json").write_text(json.dumps(script))
    notes = {"command": "python3", "args": ["-I", "-S", str(SCRIPTED), "@script.json"]}
    (folder.root / ".mcp.json").write_text(json.dumps({"mcpServers": {"notes": notes}}))
    assert folder.run("init", "--allow-execute").code == 0
    assert folder.run("policy", "init").code == 0
    assert folder.run("keygen", "../release.pem").code == 0
    (folder.root / "mcp-fusion.lock").write_text("{}")
    return folder


def contents(project: ProjectFolder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in project.root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name",
    [
        "mcp-lock.json",
        "./mcp-lock.json",
        "mcp-lock.sig",
        "mcp-lock.surfaces/new.json",
        "pinwarden.toml",
        ".toolpin/policy.json",
        ".mcp.json",
        ".cursor/mcp.json",
        "mcp-fusion.lock",
        "vurb.lock",
        "linked.sarif",
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [
        ("ci", "--format", "sarif=FILE"),
        ("ci", "--format", "json", "--format=junit=FILE"),
        ("doctor", "--format", "sarif=FILE"),
        ("scan", "script.json", "--format", "json=FILE"),
        ("inspect", "notes", "--allow-execute", "--output", "FILE"),
        ("sbom", "-o", "FILE"),
    ],
    ids=" ".join,
)
def test_a_report_does_not_overwrite_the_lock_or_another_file_of_the_project(
    project: ProjectFolder, arguments: tuple[str, ...], name: str
) -> None:
    """``ci --format sarif=mcp-lock.json`` replaced the lock with its report."""
    (project.root / "linked.sarif").symlink_to("mcp-lock.json")
    before = contents(project)
    outcome = project.run(*(word.replace("FILE", name) for word in arguments))
    assert (outcome.code, "[USAGE]" in outcome.err, "Choose another file name." in outcome.err) == (2, True, True)
    assert contents(project) == before


def test_the_lock_of_every_named_project_is_protected(project: ProjectFolder) -> None:
    other = project.root / "other"
    other.mkdir()
    (other / "mcp-lock.json").write_bytes(project.lock.read_bytes())
    before = contents(project)
    both = ("ci", "--project", ".", "--project", "other", "--format", "sarif=other/mcp-lock.json")
    assert project.run(*both).code == 2
    assert project.run("ci", "--file", "other/mcp-lock.json", "--format", "sarif=other/mcp-lock.json").code == 2
    assert contents(project) == before


def test_an_error_is_not_written_over_the_lock_either(project: ProjectFolder) -> None:
    """The report of an error goes to the same files as that of a result."""
    project.lock.write_text("{ broken")
    assert project.run("ci", "--format", "sarif=mcp-lock.json").code == 2
    assert project.lock.read_text() == "{ broken"


def test_a_signature_does_not_overwrite_the_lock_and_may_replace_a_signature(project: ProjectFolder) -> None:
    before = project.lock.read_bytes()
    sign = ("lock", "sign", "--key", "../release.pem", "--output")
    assert project.run(*sign, "mcp-lock.json").code == 2
    assert [project.run(*sign, "mcp-lock.sig").code for _ in range(2)] == [0, 0]
    assert project.lock.read_bytes() == before


def test_a_proposed_policy_may_become_the_policy_of_a_project_without_one(project: ProjectFolder) -> None:
    (project.root / "pinwarden.toml").unlink()
    assert project.run("policy", "generate", "--output", "mcp-lock.json").code == 2
    assert project.run("policy", "generate", "--output", "pinwarden.toml").code == 0
    assert (project.root / "pinwarden.toml").is_file()


def test_reports_beside_the_lock_are_written(project: ProjectFolder) -> None:
    outcome = project.run("ci", "--format", "sarif=mcp-lock.sarif", "--format", "junit=reports.xml")
    assert outcome.code == 1, outcome.out + outcome.err  # the policy asks for more than the server has
    assert json.loads((project.root / "mcp-lock.sarif").read_bytes())["version"] == "2.1.0"
