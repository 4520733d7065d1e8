"""A developer with ten published servers in eight clients: one command, one decision per server, and back."""

from __future__ import annotations

import gzip
import json
import os
import re
import select
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.run import Outcome, pinwarden_in
from tests.cli.setup_transcript import YES, Transcript, play
from tests.cli.terminal import AtTerminal
from tests.cli.test_help_examples import examples
from tests.cli.test_lock_and_gate import POISONED, TOOL
from tests.cli.test_lock_and_gate import World as PoisonedWorld
from tests.cli.test_prove_fetch_run import World as ArtifactWorld
from tests.servers.acme_packages import npm_answers
from tests.servers.npm_registry import tarball
from tests.servers.plain_http import plain_server
from tests.support.needs import needs
from tests.support.targets import SCRIPTED
from tests.support.ten_servers import FLOATING, REMOTE, REPOSITORY, SECRET, SERVERS, TenServers, ten_servers

pytestmark = needs("npx", install="apt-get install nodejs npm")

SNAPSHOTS = Path(__file__).parent / "snapshots"
TOOLS = {
    "calculator": "calculate",
    "everything": "echo",
    "fetch": "fetch",
    "files": "read_text_file",
    "git": "git_status",
    "hello": "add",
    "memory": "read_graph",
    "thinking": "sequentialthinking",
    "time": "get_current_time",
    "weather": "weather",
}
"""One tool of each server."""


def run(world: TenServers, *arguments: str) -> Outcome:
    return pinwarden_in(world.environment, *arguments, cwd=world.project)


def states(world: TenServers) -> dict[str, set[str]]:
    """The values of each state over all servers."""
    outcome = run(world, "status", "--format", "json")
    assert outcome.code == 0, outcome.err
    servers = json.loads(outcome.out)["servers"]
    return {state: {server[state] for server in servers} - {"n/a"} for state in DONE}


DONE = {"pinned": {"yes"}, "approved": {"yes"}, "verified": {"yes"}, "enforced": {"yes"}}


@dataclass(frozen=True, kw_only=True)
class Story:
    """One run of setup with all ten servers."""

    world: TenServers
    transcript: Transcript
    before_enforcing: Mapping[str, bytes]


@pytest.mark.timeout(600)  # a minute on two cores, and several where other tests take them
def test_ten_servers_in_eight_clients_are_enforced_by_one_command_and_restored_by_another(tmp_path: Path) -> None:
    """One test, because the parts need the same servers, which take most of the time."""
    before: dict[str, bytes] = {}
    with ten_servers(tmp_path) as world:

        def answer(question: str) -> str:
            if question.startswith("Approve "):  # everything is pinned by now
                before.update(world.client_files())
            return YES

        original = world.client_files()
        story = Story(world=world, transcript=play(world, "setup", answer=answer), before_enforcing=before)
        check_decisions(story)
        check_secret(story)
        check_releases(story)
        check_project_lock(story)
        check_starts_of_clients(story)
        gate = run(world, "ci")
        assert gate.code == 0, gate.out
        again = play(world, "setup")
        assert (again.code, again.questions) == (0, [])
        undone = run(world, "enforce", "--undo", "--yes")
        assert undone.code == 0, undone.err
        assert f"{len(original)} files byte for byte" in " ".join(undone.out.split())
        assert world.client_files() == original, "the releases that setup wrote are taken back as well"
        assert states(world)["enforced"] == {"no"}
        assert states(world)["pinned"] == {"yes", "no"}, "two servers are floating again, and status says so"


