"""What a person sees at 60, 80 and 120 columns, kept as text. ``WRITE_SCREENS=1`` writes the files again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.configured_world import POISONED, ConfiguredWorld, harmless

SCREENS = Path(__file__).parent.parent / "assets" / "screens"


def floating(name: str) -> dict[str, Any]:
    return {"command": "npx", "args": ["-y", f"@acme/{name}"]}


def prepare(world: ConfiguredWorld, command: str) -> tuple[str, ...]:
    """Configure what the screen is about, and return the command line."""
    names = ("calendar", "files", "git", "issues", "mail", "search")
    if command == "scan":
        world.configure(clock=harmless(), math=POISONED)
        return ("scan", "--allow-execute")
    world.configure(**{name: floating(name) for name in names}, clock=harmless())
    if command == "ci":
        assert world.run("init").code == 0
        world.configure(**{name: floating(f"other-{name}") for name in names[:2]}, clock=harmless("later"))
    return (command,)


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("command", ["init", "ci", "scan"])
def test_the_screen_of_a_command_is_as_it_was_looked_at(tmp_path: Path, command: str, columns: int) -> None:
    world = ConfiguredWorld(tmp_path)
    words = prepare(world, command)
    with world.at_terminal(*words, columns=columns) as terminal:
        shown = terminal.until("Next: ")
        while not shown.endswith("\n"):
            shown += terminal.until("\n")
        terminal.ends()
    screen = "".join(f"{line.rstrip()}\n" for line in shown.replace("\r", "").split("\n") if line.strip())
    kept = SCREENS / f"{command}-{columns}.txt"
    if os.environ.get("WRITE_SCREENS"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(screen)
    assert screen == kept.read_text()


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("command", ["init", "ci", "scan"])
def test_no_line_is_wider_than_the_terminal(command: str, columns: int) -> None:
    lines = (SCREENS / f"{command}-{columns}.txt").read_text().splitlines()
    assert [line for line in lines if len(line) > columns] == []
