"""Look for text that reads like an attack on the model, in one or more surfaces. Advisory, local, deterministic.

Name surface files, URLs or servers from a client config, or give one command after --. Servers named together are
also checked against each other.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_report_arguments, emit_report
from pinwarden.cli.probe_arguments import add_probe_arguments, add_target_arguments
from pinwarden.cli.targets import command_target, probe_target, shown_command, shown_target, surface_of
from pinwarden.core.errors import PinwardenError
from pinwarden.project.surface_reports import scan_surfaces
from pinwarden.surface.surface import Surface

TAKES_COMMAND = True


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("target", nargs="*", help="surface file, URL, or name from a client config")
    parser.add_argument("--fail-on-warning", action="store_true", help="exit with 1 if there is a warning")
    add_report_arguments(parser)
    add_target_arguments(parser)
    add_probe_arguments(parser)


def run(args: Namespace) -> int:
    """Scan and report."""
    surfaces: dict[str, Surface] = {}
    for name in dict.fromkeys(args.target):
        shown = shown_target(name)
        # Two addresses that differ only in what is not shown are two servers.
        surfaces[f"{shown} ({len(surfaces) + 1})" if shown in surfaces else shown] = surface_of(name, args)
    if args.command:
        surfaces[shown_command(args.command)] = probe_target(None, command_target(args.command, args), args)
    if not surfaces:
        raise PinwardenError("USAGE", "name a surface to scan, or give a command after --")
    return emit_report(scan_surfaces(surfaces, fail_on_warning=args.fail_on_warning), args, about=args.target)
