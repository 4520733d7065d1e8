"""Ask a server for everything it tells the model: tools, prompts, resources, templates and instructions.

Name a URL, a server from a client config, or give a command after --. Starting a command needs --allow-execute.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.probe_arguments import add_probe_arguments, add_target_arguments
from pinwarden.cli.targets import (
    command_target,
    is_address,
    prepared_target,
    probe_target,
    shown_command,
    shown_target,
    target_of,
)
from pinwarden.core.errors import PinwardenError
from pinwarden.project.surface_reports import compare_clients, inspect_surface
from pinwarden.surface.surface import KINDS, Surface, to_bytes

_SHOWN = 60  # characters of a text in a list

TAKES_COMMAND = True


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("target", nargs="?", help="URL, or name from a client config; or a command after --")
    parser.add_argument("--output", "-o", metavar="FILE", help="write the surface document there")
    parser.add_argument("--compare-client", metavar="NAME", help="ask again under this name and report differences")
    add_format_argument(parser)
    add_target_arguments(parser)
    add_probe_arguments(parser)


def run(args: Namespace) -> int:
    """Probe and report."""
    if bool(args.target) == bool(args.command):
        raise PinwardenError("USAGE", "name one server, or give a command after --")
    target = command_target(args.command, args) if args.command else target_of(args.target, args)
    subject = shown_target(args.target) if args.target else shown_command(args.command)
    typed = not args.target or is_address(args.target)
    if args.compare_client:
        from pinwarden.surface.probe.probe import probe_as_two_clients
        from pinwarden.surface.probe.session import ClientIdentity

        other = ClientIdentity(name=args.compare_client)
        prepared = prepared_target(args.target, target, args, typed=typed)
        first, second = probe_as_two_clients(prepared.target, prepared.options, other)
        return emit(compare_clients(first, second, subject), args.format)
    surface = probe_target(args.target, target, args, typed=typed)
    if args.output:
        from pinwarden.system.files import write_atomically

        write_atomically(Path(args.output), to_bytes(surface))
    if args.format == "text":
        sys.stdout.write(_table(surface))
    return emit(inspect_surface(surface, subject), args.format)


def _table(surface: Surface) -> str:
    """What was seen, one line an item, safe to print."""
    from pinwarden.cli.layout import cut
    from pinwarden.core.visible import inert_in_log, show_invisible

    lines: list[str] = []
    instructions = (surface.server or {}).get("instructions")
    if isinstance(instructions, str):
        lines.append(f"instructions      {len(instructions)} characters: {_beginning(instructions)}")
    for kind in KINDS:
        for item in surface.list_of(kind):
            text = item.value.get("description") if isinstance(item.value, dict) else None
            first = _described(text) if isinstance(text, str) else ""
            digest = item.digest.hex[:12] if item.digest else "undigestable"
            lines.append(f"{kind.entity:16}  {digest:12}  {show_invisible(item.name)[:40]:28}  {first}".rstrip())
    return inert_in_log("".join(f"{cut(line)}\n" for line in lines))


def _described(text: str) -> str:
    """A description as far as a line goes; how long it is where that is not all of it."""
    shown = _beginning(text)
    return f"{len(text)} characters: {shown}" if shown.endswith("…") else shown


def _beginning(text: str) -> str:
    """The first words of a text, with a mark where it goes on: what matters may stand behind them."""
    from pinwarden.core.visible import show_invisible

    whole = text.strip()
    first = whole.split("\n")[0][:_SHOWN]
    return show_invisible(first) + ("…" if first != whole else "")
