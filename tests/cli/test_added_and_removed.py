"""``add`` and ``remove`` write the lock and all clients' files or nothing, and ``--undo`` restores them."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.project import RECORDED, ProjectFolder
from tests.cli.run import Outcome
from tests.cli.test_enforce import KILLED
from tests.docs.schemas import problems

VECTORS = Path(__file__).parents[1] / "vectors" / "toolpin"
NPM = "io.github.acme/npm-notes"
ADD = ("add", NPM, "--offline", "--client", "claude", "--client", "vscode")
CLAUDE = '{\n  // mine\n  "mcpServers": {"other": {"command": "other", "args": []}},\n  "theme": "dark"\n}\n'
DROP_FROM_BOUNDS, OVERRIDE_MODES = 24, 1  # prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE)


class World(ProjectFolder):
    """A project with a registry, and with a client's file that has another server."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        shutil.copytree(VECTORS / "dot-toolpin", self.root / ".toolpin")
        (self.root / ".mcp.json").write_text(CLAUDE)

    @property
    def environment(self) -> dict[str, str]:
        own = {"HOME": str(self.home), "PINWARDEN_APPROVER": "reviewer", "SOURCE_DATE_EPOCH": str(RECORDED)}
        return {**os.environ, **own}

    def done(self, *arguments: str) -> Outcome:
        outcome = self.run(*arguments)
        assert outcome.code == 0, outcome.err + outcome.out
        return outcome

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.root)): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}

    def backups(self) -> list[Path]:
        return sorted(self.home.rglob("backups/*/manifest.json"))

    def run_with_modes(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command to which the modes of folders apply, also if the tests run as root."""
        libc = ctypes.CDLL(None)
        return subprocess.run(
            [sys.executable, "-m", "pinwarden", *arguments],
            cwd=self.root,
            env=self.environment,
            preexec_fn=lambda: libc.prctl(DROP_FROM_BOUNDS, OVERRIDE_MODES, 0, 0, 0),
            capture_output=True,
            check=False,
            timeout=120,
        )

    def run_and_kill(self, *arguments: str, writes: int) -> None:
        """Run a command that is killed after it wrote the lock and this number of clients' files."""
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, *arguments],
            cwd=self.root,
            env={**self.environment, "WRITES_BEFORE_KILL": str(writes)},
            check=False,
            timeout=120,
        )
        assert killed.returncode == -signal.SIGKILL


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("command", ["add", "remove"])
def test_a_clients_file_that_cannot_be_written_leaves_every_file_as_it_is(world: World, command: str) -> None:
    vscode = world.root / ".vscode"
    vscode.mkdir()
    if command == "remove":
        world.done(*ADD)
    before, backups = world.files(), world.backups()
    vscode.chmod(0o555)
    outcome = world.run_with_modes(*(ADD if command == "add" else ("remove", NPM)))
    vscode.chmod(0o755)
    assert (outcome.returncode, b"[FILE_UNWRITABLE]" in outcome.stderr) == (3, True), outcome
    assert world.files() == before
    assert world.backups() == backups


def test_add_is_undone_to_the_byte_and_with_the_files_that_it_created(world: World) -> None:
    before = world.files()
    world.done(*ADD)
    assert (world.root / ".vscode" / "mcp.json").exists()
    outcome = world.done("add", NPM, "--undo", "--yes")
    assert "2 entries restored as before; 2 files byte for byte; mcp-lock.json edited" in " ".join(outcome.out.split())
    assert world.files() == before
    assert world.backups() == []
    again = world.run("add", NPM, "--undo", "--yes")
    assert (again.code, "[NOTHING_TO_UNDO]" in again.err) == (1, True)


def test_remove_is_undone_to_the_byte(world: World) -> None:
    world.done(*ADD)
    before = world.files()
    world.done("remove", NPM)
    assert NPM.encode() not in b"".join(world.files()[name] for name in (".mcp.json", "mcp-lock.json"))
    report = json.loads(world.done("remove", NPM, "--undo", "--yes", "--format", "json").out)
    assert problems("remove", report) == []
    assert [row["action"] for row in report["undone"]] == ["restored", "restored"]
    assert world.files() == before


@pytest.mark.parametrize("command", ["add", "remove"])
def test_a_file_that_its_client_changed_since_keeps_the_change(world: World, command: str) -> None:
    if command == "remove":
        world.done(*ADD)
    claude = world.root / ".mcp.json"
    before = claude.read_text()
    lock = world.lock.read_bytes() if command == "remove" else None
    world.done(*(ADD if command == "add" else ("remove", NPM)))
    claude.write_text(claude.read_text().replace('"dark"', '"light"'))
    report = json.loads(world.done(command, NPM, "--undo", "--yes", "--format", "json").out)
    assert problems(command, report) == []
    assert {row["action"] for row in report["undone"]} == {"restored", "edited"}
    assert '"light"' in claude.read_text()
    assert (NPM in claude.read_text()) == (NPM in before)
    assert '"other": {"command": "other"' in claude.read_text()
    assert (world.lock.read_bytes() if world.lock.exists() else None) == lock


def test_other_servers_of_the_lock_stay_when_add_is_undone(world: World) -> None:
    world.done(*ADD)
    world.done("init", "--accept", "other")
    assert {key.partition(":")[0] for key in json.loads(world.lock.read_bytes())["servers"]} == {NPM, "other"}
    world.done("add", NPM, "--undo", "--yes")
    assert {key.partition(":")[0] for key in json.loads(world.lock.read_bytes())["servers"]} == {"other"}
    assert (world.root / ".mcp.json").read_text() == CLAUDE
    world.done("ci")


def test_an_entry_that_a_person_changed_since_stays_with_its_lock_entry(world: World) -> None:
    world.done(*ADD)
    vscode = world.root / ".vscode" / "mcp.json"
    edited = vscode.read_text().replace("npx", "bunx")
    vscode.write_text(edited)
    outcome = world.run("add", NPM, "--undo", "--yes")
    shown = " ".join(outcome.out.split())
    assert (outcome.code, "it was changed in mcp.json in the meantime" in shown) == (1, True)
    assert vscode.read_text() == edited
    assert (world.root / ".mcp.json").read_text() == CLAUDE
    assert list(json.loads(world.lock.read_bytes())["servers"]) == [f"{NPM}:vscode"]


def test_a_server_that_was_added_again_is_not_changed_by_undoing_its_removal(world: World) -> None:
    world.done(*ADD)
    world.done("remove", NPM)
    world.done("add", NPM, "--offline", "--modern")
    before = world.files()
    outcome = world.run("remove", NPM, "--undo", "--yes")
    assert (outcome.code, "locked again since the remove" in " ".join(outcome.out.split())) == (1, True)
    assert world.files()[".mcp.json"] == before[".mcp.json"]


@pytest.mark.parametrize("writes", [0, 1])
@pytest.mark.parametrize("command", ["add", "remove"])
def test_a_command_that_was_killed_while_it_wrote_is_rolled_back_by_the_next_one(
    world: World, command: str, writes: int
) -> None:
    if command == "remove":
        world.done(*ADD)
    before = world.files()
    world.run_and_kill(*(ADD if command == "add" else ("remove", NPM)), writes=writes)
    assert world.files() != before
    refused = world.run("remove", "none")
    assert f"an earlier pinwarden {command} was interrupted; its edits were rolled back" in refused.err
    assert world.files() == before


def test_removal_from_the_lock_alone_needs_no_backup(world: World) -> None:
    world.done(*ADD)
    backups = world.backups()
    world.done("remove", NPM, "--keep-config")
    assert world.backups() == backups