def check_decisions(story: Story) -> None:
    """One decision per server after one about the plan, and every server reaches every state."""
    assert story.transcript.code == 0, story.transcript.screen[-3000:]
    assert states(story.world) == DONE
    plan, *approvals = story.transcript.questions
    assert plan == "Go ahead with this plan?"
    assert approvals == [f"Approve '{name}'{' in both releases' if name == 'memory' else ''}?" for name in SERVERS]
    screen = " ".join(story.transcript.screen.split())
    assert "(Enter = rest)" not in screen, "every server is shown on one screen"
    assert "download and hash the packages of 9 servers (10 releases)" in screen
    assert "start 10 servers once" in screen
    assert "11 servers (12 entries): " in screen
    assert "pinwarden init-ci" in screen
    assert "pinwarden enforce --undo" in screen


def check_secret(story: Story) -> None:
    """The secret is named with its fix, and its value is never shown or copied."""
    assert "GITHUB_TOKEN in ~/.cursor/mcp.json" in story.transcript.screen
    assert SECRET not in story.transcript.screen
    written = [
        path for folder in (story.world.project, story.world.home / ".config/pinwarden") for path in folder.rglob("*")
    ]
    assert not [path for path in written if path.is_file() and SECRET.encode() in path.read_bytes()]


def check_releases(story: Story) -> None:
    """Floating servers name an exact release, and comments stay."""
    before = story.before_enforcing
    assert re.search(rb"server-sequential-thinking@\d{4}\.", before["project/.vscode/mcp.json"])
    assert re.search(rb"mcp-server-fetch@\d{4}\.", before["home/.codex/config.toml"])
    assert b"# the fast one" in before["home/.codex/config.toml"], FLOATING


def check_project_lock(story: Story) -> None:
    """Nothing of the user is in the lock of the project."""
    text = (story.world.project / "mcp-lock.json").read_text()
    assert str(story.world.home) not in text
    assert set(json.loads(text)["servers"]) == {"calculator:claude", "thinking:vscode", "weather:vscode"}


def check_starts_of_clients(story: Story) -> None:
    """Each client gets the tools through its own entry."""
    entries = list(client_entries(story.world))
    assert len(entries) == len(SERVERS) + 2, "two servers are in two clients each"
    with ThreadPoolExecutor(4) as pool:
        tools = list(pool.map(lambda entry: list_tools(story.world, entry), entries))
    assert [(entry.name, TOOLS[entry.name] in names) for entry, names in zip(entries, tools, strict=True)] == [
        (entry.name, True) for entry in entries
    ]
    assert all(Path(entry.words[0]).name == "pinwarden" and entry.words[1] == "run" for entry in entries)


class TestInterruption:
    def test_an_interrupt_at_any_question_keeps_the_answers_and_asks_only_the_rest(self, tmp_path: Path) -> None:
        """With the answer ``choose``, every step has its question."""
        with ten_servers(tmp_path, ("thinking", "weather")) as world:
            original = world.client_files()
            decided: set[str] = set()
            interrupted: list[str] = []
            for _ in range(10):
                transcript = self._interrupt_at_new_question(world, interrupted)
                repeated = [question for question in transcript.questions[:-1] if question in decided]
                assert not repeated
                if transcript.code == 0:
                    assert transcript.screen.split("5/5 Enforce")[1].count("(now)") == 1, "the answer show"
                    break
                assert transcript.code == 130
                assert "To continue: pinwarden setup" in transcript.screen
                interrupted.append(_kind(transcript.questions[-1]))
                decided.update(question for question in transcript.questions[:-1] if _is_kept(question))
                assert run(world, "status").code == 0
                assert set(world.client_files()) == set(original)
                assert b"pinwarden" not in b"".join(world.client_files().values())
            assert states(world) == DONE
            assert interrupted == [
                "Go ahead with",
                "Write these releases",
                "Download and hash",
                "Start or contact",
                "Approve 'thinking'?",
                "Approve 'weather'?",
                "Start each server",
            ]

    def _interrupt_at_new_question(self, world: TenServers, known: Sequence[str]) -> Transcript:
        shown = iter(("show\n",))

        def answer(question: str) -> str:
            if _kind(question) not in known:
                return AtTerminal.INTERRUPT
            if question.startswith("Start each server"):
                return next(shown, YES)
            return "choose\n" if question.startswith("Go ahead") else YES

        return play(world, "setup", answer=answer)


