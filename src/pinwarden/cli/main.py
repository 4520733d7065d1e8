"""Entry point. Imports as little as possible; the module of a command is imported when the command is known."""

from __future__ import annotations

import sys

from pinwarden.cli.streams import configure_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    configure_streams()
    if arguments in (["--version"], ["-V"]):
        from pinwarden import __version__

        sys.stdout.write(f"pinwarden {__version__}\n")
        return 0
    from pinwarden.cli.dispatch import dispatch

    return dispatch(arguments)
