"""``scan``: find text of servers that tries to manipulate the model."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_report_arguments, emit_report
from pinwarden.cli.server_arguments import (
    add_probe_arguments,
    add_target_arguments,
    build_command_target,
    is_file,
    is_url,
    load_file_targets,
    load_surface,
    mask_command,
    mask_target,
    parse_target,
    probe_options,
    probe_target,
)
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinwarden.core.report import Report
    from pinwarden.project.project import Project
    from pinwarden.project.scan_targets import ScanTarget
    from pinwarden.project.surface_reports import UnscannedServer
    from pinwarden.surface.surface import Surface
    from pinwarden.system.target import Target


def _configure_scan(parser: ArgumentParser) -> None:
    parser.add_argument(
        "target",
        nargs="*",
        help="surface files, client configuration files, URLs, names of configured servers, skills, or files such as "
        "AGENTS.md (default: every configured server, skill and instruction file)",
    )
    parser.add_argument(
        "--allow-connect", action="store_true", help="allow Pinwarden to contact configured remote servers"
    )
    add_report_arguments(parser)
    add_target_arguments(parser)
    add_probe_arguments(parser)


@command(_configure_scan, takes_command=True)
def scan(args: Namespace) -> int:
    """Search the texts of servers, skills and instruction files for instructions that try to manipulate the model.

    Without a target, scans every server that your clients have configured, for this project and for you, and every
    skill and instruction file (AGENTS.md, CLAUDE.md, rules, agents, commands) of the project. On a terminal,
    Pinwarden asks before it starts a server or contacts a configured one; otherwise --allow-execute lets it start
    servers, and --allow-connect lets it contact remote ones. Nothing is written, and the exit code is
    1 if there is a warning.

    The scan uses fixed rules on this machine; it sends nothing anywhere. It finds known patterns and cannot prove that
    a server is harmless. Servers given together are also checked against each other, for example for tools of the same
    name.

    Examples:
      pinwarden scan --allow-execute
      pinwarden scan before.json after.json
      pinwarden scan .mcp.json --allow-execute
      pinwarden scan .claude/skills AGENTS.md
      pinwarden scan --allow-execute -- python3 notes_server.py
    """
    if not args.target and not args.command:
        return emit_report(_scan_configured(args), args)
    skills = [name for name in dict.fromkeys(args.target) if _names_skill(name)]
    if skills:
        return emit_report(_scan_skills(skills, args), args, about=args.target)
    configs = [name for name in dict.fromkeys(args.target) if is_file(name) and load_file_targets(name)]
    if configs:
        return emit_report(_scan_config_files(configs, args), args, about=args.target)
    from pinwarden.project.surface_reports import scan_surfaces

    surfaces: dict[str, Surface] = {}
    for name in dict.fromkeys(args.target):
        masked = mask_target(name)
        # Two URLs that differ only in their masked secrets are two servers.
        key = f"{masked} ({len(surfaces) + 1})" if masked in surfaces else masked
        surfaces[key] = load_surface(name, args) if is_file(name) or is_url(name) else _probe_named(name, args)
    if args.command:
        target = build_command_target(args.command, args)
        surfaces[mask_command(args.command)] = probe_target(None, target, _confirm_start("this command", target, args))
    return emit_report(scan_surfaces(surfaces), args, about=args.target)


def _names_skill(name: str) -> bool:
    """Whether a target is a folder, or a text file that clients read as instructions."""
    from pathlib import Path

    if is_url(name):
        return False
    return Path(name).is_dir() or (is_file(name) and name.lower().endswith((".md", ".mdc", ".toml")))


def _scan_skills(names: Sequence[str], args: Namespace) -> Report:
    """Scan skills and instruction files that the user named. Starts nothing."""
    from pathlib import Path

    from pinwarden.project.skill_reports import add_skills_to_scan, read_skills_at
    from pinwarden.project.surface_reports import scan_surfaces

    others = [name for name in args.target if name not in names]
    if others or args.command:
        other = (others or ["a command"])[0][:80]
        raise PinwardenError("USAGE", f"skills cannot be scanned together with {other!a}", hint="Scan them alone.")
    found = [one for name in names for one in read_skills_at(Path(name), name)]
    return replace(add_skills_to_scan(scan_surfaces({}), found), subject=", ".join(names))


def _probe_named(name: str, args: Namespace) -> Surface:
    from pinwarden.cli.questions import quote_server

    target = parse_target(name, args)
    return probe_target(name, target, _confirm_start(quote_server(name), target, args))


def _confirm_start(what: str, target: Target, args: Namespace) -> Namespace:
    """Ask on a terminal whether to start a target that is a command. Returns the options, with the consent if given."""
    from pinwarden.cli.questions import ask, can_ask
    from pinwarden.system.target import StdioTarget

    if not isinstance(target, StdioTarget) or args.allow_execute or args.format != "text" or not can_ask():
        return args
    question = f"Start {what} ({mask_command(list(target.command))}) to read its tools?"
    if ask(question, ("yes", "no"), "yes") != "yes":
        raise PinwardenError("CONSENT_REQUIRED", f"Pinwarden did not start {what}, so it was not scanned")
    return Namespace(**{**vars(args), "allow_execute": True})


def _scan_configured(args: Namespace) -> Report:
    """Scan every configured server, or all servers of ``--config``."""
    from pinwarden.cli.project_arguments import find_current_project
    from pinwarden.project.next_step import choose_after_scan
    from pinwarden.project.scan_targets import find_scan_targets
    from pinwarden.project.scopes import list_used_scopes
    from pinwarden.project.skill_reports import add_skills_to_scan, find_skills_to_scan

    if args.config:
        return _scan_config_files([args.config], args)
    projects = list_used_scopes(find_current_project())
    targets, unscanned = find_scan_targets(projects)
    found = find_skills_to_scan(projects)
    if not targets and not unscanned:
        return add_skills_to_scan(_build_empty_report(), found)
    report = add_skills_to_scan(_scan(targets, unscanned, args, ""), found)
    warned = [server["server"] for server in report.facts["servers"] if server.get("warnings")]
    configured = {target.name: target.configured_name for target in targets}
    locked = all(_is_locked(project) for project in projects)
    return replace(report, next_command=choose_after_scan([configured[name] for name in warned], locked=locked))


def _scan_config_files(files: Sequence[str], args: Namespace) -> Report:
    """Scan all servers of client configurations that the user named."""
    import shlex

    from pinwarden.cli.project_arguments import find_current_project
    from pinwarden.project.scan_targets import build_named_targets

    others = [name for name in args.target if name not in files]
    if others or args.command:
        raise PinwardenError(
            "USAGE",
            f"a client configuration cannot be scanned together with {(others or ['a command'])[0][:80]!a}",
            hint=f"Scan it alone: pinwarden scan {shlex.quote(files[0])}",
        )
    named = [pair for file in files for pair in load_file_targets(file).items()]
    if not named:
        raise PinwardenError("TARGET_INVALID", f"{files[0]} has no servers", hint="Name a client configuration file.")
    words = "".join(f" {shlex.quote(file)}" for file in files)
    return _scan(build_named_targets(named, find_current_project()), [], args, words)


def _scan(targets: list[ScanTarget], unscanned: list[UnscannedServer], args: Namespace, words: str) -> Report:
    """Ask for consent, then scan what the user agreed to. ``words`` are the targets on the command line."""
    from pinwarden.cli.streams import Progress
    from pinwarden.project.scan_targets import scan_targets
    from pinwarden.project.surface_reports import UnscannedServer

    chosen = _choose_targets(targets, args, words)
    reasons = {False: "it was not started", True: "it was not contacted"}
    skipped = [
        UnscannedServer(name=target.name, reason=reasons[target.is_remote], failed=False)
        for target in targets
        if target not in chosen
    ]
    options = replace(probe_options(args), allow_execute=True)
    with Progress("reading the servers' tools") as progress:
        return scan_targets(chosen, options, [*unscanned, *skipped], progress.update_servers)


def _choose_targets(targets: list[ScanTarget], args: Namespace, words: str) -> list[ScanTarget]:
    """Return the targets that the user allows. Without a terminal, the options decide."""
    from pinwarden.cli.questions import can_ask

    local = [target for target in targets if not target.is_remote]
    remote = [target for target in targets if target.is_remote]
    asks = can_ask() and args.format == "text"
    if not asks and not (args.allow_execute and local) and not (args.allow_connect and remote) and targets:
        options = ["--allow-execute"] * bool(local) + ["--allow-connect"] * bool(remote)
        raise PinwardenError(
            "CONSENT_REQUIRED",
            f"scanning would start {len(local)} and contact {len(remote)} of {len(targets)} configured servers, and "
            "you have not allowed it",
            hint=f"pinwarden scan{words} {' '.join(options)}",
        )
    if not args.allow_execute:
        local = _ask_about(local, "Start these servers to read their tools, then stop them?") if asks else []
    if not args.allow_connect:
        remote = _ask_about(remote, "Contact these servers to read their tools?") if asks else []
    return [target for target in targets if target in local or target in remote]


def _ask_about(targets: list[ScanTarget], question: str) -> list[ScanTarget]:
    """Show what would be started or contacted, and let the user choose all, some or none."""
    if not targets:
        return []
    from pinwarden.cli.questions import ask, quote_server
    from pinwarden.cli.render.text import render_table

    rows = [(target.name, ", ".join(target.clients), target.description) for target in targets]
    sys.stderr.write(render_table(("server", "clients", "command or address"), rows))
    answer = ask(question, ("yes", "choose", "no"), "no")
    if answer != "choose":
        return targets if answer == "yes" else []
    questions = [(target, f"Scan {quote_server(target.name)} ({target.description})?") for target in targets]
    return [target for target, question in questions if ask(question, ("yes", "no"), "no") == "yes"]


def _build_empty_report() -> Report:
    from pinwarden.clients.table import list_client_titles
    from pinwarden.project.surface_reports import scan_surfaces

    return replace(
        scan_surfaces({}),
        summary="no MCP servers are configured for this project or user",
        notes=(f"searched the configuration files of {', '.join(list_client_titles())}",),
        table=None,
    )


def _is_locked(project: Project) -> bool:
    return project.lock.exists()
