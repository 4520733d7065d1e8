"""``ci`` against ToolPin's recorded outcomes, offline from the registry cache, with the clock of the recordings.

Where ToolPin is wrong we give the right answer; each such case is a row of docs/reference/toolpin-differences.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinwarden.core.report import Report
from pinwarden.project.gate.check import GateOptions, check_project
from pinwarden.project.gate.gate_report import build_gate_report
from pinwarden.project.project import Policies, Project
from tests.cli.run import Outcome, pinwarden
from tests.conformance.vectors import REPOSITORY, load, vectors_dir

NOW = "2026-07-20T12:00:00.000Z"
RECORDED_AT = "1784548800"  # the same, in seconds
TOOLPIN = vectors_dir() / "toolpin"

RIGHT_ANSWERS = {
    "newer_release": True,  # a newer release is news, not drift: the locked version is still what it was
    "status_deleted": False,  # ToolPin does not look at the status that the registry gives a version
    "no-verify": True,  # what is frozen starts nothing, and says so; only --live holds the live tools to their hashes
    "skip-live": True,  # the same
}


STRICTER = {"entry_deprecated", "entry_deleted", "verdict_blocked"}
"""What ToolPin's gate lets pass: versions that the registry took back, and targets that its own verdict blocks."""


def held_back(report: Report) -> dict[str, set[str]]:
    """The codes of what fails the gate, by entry."""
    gate_result: dict[str, set[str]] = {}
    for row in report.rows:
        if row.severity in ("critical", "review"):
            gate_result.setdefault(row.name, set()).add(row.code)
    return gate_result


def drifted(outcome: dict[str, Any]) -> set[str]:
    """The entries that ToolPin found changed. A newer release is news, not drift."""
    newer = {row["entryName"] for row in outcome["failures"] if row["condition"].startswith("version changed")}
    return {row["entryName"] for row in outcome["failures"]} - newer


def world(tmp_path: Path, lock: Path, cache: Path | None = None) -> Project:
    shutil.copytree(TOOLPIN / "dot-toolpin", tmp_path / ".toolpin")
    if cache is not None:
        shutil.copy(cache, tmp_path / ".toolpin" / "registry-cache.json")
    shutil.copy(lock, tmp_path / "mcp-lock.json")
    return Project(root=tmp_path, lock=tmp_path / "mcp-lock.json", home=tmp_path / "home")


def run(project: Project, expect_digest: str | None = None) -> Report:
    gate = GateOptions(now=NOW, registries=project.load_registries(offline=True), expect_digest=expect_digest)
    return build_gate_report([check_project(project, Policies(), gate)])


def recorded(path: Path) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads(path.read_bytes())
    return outcome


LOCKS = sorted(path for path in (TOOLPIN / "locks").glob("*.mcp-lock.json"))
JUDGED = [path for path in LOCKS if (TOOLPIN / "ci" / path.name.replace(".mcp-lock.json", ".json")).exists()]


@pytest.mark.parametrize("lock", JUDGED, ids=[path.name for path in JUDGED])
def test_a_lock_of_toolpin_gets_its_verdict(tmp_path: Path, lock: Path) -> None:
    expected = recorded(TOOLPIN / "ci" / lock.name.replace(".mcp-lock.json", ".json"))
    report = run(world(tmp_path, lock))
    assert (report.exit_code == 0) is (not held_back(report))
    if expected["ok"]:
        assert all(codes <= STRICTER for codes in held_back(report).values())
    else:
        assert held_back(report)
    assert report.facts["checkedEntries"] == expected["checkedEntries"]


DRIFT = sorted((TOOLPIN / "drift").glob("*.ci.json"))


@pytest.mark.parametrize("outcome", DRIFT, ids=[path.name.split(".")[0] for path in DRIFT])
def test_a_changed_registry_gets_the_right_verdict(tmp_path: Path, outcome: Path) -> None:
    case = outcome.name.split(".")[0]
    cache = TOOLPIN / "drift" / f"{case}.registry-cache.json"
    report = run(world(tmp_path, TOOLPIN / "locks" / "whole.mcp-lock.json", cache))
    gate_result = held_back(report)
    assert drifted(recorded(outcome)) == {name for name, codes in gate_result.items() if not codes <= STRICTER}
    assert (report.exit_code == 0) is (not gate_result)
    assert (report.exit_code == 0) is RIGHT_ANSWERS.get(case, report.exit_code == 0)


