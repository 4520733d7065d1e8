"""Questions to the person at the terminal: the answers, the default, and what the end of the input means."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pinwarden.cli.streams import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QUIT = "quit"
"""The answer at the end of the input (Ctrl-D), whether or not the question offers it."""
ALL, BACK = "all", "back"
"""What ``show_in_pages`` returns, besides ``QUIT``."""


_ROOM_FOR_ANSWER = "answer"
_LINES_OF_QUESTION = _LINES_OF_HEADING = 2
_MAX_OVERFLOW = 5
"""Lines by which a text may be longer than the terminal without a question after its first page."""
_LETTERS = {"skip": "k", "all": "l"}
"""The letters of choices that do not have their first letter. A letter means the same in every question."""


def can_ask() -> bool:
    """Whether a person can read questions and answer them: stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str, choices: Sequence[str], default: str | None) -> str:
    """Ask until the answer is one of the choices, and return that choice.

    Each choice is one lower-case word. A person answers with the word or with its letter, which is the same in every
    question. The default is the answer of the Enter key alone; without one, Enter asks again. The end of the input is
    the answer ``QUIT``. Ctrl-C raises KeyboardInterrupt after a line end. Keys that were pressed before the question
    was shown are discarded: they cannot be an answer to it.
    """
    letters = choice_letters(choices)
    answers = {letter: choice for choice, letter in letters.items()} | {choice: choice for choice in choices}
    if default is not None:
        answers[""] = default
    shown_choices = _format_choices(letters, default)
    prompt = _format_prompt(question, shown_choices)
    _discard_typed_keys()
    while True:
        line = read_line(prompt)
        if not line:
            return QUIT
        answer = answers.get(line.strip().lower())
        if answer is not None:
            return answer
        prompt = _format_prompt("Answer with one of these:", shown_choices)


def show_in_pages(text: str, *, can_go_back: bool = False) -> str:
    """Write a text to stdout. If it is longer than the terminal, ask after its first page, and print the rest on Enter.

    The answer ``more`` shows only the next page. Returns ``ALL`` if everything was shown, and otherwise ``BACK`` or
    ``QUIT``: what the person wants instead of the rest.
    """
    choices = ("more", "rest", *((BACK,) if can_go_back else ()), QUIT)
    lines = text.splitlines(keepends=True)
    size = _count_terminal_lines() - _LINES_OF_QUESTION
    end = size if 0 < size < len(lines) - _MAX_OVERFLOW else len(lines)
    sys.stdout.write("".join(lines[:end]))
    while end < len(lines):
        answer = ask(f"Line {end} of {len(lines)}.", choices, "rest")
        if answer in (BACK, QUIT):
            return answer
        start, end = end, len(lines) if answer == "rest" else min(end + size, len(lines))
        sys.stdout.write("".join(lines[start:end]))
    return ALL


def count_free_lines() -> int:
    """Return the lines of the terminal without those of a heading and a question; 0 if stdout is not a terminal."""
    return max(0, _count_terminal_lines() - _LINES_OF_HEADING - _LINES_OF_QUESTION)


def quote_server(name: str) -> str:
    """Quote the name of a server in a question, so that a name such as ``everything`` is not read as a word."""
    return repr(name[:120])


def read_line(prompt: str) -> str:
    """Return one line from stdin with its line end, after a prompt on stderr; empty at the end of the input."""
    sys.stdout.flush()
    sys.stderr.write(prompt)
    sys.stderr.flush()
    Progress.paused = True
    try:
        _wait_for_line()
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        raise
    finally:
        Progress.paused = False
    if not line:
        sys.stderr.write("\n")
    return line


def choice_letters(choices: Sequence[str]) -> dict[str, str]:
    """Return the letter of each choice: "show" and "skip" become s and k. Raises ValueError if two have the same."""
    letters = {choice: _LETTERS.get(choice, choice[0]) for choice in choices}
    if len(set(letters.values())) < len(letters):
        raise ValueError(f"two of these choices have the same letter: {', '.join(choices)}")
    return letters


def _count_terminal_lines() -> int:
    """Return the lines of the terminal behind stdout; 0 if it is not a terminal."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines
    except (OSError, ValueError):  # not a terminal, or not a file
        return 0


def _format_choices(letters: Mapping[str, str], default: str | None) -> str:
    """Return the choices with their letters in brackets, such as ``[y]es [s]how s[k]ip [q]uit (Enter = yes):``."""
    words = " ".join(choice.replace(letter, f"[{letter}]", 1) for choice, letter in letters.items())
    return f"{words}:" if default is None else f"{words} (Enter = {default}):"


def _format_prompt(question: str, choices: str) -> str:
    """Return the question and its choices, on one line if the terminal is wide enough."""
    from pinwarden.cli.render.text import wrap

    fits = wrap(f"{question} {choices} {_ROOM_FOR_ANSWER}", stream=sys.stderr).count("\n") == 1
    lines = wrap(question, stream=sys.stderr)
    return f"{lines.rstrip()} {choices} " if fits else f"{lines}  {choices} "


def _discard_typed_keys() -> None:
    if sys.platform != "win32" and can_ask():
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _wait_for_line() -> None:
    """Wait until a line was typed. Ctrl-C raises KeyboardInterrupt, whenever it is pressed.

    ``readline`` alone misses a Ctrl-C that is pressed just before it begins to wait, until the next key.
    """
    if sys.platform == "win32" or not can_ask():
        return
    import select
    import signal

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        while sys.stdin not in select.select([sys.stdin, reader], [], [])[0]:
            os.read(reader, 4096)
    finally:
        signal.set_wakeup_fd(previous)
        os.close(reader)
        os.close(writer)
