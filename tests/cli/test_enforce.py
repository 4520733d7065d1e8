"""``pinwarden enforce``: the preview, the consent, the backup and the way back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import pinwarden_in
from tests.cli.several_clients import SeveralClients, in_words_of, several_clients
from tests.cli.terminal import AtTerminal
from tests.cli.test_enforce_clients import read_command, read_entries
from tests.cli.test_prove_fetch_run import PLAIN, needs_node

pytestmark = needs_node

OTHER = {"claude": "npx -y acme-notes@1.0.0", "opencode": "npx -y acme-notes@2.0.0"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SeveralClients]:
    with several_clients(tmp_path, **OTHER) as world:
        yield world


def backups(world: SeveralClients) -> list[Path]:
    return sorted((world.folder / "state" / "backups").glob("*/manifest.json"))


class TestPreview:
    def test_a_dry_run_shows_a_diff_for_each_file_and_writes_nothing(self, world: SeveralClients) -> None:
        before = world.files()
        outcome = world.done("enforce", "--dry-run")
        assert "--- .mcp.json (now)" in outcome.out
        assert "+++ opencode.json (new)" in outcome.out
        assert '-      "command": "npx",' in outcome.out
        assert '+      "command": "pinwarden",' in outcome.out
        assert "2 entries would be started through pinwarden run" in " ".join(outcome.out.split())
        assert (world.files(), backups(world)) == (before, [])

    def test_without_consent_nothing_is_written_and_the_hint_can_be_pasted(self, world: SeveralClients) -> None:
        before = world.files()
        outcome = world.run("enforce", "notes")
        assert (outcome.code, "[CONSENT_REQUIRED]" in outcome.err) == (2, True), outcome
        assert "pinwarden enforce notes --yes --allow-execute" in " ".join(outcome.err.split())
        assert (world.files(), backups(world)) == (before, [])

    def test_secrets_in_a_file_are_not_in_its_diff(self, world: SeveralClients) -> None:
        entry = {**world.entry("claude"), "env": {"KEY": "hunter2-of-the-user"}}
        world.write("claude", notes=entry, other={"command": "x", "args": ["--token", "tok-of-the-other"]})
        world.run("init", "--accept", "notes")
        outcome = world.run("enforce", "--dry-run")
        assert "+++ .mcp.json" in outcome.out
        assert "hunter2" not in outcome.out
        assert "tok-of-the-other" not in outcome.out

    def test_a_person_at_a_terminal_is_asked_once(self, world: SeveralClients) -> None:
        before = world.files()
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        environment = {**world.whole_environment, "PATH": path}
        question = "Start each server once with its new command, then edit 2 client files as shown?"
        for keys, code in (("n\n", 1), (AtTerminal.INTERRUPT, 130)):
            with AtTerminal("enforce", cwd=world.root, env=environment) as terminal:
                shown = terminal.until("[n]o (Enter = yes): ")
                assert '"command": "pinwarden"' in shown
                assert question in " ".join(shown.split())
                terminal.types(keys)
                assert terminal.ends() == code
            assert (world.files(), backups(world)) == (before, [])
        with AtTerminal("enforce", cwd=world.root, env=environment) as terminal:
            terminal.until("[n]o (Enter = yes): ")
            terminal.types("\n")
            terminal.until("each server was started once with its new command")
            assert terminal.ends() == 0
        assert (world.files() != before, len(backups(world))) == (True, 1)


class TestDirectStarts:
    """A client's file of the time before ``enforce`` is restored, from version control or a backup."""

    @pytest.mark.parametrize("command", ["npx -y acme-notes@1.0.0", "npx -y acme-notes"])
    def test_it_is_reported_for_what_it_is_and_enforced_again(self, world: SeveralClients, command: str) -> None:
        world.done("enforce", "--yes")
        enforced, lock = world.entry("claude"), world.lock.read_bytes()
        world.write("claude", notes=in_words_of("claude", command.split(" "), "KEY"))
        outcome = world.run("ci", "--scope", "project")
        assert outcome.code == 1
        assert "starts the approved server directly instead of through Pinwarden" in " ".join(outcome.out.split())
        assert ("names no exact release either" in outcome.out) == ("@" not in command)
        assert "critical  " not in outcome.out
        assert outcome.out.endswith("Next: pinwarden enforce notes --scope project\n")
        (row,) = (row for row in world.run_json("status")[1]["servers"] if row["clients"] == ["claude"])
        assert (row["changed"], row["pinned"], row["enforced"]) == (False, "yes", "no")
        assert world.run_json("pin", "--dry-run")[1]["pins"] == []
        assert world.run("init").code == 0
        world.done("enforce", "notes", "--yes")
        assert (world.entry("claude"), world.lock.read_bytes()) == (enforced, lock)

    @pytest.mark.parametrize(
        ("command", "variables", "code"),
        [
            ("npx -y acme-n0tes@1.0.0", {}, "command_swapped"),
            ("npx -y acme-notes@1.0.0 --eval x", {}, "command_swapped"),
            ("npx -y acme-notes@1.0.0", {"NODE_OPTIONS": "--require=./x.js"}, "redirecting_variable"),
        ],
    )
    def test_attack_another_command_is_not_taken_for_it(
        self, world: SeveralClients, command: str, variables: dict[str, str], code: str
    ) -> None:
        world.done("enforce", "--yes")
        entry = in_words_of("claude", command.split(" "), "KEY")
        world.write("claude", notes={**entry, "env": {**entry["env"], **variables}})
        codes = {row["code"]: row["severity"] for row in world.run_json("ci")[1]["failures"]}
        assert (codes.get(code), "started_directly" in codes) == ("critical", False)
        assert world.run("enforce", "notes", "--yes").code == 1


