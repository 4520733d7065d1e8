"""``inspect`` and ``diff``: show and compare the surfaces of servers."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, add_report_arguments, emit, emit_report
from pinwarden.cli.server_arguments import (
    add_probe_arguments,
    add_target_arguments,
    build_command_target,
    is_url,
    load_surface,
    mask_command,
    mask_target,
    parse_target,
    prepare_target,
    probe_target,
)
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.surface.surface import Surface

_MAX_EXCERPT = 60  # characters of a description in a list


def _configure_inspect(parser: ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", help="URL, or a server's name from a client configuration")
    parser.add_argument("--output", "-o", metavar="FILE", help="also write the surface to this file, for diff and scan")
    parser.add_argument(
        "--compare-client",
        metavar="NAME",
        help="connect a second time with this client name, and report differences between the two surfaces",
    )
    add_format_argument(parser)
    add_target_arguments(parser)
    add_probe_arguments(parser)


@command(_configure_inspect, takes_command=True)
def inspect(args: Namespace) -> int:
    """Connect to a server and show its surface: tools, prompts, resources, templates and instructions.

    Give a URL, the name of a server in a client configuration, or a command after --. Pinwarden starts a command only
    with --allow-execute.

    Examples:
      pinwarden inspect notes --allow-execute
      pinwarden inspect --allow-execute --output now.json -- python3 notes_server.py
    """
    from pinwarden.project.surface_reports import compare_surfaces_of_clients, inspect_surface
    from pinwarden.surface.surface import encode_surface

    if bool(args.target) == bool(args.command):
        raise PinwardenError("USAGE", "give one server, or a command after --")
    target = build_command_target(args.command, args) if args.command else parse_target(args.target, args)
    subject = mask_target(args.target) if args.target else mask_command(args.command)
    typed = not args.target or is_url(args.target)
    if args.compare_client:
        from pinwarden.surface.probe.probe import probe_as_two_clients
        from pinwarden.surface.probe.session import ClientIdentity

        other = ClientIdentity(name=args.compare_client)
        prepared = prepare_target(args.target, target, args, typed=typed)
        first, second = probe_as_two_clients(prepared.target, prepared.options, other)
        return emit(compare_surfaces_of_clients(first, second, subject), args.format)
    surface = probe_target(args.target, target, args, typed=typed)
    if args.output:
        from pinwarden.system.files import write_atomically

        write_atomically(Path(args.output), encode_surface(surface))
    if args.format == "text":
        sys.stdout.write(_format_items(surface))
    return emit(inspect_surface(surface, subject), args.format)


def _configure_diff(parser: ArgumentParser) -> None:
    parser.add_argument(
        "sides",
        nargs="*",
        metavar="SIDE",
        help="the approved state, then the current one: surface files, URLs, or servers from a client configuration",
    )
    parser.add_argument("--before", metavar="SIDE", help="the approved state, instead of the first SIDE")
    parser.add_argument("--after", metavar="SIDE", help="the current state, instead of the second SIDE")
    add_report_arguments(parser)
    add_target_arguments(parser)
    add_probe_arguments(parser)


@command(_configure_diff, takes_command=True)
def diff(args: Namespace) -> int:
    """Compare two surfaces: what changed, how much each change matters, and whether it needs a decision.

    Each side is a surface file (pinwarden inspect --output), a tools/list result, a URL, or a server from a client
    configuration. A command after -- is the second side. The exit code is 1 if a change needs review or looks like an
    attack.

    Examples:
      pinwarden diff before.json after.json
      pinwarden diff before.json --allow-execute -- python3 notes_server.py
    """
    from pinwarden.project.surface_reports import compare_surfaces

    names = [*([args.before] if args.before else []), *args.sides, *([args.after] if args.after else [])]
    if len(names) + bool(args.command) != 2:
        raise PinwardenError("USAGE", "give two sides to compare, or one side and a command after --")
    before = load_surface(names[0], args)
    if args.command:
        masked = mask_command(args.command)
        after = probe_target(None, build_command_target(args.command, args), args)
    else:
        masked = mask_target(names[1])
        after = load_surface(names[1], args)
    report = compare_surfaces(
        before, after, f"{mask_target(names[0])} -> {masked}", neighbours=_read_other_servers(before, after)
    )
    return emit_report(report, args, about=names)


def _read_other_servers(before: Surface, after: Surface) -> list[tuple[str, Surface]]:
    """Read the other servers that the lock of this folder's project approves; none if there is no valid lock."""
    from pinwarden.cli.project_arguments import find_current_project
    from pinwarden.project.approval_candidate import read_neighbours

    lock = find_current_project().lock
    try:
        neighbours = read_neighbours(lock, "") if lock.is_file() else []
    except PinwardenError:
        return []
    compared = (before.digest, after.digest)
    return [(name, surface) for name, surface in neighbours if surface.digest not in compared]


def _format_items(surface: Surface) -> str:
    """Return one line for each item, safe to print."""
    from pinwarden.cli.render.text import truncate
    from pinwarden.core.text import neutralize_log_commands, show_invisible
    from pinwarden.surface.surface import ITEM_KINDS

    lines: list[str] = []
    instructions = (surface.server or {}).get("instructions")
    if isinstance(instructions, str):
        lines.append(f"instructions      {len(instructions)} characters: {_cut_excerpt(instructions)}")
    for kind in ITEM_KINDS:
        for item in surface.items_of_kind(kind):
            text = item.value.get("description") if isinstance(item.value, dict) else None
            description = _describe_text(text) if isinstance(text, str) else ""
            digest = item.digest.hex[:12] if item.digest else "undigestable"
            lines.append(f"{kind.entity:16}  {digest:12}  {show_invisible(item.name)[:40]:28}  {description}".rstrip())
    return neutralize_log_commands("".join(f"{truncate(line)}\n" for line in lines))


def _describe_text(text: str) -> str:
    """Return the beginning of a description, with its length if it is cut."""
    excerpt = _cut_excerpt(text)
    return f"{len(text)} characters: {excerpt}" if excerpt.endswith("…") else excerpt


def _cut_excerpt(text: str) -> str:
    """Return the beginning of a text; an ellipsis shows that there is more."""
    from pinwarden.core.text import show_invisible

    stripped = text.strip()
    first = stripped.split("\n")[0][:_MAX_EXCERPT]
    return show_invisible(first) + ("…" if first != stripped else "")
