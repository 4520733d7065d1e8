"""``--undo`` of ``pin`` and ``update``: what it shows, what it asks, what it restores, and what it leaves alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.several_clients import SeveralClients, approved_clients, several_clients
from tests.cli.terminal import AtTerminal
from tests.cli.test_enforce import KILLED
from tests.cli.test_pin import CLAUDE, CODEX, Clients, floating_clients
from tests.cli.test_prove_fetch_run import PLAIN, needs_node
from tests.cli.test_update_decisions import ALLOWED, versions
from tests.docs.schemas import problems


@pytest.fixture
def floating(tmp_path: Path) -> Iterator[Clients]:
    with floating_clients(tmp_path) as made:
        yield made


def states(world: Clients, name: str) -> dict[str, set[str]]:
    servers = [server for server in world.run_json("status")[1]["servers"] if server["name"] == name]
    return {state: {server[state] for server in servers} for state in ("pinned", "verified", "locked")}


def failures(world: Clients) -> list[str]:
    """What the gate finds. The policy that ``init`` writes requires exact releases."""
    return [row["code"] for row in world.run_json("ci")[1]["failures"]]


class TestPins:
    def test_every_file_and_lock_is_restored_byte_for_byte(self, floating: Clients) -> None:
        floating.done("init")
        before = floating.everything()
        floating.done("pin", "--yes", *PLAIN)
        pinned = floating.everything()
        code, report = floating.run_json("pin", "--undo", "--dry-run")
        assert problems("pin", report) == []
        assert (code, report["written"], len(report["files"])) == (0, False, 4)
        locks = {lock["file"]: lock["removed"] for lock in report["locks"]}
        assert list(locks) == ["mcp-lock.json", "~/.config/pinwarden/mcp-lock.json"]
        assert floating.everything() == pinned
        outcome = floating.done("pin", "--undo", "--yes")
        assert '+  "acme-notes@latest",  # newest' in outcome.out
        shown = " ".join(outcome.out.split())
        assert "5 entries restored as before; 4 files byte for byte; mcp-lock.json edited" in shown
        assert "note: the lock mcp-lock.json was edited too" in shown
        assert all(name in shown for removed in locks.values() for name in removed)
        assert floating.everything() == before
        assert failures(floating) == ["floating_release"]

    @pytest.mark.parametrize(("keys", "code"), [("n\n", 1), (AtTerminal.INTERRUPT, 130), ("\n", 0)])
    def test_a_person_sees_the_edit_and_is_asked(self, floating: Clients, keys: str, code: int) -> None:
        before = floating.texts()
        floating.done("pin", "--yes", *PLAIN)
        pinned = floating.texts()
        with floating.at_terminal("pin", "--undo") as terminal:
            shown = terminal.until("Restore 4 client files as shown? [y]es [n]o (Enter = yes): ")
            assert '-      "args": ["-y", "acme-notes@2.0.0"], // no version yet' in shown
            terminal.types(keys)
            assert terminal.ends() == code
        assert floating.texts() == (before if code == 0 else pinned)

    def test_without_a_terminal_the_hint_is_the_command_that_works(self, floating: Clients) -> None:
        floating.done("pin", "--yes", *PLAIN)
        pinned = floating.everything()
        outcome = floating.run("pin", "notes", "--undo")
        assert (outcome.code, "[CONSENT_REQUIRED]" in outcome.err) == (2, True)
        assert floating.everything() == pinned
        command = "pin notes --undo --yes"
        assert f"pinwarden {command}" in " ".join(outcome.err.split())
        floating.done(*command.split())
        texts = floating.texts()
        assert texts["codex"] == CODEX
        assert "acme-notes@2.0.0" not in texts["claude"]
        assert "acme-clock==1.1.0" in texts["claude"], "another server keeps its release"
        floating.done("pin", "--undo", "--yes")
        assert floating.texts()["claude"] == CLAUDE

    def test_a_file_that_changed_since_keeps_the_change_and_its_comments(self, floating: Clients) -> None:
        floating.done("pin", "--yes", *PLAIN)
        codex = floating.files["codex"]
        codex.write_text(f'model = "o4-mini"\n{codex.read_text()}')
        outcome = floating.done("pin", "--undo", "--yes")
        assert "only the entry of this server is edited" in " ".join(outcome.out.split())
        assert codex.read_text() == f'model = "o4-mini"\n{CODEX}'

    def test_an_entry_that_a_person_changed_since_stays_and_is_named(self, floating: Clients) -> None:
        floating.done("pin", "--yes", *PLAIN)
        claude = floating.files["claude"]
        edited = claude.read_text().replace("acme-notes@2.0.0", "acme-notes@1.4.0")
        claude.write_text(edited)
        code, report = floating.run_json("pin", "--undo", "--yes")
        assert problems("pin", report) == []
        assert (code, [row["code"] for row in report["findings"] if row["severity"] == "review"]) == (1, ["not_undone"])
        assert claude.read_text() == edited.replace("acme-clock==1.1.0", "acme-clock")
        again = floating.run("pin", "--undo", "--yes")
        assert (again.code, "was changed in the meantime" in " ".join(again.out.split())) == (1, True)

    def test_the_lock_follows_when_the_server_was_locked_and_verified_after_the_pin(self, floating: Clients) -> None:
        floating.done("pin", "--yes", *PLAIN)
        floating.done("init")
        floating.done("prove", "notes", "--scope", "project", *PLAIN)
        floating.done("pin", "notes", "--undo", "--yes")
        assert states(floating, "notes")["pinned"] == {"no"}
        assert states(floating, "notes")["verified"] == {"no"}
        assert states(floating, "notes")["locked"] == {"yes"}
        assert failures(floating) == ["floating_release"]
        floating.done("pin", "notes", "--yes", *PLAIN)
        floating.done("ci")

    def test_a_pinned_server_that_is_enforced_now_is_not_touched(self, floating: Clients) -> None:
        floating.done("pin", "clock", "--yes", "--scope", "project", *PLAIN)
        floating.done("init")
        floating.done("prove", "clock", "--scope", "project", *PLAIN)
        floating.done("enforce", "clock", "--yes", "--scope", "project")
        enforced = floating.everything()
        outcome = floating.run("pin", "--undo", "--yes")
        assert (outcome.code, "pinwarden enforce --undo" in " ".join(outcome.out.split())) == (1, True)
        assert floating.everything() == enforced
        floating.done("enforce", "--undo", "--yes")
        floating.done("pin", "--undo", "--yes")
        assert floating.texts()["claude"] == CLAUDE


@needs_node
class TestUpdates:
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[SeveralClients]:
        command = "npx -y acme-notes@1.0.0"
        with approved_clients(tmp_path, claude=command, cursor=command) as made:
            yield made

    @pytest.mark.parametrize("options", [("--allow-execute", *ALLOWED), PLAIN], ids=["in one step", "release only"])
    def test_files_lock_and_approval_are_those_of_the_earlier_release(
        self, world: SeveralClients, options: tuple[str, ...]
    ) -> None:
        before = world.files()
        world.done("update", "notes", "--yes", *options)
        assert versions(world) == {"2.0.0"}
        updated = world.files()
        code, report = world.run_json("update", "--undo", "--yes")
        assert problems("update", report) == []
        assert (code, {entry["action"] for entry in report["undone"]}) == (0, {"restored"})
        assert world.files() == before
        (lock,) = report["locks"]
        assert set(lock["removed"]) == updated.keys() - before.keys()
        assert set(lock["added"]) == before.keys() - updated.keys()
        world.done("ci")

    def test_an_update_that_was_killed_while_it_wrote_is_rolled_back(self, world: SeveralClients) -> None:
        before = world.files()
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, "update", "notes", "--yes", *PLAIN],
            cwd=world.root,
            env={**world.whole_environment, "WRITES_BEFORE_KILL": "1"},
            check=False,
            timeout=120,
        )
        assert killed.returncode == -signal.SIGKILL
        assert versions(world) == {"2.0.0"}
        assert len({str(world.entry(client)["args"]) for client in ("claude", "cursor")}) == 2, "one file was written"
        world.done("update", "--undo", "--yes")
        assert world.files() == before

    def test_an_update_that_was_enforced_since_is_not_undone(self, world: SeveralClients) -> None:
        world.done("update", "notes", "--yes", "--allow-execute", *ALLOWED)
        world.done("enforce", "--yes")
        enforced = world.files()
        outcome = world.run("update", "--undo", "--yes")
        assert (outcome.code, "locked again since the update" in " ".join(outcome.out.split())) == (1, True)
        assert world.files() == enforced


@needs_node
class TestSeveralScopes:
    """A server of the project, and two in one file of the user: one for every project, and one for this project."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[SeveralClients]:
        with several_clients(tmp_path, claude="npx -y acme-notes@1.0.0") as made:
            entry = {"command": "npx", "args": ["-y", "acme-notes@1.0.0"]}
            local = {str(made.root): {"mcpServers": {"local": entry}}, "/other": {"mcpServers": {"local": entry}}}
            document: dict[str, Any] = {"mcpServers": {"mine": entry}, "projects": local}
            self.file(made).write_text(json.dumps(document))
            made.done("init")
            made.done("prove", *PLAIN)
            yield made

    def file(self, world: SeveralClients) -> Path:
        return world.folder / "home" / ".claude.json"

    def everything(self, world: SeveralClients) -> dict[str, bytes]:
        folders = (world.root, world.folder / "home")
        return {str(path): path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}

    def test_one_file_with_servers_of_two_scopes_is_edited_once_and_restored(self, world: SeveralClients) -> None:
        before = self.everything(world)
        world.done("enforce", "--yes")
        document = json.loads(self.file(world).read_text())
        servers = document["mcpServers"] | document["projects"][str(world.root)]["mcpServers"]
        assert {name: Path(entry["command"]).name for name, entry in servers.items()} == dict.fromkeys(
            ("mine", "local"), "pinwarden"
        )
        assert document["projects"]["/other"]["mcpServers"]["local"]["command"] == "npx"
        world.done("enforce", "--undo", "--yes")
        assert self.everything(world) == before

    @pytest.mark.parametrize("undo", [(), ("--undo",)], ids=["enforce", "undo"])
    def test_a_file_that_changes_after_the_preview_stops_the_edits_of_all_scopes(
        self, world: SeveralClients, undo: tuple[str, ...]
    ) -> None:
        if undo:
            world.done("enforce", "--yes")
        environment = {**world.whole_environment, "NO_COLOR": "1"}
        with AtTerminal("enforce", *undo, cwd=world.root, env=environment) as terminal:
            shown = " ".join(terminal.until("(Enter = yes): ").split())
            assert ("2 client files and 3 locks as shown?" if undo else "2 client files as shown?") in shown
            self.file(world).write_text(f"{self.file(world).read_text()}\n")
            before = self.everything(world)
            terminal.types("y\n")
            shown = " ".join(terminal.until("Run the command again").split())
            assert terminal.ends() == 3
        assert "another program changed ~/.claude.json after the edit was shown; no file was edited" in shown
        assert "by hand" not in shown
        assert self.everything(world) == before