def _kind(question: str) -> str:
    """The first words of a question, without the number of servers that are left."""
    return " ".join(question.split()[:3])


def _is_kept(question: str) -> bool:
    """Whether an answer is written. That servers may be started is asked again."""
    return question.startswith(("Write", "Approve"))


class TestChoices:
    def test_no_and_skip_and_quit_change_nothing_and_all_names_what_it_approves_unseen(self, tmp_path: Path) -> None:
        with ten_servers(tmp_path, REMOTE) as world:
            files = world.client_files()
            declined = play(world, "setup", answer=lambda asked: "choose\n" if "plan" in asked else "n\n")
            assert declined.code == 1
            assert [question for question in declined.questions if question.startswith("Approve")] == []
            skipped = play(
                world,
                "setup",
                answer=lambda asked: {"Approve 'climate'?": "k\n", "Approve 'forecast'?": "q\n"}.get(asked, YES),
            )
            assert skipped.code == 1
            assert states(world)["approved"] == {"no"}
            assert world.client_files() == files
            unseen = "Approve also the other 2 servers, without looking at their tools: 'forecast', 'weather'?"
            plan, shown = "Go ahead with this plan?", iter(("show\n", "yes\n"))
            everything = play(
                world,
                "setup",
                answer=lambda asked: (
                    next(shown) if asked == plan else {"Approve 'climate'?": "all\n", unseen: "yes\n"}.get(asked, YES)
                ),
            )
            assert everything.code == 0, everything.screen
            assert everything.questions == [plan, plan, "Approve 'climate'?", unseen]
            planned, made = everything.screen.split("5/5 Enforce")
            assert (planned.count("--- .mcp.json (now)"), made.count("(now)")) == (1, 0), "each edit is shown once"
            assert "- .mcp.json: climate, forecast\n- .vscode/mcp.json: weather\n" in made
            assert states(world)["enforced"] == {"yes"}
            assert self._reasons(world) == {
                "climate": "shown on a terminal and approved there",
                "forecast": "approved on a terminal together with other servers; its tools were not shown",
                "weather": "approved on a terminal together with other servers; its tools were not shown",
            }

    @staticmethod
    def _reasons(world: TenServers) -> dict[str, str]:
        entries = json.loads((world.project / "mcp-lock.json").read_text())["servers"].values()
        return {entry["name"]: entry["capabilityManifest"]["pinwarden"]["approval"]["why"] for entry in entries}


