"""What ``--help`` prints: the overview of all commands, the commands of one family, and the help of one command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from pinwarden.cli.render.text import get_terminal_width, render_definition_list

_INTRODUCTION = """\
Pinwarden locks the MCP servers you approved: their exact versions, the bytes behind them, and every tool description
the model reads. It then tells you, your CI and your MCP clients when anything changes."""
_EXIT_CODES = (
    "Exit codes: 0 everything is as expected, 1 something changed or was refused, 2 the command line is wrong, "
    "3 a check could not be completed"
)


def render_overview(
    commands: Mapping[str, str], tasks: Mapping[str, Sequence[str]], families: Mapping[str, str]
) -> str:
    """Return all commands by task; a family of commands is one line."""
    by_task = "".join(
        f"\n{task}:\n{render_definition_list({name: _describe_command(name, commands, families) for name in names})}"
        for task, names in tasks.items()
    )
    return f"usage: pinwarden COMMAND [OPTIONS]\n\n{_format_paragraph(_INTRODUCTION)}{by_task}\n{_render_closing('')}"


def render_family_help(name: str, summary: str, commands: Mapping[str, str]) -> str:
    """Return the commands that share a first word."""
    about = f"{_format_paragraph(f'{summary}.')}\n" if summary else ""
    usage = _format_paragraph(f"usage: pinwarden {name} COMMAND [OPTIONS]")
    return f"{usage}\n{about}{render_definition_list(commands)}\n{_render_closing(f'{name} ')}"


def format_usage(parser: argparse.ArgumentParser, *, takes_command: bool) -> str:
    """Return the usage line of a command. ``[OPTIONS]`` stands for its options, which the help lists below it."""
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


def _describe_command(name: str, commands: Mapping[str, str], families: Mapping[str, str]) -> str:
    below = ", ".join(command.partition(" ")[2] for command in commands if command.startswith(f"{name} "))
    if name not in commands:
        return f"{families[name]}: {below}"
    return commands[name] + (f" (also: {below})" if below else "")


def _render_closing(group: str) -> str:
    return _format_paragraph(f"Run pinwarden {group}COMMAND --help for the options of a command.") + _format_paragraph(
        _EXIT_CODES
    )


def _format_paragraph(text: str) -> str:
    return f"{_fill(text, get_terminal_width(), '')}\n"
