"""How much a command prints, and whether in colour: the options that every command has.

Set once, when the command line is parsed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import TextIO

COLOR_MODES = ("auto", "always", "never")
_UNSET = {"quiet": False, "verbose": False, "color": "auto"}
_chosen: dict[str, object] = dict(_UNSET)


def choose_verbosity(args: Namespace) -> None:
    """Apply the options of a command line."""
    _chosen.update({name: getattr(args, name, default) for name, default in _UNSET.items()})


def is_quiet() -> bool:
    """Whether only failing findings and the summary are printed (``--quiet``)."""
    return bool(_chosen["quiet"])


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
