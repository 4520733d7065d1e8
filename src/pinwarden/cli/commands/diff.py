"""Tell what changed between two surfaces, how much it matters, and whether it needs a decision.

Each side is a surface file, a plain listing, a URL or a server from a client config; a command after -- is the second
side. Exit code 1 if anything needs review or looks like an attack.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_report_arguments, emit_report
from pinwarden.cli.probe_arguments import add_probe_arguments, add_target_arguments
from pinwarden.cli.targets import command_target, probe_target, shown_command, shown_target, surface_of
from pinwarden.core.errors import PinwardenError
from pinwarden.project.surface_reports import compare_surfaces

TAKES_COMMAND = True


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("sides", nargs="*", metavar="SIDE", help="what was approved, then what is there now")
    parser.add_argument("--before", metavar="SIDE", help="the same as the first SIDE")
    parser.add_argument("--after", metavar="SIDE", help="the same as the second SIDE")
    add_report_arguments(parser)
    add_target_arguments(parser)
    add_probe_arguments(parser)


def run(args: Namespace) -> int:
    """Compare and report."""
    names = [*([args.before] if args.before else []), *args.sides, *([args.after] if args.after else [])]
    if len(names) + bool(args.command) != 2:
        raise PinwardenError("USAGE", "two sides are compared: two names, or one name and a command after --")
    before = surface_of(names[0], args)
    if args.command:
        shown = shown_command(args.command)
        after = probe_target(None, command_target(args.command, args), args)
    else:
        shown = shown_target(names[1])
        after = surface_of(names[1], args)
    return emit_report(compare_surfaces(before, after, f"{shown_target(names[0])} -> {shown}"), args, about=names)
