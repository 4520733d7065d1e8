"""Make an Ed25519 key pair: FILE for its owner only (mode 0600), FILE.pub for everybody. Nothing is overwritten.

With --passphrase-env the private key is encrypted with the passphrase in that variable.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("file", help="where the private key goes")
    parser.add_argument("--passphrase-env", metavar="NAME", help="the variable that holds the passphrase")
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Make the pair and print what it is called."""
    from pinwarden.cli.key_arguments import passphrase_in
    from pinwarden.project.lock_signatures import make_key

    passphrase = passphrase_in(args.passphrase_env) if args.passphrase_env else None
    return emit(make_key(Path(args.file), passphrase), args.format)
