"""Tell whether enough known keys signed a lockfile, in any of the three forms of signature.

A key is a PEM file or did:key, with a name before it if that is wanted: --public-key ada=ada.pub. Without --require
and --threshold one signature by any of the keys is enough. A bad envelope beside good ones is reported and does not
count. Exit code 1 if a signature is missing, or if the lock is not whole.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.key_arguments import NO_KEYS, SIGNATURE_FILE, count, public_keys, required_signers, signature_files
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of
from pinwarden.core.errors import PinwardenError


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument(
        "--signature", nargs="+", action="extend", metavar="FILE", help=f"detached signatures ({SIGNATURE_FILE})"
    )
    parser.add_argument(
        "--public-key", nargs="+", action="extend", default=[], metavar="KEY", help="[NAME=]FILE or [NAME=]did:key:…"
    )
    parser.add_argument(
        "--require", nargs="+", action="extend", default=[], metavar="NAME", help="keys that must all have signed"
    )
    parser.add_argument("--threshold", type=count, default=1, metavar="N", help="how many different keys at least (1)")
    parser.add_argument("--policy", metavar="FILE", help="the policy that the signature must name")
    parser.add_argument(
        "--accept-partial",
        action="store_true",
        help="let ToolPin's envelope count for a lock that holds more than it covers",
    )
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Verify and report."""
    if not args.public_key:
        raise PinwardenError("USAGE", NO_KEYS)
    from pinwarden.project.lock_signatures import verify_lock_signatures

    keys = public_keys(args.public_key)
    required = required_signers(args, keys)
    project = project_of(args)
    signatures = signature_files(args, project)
    policy = Path(args.policy) if args.policy else None
    return emit(verify_lock_signatures(project.lock, signatures, keys, required, policy), args.format)