class TestAttacks:
    def test_a_poisoned_server_is_approved_neither_by_default_nor_with_yes(self, tmp_path: Path) -> None:
        """Attack: hide an order among servers that a person approves by pressing Enter."""
        poisoned = PoisonedWorld(tmp_path)
        poisoned.configure({"notes": poisoned.serve(POISONED)})
        world = TenServers(home=poisoned.home, project=poisoned.root, address="")
        files = world.client_files()
        outcome = play(world, "setup")
        assert outcome.code == 1
        assert "Approve 'notes'? [a]pprove [s]how s[k]ip [q]uit (Enter = skip): " in outcome.screen
        assert states(world)["approved"] == {"no"}
        assert run(world, "setup", "--yes", "--allow-execute", "--enforce").code == 1
        assert states(world)["approved"] == {"no"}
        assert world.client_files() == files

    def test_a_server_whose_bytes_are_refused_is_neither_started_nor_approved(self, tmp_path: Path) -> None:
        """Attack: serve an archive in which two programs find different files."""
        manifest = {"name": "acme-notes", "version": "1.0.0", "bin": {"acme-notes": "server.js"}}
        started = tmp_path / "started"
        code = f"#!/usr/bin/env node\nrequire('fs').writeFileSync({json.dumps(str(started))}, '')\n"
        packed = tarball({"package/package.json": json.dumps(manifest).encode(), "package/server.js": code.encode()})
        ambiguous = gzip.compress(gzip.decompress(packed) + b"x" * 512, mtime=0)
        with plain_server(lambda asked: npm_answers({"acme-notes": (manifest, ambiguous)}, asked)) as npm:
            world = ArtifactWorld(folder=tmp_path, variables={"NPM_CONFIG_REGISTRY": npm.url})
            world.root.mkdir()
            world.configure(notes={"command": "npx", "args": ["-y", "acme-notes@1.0.0"]})
            outcome = world.run("setup", "--yes", "--allow-execute", "--allow-private", "--enforce")
        assert outcome.code == 1
        assert "Setup does not start or approve 'notes', because the bytes were refused." in outcome.out
        assert (started.exists(), "its tools could not be read" in outcome.out) == (False, False)
        assert "pinwarden" not in (world.root / ".mcp.json").read_text()
        assert outcome.out.endswith("Next: pinwarden explain notes\n")

    def test_what_a_server_writes_before_it_crashes_is_shown_without_secrets_and_control_characters(
        self, tmp_path: Path
    ) -> None:
        """Attack: write a terminal sequence, and the secret that the server got, as the reason of a crash."""
        poisoned = PoisonedWorld(tmp_path)
        script = poisoned.root / "crash.py"
        script.write_text("import os, sys\nsys.exit('first\\nno access with \\x1b[2J' + os.environ['TOKEN'])\n")
        entry = {"command": sys.executable, "args": [str(script)], "env": {"TOKEN": SECRET}}
        poisoned.configure({"notes": entry})
        outcome = poisoned.run("setup", "--yes", "--allow-execute")
        assert outcome.code == 1
        reason = (
            "no response to initialize: the server ended with exit code 1. "
            "Its last line on stderr: no access with <U+001B>[2J***"
        )
        assert f"'notes': its tools could not be read: {reason} [PROBE_FAILED]" in outcome.out
        assert SECRET not in outcome.out + outcome.err
        assert "\x1b" not in outcome.out + outcome.err


def test_a_server_that_cannot_be_verified_is_not_started_and_the_resolver_says_why(tmp_path: Path) -> None:
    started = tmp_path / "started"
    manifest = {"name": "acme-notes", "version": "1.0.0", "bin": {"acme-notes": "server.js"}}
    manifest["dependencies"] = {"acme-absent": "^1.0.0"}
    code = f"#!/usr/bin/env node\nrequire('fs').writeFileSync({json.dumps(str(started))}, '')\n"
    packed = tarball({"package/package.json": json.dumps(manifest).encode(), "package/server.js": code.encode()})
    with plain_server(lambda asked: npm_answers({"acme-notes": (manifest, packed)}, asked)) as npm:
        world = ArtifactWorld(folder=tmp_path, variables={"NPM_CONFIG_REGISTRY": npm.url})
        world.root.mkdir()
        world.configure(notes={"command": "npx", "args": ["-y", "acme-notes@1.0.0"]})
        outcome = world.run("setup", "--yes", "--allow-execute", "--allow-private", "--enforce")
        proof = world.run("prove", "--allow-plain-http", "--allow-private")
    assert outcome.code == 1
    assert "Setup does not start or approve 'notes', because the bytes could not be verified." in outcome.out
    assert (started.exists(), "its tools could not be read" in outcome.out) == (False, False)
    assert "pinwarden" not in (world.root / ".mcp.json").read_text()
    assert outcome.out.endswith("Next: pinwarden prove notes\n")
    assert proof.code == 3
    for text in (outcome.out, proof.out):
        assert "npm failed with exit code 1" in text
        assert "> npm error 404 Not Found - GET" in text, "npm's own words"
        assert "/acme-absent" in text


