"""Tell whether enough known keys signed a lockfile, in any of the three forms of signature.

A key is a PEM file or did:key, with a name before it if that is wanted: --public-key ada=ada.pub. Without --require
and --threshold one signature by any of the keys is enough. A bad envelope beside good ones is reported and does not
count. Exit code 1 if a signature is missing, or if the lock is not whole.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of
from pinwarden.core.errors import PinwardenError

SIGNATURE_FILE = "mcp-lock.sig"


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
    parser.add_argument("--threshold", type=_count, default=1, metavar="N", help="how many different keys at least (1)")
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
        raise PinwardenError(
            "USAGE", "name the keys to trust with --public-key; a signature does not vouch for its own"
        )
    from pinwarden.cli.key_arguments import public_keys
    from pinwarden.documents.lock.signature import RequiredSigners
    from pinwarden.flows.lock.signatures import verify_lock_signatures

    keys = public_keys(args.public_key)
    unknown = next((name for name in args.require if name not in keys), None)
    if unknown is not None:
        raise PinwardenError("USAGE", f"no public key is named {unknown[:80]!a}; named are: {', '.join(keys)}")
    required = RequiredSigners(names=tuple(args.require), threshold=args.threshold, accept_partial=args.accept_partial)
    project = project_of(args)
    signatures = [Path(name) for name in args.signature or [project.root / SIGNATURE_FILE]]
    policy = Path(args.policy) if args.policy else None
    return emit(verify_lock_signatures(project.lock, signatures, keys, required, policy), args.format)


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1000:
        raise ValueError
    return number