STATED = sorted((TOOLPIN / "ci").glob("whole.expect-digest-*.json"))


@pytest.mark.parametrize("outcome", STATED, ids=[path.name for path in STATED])
def test_the_digest_that_was_stated_out_of_band_decides(tmp_path: Path, outcome: Path) -> None:
    words = command_of(outcome).split()
    report = run(world(tmp_path, TOOLPIN / "locks" / "whole.mcp-lock.json"), words[words.index("--expect-digest") + 1])
    expected = recorded(outcome)
    assert (report.exit_code == 0) is expected["ok"]
    assert [row.code for row in report.rows] == ([] if expected["ok"] else ["digest_mismatch"])


def command_of(outcome: Path) -> str:
    out = outcome.relative_to(TOOLPIN).as_posix()
    (command,) = (row["cmd"] for row in load("toolpin/MANIFEST.json")["commands"] if row["out"] == out)
    return str(command)


def test_the_report_of_a_clean_lock_is_as_empty_in_text_and_sarif_as_toolpins(tmp_path: Path) -> None:
    project = world(tmp_path, TOOLPIN / "locks" / "whole.mcp-lock.json")
    result = gate(project, "--registry", "--offline")
    assert (TOOLPIN / "ci" / "whole.txt").read_text().startswith("Frozen install OK")
    count = recorded(TOOLPIN / "ci" / "whole.json")["checkedEntries"]
    assert f"checked    {count} locked" in (TOOLPIN / "ci" / "whole.txt").read_text()
    assert result.code == 0
    assert f"{count} entries checked: everything is as approved" in result.out.splitlines()
    results = json.loads(gate(project, "--registry", "--offline", "--format", "sarif").out)["runs"][0]["results"]
    assert results == recorded(TOOLPIN / "ci" / "whole.sarif")["runs"][0]["results"] == []