class TestServersThatAreNotLocked:
    """Attack: swap the command of a locked server, and plant another one, before someone runs setup again."""

    @pytest.fixture
    def local(self, tmp_path: Path) -> LocalWorld:
        local = LocalWorld(tmp_path)
        local.configure({"notes": local.serve(TOOL)})
        assert local.run("setup", "--yes", "--allow-execute").code == 1  # approved, but not enforced
        return local

    def test_with_yes_a_new_server_is_locked_and_approved_and_a_changed_one_is_not_started(
        self, local: LocalWorld
    ) -> None:
        approved = local.entries()
        local.configure({"notes": local.serve_with_trace("notes"), "papers": local.serve_with_trace("papers")})
        outcome = local.run("setup", "--yes", "--allow-execute", "--enforce")
        assert outcome.code == 1
        assert local.started() == {"papers"}
        assert local.entries()["notes:claude"] == approved["notes:claude"]
        assert local.approvals() == {"notes": "no", "papers": "yes"}
        assert "notes: approved" not in outcome.out
        assert "'notes' in Claude Code is configured differently than locked" in outcome.out
        assert "pinwarden approve notes" in outcome.out

    def test_with_yes_alone_nothing_is_locked_next_to_a_lock(self, local: LocalWorld) -> None:
        approved = local.lock.read_bytes()
        local.configure({"notes": local.serve_with_trace("notes"), "papers": local.serve_with_trace("papers")})
        outcome = local.run("setup", "--yes")
        assert outcome.code == 1
        assert (local.started(), local.lock.read_bytes()) == (set(), approved)
        assert "'papers' in Claude Code is not locked" in outcome.out

    def test_a_look_alike_and_another_server_under_a_locked_name_are_not_locked_with_yes(
        self, local: LocalWorld
    ) -> None:
        approved = local.lock.read_bytes()
        local.configure({"notes": local.serve(TOOL), "n0tes": local.serve_with_trace("n0tes")})
        local.configure({"notes": local.serve_with_trace("notes")}, ".cursor/mcp.json")
        outcome = local.run("setup", "--yes", "--allow-execute", "--enforce")
        assert outcome.code == 1
        assert (local.started(), local.lock.read_bytes()) == (set(), approved)
        assert ": approved by" not in outcome.out

    def test_what_changed_into_a_refused_command_is_not_reported_as_approved(self, tmp_path: Path) -> None:
        local = LocalWorld(tmp_path)
        local.configure({"notes": local.serve(TOOL)})
        assert local.run("setup", "--yes").code == 1, "locked, but not approved"
        before = local.lock.read_bytes()
        local.configure({"notes": {"command": "sh", "args": ["-c", "touch started.notes"]}})
        outcome = local.run("setup", "--yes", "--allow-execute", "--enforce")
        assert outcome.code == 1
        assert (local.started(), local.lock.read_bytes()) == (set(), before)
        assert "'notes' cannot be approved" in outcome.out
        assert ": approved by" not in outcome.out

    def test_no_on_a_terminal_starts_and_approves_nothing_and_quit_ends_setup(self, local: LocalWorld) -> None:
        approved = local.lock.read_bytes()
        local.configure({"notes": local.serve_with_trace("notes"), "papers": local.serve_with_trace("papers")})
        answers = {"Go ahead with this plan?": "choose\n"}
        outcome = local.play("setup", answer=lambda asked: answers.get(asked, "n\n"))
        assert outcome.code == 1
        locks = [f"Lock '{name}' for Claude Code as it is now?" for name in ("notes", "papers")]
        assert outcome.questions == ["Go ahead with this plan?", *locks]
        assert (local.started(), local.lock.read_bytes()) == (set(), approved)
        assert "pinwarden approve papers" in outcome.screen
        assert "Every server is approved" not in outcome.screen
        stopped = local.play("setup", answer=lambda asked: answers.get(asked, "q\n"))
        assert (stopped.code, stopped.questions) == (1, ["Go ahead with this plan?", locks[0]])
        assert "3/5" not in stopped.screen
        assert "To continue: pinwarden setup" in stopped.screen

    def test_yes_on_a_terminal_locks_the_changed_server_before_it_is_started(self, local: LocalWorld) -> None:
        local.configure({"notes": local.serve_with_trace("notes"), "papers": local.serve_with_trace("papers")})
        answers = {"Lock 'notes' for Claude Code as it is now?": "y\n", "Approve 'papers'?": "skip\n"}
        outcome = local.play("setup", answer=lambda asked: answers.get(asked, YES))
        assert outcome.code == 1
        lock, papers = answers
        assert outcome.questions == ["Go ahead with this plan?", lock, "Approve 'notes'?", papers]
        assert local.started() == {"notes", "papers"}
        assert local.approvals() == {"notes": "yes", "papers": "no"}

    def test_a_new_server_is_one_decision_after_the_plan_that_names_it(self, local: LocalWorld) -> None:
        local.configure({"notes": local.serve(TOOL), "papers": local.serve_with_trace("papers")})
        outcome = local.play("setup")
        assert outcome.code == 0, outcome.screen
        assert "Lock what is new: 'papers' in Claude Code." in outcome.screen
        assert outcome.questions == ["Go ahead with this plan?", "Approve 'papers'?"]


