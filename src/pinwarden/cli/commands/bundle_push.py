"""Put a bundle into any OCI registry as an artifact, with those who vouch for it: host/name:tag.

Every byte is checked before anything is sent. The login is that of docker or podman. What comes out is the digest by
which the bundle can be pulled for ever.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.bundle_arguments import add_bundle_arguments, bundle_of
from pinwarden.cli.output import add_format_argument, emit


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_bundle_arguments(parser)
    parser.add_argument("reference", metavar="REFERENCE", help="where it goes: host/name:tag")
    parser.add_argument(
        "--attestation", nargs="+", action="extend", default=[], metavar="FILE", help="who vouches for it"
    )
    parser.add_argument("--pointer", metavar="FILE", help="what a bundle registry signed for it")
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Push and report."""
    from pinwarden.bundle.oci_transfer import push_bundle
    from pinwarden.cli.oci_arguments import oci_network

    attestations = [Path(name) for name in args.attestation]
    pointer = Path(args.pointer) if args.pointer else None
    with oci_network() as net:
        report = push_bundle(bundle_of(args), attestations, pointer, args.reference, net)
    return emit(report, args.format)
