"""``pinwarden pin``: exact releases in place of floating ones, in the files of all clients and in the lock."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinwarden.artifacts.newest_release import NewestRelease
from pinwarden.cli.project_arguments import find_current_project
from pinwarden.clients.command_line import find_floating_package
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.lock import lock_store
from pinwarden.project.pin import PinPlan, ServerPin, _plan_edit, write_pins
from pinwarden.project.project import Project
from tests.cli.several_clients import SeveralClients
from tests.cli.terminal import AtTerminal
from tests.cli.test_enforced_servers import release
from tests.cli.test_prove_fetch_run import PLAIN, World, needs_node
from tests.docs.schemas import problems
from tests.servers.acme_packages import release_answers
from tests.servers.plain_http import plain_server
from tests.support.wheels import make_wheel, package_index, wheel_name

CLAUDE = """\
{
  // shared with the team
  "mcpServers": {
    "notes": {
      "command": "npx",
      "args": ["-y", "acme-notes"], // no version yet
      "env": { "API_KEY": "sk-live-3f9a7c51d2e84b06" },
    },
    "clock": {"command": "uvx", "args": ["--from", "acme-clock", "acme-clock"]}
  }
}
"""
CODEX = """\
# my own servers
[mcp_servers.notes]  # the same as in the project
command = "npx"
args = [
  "-y",
  "acme-notes@latest",  # newest
]
"""
CONTINUE = """\
name: mine
mcpServers:
  # the clock of the team
  - name: clock
    command: uvx
    args:
      - acme-clock  # no version