class LocalWorld(PoisonedWorld):
    """A project with commands that leave a file behind when they are started."""

    def play(self, *arguments: str, answer: Callable[[str], str] = lambda _: YES) -> Transcript:
        return play(TenServers(home=self.home, project=self.root, address=""), *arguments, answer=answer)

    def serve_with_trace(self, name: str) -> dict[str, Any]:
        script = self.root / f"{name}.py"
        script.write_text(
            f"import pathlib, runpy\npathlib.Path({str(self.root)!r}, 'started.{name}').touch()\n"
            f"runpy.run_path({str(SCRIPTED)!r}, run_name='__main__')\n"
        )
        return {"command": sys.executable, "args": ["-I", "-S", str(script), "@script.json"]}

    def started(self) -> set[str]:
        return {path.suffix[1:] for path in self.root.glob("started.*")}

    def entries(self) -> dict[str, Any]:
        entries: dict[str, Any] = json.loads(self.lock.read_text())["servers"]
        return entries

    def approvals(self) -> dict[str, str]:
        servers = json.loads(self.run("status", "--format", "json").out)["servers"]
        return {server["name"]: server["approved"] for server in servers}


def test_without_a_terminal_each_option_allows_one_thing_more(tmp_path: Path) -> None:
    with ten_servers(tmp_path, ("calculator",)) as world:
        files = world.client_files()
        outcome = run(world, "setup")
        assert outcome.code == 2
        command = re.search(r"pinwarden (setup --yes[^\n]*)", outcome.err)
        assert command
        assert run(world, "setup", "--yes").code == 1
        assert states(world) == {"pinned": {"yes"}, "approved": {"no"}, "verified": {"yes"}, "enforced": {"no"}}
        assert world.client_files() == files
        done = run(world, *command[1].split())
        assert done.code == 0, done.out + done.err
        assert states(world) == DONE


@pytest.mark.timeout(600)
def test_every_screen_fits_and_is_as_recorded(tmp_path: Path) -> None:
    """With UPDATE_SNAPSHOTS=1 in the environment, the recorded screens are written."""
    screens: dict[int, str] = {}
    for columns in (60, 80, 120):
        with ten_servers(tmp_path / str(columns), ("hello", "weather"), cache=tmp_path / "cache") as world:
            screens[columns] = _without_machine(play(world, "setup", columns=columns).screen, world)
        if os.environ.get("UPDATE_SNAPSHOTS"):
            (SNAPSHOTS / f"setup-{columns}.txt").write_text(screens[columns])
    assert screens == {columns: (SNAPSHOTS / f"setup-{columns}.txt").read_text() for columns in screens}
    for columns, screen in screens.items():
        prose = [line for line in screen.splitlines() if not line.startswith(("+", "-", " ", "@", "Commit: "))]
        assert not [line for line in prose if len(line) > columns]


