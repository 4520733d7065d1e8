"""Entry point. Does as little as possible before it knows what is asked: a command's module is imported on dispatch."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Command -> one line for --help. The module of the same name in cli/commands holds the rest.
COMMANDS = {
    "inspect": "ask a server for everything it tells the model",
    "scan": "look for text that reads like an attack on the model",
    "diff": "tell what changed between two surfaces, and how much it matters",
    "canonicalize": "print the canonical form of JSON under a named profile",
    "digest": "print the digest of every tool in a listing",
    "cid": "print the content identifier of a document, manifest or blob",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in (["--version"], ["-V"]):
        from pinwarden import __version__

        sys.stdout.write(f"pinwarden {__version__}\n")
        return 0
    from pinwarden.cli.dispatch import dispatch

    return dispatch(arguments, COMMANDS)
