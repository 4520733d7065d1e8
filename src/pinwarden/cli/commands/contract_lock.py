"""Lock what a server of your own promises: surface, behaviour, token cost and what its code can reach.

    pinwarden contract lock --server src/server.py
    pinwarden contract lock --command -- node dist/server.js
    pinwarden contract lock --url https://mcp.example.org/mcp

A Python server is imported in a process of its own; naming its file is the consent to run it. The file has the format
of mcp-fusion.lock, with the texts and digests that make it checkable by others added.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.contract_arguments import (
    add_dialect_argument,
    add_lockfile_argument,
    add_server_arguments,
    dialect_of,
    observed_by,
)
from pinwarden.cli.output import add_format_argument, emit

if TYPE_CHECKING:
    from pinwarden.core.keys import PrivateKey

TAKES_COMMAND = True


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_lockfile_argument(parser)
    add_dialect_argument(parser)
    parser.add_argument("--name", help="the server's name in the lockfile (what it calls itself)")
    parser.add_argument("--sign", action="append", default=[], metavar="KEY", help="sign the lockfile with this key")
    add_server_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Observe, write and report."""
    from pinwarden.contract.lock_command import lock, place_of, sign
    from pinwarden.core.record import replace
    from pinwarden.system.clock import now

    keys = _keys(args.sign)
    dialect = dialect_of(args)
    place = place_of(args.lock, dialect)
    observed = observed_by(args)
    report = lock(observed, place, now=now(), dialect=dialect, name=args.name)
    if keys:
        sign(place.path, keys)
        signed = f"signed by {', '.join(key.public_key.did for key in keys)}"
        report = replace(report, notes=(*report.notes, signed))
    return emit(report, args.format)


def _keys(named: list[str]) -> tuple[PrivateKey, ...]:
    """The keys to sign with, read before anything is written."""
    if not named:
        return ()
    from pinwarden.cli.key_arguments import private_keys

    return tuple(private_keys(named))