def _without_machine(screen: str, world: TenServers) -> str:
    """The screen without paths and times of this machine."""
    screen = screen.replace(world.address, "http://127.0.0.1:12345/mcp")
    screen = re.sub(r'(?<![~\w.])/[^"\s]*/pinwarden\b', "/bin/pinwarden", screen.replace(str(world.home), "~"))
    return re.sub(r"\d+m ago", "now   ", screen)


def test_the_commands_of_the_readme_and_then_the_examples_of_the_help_work(tmp_path: Path) -> None:
    text = (REPOSITORY / "README.md").read_text()
    (block,) = re.findall(r"```shell\n(.*?)```", text, re.DOTALL)
    with ten_servers(tmp_path, ("calculator",)) as world:
        for line in (*block.splitlines(), *examples("setup")):
            outcome = play(world, *shlex.split(line, comments=True)[1:])
            assert outcome.code == 0, f"{line}: {outcome.screen[-2000:]}"
        assert states(world) == DONE


@dataclass(frozen=True, kw_only=True)
class ClientEntry:
    """How a client starts a server."""

    name: str
    words: list[str]
    variables: Mapping[str, str]
    folder: Path


def client_entries(world: TenServers) -> Iterator[ClientEntry]:
    """Every server as its client's file says, read without Pinwarden."""
    home, project = world.home, world.project
    claude = json.loads((home / ".claude.json").read_text())
    documents: Sequence[tuple[Path, Mapping[str, Any]]] = (
        (home, json.loads((home / ".config/Claude/claude_desktop_config.json").read_text())["mcpServers"]),
        (project, claude["projects"][str(project)]["mcpServers"]),
        (home, json.loads((home / ".cursor/mcp.json").read_text())["mcpServers"]),
        (home, json.loads((home / ".codeium/windsurf/mcp_config.json").read_text())["mcpServers"]),
        (home, tomllib.loads((home / ".codex/config.toml").read_text())["mcp_servers"]),
        (home, yaml.safe_load((home / ".config/goose/config.yaml").read_text())["extensions"]),
        (home, _read_zed((home / ".config/zed/settings.json").read_text())["context_servers"]),
        (project, json.loads((project / ".mcp.json").read_text())["mcpServers"]),
        (project, json.loads((project / ".vscode/mcp.json").read_text())["servers"]),
    )
    for folder, servers in documents:
        for name, entry in servers.items():
            words = [entry.get("command") or entry.get("cmd"), *entry["args"]]
            words = [word.replace("${workspaceFolder}", str(project)) for word in words]
            variables = entry.get("env") or entry.get("envs") or {}
            yield ClientEntry(name=name, words=words, variables=variables, folder=folder)


def _read_zed(text: str) -> Any:
    """JSON with comments and trailing commas, as this file has them."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("//"))
    return json.loads(re.sub(r",(\s*[}\]])", r"\1", "\n".join(lines)))


def list_tools(world: TenServers, entry: ClientEntry) -> list[str]:
    """Start a server as its client does, and ask for its tools."""
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    messages = (
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    )
    environment = {**world.environment, **entry.variables}
    with subprocess.Popen(
        entry.words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=entry.folder,
        env=environment,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            for message in messages:
                server.stdin.write(json.dumps(message).encode() + b"\n")
            server.stdin.flush()
            for line in _lines(server.stdout.fileno(), time.monotonic() + 60):
                response = json.loads(line)
                if response.get("id") == 2:
                    return [tool["name"] for tool in response["result"]["tools"]]
        finally:
            server.kill()
    return []


def _lines(descriptor: int, deadline: float) -> Iterator[bytes]:
    data = b""
    while select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        chunk = os.read(descriptor, 65536)
        if not chunk:
            return
        data += chunk
        *lines, data = data.split(b"\n")
        yield from lines
