"""Parse commands that start a locked server with ``pinwarden run NAME``.

The lock says what such a command runs, so callers must look the server up there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pinwarden.clients.launch.launchers import UV_VALUES
from pinwarden.clients.launch.parse import OWN_RUN_VALUES, PROGRAM, command_words, unwrap_command
from pinwarden.core.record import Record
from pinwarden.system.command_words import parse_options, program_name, split_command_line

_MOST_SHELLS = 3  # shells inside one another that are looked through
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh", "fish"})
_BEFORE_COMMAND = frozenset({"exec", "command", "nohup"})


class LockedStart(Record):
    """What a ``pinwarden run`` command says about the server that it starts."""

    name: str
    """The server's name in the lock."""
    client: str | None = None
    project: str | None = None
    file: str | None = None
    """The lock, where the command names another than that of the project."""
    requires_lock: bool = False
    arguments: tuple[str, ...] = ()
    """What stands after ``--``."""


def parse_locked_start(command: Sequence[str]) -> LockedStart | None:
    """What a command starts from the lock; None if it does not start a locked server through us."""
    words = pinwarden_arguments(command)
    if words is None or words[:1] != ["run"]:
        return None
    place = words.index("--") if "--" in words else len(words)
    options, rest = _options(words[1:place])
    if not rest:
        return None
    return LockedStart(
        name=rest[0],
        client=options.get("--client"),
        project=options.get("--project"),
        file=options.get("--file"),
        requires_lock="--require-lock" in options,
        arguments=tuple(words[place + 1 :]),
    )


def pinwarden_arguments(command: Sequence[str]) -> list[str] | None:
    """The words that Pinwarden is given by a command, however the program is found; None if it is another program."""
    words = list(command)
    for _ in range(_MOST_SHELLS):
        words = unwrap_command(words)
        if not words or program_name(words[0]) not in _SHELLS:
            break
        text = next(
            (words[place + 1] for place in range(1, len(words) - 1) if re.fullmatch(r"-\w*c", words[place])), ""
        )
        inner = split_command_line(text)
        while inner and inner[0] in _BEFORE_COMMAND:
            inner = inner[1:]
        if not inner:
            break
        words = inner
    return _own(words)


def _own(words: list[str]) -> list[str] | None:
    if not words:
        return None
    program = program_name(words[0])
    if program == PROGRAM:
        return words[1:]
    if program == "uvx" or words[:2] == ["pipx", "run"]:
        options = parse_options(words[1:] if program == "uvx" else words[2:], UV_VALUES)
        runs = list(options.rest)
        named = bool(runs) and re.split(r"[\[=<>!~@;\s]", runs[0])[0].lower() == PROGRAM
        return runs[1:] if named else None
    if program.startswith(("python", "pypy")) or program == "py":
        return _of_python(words[1:])
    return None


def _of_python(words: list[str]) -> list[str] | None:
    """``python -m pinwarden …``, or the program's own file given to Python."""
    for place, word in enumerate(words):
        cluster = re.fullmatch(r"-[A-Za-z]*m(.*)", word) if not word.startswith(("--", "-X", "-W")) else None
        if cluster is not None:
            module, rest = (cluster[1], words[place + 1 :]) if cluster[1] else (words[place + 1 : place + 2], [])
            if isinstance(module, list):
                module, rest = "".join(module), words[place + 2 :]
            return rest if module.partition(".")[0] == PROGRAM else None
        if not word.startswith("-") and words[place - 1 : place] not in (["-X"], ["-W"]):
            return words[place + 1 :] if program_name(word) == PROGRAM else None
    return None


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options of ``pinwarden run``, which may stand on both sides of the name, and the other words."""
    options: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            rest.append(word)
        elif name in OWN_RUN_VALUES and not equals:
            options[name] = left.pop(0) if left else ""
        else:
            options[name] = value
    return options, rest


def locked_server_name(command: Sequence[str]) -> str | None:
    """The name of the locked server that a command starts, wherever the program lies; None if it starts none."""
    start = parse_locked_start(command)
    return None if start is None else start.name


def is_enforced_start(command: Sequence[str], name: str) -> bool:
    """Whether a command is the one that ``pinwarden enforce`` writes for this server: our program by its bare name."""
    return command[0] == PROGRAM and locked_server_name(command) == name


class RunCommand(Record):
    """What a ``pinwarden run`` command says about where its server belongs, with or without a command of its own."""

    name: str | None
    """The server's name: the word after ``run``, or that of ``--name``."""
    names_project: bool
    """Whether it says which lock or project applies."""
    command: tuple[str, ...]
    """What stands after ``--``."""


def parse_run_command(command: Sequence[str]) -> RunCommand | None:
    """The ``pinwarden run`` within a command line; None if there is none."""
    words = command_words(command)
    for place in (*(number for number, word in enumerate(words) if word == "--"), len(words)):
        ours = pinwarden_arguments(words[:place]) if place else None
        if ours is not None and ours[:1] == ["run"]:
            options, rest = _options(ours[1:])
            return RunCommand(
                name=rest[0] if rest else options.get("--name"),
                names_project="--project" in options or "--file" in options,
                command=tuple(words[place + 1 :]),
            )
    return None
