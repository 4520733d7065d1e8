"""List whom you trust: registries with the origin of their log, people with their roles, and keys that are over.

Those are the keys that a registry gave up, by the entry of its log that says so, and those that you revoked.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """List and report."""
    from pinwarden.cli.install_arguments import trust_file
    from pinwarden.install.trust import list_trust

    report = list_trust(trust_file())
    told = report.facts
    if args.format == "text" and any(told.values()):
        from pinwarden.cli.layout import table

        rows = [(each["name"] or "-", ", ".join(each["roles"]), each["key_id"]) for each in told["registries"]]
        rows += [
            (each["name"] or "-", f"ended by entry {gone['log_index']}", gone["key_id"])
            for each in told["registries"]
            for gone in each["ended_keys"]
        ]
        rows += [(each["name"] or "-", ", ".join(each["roles"]), each["key_id"]) for each in told["keys"]]
        rows += [(each["name"] or "-", "revoked", each["key_id"]) for each in told["revoked"]]
        sys.stdout.write(table(("NAME", "ROLES", "KEY"), rows))
    return emit(report, args.format)