"""
VSCODE = '{"servers": {"notes": {"type": "stdio", "command": "cmd", "args": ["/c", "npx -y acme-notes@^1.0"]}}}\n'


class Clients(World):
    """Clients in the project and in the home folder, with floating servers."""

    @property
    def files(self) -> dict[str, Path]:
        home = self.folder / "home"
        return {
            "claude": self.root / ".mcp.json",
            "vscode": self.root / ".vscode/mcp.json",
            "codex": home / ".codex/config.toml",
            "continue": home / ".continue/config.yaml",
        }

    def texts(self) -> dict[str, str]:
        """What is in the files of all clients."""
        return {name: path.read_text() for name, path in self.files.items()}

    def everything(self) -> dict[str, bytes]:
        """Every file of the project and the home folder."""
        paths = [path for folder in (self.root, self.folder / "home") for path in folder.rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in paths}

    def at_terminal(self, *arguments: str) -> AtTerminal:
        return AtTerminal(*arguments, cwd=self.root, env={**os.environ, **self.environment, "NO_COLOR": "1"})


@contextmanager
def floating_clients(folder: Path) -> Iterator[Clients]:
    packages = {"acme-notes": [release("1.0.0", "One."), release("1.4.0", "One four."), release("2.0.0", "Two.")]}
    wheels = folder / "wheels"
    wheels.mkdir()
    for version in ("1.0.0", "1.1.0", "2.0.0rc1"):
        (wheels / wheel_name("acme-clock", version)).write_bytes(make_wheel("acme-clock", version, code=""))
    with plain_server(lambda asked: release_answers(packages, asked)) as npm, package_index(wheels) as pypi:
        world = Clients(folder=folder, variables={"NPM_CONFIG_REGISTRY": npm.url, "UV_DEFAULT_INDEX": pypi})
        world.root.mkdir()
        for name, text in {"claude": CLAUDE, "vscode": VSCODE, "codex": CODEX, "continue": CONTINUE}.items():
            world.files[name].parent.mkdir(parents=True, exist_ok=True)
            world.files[name].write_text(text)
        yield world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Clients]:
    with floating_clients(tmp_path) as made:
        yield made


def pinned_texts() -> dict[str, str]:
    return {
        "claude": CLAUDE.replace('"acme-notes"]', '"acme-notes@2.0.0"]').replace(
            '"--from", "acme-clock",', '"--from", "acme-clock==1.1.0",'
        ),
        "vscode": VSCODE.replace("acme-notes@^1.0", "acme-notes@1.4.0"),
        "codex": CODEX.replace("acme-notes@latest", "acme-notes@2.0.0"),
        "continue": CONTINUE.replace("acme-clock  #", "acme-clock@1.1.0  #"),
    }


def test_a_dry_run_shows_the_edit_of_every_file_without_secrets_and_writes_nothing(world: Clients) -> None:
    before = world.everything()
    outcome = world.run("pin", "--dry-run", *PLAIN)
    assert outcome.code == 1, outcome
    assert '+      "args": ["-y", "acme-notes@2.0.0"], // no version yet' in outcome.out
    assert '-  "acme-notes@latest",  # newest' in outcome.out
    assert "+++ ~/.codex/config.toml (new)" in outcome.out
    assert "3f9a7c51d2e84b06" not in outcome.out
    assert "5 entries in 4 files would name an exact release" in outcome.out
    assert "Next: pinwarden pin --yes" in outcome.out
    assert world.everything() == before


def test_every_client_of_every_scope_gets_the_exact_release_and_keeps_comments_and_layout(world: Clients) -> None:
    world.done("pin", "--yes", *PLAIN)
    assert world.texts() == pinned_texts()
    code, report = world.run_json("pin", *PLAIN)
    assert problems("pin", report) == []
    assert (code, report["pins"], report["unpinned"]) == (0, [], [])


def test_only_the_named_server_is_pinned(world: Clients) -> None:
    world.done("pin", "clock", "--yes", *PLAIN)
    expected = pinned_texts()
    texts = world.texts()
    assert (texts["continue"], texts["codex"], texts["vscode"]) == (expected["continue"], CODEX, VSCODE)
    assert "acme-notes@2.0.0" not in texts["claude"]


def test_without_a_terminal_and_without_yes_nothing_is_written(world: Clients) -> None:
    before = world.everything()
    outcome = world.run("pin", "notes", *PLAIN)
    assert (outcome.code, "Next: pinwarden pin notes --yes" in outcome.out) == (1, True)
    assert world.everything() == before


def test_a_floating_entry_gets_the_release_that_another_client_names(world: Clients) -> None:
    world.files["codex"].write_text(CODEX.replace("@latest", "@1.4.0"))
    world.done("pin", "notes", "--yes", *PLAIN)
    assert '"acme-notes@1.4.0"]' in world.texts()["claude"]


def test_the_locks_of_all_scopes_follow_and_ci_stays_clean(world: Clients) -> None:
    world.done("init")
    world.done("pin", "--yes", *PLAIN)
    locked = json.loads(world.lock.read_text())["servers"]
    assert locked["notes:claude"]["selectedTarget"]["version"] == "2.0.0"
    assert locked["clock:claude"]["selectedTarget"]["version"] == "1.1.0"
    own = json.loads((world.folder / "home/.config/pinwarden/mcp-lock.json").read_text())["servers"]
    assert {entry["selectedTarget"]["version"] for entry in own.values()} == {"2.0.0", "1.1.0"}
    world.done("ci")
    _, doctor = world.run_json("doctor")
    assert doctor["issues"] == [], doctor


def test_a_server_that_is_configured_differently_than_locked_stays_a_finding(world: Clients) -> None:
    world.done("init")
    world.files["claude"].write_text(CLAUDE.replace('"acme-notes"]', '"acme-notes", "--all"]'))
    before = world.lock.read_bytes()
    world.done("pin", "notes", "--yes", "--scope", "project", *PLAIN)
    after = json.loads(world.lock.read_text())["servers"]["notes:claude"]
    assert after == json.loads(before)["servers"]["notes:claude"]
    assert world.run("ci").code == 1


def test_an_edit_of_the_lock_in_the_meantime_undoes_the_edits_of_the_files(world: Clients, tmp_path: Path) -> None:
    world.done("init")
    project: Project = replace(find_current_project(world.root), home=world.folder / "home")
    lock = lock_store.read(project.lock)
    assert lock is not None
    server = next(server for server in project.find_servers() if server.name == "clock")
    package = find_floating_package(server.target)
    assert package is not None
    entry = next(entry for entry in lock.entries if entry.name == "notes")  # not what the lock has for this server
    pin: ServerPin = replace(
        _plan_edit(server, package, NewestRelease(version="1.1.0")), locked=replace(entry, key="clock:claude")
    )
    before = world.everything()
    contents = {Path(server.path): Path(server.path).read_bytes()}
    with pytest.raises(PinwardenError) as refused:
        write_pins([PinPlan(project=project, pins=(pin,), unpinned=(), exact=0, contents=contents)])
    assert refused.value.code == "LOCK_BUSY"
    assert world.everything() == before


@needs_node
def test_an_approved_surface_stays_approved_only_for_the_release_that_was_probed(tmp_path: Path) -> None:
    packages = {"acme-notes": [release("1.0.0", "One.")]}
    with plain_server(lambda asked: release_answers(packages, asked)) as npm:
        world = SeveralClients(folder=tmp_path, variables={"NPM_CONFIG_REGISTRY": npm.url})
        world.root.mkdir()
        (tmp_path / "home").mkdir()
        for client in ("claude", "cursor"):
            world.write(client, notes={"command": "npx", "args": ["-y", "acme-notes"]})
        world.done("init", "--allow-execute", "--pass-env", "NPM_CONFIG_REGISTRY")
        floating = world.files()
        packages["acme-notes"].append(release("2.0.0", "Two."))
        code, report = world.run_json("pin", "--yes", *PLAIN)
        assert problems("pin", report) == []
        assert (code, {(pin["to"], pin["approval"]) for pin in report["pins"]}) == (0, {("1.0.0", "kept")})
        assert world.command("claude") == world.command("cursor") == ["npx", "-y", "acme-notes@1.0.0"]
        assert not any("surfaceOf" in record for record in world.records().values())
        world.done("ci")

        for name, data in floating.items():
            (world.root / name).write_bytes(data)
        del packages["acme-notes"][0]  # the probed release is gone
        code, report = world.run_json("pin", "--yes", *PLAIN)
        assert (code, {(pin["to"], pin["approval"]) for pin in report["pins"]}) == (0, {("2.0.0", "outdated")})
        assert all("surfaceOf" in record for record in world.records().values())


def test_an_entry_that_cannot_be_edited_is_named_and_the_others_are_pinned(world: Clients) -> None:
    servers = {
        "piped": {"command": "sh", "args": ["-c", "npx -y acme-notes | tee log"]},
        "wrapped": {"command": "sh", "args": ["-c", "exec npx -y acme-notes"]},
        "gone": {"command": "npx", "args": ["-y", "acme-gone"]},
        "elsewhere": {"command": "npx", "args": ["-y", "--registry", "https://example.com", "acme-notes"]},
    }
    world.files["claude"].write_text(json.dumps({"mcpServers": servers}, indent=2))
    code, report = world.run_json("pin", "--yes", "--scope", "project", *PLAIN)
    assert code == 1
    assert {entry["name"]: entry["reason"] for entry in report["unpinned"]} == {
        "gone": "its registry lists no release of acme-gone",
        "elsewhere": "the command names the registry that the package comes from",
    }
    written = json.loads(world.files["claude"].read_text())["mcpServers"]
    assert written["wrapped"]["args"] == ["-c", "exec npx -y acme-notes@2.0.0"]
    assert {name: entry for name, entry in written.items() if name != "wrapped"} == {
        name: entry for name, entry in servers.items() if name != "wrapped"
    }


def test_on_a_terminal_the_edit_is_shown_before_the_question(world: Clients) -> None:
    with world.at_terminal("pin", *PLAIN) as terminal:
        shown = terminal.until("Write these releases into these 4 files?")
        assert "acme-notes@2.0.0" in shown
        terminal.types("y\n")
        assert terminal.ends() == 0
    assert world.texts() == pinned_texts()


@pytest.mark.parametrize(("keys", "code"), [("n\n", 1), (AtTerminal.INTERRUPT, 130)])
def test_no_or_ctrl_c_at_the_question_changes_nothing(world: Clients, keys: str, code: int) -> None:
    world.done("init")
    before = world.everything()
    with world.at_terminal("pin", *PLAIN) as terminal:
        terminal.until("Write these releases")
        terminal.types(keys)
        assert terminal.ends() == code
    assert world.everything() == before


def test_ci_counts_floating_servers_in_one_row_and_fails_on_them_by_the_policy(world: Clients) -> None:
    world.done("init")
    policy = world.root / "pinwarden.toml"
    policy.write_text(policy.read_text().replace("exact-releases = true", "exact-releases = false"))
    outcome = world.done("ci")
    text = " ".join(outcome.out.split())
    assert "2 servers use a floating version (3 entries): notes, clock. Pin them: pinwarden pin." in text
    assert "exact-releases = true" in text
    policy.write_text("[policy.require]\nexact-releases = true\n")
    code, report = world.run_json("ci")
    assert (code, [row["code"] for row in report["failures"]]) == (1, ["floating_release"])
    assert "Next: pinwarden pin" in world.run("ci").out
    waiver = '[[policy.waivers]]\nserver = "notes"\ncode = "floating_release"\nreason = "own"\nowner = "me"\n'
    text = policy.read_text()
    policy.write_text(f"{text}\n{waiver}expires = 2999-01-01\n")
    assert "1 server uses a floating version: clock." in " ".join(world.run("ci").out.split())
    policy.write_text("[policy.require]\nexact-releases = false\nbundle-hashes = true\n")
    world.done("ci")
    policy.write_text(text)
    world.done("pin", "--yes", *PLAIN)
    world.done("ci")
