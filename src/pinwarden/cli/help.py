"""What ``--help`` prints: the overview of all commands, the commands of one family, and the help of one command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from pinwarden.cli.render.text import definition_list, terminal_width

_INTRODUCTION = """\
Pinwarden locks the MCP servers you approved: their exact versions, the bytes behind them, and every tool description
the model reads. It then tells you, your CI and your MCP clients when anything changes."""
_EXIT_CODES = (
    "Exit codes: 0 everything is as expected, 1 something changed or was refused, 2 the command line is wrong, "
    "3 a check could not be completed"
)


def overview(commands: Mapping[str, str], tasks: Mapping[str, Sequence[str]], families: Mapping[str, str]) -> str:
    """Return all commands by task; a family of commands is one line."""
    by_task = "".join(
        f"\n{task}:\n{definition_list({name: _first_word_help(name, commands, families) for name in names})}"
        for task, names in tasks.items()
    )
    return f"usage: pinwarden COMMAND [OPTIONS]\n\n{_paragraph(_INTRODUCTION)}{by_task}\n{_closing('')}"


def family_help(name: str, summary: str, commands: Mapping[str, str]) -> str:
    """Return the commands that share a first word."""
    about = f"{_paragraph(f'{summary}.')}\n" if summary else ""
    usage = _paragraph(f"usage: pinwarden {name} COMMAND [OPTIONS]")
    return f"{usage}\n{about}{definition_list(commands)}\n{_closing(f'{name} ')}"


def usage_line(parser: argparse.ArgumentParser, *, takes_command: bool) -> str:
    """Return how a command is called, without its options, which are listed below."""
    words = [parser.prog, "[OPTIONS]"]
    formatter = HelpFormatter(parser.prog, width=80)
    words += [
        formatter._format_args(action, formatter._get_default_metavar_for_positional(action))
        for action in parser._actions
        if not action.option_strings
    ]
    words += ["[-- COMMAND ...]"] * takes_command
    return " ".join(words).replace("%", "%%")


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs to the width of the terminal; paragraphs with indented lines stay as they are."""

    def _get_default_metavar_for_positional(self, action: argparse.Action) -> str:
        return action.dest.upper()

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip().split("\n\n")
        return "\n\n".join(part if "\n " in part else _fill(part, width, indent) for part in paragraphs)


def _fill(text: str, width: int, indent: str) -> str:
    import textwrap

    words = " ".join(text.split())
    return textwrap.fill(words, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _first_word_help(name: str, commands: Mapping[str, str], families: Mapping[str, str]) -> str:
    below = ", ".join(command.partition(" ")[2] for command in commands if command.startswith(f"{name} "))
    if name not in commands:
        return f"{families[name]}: {below}"
    return commands[name] + (f" (also: {below})" if below else "")


def _closing(group: str) -> str:
    return _paragraph(f"Run pinwarden {group}COMMAND --help for the options of a command.") + _paragraph(_EXIT_CODES)


def _paragraph(text: str) -> str:
    return f"{_fill(text, terminal_width(), '')}\n"
