"""All commands and their arguments as data, read from the parsers: for shell completion and the reference page."""

from __future__ import annotations

import re
from argparse import Action, ArgumentParser
from collections.abc import Mapping
from typing import Literal

from pinwarden.cli.commands import create_command_parser
from pinwarden.core.record import Record
from pinwarden.lock.entry import LOCK_CLIENTS

ValueKind = Literal["words", "files", "folders", "free"]

_FOLDERS = ("DIR", "FOLDER")
_FILES = ("FILE", "PATH", "LOCK", "KEY", "SIDE")
_KNOWN_VALUES = {"CLIENT": LOCK_CLIENTS}
_SAFE_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@+-]*")


class ValueSpec(Record):
    """The value of an option, or of a positional argument."""

    label: str
    kind: ValueKind
    words: tuple[str, ...] = ()
    """All possible values, or common ones. Words with a special meaning in a shell are omitted."""


class ArgumentSpec(Record):
    """An option or a positional argument."""

    names: tuple[str, ...]
    """Empty for a positional argument."""
    help: str
    value: ValueSpec | None
    """None for a flag."""
    required: bool
    repeated: bool
    group: str
    """The heading in the help."""

    @property
    def short_names(self) -> tuple[str, ...]:
        """The names with one dash."""
        return tuple(name for name in self.names if not name.startswith("--"))

    @property
    def long_names(self) -> tuple[str, ...]:
        """The names with two dashes."""
        return tuple(name for name in self.names if name.startswith("--"))


class CommandSpec(Record):
    """A command of one or two words."""

    name: str
    summary: str
    description: str
    options: tuple[ArgumentSpec, ...]
    positionals: tuple[ArgumentSpec, ...]
    takes_command: bool
    """Whether a command to start can follow after ``--``."""


def read_grammar(commands: Mapping[str, str]) -> tuple[CommandSpec, ...]:
    """Return every command with its arguments."""
    return tuple(_read_command(name, summary) for name, summary in commands.items())


def group_two_word_commands(commands: tuple[CommandSpec, ...]) -> dict[str, tuple[CommandSpec, ...]]:
    """Return the two-word commands, by their first word."""
    families: dict[str, tuple[CommandSpec, ...]] = {}
    for command in commands:
        if " " in command.name:
            first = command.name.split()[0]
            families[first] = (*families.get(first, ()), command)
    return families


def list_first_words(commands: tuple[CommandSpec, ...]) -> dict[str, str]:
    """Return the words that can follow ``pinwarden``, with one line of help each."""
    words = {command.name: command.summary for command in commands if " " not in command.name}
    for first, members in group_two_word_commands(commands).items():
        words.setdefault(first, ", ".join(command.name.split()[1] for command in members))
    return words


def _read_command(name: str, summary: str) -> CommandSpec:
    command, parser = create_command_parser(name)
    arguments = [
        _read_argument(action, parser, group.title or "")
        for group in parser._action_groups
        for action in _list_actions(group)
    ]
    return CommandSpec(
        name=name,
        summary=summary,
        description=(parser.description or "").strip(),
        options=tuple(argument for argument in arguments if argument.names),
        positionals=tuple(argument for argument in arguments if not argument.names),
        takes_command=command.takes_command,
    )


def _list_actions(group: object) -> list[Action]:
    actions: list[Action] = getattr(group, "_group_actions", [])
    return actions


def _read_argument(action: Action, parser: ArgumentParser, group: str) -> ArgumentSpec:
    names = tuple(action.option_strings)
    help_text = parser._get_formatter()._expand_help(action) if action.help else ""
    plural = action.nargs in ("*", "+")
    return ArgumentSpec(
        names=names,
        help=" ".join(help_text.split()),
        value=None if action.nargs == 0 else _read_value(action, help_text),
        required=action.required if names else action.nargs not in ("*", "?"),
        repeated=plural or type(action).__name__ in ("_AppendAction", "_ExtendAction", "FormatAction"),
        group=group,
    )


def _read_value(action: Action, help_text: str) -> ValueSpec:
    label = action.metavar if isinstance(action.metavar, str) else action.dest.upper().replace("_", "-")
    if action.choices is not None or label in _KNOWN_VALUES:
        words = tuple(map(str, action.choices or _KNOWN_VALUES[label]))
        return ValueSpec(label=label, kind="words", words=tuple(word for word in words if _SAFE_WORD.fullmatch(word)))
    if label in _FOLDERS:
        return ValueSpec(label=label, kind="folders")
    # A positional argument may be a server or a file; only its help says so.
    names_file = not action.option_strings and re.search(r"\bfiles?\b", help_text, re.IGNORECASE)
    return ValueSpec(label=label, kind="files" if label in _FILES or names_file else "free")
