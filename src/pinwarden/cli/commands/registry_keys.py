"""Change the keys of a namespace, signed by one of its owners: add publishers and owners, remove keys.

To rotate a key, add the new one and remove the old one in one call. A namespace below your own that nobody has is made,
so that a part can be given away. A namespace is never left without an owner.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.key_arguments import add_signer_arguments
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_publisher_arguments, registry_key_of, writable_registry


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("namespace", metavar="NAME", help="the namespace")
    for option, what in (
        ("--add-owner", "may publish, and change keys"),
        ("--add-publisher", "may publish"),
        ("--remove", "may do neither any more"),
    ):
        parser.add_argument(option, nargs="+", action="extend", default=[], metavar="DID", help=what)
    add_signer_arguments(parser)
    add_publisher_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Sign, send and report."""
    from pinwarden.cli.key_arguments import signer_of
    from pinwarden.registry.publisher import Changing, keys_body, request_change
    from pinwarden.registry.statement import KEYS

    body = keys_body(args.namespace, args.add_owner, args.add_publisher, args.remove)
    with writable_registry(args) as registry:
        changing = Changing(registry=registry, signer=signer_of(args), registry_key=registry_key_of(args))
        return emit(request_change(changing, "registry keys", KEYS, body), args.format)
