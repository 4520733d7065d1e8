"""Fetch a bundle from an OCI registry: host/name:tag, or host/name@sha256:... for exactly those bytes.

Every byte is checked against the bundle's documents before anything is written. With --policy and --trust the bundle is
also accepted in the nine steps of pinwarden bundle accept, by the pointer and the attestations that came with it, and
nothing is written if it is refused. --unpack puts the files of an accepted bundle into a new folder.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.bundle.oci_transfer import Judging


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("reference", metavar="REFERENCE", help="host/name:tag or host/name@digest")
    parser.add_argument("--output", "-o", default=".", metavar="DIR", help="where the files go (here)")
    parser.add_argument("--policy", metavar="FILE", help="what the installer allows")
    parser.add_argument("--trust", metavar="FILE", help="whose keys count, and for what")
    parser.add_argument("--tool", metavar="NAME", help="the tool that is asked for")
    parser.add_argument("--channel", metavar="NAME", help="the channel that is asked for")
    parser.add_argument("--unpack", metavar="DIR", help="a new folder for the files of an accepted bundle")
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Pull and report."""
    from pinwarden.bundle.oci_transfer import Pulling, pull_bundle
    from pinwarden.cli.oci_arguments import oci_network

    pulling = Pulling(
        place=args.reference,
        output=Path(args.output),
        judging=_judging(args),
        unpack_to=Path(args.unpack) if args.unpack else None,
    )
    with oci_network() as net:
        report = pull_bundle(pulling, net)
    return emit(report, args.format)


def _judging(args: Namespace) -> Judging | None:
    if args.policy is None and args.trust is None and args.tool is None and args.channel is None:
        return None
    if args.policy is None or args.trust is None:
        raise PinwardenError("USAGE", "a bundle is accepted by --policy and --trust together")
    from pinwarden.bundle import installer_policy, trust
    from pinwarden.bundle.oci_transfer import Judging
    from pinwarden.system.clock import present
    from pinwarden.system.files import read_file

    return Judging(
        policy=installer_policy.parse(read_file(Path(args.policy))),
        trust=trust.parse(read_file(Path(args.trust))),
        now=present(),
        tool=args.tool,
        channel=args.channel,
    )