class TestUndo:
    def test_every_file_is_restored_byte_for_byte_and_the_backup_is_removed(self, world: SeveralClients) -> None:
        (world.root / ".mcp.json").write_text(
            '{ "mcpServers": {"notes": {"command":"npx","args":["-y", "acme-notes@1.0.0"],\n'
            '\t"env": {"KEY": "${KEY}"}} },\n  "other":   [1,2]\n}'
        )
        before = world.files()
        world.done("enforce", "--yes")
        assert world.files() != before
        [manifest] = backups(world)
        folder = manifest.parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
        outcome = world.done("enforce", "--undo", "--yes")
        assert "2 entries restored as before; 2 files byte for byte" in " ".join(outcome.out.split())
        assert (world.files(), backups(world)) == (before, [])
        world.done("ci")

    def test_two_edits_are_undone_one_after_the_other(self, world: SeveralClients) -> None:
        before = world.files()
        world.done("enforce", "--yes")
        for client in OTHER:
            world.done("approve", "notes", "--client", client, "--allow-execute", "--yes")
        world.done("enforce", "--yes")
        assert "--require-lock" in world.command("claude")
        assert len(backups(world)) == 2
        world.done("enforce", "--undo", "--yes")
        after = world.files()
        assert (after[".mcp.json"], after["opencode.json"]) == (before[".mcp.json"], before["opencode.json"])
        assert all("surface" in record for record in world.records().values()), "approvals stay"
        assert all("launch" not in record for record in world.records().values())
        world.done("ci")

    def test_one_server_is_undone_and_the_rest_can_still_be_restored_exactly(self, world: SeveralClients) -> None:
        world.write("claude", notes=world.entry("claude"), more=world.entry("claude"))
        world.done("init", "--accept", "more")
        world.done("prove", *PLAIN)
        before = world.files()
        world.done("enforce", "--yes")
        world.done("enforce", "--undo", "--yes", "more")
        assert (world.entry("claude", "more")["command"], world.entry("claude")["command"]) == ("npx", "pinwarden")
        world.done("ci")
        world.done("enforce", "--undo", "--yes", "notes")
        assert world.files()[".mcp.json"] == before[".mcp.json"]
        world.done("ci")

    def test_a_file_that_its_client_changed_keeps_the_change(self, world: SeveralClients) -> None:
        world.done("enforce", "--yes")
        path = world.root / ".mcp.json"
        document = json.loads(path.read_text())
        document["theme"] = "dark"
        document["mcpServers"]["notes"]["disabled"] = True
        path.write_text(json.dumps(document))
        outcome = world.done("enforce", "--undo", "--yes")
        assert "its client changed the file in the meantime" in " ".join(outcome.out.split())
        document = json.loads(path.read_text())
        assert document["theme"] == "dark"
        assert document["mcpServers"]["notes"] == {
            **in_words_of("claude", OTHER["claude"].split(" "), "KEY"),
            "disabled": True,
        }
        world.done("ci")

    def test_undo_after_an_update_keeps_the_newer_release(self, world: SeveralClients) -> None:
        world.done("enforce", "--yes")
        world.publish("3.0.0", "Three.")
        world.done("update", "notes", "--yes", *PLAIN)
        outcome = world.done("enforce", "--undo", "--yes")
        assert "a newer release was locked in the meantime" in " ".join(outcome.out.split())
        assert world.command("claude") == ["npx", "-y", "acme-notes@3.0.0"]
        world.done("ci")

    def test_there_is_nothing_to_undo_without_a_backup(self, world: SeveralClients) -> None:
        before = world.files()
        outcome = world.run("enforce", "--undo", "--yes")
        assert (outcome.code, "[NOTHING_TO_UNDO]" in outcome.err) == (1, True), outcome
        world.done("enforce", "--yes")
        enforced = world.files()
        outcome = world.run("enforce", "--undo", "--yes", "memory")
        assert outcome.code == 2
        assert (
            "takes the names of servers that pinwarden enforce edited: notes; it did not edit 'memory'" in outcome.err
        )
        assert "hint: To undo the edits of all of them: pinwarden enforce --undo\n" in outcome.err
        assert (world.files(), enforced != before) == (enforced, True)

    def test_attack_a_changed_backup_is_not_restored(self, world: SeveralClients) -> None:
        """Attack: replace the copy of a client's file, so that undo writes a hostile command."""
        world.done("enforce", "--yes")
        enforced = world.files()
        for copy in backups(world)[0].parent.glob("*.copy"):
            copy.write_bytes(copy.read_bytes().replace(b"acme-notes", b"evil-notes"))
        outcome = world.run("enforce", "--undo", "--yes")
        assert (outcome.code, "[BACKUP_DAMAGED]" in outcome.err) == (3, True), outcome
        assert world.files() == enforced


