"""Sign a lockfile with an Ed25519 key, detached.

By default the envelope is ToolPin's, which covers what lockfileVersion 2 knows. --dsse signs the bytes of the whole
file and takes any number of keys; --add puts a further signature beside those that are there. A lock that is not whole
is not signed. The passphrase of a key comes from PINWARDEN_KEY_PASSPHRASE, or is asked for on a terminal.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.key_arguments import SIGNATURE_FILE
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of
from pinwarden.core.errors import PinwardenError


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--key", action="append", required=True, metavar="FILE", help="private key; more with --dsse")
    parser.add_argument("--policy", metavar="FILE", help="the policy under which the lock was reviewed")
    parser.add_argument("--dsse", action="store_true", help="sign the bytes of the file, in a DSSE envelope")
    parser.add_argument("--add", action="store_true", help="with --dsse: keep the signatures that are there")
    parser.add_argument("--output", "-o", metavar="FILE", help=f"({SIGNATURE_FILE} in the project's folder)")
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Sign and report."""
    if (len(args.key) > 1 or args.add) and not args.dsse:
        raise PinwardenError(
            "USAGE", "ToolPin's envelope holds one signature", hint="Sign with --dsse to have several."
        )
    from pinwarden.cli.key_arguments import private_keys
    from pinwarden.project.lock_signatures import Signing, sign_lock
    from pinwarden.system.clock import now

    project = project_of(args)
    signing = Signing(
        lock=project.lock,
        output=Path(args.output) if args.output else project.root / SIGNATURE_FILE,
        keys=private_keys(args.key),
        now=now(),
        policy=Path(args.policy) if args.policy else None,
        dsse=args.dsse,
        add=args.add,
    )
    return emit(sign_lock(signing), args.format)
