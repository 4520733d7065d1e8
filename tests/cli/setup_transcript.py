"""``pinwarden setup`` on a pseudo-terminal: which questions it asks, what it shows, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.cli.terminal import AtTerminal
from tests.support.ten_servers import TenServers

YES = "\n"
"""The default answer."""
_ERASE = "\r\x1b[K"


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """One run of a command."""

    questions: list[str]
    screen: str
    code: int


def play(
    world: TenServers, *arguments: str, answer: Callable[[str], str] = lambda _: YES, columns: int = 80
) -> Transcript:
    """Run ``pinwarden`` with these arguments on a terminal, and answer each question with the keys of `answer`."""
    environment = {**world.environment, "NO_COLOR": "1"}
    questions: list[str] = []
    with AtTerminal(*arguments, cwd=world.project, env=environment, seconds=400, columns=columns) as terminal:
        while (shown := terminal.until_question()) is not None:
            question = last_question(as_screen(shown))
            if question.startswith("Line "):  # of a text that is longer than the terminal: no decision
                terminal.types("rest\n")
                continue
            questions.append(question)
            terminal.types(answer(question))
        return Transcript(questions=questions, screen=as_screen(terminal.shown), code=terminal.ends())


def last_question(screen: str) -> str:
    """The question at the end of the screen, without its choices. Its lines after the first are indented."""
    lines: list[str] = []
    for line in reversed(screen.split("\n")):
        lines.insert(0, line.strip())
        if not line.startswith("  "):
            break
    return " ".join(lines).split("? [")[0] + "?"


def as_screen(text: str) -> str:
    """What stays on the screen: a progress line is erased by the next one."""
    return "\n".join(line.rstrip("\r").rsplit(_ERASE, 1)[-1] for line in text.split("\n"))