KILLED = """
import os, signal, sys
from pinwarden.cli.main import main
from pinwarden.project import client_edits

written = []

def write(path, before, after, original=client_edits.write_if_unchanged):
    if len(written) == int(os.environ["WRITES_BEFORE_KILL"]):
        os.kill(os.getpid(), signal.SIGKILL)
    written.append(path)
    original(path, before, after)

client_edits.write_if_unchanged = write
sys.exit(main())
"""


class TestInterruption:
    @pytest.mark.parametrize("writes", ["0", "1"])
    @pytest.mark.parametrize("command", [("enforce", "--undo", "--yes"), ("enforce", "--yes")])
    def test_an_edit_that_was_killed_after_the_lock_was_written_is_rolled_back(
        self, world: SeveralClients, writes: str, command: tuple[str, ...]
    ) -> None:
        before = world.files()
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, "enforce", "--yes"],
            cwd=world.root,
            env={**world.whole_environment, "WRITES_BEFORE_KILL": writes},
            check=False,
            timeout=120,
        )
        assert killed.returncode == -signal.SIGKILL
        assert world.files()["mcp-lock.json"] != before["mcp-lock.json"]
        outcome = world.done(*command)
        if command == ("enforce", "--undo", "--yes"):
            assert (world.files(), backups(world)) == (before, [])
        else:
            assert "was interrupted; its edits were rolled back" in " ".join(outcome.out.split())
            assert len(backups(world)) == 1
            world.done("enforce", "--undo", "--yes")
            assert world.files() == before
        world.done("ci")


