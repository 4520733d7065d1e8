"""Export the audit log as JSON Lines: each line is an entry exactly as it is kept, with the hash of the one before.

The head, which proves all of them, goes to stderr. Keep it somewhere else than the log.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.state_arguments import add_state_argument, state_from
from pinwarden.core.errors import PinwardenError


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--after", type=int, default=0, metavar="NUMBER", help="only entries behind this one")
    parser.add_argument("--output", "-o", default="-", metavar="FILE", help="a file that does not exist yet (stdout)")
    add_state_argument(parser)


def run(args: Namespace) -> int:
    """Write the lines."""
    from pinwarden.flows.gateway.auditing import export

    state = state_from(args)
    if args.output == "-":
        head = export(state, sys.stdout.buffer.write, args.after)
        sys.stdout.flush()
    else:
        try:
            with Path(args.output).open("xb") as stream:
                head = export(state, stream.write, args.after)
        except FileExistsError as err:
            raise PinwardenError("FILE_EXISTS", f"{args.output} exists already") from err
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"{args.output}: {err.strerror or err}") from err
    sys.stderr.write(f"head {head}\n")
    return 0