def command(project: Project, *arguments: str) -> Outcome:
    """A command as a user runs it, in the project's folder; ``python3`` is the one that runs the tests."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    env = {"HOME": str(project.home), "SOURCE_DATE_EPOCH": RECORDED_AT, "PATH": path}
    return pinwarden(*arguments, cwd=project.root, env=env)


def gate(project: Project, *arguments: str) -> Outcome:
    return command(project, "ci", *arguments)


def failures(outcome: Outcome) -> list[tuple[str, str]]:
    return [(row["code"], row["name"]) for row in json.loads(outcome.out)["failures"]]


class TestHashesOfLiveTools:
    """A lock that ToolPin wrote with --allow-execute: nothing of ours is in it, only ToolPin's hashes of the tools."""

    LOCK = TOOLPIN / "locks" / "live-stdio.live.mcp-lock.json"
    RECORDED = sorted((TOOLPIN / "ci").glob("live-stdio.live.*.json"))
    CODES = {  # noqa: RUF012  # a table, never changed
        "desc-changed": "tool_texts_changed",
        "schema-changed": "tool_schemas_changed",
        "tool-removed": "tools_changed",
    }

    @pytest.fixture
    def project(self, tmp_path: Path) -> Project:
        gate_result = world(tmp_path, self.LOCK)
        for name in ("tiny_mcp_server.py", "tools-current.json"):
            shutil.copy(TOOLPIN / name, tmp_path / name)
        return gate_result

    def relock(self, project: Project, **pins: Any) -> None:
        """Other hashes in the lock, with an integrity value that fits them; None takes one away."""
        from pinwarden.lock import lockfile
        from pinwarden.lock.entry import Entry, with_integrity

        lock = lockfile.parse(project.lock.read_bytes())
        (entry,) = lock.entries
        document = json.loads(json.dumps(entry.document))
        for manifest in (document["capabilityManifest"], document["locked"]["capabilityManifest"]):
            for name, pin in pins.items():
                manifest[name] = {**manifest[name], **(pin or {})}
                if pin is None:
                    del manifest[name]
        changed = with_integrity(Entry(key=entry.key, document=document))
        project.lock.write_bytes(
            lockfile.to_bytes(
                lockfile.Lock(generated_at=lock.generated_at, updated_at=lock.updated_at, entries=(changed,))
            )
        )

    @pytest.mark.parametrize("outcome", RECORDED, ids=[path.name.split(".")[2] for path in RECORDED])
    def test_the_verdict_is_toolpins_or_the_right_one(self, project: Project, outcome: Path) -> None:
        case = outcome.name.split(".")[2]
        tools = TOOLPIN / f"tools-{case}.json"
        if tools.exists():
            shutil.copy(tools, project.root / "tools-current.json")
        words = command_of(outcome).split()
        asked = "--verify" in words and "--skip-live-verification" not in words
        consent = ["--allow-execute"] if "--allow-execute" in words else []
        gate_result = gate(project, "--live" if asked else "--registry", "--offline", "--format", "json", *consent)
        expected = recorded(outcome)
        assert (gate_result.code == 0) is RIGHT_ANSWERS.get(case, expected["ok"])
        assert json.loads(gate_result.out)["checkedEntries"] == expected["checkedEntries"]
        codes = {self.CODES[case]} if case in self.CODES else set(self.CODES.values())
        assert {code for code, _ in failures(gate_result)} <= codes
        assert bool(failures(gate_result)) is (gate_result.code == 1)

    def test_without_consent_nothing_is_started_and_nothing_is_known(self, project: Project) -> None:
        (project.root / "tiny_mcp_server.py").write_text("open('started', 'w').close()")
        gate_result = gate(project, "--live", "--offline", "--format", "json")
        (unchecked,) = json.loads(gate_result.out)["unchecked"]
        assert (gate_result.code, unchecked["code"]) == (3, "could_not_check")
        assert "without consent: python3 tiny_mcp_server.py" in unchecked["message"]
        assert not (project.root / "started").exists()

    def test_frozen_checks_start_nothing_and_report_what_was_not_checked(self, project: Project) -> None:
        (project.root / "tiny_mcp_server.py").write_text("open('started', 'w').close()")
        gate_result = gate(project, "--allow-execute")
        assert (gate_result.code, (project.root / "started").exists()) == (0, False)
        assert "1 of 1 entries have only ToolPin's tool hashes" in gate_result.out
        assert "live servers were not checked" in gate_result.out

    def test_a_server_that_cannot_be_probed_is_not_clean(self, project: Project) -> None:
        (project.root / "tiny_mcp_server.py").unlink()
        assert gate(project, "--live", "--offline", "--allow-execute").code == 3

    @pytest.mark.parametrize(("tools", "code"), [*CODES.items(), ("reordered", None)])
    def test_the_older_hashes_decide_where_there_is_no_other(
        self, project: Project, tools: str, code: str | None
    ) -> None:
        self.relock(project, toolSurfaceHash=None)
        shutil.copy(TOOLPIN / f"tools-{tools}.json", project.root / "tools-current.json")
        gate_result = gate(project, "--live", "--offline", "--allow-execute", "--format", "json")
        assert failures(gate_result) == ([(code, "io.fixture/live-stdio")] if code else [])

    def test_a_hash_that_covers_less_approves_nothing(self, project: Project) -> None:
        """Attack: say that the hash is over names only. ToolPin then compares nothing, and passes."""
        self.relock(project, toolSurfaceHash={"coverage": ["name"]})
        gate_result = gate(project, "--live", "--offline", "--allow-execute", "--format", "json")
        assert failures(gate_result) == [("tool_coverage_reduced", "io.fixture/live-stdio")]

    def test_tools_on_later_pages_were_not_approved(self, project: Project) -> None:
        """Attack: tools behind a cursor. ToolPin hashes the first page, and takes that for everything."""
        server = (project.root / "tiny_mcp_server.py").read_text()
        page = '"result": {"tools": tools}}'
        assert page in server
        first = '{"tools": tools, "nextCursor": "2"}'
        second = '{"tools": [{"name": "late", "inputSchema": {"type": "object"}}]}'
        paged = f'"result": {second} if msg.get("params", {{}}).get("cursor") else {first}}}'
        (project.root / "tiny_mcp_server.py").write_text(server.replace(page, paged))
        gate_result = gate(project, "--live", "--offline", "--allow-execute", "--format", "json")
        assert failures(gate_result) == [("tools_changed", "io.fixture/live-stdio")]
        assert "lists 5 tools, but 4 were approved" in gate_result.out

    def test_a_tool_without_a_single_meaning_was_not_approved(self, project: Project) -> None:
        """Attack: a member twice. ToolPin's reader takes the last, a client may take the first."""
        server = (project.root / "tiny_mcp_server.py").read_text()
        sent = "sys.stdout.write(json.dumps(out)"
        assert sent in server
        twice = sent + """.replace('"name": "a-note"', '"description": "x", "name": "a-note"')"""
        (project.root / "tiny_mcp_server.py").write_text(server.replace(sent, twice))
        gate_result = gate(project, "--live", "--offline", "--allow-execute", "--format", "json")
        assert failures(gate_result) == [("tool_undigestable", "io.fixture/live-stdio")]

    def test_an_approved_text_has_precedence_over_the_hashes(self, project: Project) -> None:
        shutil.copy(TOOLPIN / "tools-desc-changed.json", project.root / "tools-current.json")
        agreed = command(project, "approve", "io.fixture/live-stdio", "--allow-execute", "--yes", "--by", "ada")
        assert agreed.code == 0
        assert gate(project, "--live", "--offline", "--allow-execute").code == 0
        shutil.copy(TOOLPIN / "tools-current.json", project.root / "tools-current.json")
        gate_result = gate(project, "--live", "--offline", "--allow-execute")
        assert (gate_result.code, "Always call list_notes first" in gate_result.out) == (1, True)


