"""Questions to the person at the terminal: the answers, the default, and what the end of the input means."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QUIT = "quit"
"""The answer at the end of the input (Ctrl-D), whether or not the question offers it."""


def can_ask() -> bool:
    """Whether a person can read questions and answer them: stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str, choices: Sequence[str], default: str | None) -> str:
    """Ask until the answer is one of the choices, and return that choice.

    Each choice is one lower-case word. A person answers with the word or with its letter: the first letter of the word
    that no earlier choice has. The default, for an empty answer, is shown in capitals; without one, an empty answer
    asks again. The end of the input is the answer ``QUIT``. Ctrl-C raises KeyboardInterrupt after a line end. Keys that
    were pressed before the question was shown are discarded: they cannot be an answer to it.
    """
    from pinwarden.core.text import show_invisible

    letters = choice_letters(choices)
    answers = {letter: choice for choice, letter in letters.items()} | {choice: choice for choice in choices}
    if default is not None:
        answers[""] = default
    prompt = f"{show_invisible(question)} {_format_choices(letters, default)} "
    _discard_typed_keys()
    while True:
        line = read_line(prompt)
        if not line:
            return QUIT
        answer = answers.get(line.strip().lower())
        if answer is not None:
            return answer
        prompt = f"Answer with one of these: {_format_choices(letters, default)} "


def read_line(prompt: str) -> str:
    """One line from stdin with its line end, after a prompt on stderr; empty at the end of the input."""
    sys.stdout.flush()
    sys.stderr.write(prompt)
    sys.stderr.flush()
    try:
        _wait_for_line()
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        raise
    if not line:
        sys.stderr.write("\n")
    return line


def choice_letters(choices: Sequence[str]) -> dict[str, str]:
    """The letter of each choice: "show" and "skip" become s and k."""
    letters: dict[str, str] = {}
    for choice in choices:
        letters[choice] = next(letter for letter in choice if letter not in letters.values())
    return letters


def _format_choices(letters: Mapping[str, str], default: str | None) -> str:
    """The choices with their letters in brackets, such as ``[Y]ES [s]how s[k]ip [q]uit``."""
    words = (choice.replace(letter, f"[{letter}]", 1) for choice, letter in letters.items())
    return " ".join(word.upper() if choice == default else word for choice, word in zip(letters, words, strict=True))


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
    import os
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
