"""Programs that servers need and this machine lacks are named before anything is asked, with a way to install them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pinwarden.system.program_installers import describe_installation
from tests.cli.configured_world import ConfiguredWorld, harmless

NOTES = {"command": "npx", "args": ["-y", "@acme/notes@1.0.0"]}
IMAGE = {"command": "docker", "args": ["run", "-i", "acme/search:1@sha256:" + "0" * 64]}


class BareWorld(ConfiguredWorld):
    """A machine that has Python and what the test puts on its search path."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.install("python3", target=Path(sys.executable))

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "PATH": str(self.programs)}

    def install(self, *names: str, target: Path = Path("/bin/true")) -> None:
        for name in names:
            (self.programs / name).symlink_to(target)


@pytest.fixture
def world(tmp_path: Path) -> BareWorld:
    return BareWorld(tmp_path)


def test_setup_names_them_before_the_first_question(world: BareWorld) -> None:
    world.install("brew")
    world.configure(now=harmless(), notes=NOTES, search=IMAGE)
    with world.at_terminal("setup", columns=200) as terminal:
        shown = terminal.until_question()
        terminal.types("q\n")
        terminal.ends()
    assert shown is not None
    left_out = "Setup leaves out this server until it is. To install it: brew install"
    assert f"Node.js with npm is not installed, but needed by: notes. {left_out} node" in shown
    assert f"Docker or Podman is not installed, but needed by: search. {left_out} --cask docker" in shown


def test_setup_leaves_out_the_servers_that_need_them_and_says_how_to_continue(world: BareWorld) -> None:
    world.install("brew")
    (world.programs / "pinwarden").symlink_to(Path(sys.executable).with_name("pinwarden"))
    world.configure(now=harmless(), notes=NOTES)
    with world.at_terminal("setup", columns=200) as terminal:
        shown = terminal.until_question()
        assert shown is not None
        assert "- Review: start 1 server once, to read the tools." in shown
        assert "Go ahead with this plan?" in shown
        terminal.types("y\n")
        assert "Approve 'now'?" in (terminal.until_question() or "")
        terminal.types("a\n")
        assert terminal.until_question() is None
        rest = terminal.shown
    assert "notes: start" not in rest
    assert "pinwarden prove" not in rest
    assert "To continue with notes, install Node.js with npm, and then run: pinwarden setup" in rest
    assert "Next: brew install node" in rest


def test_doctor_names_them_with_the_launcher_or_without(world: BareWorld) -> None:
    world.configure(notes=NOTES, search=IMAGE)
    world.install("npx", "apk", "podman")
    assert _list_missing(world) == [
        "program docker: not on the search path, but it starts: search. To install it: apk add docker",
        "program node: Node.js with npm is not installed, but needed by: notes. To install it: apk add nodejs npm",
    ]
    world.install("node", "npm", "docker")
    assert _list_missing(world) == []


def test_doctor_says_how_to_install_podman_where_a_server_starts_it(world: BareWorld) -> None:
    """It said how to install Docker, which does not make the command work."""
    world.configure(search={**IMAGE, "command": "podman"})
    world.install("apk", "docker")
    assert _list_missing(world) == [
        "program podman: not on the search path, but it starts: search. To install it: apk add podman"
    ]
    world.install("podman")
    assert _list_missing(world) == []


def test_the_way_to_install_a_program_exists_on_this_machine(world: BareWorld) -> None:
    variables = {"PATH": str(world.programs)}
    assert describe_installation("npx", variables) == "see https://nodejs.org/en/download"
    assert describe_installation("uv", variables) == f"{sys.executable} -m pip install uv"
    assert describe_installation("podman", variables) == "see https://podman.io/docs/installation"
    assert describe_installation("acme-notes", variables) is None
    world.install("pipx", "dnf")
    assert describe_installation("uv", variables) == "pipx install uv"
    assert describe_installation("npm", variables) == "dnf install nodejs npm"


def _list_missing(world: BareWorld) -> list[str]:
    results = json.loads(world.run("doctor", "--format", "sarif").out)["runs"][0]["results"]
    return [result["message"]["text"] for result in results if result["ruleId"] == "program_missing"]