class TestProgram:
    """Which program a client's file names."""

    @pytest.fixture
    def user_file(self, world: SeveralClients) -> Path:
        """A server of the user, in Cursor's file in the home folder."""
        path = world.folder / "home" / ".cursor" / "mcp.json"
        path.parent.mkdir()
        entry = in_words_of("claude", OTHER["claude"].split(" "))
        path.write_text(json.dumps({"mcpServers": {"mine": entry}}))
        world.done("init")
        world.done("prove", *PLAIN)
        world.done("enforce", "--yes")
        return path

    def run_entry(self, path: Path) -> Any:
        return json.loads(path.read_text())["mcpServers"]["mine"]

    def test_a_file_of_the_user_names_the_path_and_a_file_of_the_project_does_not(
        self, world: SeveralClients, user_file: Path
    ) -> None:
        program = self.run_entry(user_file)["command"]
        assert Path(program).is_absolute()
        assert Path(program).samefile(Path(sys.executable).parent / "pinwarden")
        assert world.command("claude")[0] == "pinwarden"
        world.done("ci")
        assert world.doctor_findings() == []
        world.done("init")
        world.done("enforce", "--undo", "--yes")
        assert self.run_entry(user_file) == in_words_of("claude", OTHER["claude"].split(" "))

    def test_doctor_and_enforce_say_once_that_clients_do_not_find_the_program_and_how_to_install_it(
        self, world: SeveralClients, user_file: Path, tmp_path: Path
    ) -> None:
        assert user_file.exists()
        links, programs = tmp_path / "links", tmp_path / "programs"
        links.mkdir()
        programs.mkdir()
        (links / "pinwarden").symlink_to(Path(sys.executable).parent / "pinwarden")
        for name in ("npx", "node"):
            (programs / name).symlink_to(shutil.which(name) or name)
        own = str(Path(sys.executable).parent)
        missing = "which a client does not find if it is started outside this virtual environment"
        for path, count in (((own, str(programs)), 1), ((own, str(links), str(programs)), 0)):
            environment = {**world.whole_environment, "PATH": os.pathsep.join(path)}
            for command in (("doctor",), ("enforce", "--yes")):
                outcome = pinwarden_in(environment, *command, cwd=world.root)
                text = " ".join(outcome.out.split())
                assert text.count(missing) == text.count("environment; install it for all programs") == count
                assert text.count("on the search path: ") == (command == ("doctor",))

    def test_the_command_that_installs_the_program_makes_it_findable(self, tmp_path: Path) -> None:
        from pinwarden.system.own_program import build_install_command, find_outside_environment

        venv, home = tmp_path / "venv" / "bin", tmp_path / "home"
        venv.mkdir(parents=True)
        (venv / "pinwarden").write_text("#!/bin/sh\n")
        (venv / "pinwarden").chmod(0o755)
        variables = {"PATH": os.pathsep.join((str(venv), str(home / ".local" / "bin")))}
        assert find_outside_environment(variables, str(venv / "python")) is None
        command = build_install_command(variables, str(venv / "python"))
        subprocess.run(["/bin/sh", "-c", command], env={"HOME": str(home), "PATH": os.defpath}, check=True)
        assert find_outside_environment(variables, str(venv / "python")) == home / ".local" / "bin" / "pinwarden"
        for installer, start in (("pipx", "pipx install "), ("uv", "uv tool install ")):
            (venv / installer).write_text("#!/bin/sh\n")
            (venv / installer).chmod(0o755)
            assert build_install_command(variables).startswith(start)

    def test_attack_a_hostile_program_of_the_same_name_is_not_enforced(
        self, world: SeveralClients, user_file: Path, tmp_path: Path
    ) -> None:
        """Attack: point the client's entry at another program called pinwarden."""
        entry = self.run_entry(user_file)
        for hostile in (tmp_path / "pinwarden", Path("/tmp/pinwarden")):
            user_file.write_text(json.dumps({"mcpServers": {"mine": {**entry, "command": str(hostile)}}}))
            code, report = world.run_json("doctor", "--scope", "user")
            assert code == 1, report
            assert "program_moved" in json.dumps(report) or "command_swapped" in json.dumps(report)
            outcome = world.run("init", "--scope", "user", "--accept", "mine")
            assert outcome.code == 1, outcome
            assert "not as `pinwarden run NAME`" in " ".join(outcome.out.split())

    def test_attack_a_path_in_a_project_is_not_enforced_even_if_the_lock_has_it(self, world: SeveralClients) -> None:
        """Attack: a repository whose lock and client file both name another program called pinwarden."""
        from tests.cli.test_more_attacks import forge

        world.done("enforce", "--yes")
        (world.root / "pinwarden.toml").write_text('[policy.gateway]\nenforcement = "block"\n')

        def swap(document: dict[str, Any]) -> None:
            text = json.dumps(document["config"])
            document["config"] = json.loads(text.replace('"pinwarden"', '"/tmp/pinwarden"'))

        forge(world.lock, swap)
        for client in OTHER:
            text = json.dumps(world.entry(client)).replace('"pinwarden"', '"/tmp/pinwarden"')
            world.write(client, notes=json.loads(text))
        code, report = world.run_json("ci")
        assert code == 1
        assert "entry_inconsistent" in [row["code"] for row in report["failures"]]

    def test_a_link_that_an_upgrade_keeps_is_named_instead_of_its_target(self, tmp_path: Path) -> None:
        from pinwarden.core.errors import PinwardenError
        from pinwarden.system.own_program import find_own_program

        venv, links = tmp_path / "venvs" / "pinwarden" / "bin", tmp_path / "bin"
        venv.mkdir(parents=True)
        links.mkdir()
        (venv / "pinwarden").write_text("#!/bin/sh\n")
        (venv / "pinwarden").chmod(0o755)
        (links / "pinwarden").symlink_to(venv / "pinwarden")
        hostile = tmp_path / "hostile"
        hostile.mkdir()
        (hostile / "pinwarden").write_text("#!/bin/sh\n")
        (hostile / "pinwarden").chmod(0o755)
        search_path = os.pathsep.join(("relative", str(hostile), str(links)))
        assert find_own_program(search_path, str(venv / "python")) == str(links / "pinwarden")
        assert find_own_program("", str(venv / "python")) == str(venv / "pinwarden")
        cache = tmp_path / "cache" / "archive-v0" / "x" / "bin"
        cache.mkdir(parents=True)
        (cache / "pinwarden").write_text("#!/bin/sh\n")
        with pytest.raises(PinwardenError, match="temporary environment"):
            find_own_program(str(cache), str(cache / "python"))


