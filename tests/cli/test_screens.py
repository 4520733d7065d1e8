"""What a person sees at 60, 80 and 120 columns, kept as text. ``WRITE_SCREENS=1`` writes the files again."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.configured_world import POISON, POISONED, SERVER, ConfiguredWorld, harmless
from tests.cli.run import pinwarden
from tests.cli.setup_transcript import as_screen
from tests.cli.test_blocked_tool import MESSAGES

SCREENS = Path(__file__).parent.parent / "assets" / "screens"


def floating(name: str) -> dict[str, Any]:
    return {"command": "npx", "args": ["-y", f"@acme/{name}"]}


def prepare(world: ConfiguredWorld, command: str) -> tuple[str, ...]:
    """Configure what the screen is about, and return the command line."""
    names = ("calendar", "files", "git", "issues", "mail", "search")
    if command == "scan":
        world.configure(clock=harmless(), math=POISONED)
        return ("scan", "--allow-execute")
    if command in ("approve", "enforce", "review list"):
        return prepare_change(world, command)
    world.configure(**{name: floating(name) for name in names}, clock=harmless())
    if command in ("ci", "doctor"):
        assert world.run("init").code == 0
        world.configure(**{name: floating(f"other-{name}") for name in names[:2]}, clock=harmless("later"))
    return (command,)


def prepare_change(world: ConfiguredWorld, command: str) -> tuple[str, ...]:
    """An approved server that has changed; for ``review list``, as the gateway saw it."""
    world.configure(clock=harmless("now"))
    enforces = ("--enforce",) if command == "review list" else ()
    assert world.run("setup", "--yes", "--allow-execute", *enforces).code == (0 if enforces else 1)
    if command == "enforce":
        return ("enforce", "--dry-run")
    (world.root / "server.py").write_text(SERVER.replace("sys.argv[2]", repr(POISON)))
    if command == "approve":
        return ("approve", "clock", "--allow-execute")
    entry = json.loads((world.root / ".mcp.json").read_text())["mcpServers"]["clock"]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in MESSAGES).encode()
    assert pinwarden(*entry["args"], stdin=lines, cwd=world.root, env=world.environment).code == 0
    return ("review", "list")


def read_screen(world: ConfiguredWorld, words: tuple[str, ...], columns: int) -> str:
    """What stays on the screen, without what depends on the machine. A question is answered with ``quit``."""
    with world.at_terminal(*words, columns=columns) as terminal:
        while terminal.until_question() is not None:
            terminal.types("q\n")
        shown = as_screen(terminal.shown)
        terminal.ends()
    shown = re.sub(r"^note: on the search path: .*\n(  .*\n)*", "", shown, flags=re.MULTILINE)
    shown = re.sub(r"^[0-9a-f]{32}  ", f"{'0' * 32}  ", shown, flags=re.MULTILINE)  # the name contains the path
    return "".join(f"{line.rstrip()}\n" for line in shown.split("\n") if line.strip())


COMMANDS = ("init", "ci", "scan", "approve", "doctor", "enforce", "review list")


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_screen_of_a_command_is_as_it_was_looked_at(tmp_path: Path, command: str, columns: int) -> None:
    world = ConfiguredWorld(tmp_path)
    screen = read_screen(world, prepare(world, command), columns)
    kept = SCREENS / f"{command.replace(' ', '-')}-{columns}.txt"
    if os.environ.get("WRITE_SCREENS"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(screen)
    assert screen == kept.read_text()


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_wider_than_the_terminal(command: str, columns: int) -> None:
    """Except the lines of a diff, which are those of the file."""
    lines = (SCREENS / f"{command.replace(' ', '-')}-{columns}.txt").read_text().splitlines()
    prose = [line for line in lines if not (command == "enforce" and line.startswith(("+", "-", " ", "@")))]
    assert [line for line in prose if len(line) > columns] == []
