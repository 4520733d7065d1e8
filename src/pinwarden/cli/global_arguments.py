"""The options that every command has: how much it prints, in which form, and in which colours.

They are set once, when the command line is parsed (`remember_options`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterable, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TextIO

COLOR_MODES = ("auto", "always", "never")
_PROBE_FLAGS = ("allow_execute", "allow_private", "allow_redirects", "sandbox")
_UNSET: dict[str, object] = {
    "quiet": False,
    "verbose": False,
    "color": "auto",
    "project": None,
    "file": None,
    "scope": None,
    "pass_env": (),
    **dict.fromkeys(_PROBE_FLAGS, False),
}
_chosen: dict[str, object] = dict(_UNSET)
GLOBAL_OPTIONS = ("--json", "-q", "--quiet", "-v", "--verbose", "--color", "--output", "-o")

GLOBAL_GROUP = "output"
"""The heading of these options in the help."""


def add_global_arguments(parser: argparse.ArgumentParser, *, prints_report: bool) -> None:
    """Add ``--json``, ``--quiet``, ``--verbose``, ``--color`` and ``--output``.

    ``--json`` is added only to commands with ``--format``, and ``--output`` only to those without their own.
    """
    known = parser._option_string_actions
    group = parser.add_argument_group(GLOBAL_GROUP)
    if "--format" in known:
        group.add_argument("--json", action=_JsonAction, nargs=0, help="the same as --format json")
    amount = group.add_mutually_exclusive_group()
    amount.add_argument("-q", "--quiet", action="store_true", help="print only findings that fail, and the summary")
    amount.add_argument("-v", "--verbose", action="store_true", help="print everything, including notes and durations")
    group.add_argument(
        "--color",
        choices=COLOR_MODES,
        default="auto",
        help="colours: on a terminal (auto), always, or never; NO_COLOR and FORCE_COLOR set the default",
    )
    if prints_report and "--output" not in known:
        group.add_argument(
            "--output",
            "-o",
            dest="report_output",
            metavar="FILE",
            help="write the report to this file instead of stdout",
        )


def move_to_command(arguments: Sequence[str], commands: Collection[str]) -> list[str]:
    """Move global options behind the name of the command: ``pinwarden --json ci`` becomes ``ci --json``."""
    words = list(arguments)
    leading: list[str] = []
    while words and words[0].partition("=")[0] in GLOBAL_OPTIONS:
        option = words.pop(0)
        leading.append(option)
        if option in ("--color", "--output", "-o") and words:
            leading.append(words.pop(0))
    if not leading or not words:
        return list(arguments)
    # The commands have one word or two; an option between the two words would hide the second one.
    count = 2 if len(words) > 1 and not words[1].startswith("-") and f"{words[0]} {words[1]}" in commands else 1
    return [*words[:count], *leading, *words[count:]]


def remember_options(args: argparse.Namespace) -> None:
    """Remember the global options of a parsed command line, for the functions of this module."""
    _chosen.update({name: getattr(args, name, default) for name, default in _UNSET.items()})


def chosen_detail() -> Literal["quiet", "normal", "verbose"]:
    """Return how much to print: ``quiet`` is only the failures and the summary, ``verbose`` is everything."""
    return "quiet" if _chosen["quiet"] else "verbose" if _chosen["verbose"] else "normal"


def is_verbose() -> bool:
    """Whether everything is printed, with all notes and durations (``--verbose``)."""
    return bool(_chosen["verbose"])


def colour_wanted(stream: TextIO | None = None) -> bool:
    """Whether to print colours to a stream (default: stdout).

    ``--color`` decides; else NO_COLOR and FORCE_COLOR, in this order; else whether the stream is a terminal.
    """
    if _chosen["color"] != "auto":
        return _chosen["color"] == "always"
    if os.environ.get("NO_COLOR"):
        return False
    forced = os.environ.get("FORCE_COLOR", "")
    if forced:
        return forced != "0"
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def repeat_project_options(command: str) -> str:
    """Return a command with options of this command line, so that it works when pasted.

    These are the project, lockfile and scope, and before a server is approved, how it may be contacted or started.
    """
    from shlex import quote

    folders = _chosen["project"]
    repeatable = isinstance(folders, list)
    given = [("--project", folder) for folder in (folders if isinstance(folders, list) else [folders]) if folder]
    given += [(f"--{name}", _chosen[name]) for name in ("file", "scope") if _chosen[name]]
    if repeatable and len(given) > 1 and not command.startswith("pinwarden ci"):
        given = given[:1]  # only ci takes several projects
    flags: list[str] = []
    if command.startswith("pinwarden approve "):
        passed = _chosen["pass_env"]
        given += [("--pass-env", name) for name in (passed if isinstance(passed, list) else ())]
        flags = [f"--{name.replace('_', '-')}" for name in _PROBE_FLAGS if _chosen[name] is True]
    words = [f"{option} {quote(str(value))}" for option, value in given if f"{option} " not in command]
    return " ".join([command, *words, *(flag for flag in flags if flag not in command)])


def describe_unknown_arguments(unknown: Sequence[str], known: Iterable[str]) -> str:
    """Return the error for arguments that a command does not have, with a similar option if there is one."""
    from difflib import get_close_matches

    option = next((word for word in unknown if word.startswith("-")), None)
    if option is None:
        return f"unexpected argument {unknown[0][:80]!a}"
    name = option.partition("=")[0]
    near = get_close_matches(name, [word for word in known if word.startswith("--")], n=1, cutoff=0.6)
    shown = name[:80] if name.isprintable() and name.isascii() else ascii(name[:80])
    return f"unknown option {shown}" + (f", did you mean {near[0]}?" if near else "")


class _JsonAction(argparse.Action):
    """Acts like ``--format json``, and also refuses a second format on stdout."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option: str | None = None,
    ) -> None:
        """Choose JSON."""
        del values
        parser._option_string_actions["--format"](parser, namespace, "json", option)
