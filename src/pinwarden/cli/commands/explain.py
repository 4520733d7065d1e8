"""Tell about a locked server: what it is, which bytes, configuration and tools were approved, by whom and why, which
trust tier it has for which reasons, and what would raise it.

With --registry the answer comes from the project's registry cache and local registry files, locked or not; no registry
is asked.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("server", metavar="SERVER[:client]", help="the server, for one client or for all of them")
    parser.add_argument("--registry", action="store_true", help="explain the entry of a local registry copy instead")
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Explain and report."""
    from pinwarden.project.explain import explain_locked, explain_registered
    from pinwarden.system.clock import now

    explained = explain_registered if args.registry else explain_locked
    report = explained(project_of(args), args.server, now=now())
    if args.format == "text":
        from pinwarden.cli.layout import sections

        for entry in report.facts["entries"]:
            sys.stdout.write(sections(entry["sections"]) + "\n")
    return emit(report, args.format)
