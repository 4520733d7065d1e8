"""Give a namespace to a key (add NAME --owner KEY), or list the namespaces. For the registry's operator.

A namespace is the beginning of the names of its tools: acme holds acme.notes. Its owner adds further keys with
pinwarden registry keys.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_operator_arguments, operated_registry
from pinwarden.core.errors import PinwardenError


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("action", choices=("add", "list"))
    parser.add_argument("name", nargs="?", metavar="NAME", help="the namespace")
    parser.add_argument("--owner", metavar="KEY", help="the key that owns it: a file, or did:key:…")
    add_operator_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Add or list, and report."""
    from pinwarden.registry.operator import add_namespace, list_namespaces

    if args.action == "add":
        if not args.name or not args.owner:
            raise PinwardenError("USAGE", "a new namespace has a name and an --owner")
        from pinwarden.cli.key_arguments import public_keys

        owner = next(iter(public_keys([args.owner]).values()))
        with operated_registry(args) as registry:
            return emit(add_namespace(registry, args.name, owner.did), args.format)
    with operated_registry(args) as registry:
        report = list_namespaces(registry)
    if args.format == "text" and report.facts["namespaces"]:
        from pinwarden.cli.layout import table

        rows = [
            (each["namespace"], role, key) for each in report.facts["namespaces"] for key, role in each["keys"].items()
        ]
        sys.stdout.write(table(("NAMESPACE", "ROLE", "KEY"), rows))
    return emit(report, args.format)
