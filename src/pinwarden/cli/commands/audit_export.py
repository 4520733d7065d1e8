"""Export the audit log as JSON Lines: each line is an entry exactly as it is kept, with the hash of the one before.

The head, which proves all of them, goes to stderr. Keep it somewhere else than the log.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.state_arguments import add_state_argument, state_from
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.documents.audit_entry import Head
    from pinwarden.flows.gateway.state import GatewayState


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--after", type=int, default=0, metavar="NUMBER", help="only entries behind this one")
    parser.add_argument("--output", "-o", default="-", metavar="FILE", help="a file that does not exist yet (stdout)")
    add_state_argument(parser)


def run(args: Namespace) -> int:
    """Write the lines."""
    from pinwarden.flows.gateway.auditing import export

    with state_from(args) as state:
        if args.output == "-":
            head = export(state, sys.stdout.buffer.write, args.after)
            sys.stdout.flush()
        else:
            head = _to_file(state, Path(args.output), args.after)
    sys.stderr.write(f"head {head}\n")
    return 0


def _to_file(state: GatewayState, path: Path, after: int) -> Head:
    from pinwarden.flows.gateway.auditing import export

    try:
        with path.open("xb") as stream:
            return export(state, stream.write, after)
    except FileExistsError as err:
        raise PinwardenError("FILE_EXISTS", f"{path} exists already") from err
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path}: {err.strerror or err}") from err
