"""Publish a bundle: check every byte of it, send it to a registry, and let a channel point to it.

The registry wants a token of the namespace (PINWARDEN_REGISTRY_TOKEN) and a signature by one of its keys. It checks the
archive itself, starts the server in its sandbox to learn what it tells the model, and writes an event into its log. The
same version with other content is refused, for ever.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.bundle_arguments import add_bundle_arguments, bundle_of
from pinwarden.cli.key_arguments import add_signer_arguments
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_publisher_arguments, registry_key_of, writable_registry


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_bundle_arguments(parser)
    add_signer_arguments(parser)
    parser.add_argument("--channel", default="stable", metavar="NAME", help="the channel that points to it (stable)")
    parser.add_argument(
        "--allow-older", action="store_true", help="let the channel go back from a newer version to this one"
    )
    parser.add_argument(
        "--attestation", nargs="+", action="extend", default=[], metavar="FILE", help="attestations to send along"
    )
    add_publisher_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Check, send and report."""
    from pinwarden.cli.key_arguments import signer_of
    from pinwarden.registry.publisher import Publishing, publish_bundle

    with writable_registry(args) as registry:
        publishing = Publishing(
            registry=registry,
            files=bundle_of(args),
            signer=signer_of(args),
            attestations=tuple(Path(each) for each in args.attestation),
            channel=args.channel,
            allow_older=args.allow_older,
            registry_key=registry_key_of(args),
        )
        return emit(publish_bundle(publishing), args.format)
