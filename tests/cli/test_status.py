"""pinwarden status: the board, what it says to do next, and what it costs."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.many_servers import write_many_servers
from tests.cli.status_world import CLOCK, CODEX, HOME_FILES, NOTES, PROJECT_FILES, SECRET, StatusWorld
from tests.cli.test_prove_fetch_run import PLAIN, needs_node
from tests.gateway.review_world import SEARCH
from tests.servers.acme_packages import acme_registries
from tests.support.targets import SCRIPTED

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture
def world(tmp_path: Path) -> StatusWorld:
    return StatusWorld(tmp_path)


@pytest.fixture(scope="module")
def ten_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StatusWorld]:
    """Ten servers: approved, verified, enforced, floating, remote, blocked, disabled, with a secret."""
    with acme_registries(tmp_path_factory.mktemp("wheels")) as registries:
        world = StatusWorld(tmp_path_factory.mktemp("ten"), registries.variables)
        world.write(PROJECT_FILES, HOME_FILES)
        assert world.run("init").code == 0
        assert world.run("prove", "notes", "clock", *PLAIN).code == 0
        world.approve("notes", "clock")
        world.enforce("notes:claude", ".mcp.json")
        world.block("clock")
        world.write({}, {".codex/config.toml": CODEX})
        user = {"filesystem": timedelta(days=3, hours=5), "github": timedelta(days=800)}
        project = {"notes": timedelta(minutes=12, seconds=30), "clock": timedelta(hours=7, minutes=30)}
        world.record_checks({world.project.lock: project, world.user_lock: user})
        yield world


@needs_node
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_board_of_ten_servers_fits_the_terminal(ten_servers: StatusWorld, columns: int) -> None:
    """With UPDATE_SNAPSHOTS=1 the snapshot is written instead of compared."""
    outcome = ten_servers.run("status", columns=columns)
    file = SNAPSHOTS / f"status-{columns}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(outcome.out)
    assert outcome.out == file.read_text()
    # stdout is no terminal, so the sentences below the board are not wrapped
    board, _, _ = outcome.out.rpartition("\n\n")
    assert max(map(len, board.splitlines())) <= columns
    assert SECRET not in outcome.out + outcome.err


class TestStates:
    def test_configured_servers_without_a_lock_are_shown_and_locked_next(self, world: StatusWorld) -> None:
        world.write(PROJECT_FILES)
        facts = world.facts()
        assert [(server["name"], server["locked"]) for server in facts["servers"]] == [
            ("clock", "no"),
            ("docs", "no"),
            ("memory", "no"),
            ("notes", "no"),
        ]
        assert facts["next_command"] == "pinwarden setup"
        assert world.run("init").code == 0
        assert {server["locked"] for server in world.facts()["servers"]} == {"yes"}

    def test_one_server_in_two_clients_is_one_row(self, world: StatusWorld) -> None:
        world.write(
            {".mcp.json": {"mcpServers": {"notes": NOTES}}, ".cursor/mcp.json": {"mcpServers": {"notes": NOTES}}}
        )
        assert world.server("notes")["clients"] == ["claude", "cursor"]
        world.run("init")
        server = world.server("notes")
        assert (server["clients"], server["files"]) == (["claude", "cursor"], [".mcp.json", ".cursor/mcp.json"])
        assert (server["package"], server["version"]) == ("npm package @acme/notes 1.0.0", "1.0.0")

    def test_two_versions_under_one_name_are_two_rows_with_commands_that_name_the_client(
        self, world: StatusWorld
    ) -> None:
        other = {"command": "npx", "args": ["-y", "@acme/notes@2.0.0"]}
        world.write(
            {".mcp.json": {"mcpServers": {"notes": NOTES}}, ".cursor/mcp.json": {"mcpServers": {"notes": other}}}
        )
        world.run("init")
        world.write({"pinwarden.toml": ""})
        rows = [(server["version"], server["clients"]) for server in world.facts()["servers"]]
        assert rows == [("1.0.0", ["claude"]), ("2.0.0", ["cursor"])]

    def test_a_new_server_of_a_locked_project_is_accepted_next(self, world: StatusWorld) -> None:
        world.write({".mcp.json": {"mcpServers": {"notes": NOTES}}})
        world.run("init")
        world.write({".mcp.json": {"mcpServers": {"notes": NOTES, "my clock": CLOCK}}})
        server = world.server("my clock")
        assert (server["locked"], server["next_step"]) == ("no", "approve")
        assert server["next_command"] == "pinwarden approve 'my clock'"
        assert world.run("init", "--accept", "my clock").code == 0
        assert world.server("my clock")["locked"] == "yes"

    def test_the_same_server_in_another_client_is_locked_for_that_client_next(self, world: StatusWorld) -> None:
        world.write({".mcp.json": {"mcpServers": {"notes": NOTES}}})
        world.run("init")
        world.write({".cursor/mcp.json": {"mcpServers": {"notes": NOTES}}})
        server = world.server("notes")
        assert (server["clients"], server["locked"], server["next_step"]) == (["claude", "cursor"], "partly", "approve")
        assert world.run("init", "--accept", "notes").code == 0
        assert world.server("notes")["locked"] == "yes"

    def test_a_changed_command_is_not_what_was_approved_or_verified(self, world: StatusWorld) -> None:
        """Attack: the file of a client starts another package under an approved name."""
        world.write({".mcp.json": {"mcpServers": {"notes": NOTES}}})
        world.run("init")
        world.approve("notes")
        assert world.server("notes")["approved"] == "yes"
        evil = {"command": "npx", "args": ["-y", "@evil/notes@1.0.0"]}
        world.write({".mcp.json": {"mcpServers": {"notes": evil}}})
        server = world.server("notes")
        assert server["package"] == "npm @evil/notes"
        assert (server["changed"], server["approved"], server["verified"]) == (True, "no", "no")
        assert "Configured differently than locked: notes" in world.run("status").out

    def test_tools_that_no_person_looked_at_are_not_approved(self, world: StatusWorld) -> None:
        world.write({".mcp.json": {"mcpServers": {"notes": NOTES}}})
        world.run("init")
        assert world.server("notes")["approved"] == "no"

    def test_a_disabled_server_needs_nothing(self, world: StatusWorld) -> None:
        world.write({".mcp.json": {"mcpServers": {"notes": {**NOTES, "disabled": True}}}})
        server = world.server("notes")
        assert (server["disabled"], server["next_command"]) == (True, None)
        assert "Claude Code (disabled)" in world.run("status").out
        assert world.run("status", "--check").code == 0

    def test_the_scopes_are_labelled_and_can_be_chosen(self, world: StatusWorld) -> None:
        world.write(PROJECT_FILES, HOME_FILES)
        local = {"projects": {str(world.root.resolve()): {"mcpServers": {"scratch": CLOCK}}}}
        world.write({}, {".claude.json": local})
        lines = world.run("status").out.splitlines()
        labels = ["This project", "You, in this project", "You, in every project"]
        assert [line for line in lines if line in labels] == labels
        assert [server["name"] for server in world.facts("--scope", "local")["servers"]] == ["scratch"]


class TestAttention:
    def test_check_fails_until_nothing_needs_attention(self, world: StatusWorld) -> None:
        script = world.root / "lights"
        world.write({".mcp.json": {"mcpServers": {"lights": {"command": str(script), "args": []}}}})
        script.touch(mode=0o755)
        assert world.run("status").code == 0
        assert world.run("status", "--check").code == 1
        world.run("init")
        world.approve("lights")
        assert world.run("status").out.endswith("Next: pinwarden enforce lights\n")
        assert world.run("enforce", "--yes").code == 0
        outcome = world.run("status", "--check")
        assert outcome.code == 0, outcome
        assert outcome.out.endswith("Next: pinwarden init-ci\n")

    def test_an_unreadable_file_needs_attention(self, world: StatusWorld) -> None:
        world.write({".mcp.json": "{"})
        outcome = world.run("status", "--check")
        assert outcome.code == 1
        assert ".mcp.json" in outcome.out
        assert world.facts()["unreadable"] == [".mcp.json"]

    @pytest.mark.parametrize(
        ("place", "member", "fix"),
        [
            (".mcp.json", "mcpServers", "Write ${API_KEY} and set API_KEY where Claude Code starts."),
            (".cursor/mcp.json", "mcpServers", "Write ${env:API_KEY} and set API_KEY where Cursor starts."),
            (".vscode/mcp.json", "servers", "Write ${input:api_key} and declare that input with password: true"),
            (".gemini/settings.json", "mcpServers", "Write ${API_KEY} and set API_KEY where Gemini CLI starts."),
            (".codex/config.toml", "", 'Remove it from env and write env_vars = ["API_KEY"]'),
        ],
    )
    def test_a_secret_is_reported_with_the_fix_for_its_client(
        self, world: StatusWorld, place: str, member: str, fix: str
    ) -> None:
        entry = {**CLOCK, "env": {"API_KEY": SECRET}}
        toml = f'[mcp_servers.clock]\ncommand = "uvx"\nargs = ["acme-clock==1.0.0"]\nenv = {{ API_KEY = "{SECRET}" }}\n'
        world.write({place: {member: {"clock": entry}} if member else toml})
        for command in (("status",), ("doctor",), ("secrets", "audit")):
            outcome = world.run(*command)
            assert fix in " ".join(outcome.out.split()), command
            assert SECRET not in outcome.out + outcome.err
        assert "; 1 secret in plain text.\n" in world.run("status").out
        assert world.server("clock")["secrets"] == ["API_KEY"]
        assert world.run("status", "--check").code == world.run("doctor").code == 1

    def test_blocked_changes_are_shown_until_they_are_decided(self, world: StatusWorld) -> None:
        world.write({".mcp.json": {"mcpServers": {"notes": NOTES}}})
        world.run("init")
        world.approve("notes")
        world.block("notes")
        server = world.server("notes")
        assert (server["blocked"], server["next_command"]) == (["tool search"], "pinwarden approve notes")
        assert "  notes: tool search\n" in world.run("status").out
        (review,) = json.loads(world.run("review", "list", "--format", "json").out)["reviews"]
        assert world.run("review", "reject", review["name"]).code == 0
        assert world.server("notes")["blocked"] == []

    def test_a_damaged_database_is_a_note(self, world: StatusWorld) -> None:
        world.write({".mcp.json": {"mcpServers": {"notes": NOTES}}})
        world.state.mkdir(mode=0o700)
        (world.state / "gateway.sqlite").write_bytes(b"not a database")
        outcome = world.run("status")
        assert outcome.code == 0
        assert "note: the changes that the gateway blocked are unknown" in outcome.out

    def test_a_shared_database_is_not_asked(self, world: StatusWorld) -> None:
        world.write({".mcp.json": {"mcpServers": {"notes": NOTES}}})
        outcome = world.run("status", PINWARDEN_DATABASE="postgresql://nobody@192.0.2.1/none")
        assert outcome.code == 0
        assert "note: blocked changes are in a shared database" in outcome.out


class TestLastChecked:
    def test_approvals_and_sightings_of_the_gateway_are_remembered(self, world: StatusWorld) -> None:
        world.write({".mcp.json": {"mcpServers": {"notes": NOTES, "clock": CLOCK}}})
        world.run("init")
        assert world.server("notes")["last_checked"] is None
        world.approve("notes")
        assert world.server("notes")["last_checked"] is not None
        assert world.server("clock")["last_checked"] is None
        world.block("clock")
        assert world.server("clock")["last_checked"] is not None

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            '{"format": "other", "locks": {}}',
            '{"format": "pinwarden-last-checked/1", "locks": []}',
            " " * 3_000_000,
        ],
    )
    def test_a_damaged_record_is_a_note_and_is_replaced(self, world: StatusWorld, text: str) -> None:
        world.write({".mcp.json": {"mcpServers": {"notes": NOTES}}})
        world.run("init")
        world.state.mkdir(mode=0o700, exist_ok=True)
        record = world.state / "last-checked.json"
        record.write_text(text)
        outcome = world.run("status")
        assert outcome.code == 0
        assert "unknown when servers were checked" in outcome.out
        world.approve("notes")
        assert world.server("notes")["last_checked"] is not None

    def test_values_that_are_not_times_are_ignored(self, world: StatusWorld) -> None:
        world.write({".mcp.json": {"mcpServers": {"notes": NOTES}}})
        world.run("init")
        world.state.mkdir(mode=0o700, exist_ok=True)
        rows = {"notes": "\x1b[31mnever", "clock": 5}
        document: dict[str, Any] = {
            "format": "pinwarden-last-checked/1",
            "locks": {str(world.project.lock.resolve()): rows},
        }
        (world.state / "last-checked.json").write_text(json.dumps(document))
        assert world.server("notes")["last_checked"] is None

    def test_a_state_folder_that_cannot_be_used_stops_nothing(self, world: StatusWorld) -> None:
        world.write({".mcp.json": {"mcpServers": {"notes": NOTES}}})
        world.run("init")
        world.state.write_text("a file in place of the folder")
        world.approve("notes")
        server = world.server("notes")
        assert (server["approved"], server["last_checked"]) == ("yes", None)

    @pytest.mark.parametrize(
        "command", [("ci", "--live", "--allow-execute"), ("approve", "notes", "--allow-execute", "--yes")]
    )
    def test_a_command_that_starts_the_server_is_remembered(self, world: StatusWorld, command: tuple[str, ...]) -> None:
        script = {"server": {"capabilities": {"tools": {}}}, "lists": {"tools": [[SEARCH]]}}
        notes = {"command": sys.executable, "args": ["-I", "-S", str(SCRIPTED), "@script.json"]}
        world.write({"script.json": script, ".mcp.json": {"mcpServers": {"notes": notes}}})
        assert world.run("init", "--allow-execute").code == 0
        (world.state / "last-checked.json").unlink(missing_ok=True)
        assert world.server("notes")["last_checked"] is None
        outcome = world.run(*command)
        assert outcome.code == 0, outcome
        assert world.server("notes")["last_checked"] is not None


class TestHostileInput:
    def test_names_cannot_reach_the_terminal_or_move_a_column(self, world: StatusWorld) -> None:
        """Attack: escape codes, a direction override, wide and combining characters in names and versions."""
        names = ("\x1b[2Kevil\u202e", "日本語サーバー", "e\u0301" * 9, "::error::x", "a" * 300)
        servers = {name: {"command": "npx", "args": ["-y", f"@acme/{i}@1.0.0"]} for i, name in enumerate(names)}
        world.write({".mcp.json": {"mcpServers": servers}})
        for columns in (60, 80, 120):
            outcome = world.run("status", columns=columns)
            assert outcome.code == 0
            assert not set("\x1b\u202e") & set(outcome.out)
            assert not re.search(r"^\s*::", outcome.out, re.MULTILINE)

    def test_without_unicode_the_words_remain(self, world: StatusWorld) -> None:
        world.write({".mcp.json": {"mcpServers": {"notes": NOTES}}})
        outcome = world.run("status", PYTHONIOENCODING="ascii", LC_ALL="C")
        assert outcome.out.isascii()
        assert re.search(r"^notes +1\.0\.0 +yes +no +no +no +never +setup$", outcome.out, re.MULTILINE)


_WATCHED = """
import sys
def refuse(event, _):
    if event.startswith("socket.") or event in ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"):
        raise SystemExit(f"status did {event}")
sys.addaudithook(refuse)
from pinwarden.cli.main import main
sys.exit(main(["status"]))
"""


class TestCost:
    def test_the_status_of_50_servers_is_computed_quickly_without_network_or_processes(self, tmp_path: Path) -> None:
        """At most 0.5 s of CPU time where an interpreter takes 12 ms to start."""
        world = write_many_servers(tmp_path / "many", 50)
        environment = {
            **os.environ,
            "HOME": str(world.home),
            "PINWARDEN_STATE": str(world.state),
            "XDG_CONFIG_HOME": "",
            "PINWARDEN_DATABASE": "",
        }
        taken, outcome = _cpu_seconds(_WATCHED, world.root, environment)
        assert "50 of 50 pinned, 50 of 50 approved, 50 of 50 verified" in outcome, outcome
        start, _ = _cpu_seconds("pass", world.root, environment)
        assert taken <= 42 * start, (taken, start)


def _cpu_seconds(code: str, folder: Path, environment: dict[str, str]) -> tuple[float, str]:
    """The least CPU time of several runs of some Python code, and what it printed."""
    times: list[float] = []
    output = ""
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done
        output = done.stdout
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times), output
