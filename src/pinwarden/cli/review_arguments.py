"""Which changes a decision is about.

There is no way to approve all that waits, or all of a server: between the look and the decision something else may be
there. Who decides names what was looked at. Many names are taken from a file, which review list --names writes.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument
from pinwarden.cli.project_arguments import add_approval_arguments
from pinwarden.cli.state_arguments import add_state_argument
from pinwarden.core.errors import PinwardenError

_LARGEST = 1 << 20  # bytes; some thirty thousand names, and more never wait


def _add_names(parser: ArgumentParser) -> None:
    """Names, each of which is a digest of what it stands for."""
    parser.add_argument("name", nargs="*", help="the names of changes, as pinwarden review list prints them")
    parser.add_argument(
        "--names-from",
        metavar="FILE",
        help="a file of such names, one on a line, as review list --names wrote; - : stdin",
    )


def add_decision_arguments(parser: ArgumentParser) -> None:
    """All that a decision needs: what it is about, where it is kept, who decides and why."""
    _add_names(parser)
    add_state_argument(parser)
    add_approval_arguments(parser)
    add_format_argument(parser)


def names_from(args: Namespace) -> list[str]:
    """Every name that was given."""
    names = [*args.name, *(_read(args.names_from) if args.names_from else ())]
    if not names:
        told = f"{args.names_from} names no change" if args.names_from else "name the changes that it is about"
        raise PinwardenError("USAGE", told, hint="pinwarden review list prints the names.")
    return names


def _read(file: str) -> list[str]:
    if file == "-":
        data = sys.stdin.buffer.read(_LARGEST + 1)
    else:
        from pinwarden.system.files import read_file

        data = read_file(Path(file), _LARGEST)
    if len(data) > _LARGEST:
        raise PinwardenError("USAGE", f"more than {_LARGEST} bytes of names")
    return [line.strip() for line in data.decode("utf-8", "backslashreplace").splitlines() if line.strip()]
