"""How much a command prints, and whether in colour: the options that every command has.

Set once, when the command line is parsed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Literal, TextIO

COLOR_MODES = ("auto", "always", "never")
_UNSET = {"quiet": False, "verbose": False, "color": "auto", "project": None, "file": None, "scope": None}
_chosen: dict[str, object] = dict(_UNSET)


def choose_verbosity(args: Namespace) -> None:
    """Apply the options of a command line."""
    _chosen.update({name: getattr(args, name, default) for name, default in _UNSET.items()})


def chosen_detail() -> Literal["quiet", "normal", "verbose"]:
    """How much of a report to print: ``quiet`` is only what fails and the summary, ``verbose`` is everything."""
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
    """A suggested command with the project, lockfile and scope of this command line, so that it works when pasted."""
    from shlex import quote

    folders = _chosen["project"]
    several = isinstance(folders, list)
    given = [("--project", folder) for folder in (folders if isinstance(folders, list) else [folders]) if folder]
    given += [(f"--{name}", _chosen[name]) for name in ("file", "scope") if _chosen[name]]
    if several and len(given) > 1 and not command.startswith("pinwarden ci"):
        given = given[:1]  # only ci takes several projects
    words = [f"{option} {quote(str(value))}" for option, value in given if f"{option} " not in command]
    return " ".join([command, *words])