class TestShells:
    def test_one_plain_command_in_a_shell_starts_verified_bytes_and_other_texts_stay_texts(
        self, world: SeveralClients
    ) -> None:
        world.write(
            "claude",
            notes=world.entry("claude"),
            plain={"command": "sh", "args": ["-c", "exec npx -y acme-notes@1.0.0"]},
            piped={"command": "bash", "args": ["-lc", "npx -y acme-notes@1.0.0 | tee log"]},
        )
        world.run("init", "--accept", "plain", "--accept", "piped")
        world.run("prove", *PLAIN)
        before = world.files()
        world.done("enforce", "--yes")
        assert {world.entry("claude", name)["command"] for name in ("plain", "piped")} == {"pinwarden"}
        records = {key.partition(":")[0]: record["launch"]["command"] for key, record in world.records().items()}
        assert records["piped"] == ["bash", "-lc", "npx -y acme-notes@1.0.0 | tee log"]
        entry = world.entry("claude", "plain")
        assert world.start([entry["command"], *entry["args"]])[1] == ["As ever.", "One."]
        world.done("enforce", "--undo", "--yes")
        assert world.files() == before


def test_a_started_server_is_reported_as_started(world: SeveralClients) -> None:
    environment = {
        **world.whole_environment,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    }
    outcome = pinwarden_in(environment, "enforce", "--yes", "--allow-execute", "--format", "json", cwd=world.root)
    report = json.loads(outcome.out)
    assert (outcome.code, report["written"], report["started"]) == (0, True, True)


def test_two_clients_that_the_lock_calls_generic_keep_their_own_servers_of_one_name(world: SeveralClients) -> None:
    home = world.folder / "home"
    desktop, goose = home / ".config/Claude/claude_desktop_config.json", home / ".config/goose/config.yaml"
    for path in (desktop, goose):
        path.parent.mkdir(parents=True)
    desktop.write_text(json.dumps({"mcpServers": {"notes": {"command": "npx", "args": ["-y", "acme-notes@1.0.0"]}}}))
    goose.write_text(
        "extensions:\n  notes:\n    type: stdio\n    name: notes\n    cmd: npx\n    args: [-y, acme-notes@2.0.0]\n"
    )
    before = desktop.read_bytes(), goose.read_bytes()
    world.done("init", "--scope", "user")
    world.done("prove", "--scope", "user", *PLAIN)
    world.done("fetch", "--scope", "user", *PLAIN)
    world.done("approve", "--scope", "user", "--all", "--allow-execute", "--yes")
    lock = home / ".config" / "pinwarden" / "mcp-lock.json"
    entries = json.loads(lock.read_text())["servers"]
    assert {key: entry["client"] for key, entry in entries.items()} == {
        "notes:generic": "generic",
        "notes:goose": "generic",
    }
    rows = world.run_json("status", "--scope", "user")[1]["servers"]
    assert {(row["version"], *row["clients"]) for row in rows} == {("1.0.0", "claude-desktop"), ("2.0.0", "goose")}
    world.done("enforce", "--yes", "--scope", "user")
    for path, client, says in ((desktop, "claude-desktop", "One."), (goose, "goose", "Two.")):
        words = read_command(read_entries(path)["notes"])
        assert words[-2:] == ["--client", client]
        assert world.start(["pinwarden", *words[1:]])[1] == ["As ever.", says]
    world.done("ci", "--scope", "user")
    assert world.doctor_findings("--scope", "user") == []
    assert "generic" not in world.run("doctor", "--scope", "user").out
    world.done("enforce", "--undo", "--yes", "--scope", "user")
    assert (desktop.read_bytes(), goose.read_bytes()) == before
