"""Trust somebody no longer. With --revoke the key is remembered, and nobody can add it again.

Revoke a key that was stolen or lost; without --revoke it is only forgotten. What was installed on the word of a revoked
key is told by pinwarden update.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("key", metavar="KEY", help="did:key:…, or the name that it was added under")
    parser.add_argument("--revoke", action="store_true", help="remember that it must not be trusted again")
    parser.add_argument("--why", default="", metavar="TEXT", help="why it is revoked")
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Remove and report."""
    from pinwarden.cli.install_arguments import trust_file
    from pinwarden.install.trust import remove_trust
    from pinwarden.system.clock import present

    report = remove_trust(trust_file(), args.key, present(), revoked=args.revoke, why=args.why)
    return emit(report, args.format)