SERVE = """
import http.server, runpy, sys
class RecordingServer(http.server.ThreadingHTTPServer):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        print(self.server_port, flush=True)
http.server.ThreadingHTTPServer = RecordingServer
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@contextmanager
def loopback_registry() -> Iterator[int]:
    """The registry that the recordings were made with, on a port of its own choice."""
    entries = TOOLPIN / "dot-toolpin" / "registry-cache.json"
    words = [sys.executable, "-c", SERVE, str(TOOLPIN / "registry_server.py"), str(entries), "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_a_registry_on_this_machine_is_asked_as_toolpin_asked_it(tmp_path: Path) -> None:
    project = world(tmp_path, TOOLPIN / "locks" / "loopback.mcp-lock.json")
    (tmp_path / ".toolpin" / "registry-cache.json").unlink()
    expected = recorded(TOOLPIN / "ci" / "loopback-live.json")
    with loopback_registry() as port:
        sources = load("toolpin/dot-toolpin/registries.json")
        sources["registries"][0]["url"] = f"http://127.0.0.1:{port}/v0"
        (tmp_path / ".toolpin" / "registries.json").write_text(json.dumps(sources))
        gate_result = gate(project, "--registry", "--format", "json")
    assert (gate_result.code == 0, json.loads(gate_result.out)["checkedEntries"]) == (
        expected["ok"],
        expected["checkedEntries"],
    )
    shutil.rmtree(project.home, ignore_errors=True)  # what was kept of the answers
    assert gate(project, "--registry").code == 3  # the registry is gone


FORGED = sorted((TOOLPIN / "defects").glob("*.mcp-lock.json"))


@pytest.mark.parametrize("lock", FORGED, ids=[path.name for path in FORGED])
def test_what_toolpin_lets_pass_by_mistake_is_refused(tmp_path: Path, lock: Path) -> None:
    assert recorded(lock.with_name(lock.name.replace(".mcp-lock.json", ".ci.json")))["ok"] is True
    assert run(world(tmp_path, lock)).exit_code == 1


def test_every_difference_from_toolpin_is_documented() -> None:
    page = (REPOSITORY / "docs" / "reference" / "toolpin-differences.md").read_text(encoding="utf-8")
    for case in RIGHT_ANSWERS:
        assert f"`{case}`" in page
