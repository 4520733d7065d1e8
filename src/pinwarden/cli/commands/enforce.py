"""Make clients start locked servers through pinwarden run: rewrites their configuration, and the lock with it.

Only servers whose bytes are pinned (pinwarden prove) and whose configuration is as it was approved are touched, and
only if the lock says which server the new command starts. With --allow-execute each server is also started once by its
new command; one that does not answer is left as it is.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.probe_arguments import seconds
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("server", nargs="*", help="names in the lock; default: all")
    parser.add_argument("--allow-execute", action="store_true", help="start each server once by its new command")
    parser.add_argument("--timeout", type=seconds, default=60.0, metavar="SECONDS", help="for each start (60)")
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Rewrite and report."""
    from pinwarden.project.enforce import enforce
    from pinwarden.system.clock import now

    probe = None
    if args.allow_execute:
        from pinwarden.surface.probe.probe import ProbeOptions

        probe = ProbeOptions(allow_execute=True, timeout=args.timeout)
    return emit(enforce(project_of(args), args.server, now(), probe), args.format)
