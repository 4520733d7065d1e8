"""``run``: start a server behind the gateway."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.project_arguments import add_project_arguments, find_current_project
from pinwarden.cli.server_arguments import add_log_arguments, add_response_argument
from pinwarden.cli.streams import print_notice
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from pinwarden.gateway.gated_server import GatedServer, RunOptions
    from pinwarden.project.authority import Authority
    from pinwarden.project.project import Project


def _configure_run(parser: ArgumentParser) -> None:
    parser.add_argument("server", nargs="?", help="the server's name in the lock; without it, give a command after --")
    parser.add_argument(
        "--client",
        metavar="CLIENT",
        help="use the lock entry for this client, if the entries differ; pinwarden doctor --help lists the clients",
    )
    parser.add_argument(
        "--show",
        action="store_true",
        help="print the command that would be started, and which lock and policy apply; start nothing",
    )
    parser.add_argument(
        "--sandbox",
        action="store_true",
        help="start the server in a bubblewrap sandbox, offline, even if no policy requires it",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="name for the command after --: its name in the lock, or a new name to record it under",
    )
    parser.add_argument(
        "--require-lock",
        action="store_true",
        help="refuse a server whose surface is not approved in the lock, instead of trusting it on first use",
    )
    parser.add_argument("--policy", metavar="FILE", help="policy file (default: pinwarden.toml in the project)")
    parser.add_argument("--audit", metavar="URL", help="audit log database (default: a file in your data folder)")
    parser.add_argument(
        "--when-away",
        choices=["spool", "refuse"],
        default="spool",
        help="if the audit database is unavailable: keep events in a file, or block every message (default: spool)",
    )
    add_response_argument(parser)
    add_log_arguments(parser)
    parser.add_argument(
        "--without-gateway",
        action="store_true",
        help="replace this process with the server: no gateway, and nothing is checked or blocked",
    )
    parser.add_argument(
        "--unsafe-no-sandbox",
        action="store_true",
        help="start an installed bundle without its sandbox, so that its permissions are not enforced",
    )
    add_project_arguments(parser)


@command(_configure_run, takes_command=True, prints_report=False)
def run(args: Namespace) -> int:
    """Start a server behind the gateway on stdin and stdout: the client sees only what you approved.

    With the name of a locked server, Pinwarden starts exactly the verified bytes, or the approved command of a local
    program, which has no bytes to verify; words after -- are then further arguments for the server. Without a name, the
    words after -- are the command to start; --name links it to an approved server in the lock. A server without a lock
    entry is trusted on first use, unless you give --require-lock.

    Examples:
      pinwarden run notes --show
      pinwarden run --name notes --show -- python3 notes_server.py
    """
    lock = Path(args.file) if args.file else None
    # A client starts a server in the folder that its entry names, which may be inside the project.
    searches_upward = args.server is not None and args.project is None and lock is None
    here = find_current_project(None if searches_upward else Path(args.project or "."), lock)
    authority = _find_authority(args, here)
    project = authority.project
    server = _prepare_command(args, project) if args.server is None else _prepare_locked(args, project)
    if args.show:
        from pinwarden.project.authority import describe_authority

        sys.stdout.write("\n".join(server.command.words) + "\n")
        for line in describe_authority(authority):
            print_notice(line)
        return 0
    sys.stdout.flush()
    if args.without_gateway:
        _replace_process(server)
    from pinwarden.gateway.gated_server import run_gated_server

    return run_gated_server(project, server, print_notice)


def _find_authority(args: Namespace, here: Project) -> Authority:
    """Return the lock and policy that apply. ``--policy`` takes precedence."""
    from pinwarden.project.authority import RunRequest, resolve_authority

    request = RunRequest(
        name=args.server or args.name,
        command=tuple(args.command),
        by_name=args.server is not None,
        names_project=args.project is not None or args.file is not None,
        scope=args.scope,
        typed=sys.stdin is not None and sys.stdin.isatty(),
    )
    authority = resolve_authority(here, request)
    if not args.policy:
        return authority
    return replace(authority, project=replace(authority.project, policy=Path(args.policy)))


def _prepare_command(args: Namespace, project: Project) -> GatedServer:
    from pinwarden.gateway.gated_server import GatedServer, name_command
    from pinwarden.gateway.inside_server import mark_as_server
    from pinwarden.project.project import load_policies
    from pinwarden.project.run import ServerLaunch, inherit_environment
    from pinwarden.project.server_start import prepare_start

    if not args.command:
        raise PinwardenError("USAGE", "give the name of a locked server, or a command after --")
    policy = load_policies(project).gateway
    locked = args.name is not None and _is_approved(project, args.name, args.client)
    if args.client and not locked:
        raise PinwardenError("USAGE", "--client needs a server that is approved in the lock")
    words = tuple(args.command)
    if args.require_lock and not locked:
        raise PinwardenError(
            "SERVER_NOT_LOCKED",
            f"{(args.name or words[0])[:120]!a} is not approved in {project.lock.resolve()}",
            hint="Give its name in the lock with --name (pinwarden status shows the names), or another project with "
            "--project.",
        )
    name = args.name or name_command(words, str(Path.cwd()))

    def find_launch() -> ServerLaunch:
        program = _find_program(words[0])
        return ServerLaunch(command=(program, *words[1:]), environment=inherit_environment(project))

    prepared = prepare_start(project, name, find_launch, sandbox=args.sandbox)
    return GatedServer(
        server=name,
        command=mark_as_server(prepared, name),
        has_approved_surface=locked,
        policy=policy,
        client=args.client,
        options=_build_options(args),
    )


def _find_program(word: str) -> str:
    from pinwarden.system.files import find_program

    program = word if "/" in word else find_program(word, os.environ.get("PATH", ""))
    if program is None:
        raise PinwardenError("PROGRAM_UNKNOWN", f"there is no program {word[:200]!a}")
    return str(program)


def _is_approved(project: Project, name: str, client: str | None) -> bool:
    """Whether the lock approves a surface for this name. An unreadable lock raises: it must not count as first use."""
    if not project.lock.exists():
        return False
    from pinwarden.lock.extension import has_surface
    from pinwarden.project.run import find_entry

    try:
        return has_surface(find_entry(project, name, client))
    except PinwardenError as err:
        if err.code != "SERVER_NOT_LOCKED":
            raise
        return False


def _prepare_locked(args: Namespace, project: Project) -> GatedServer:
    from pinwarden.gateway.gated_server import GatedServer, name_command
    from pinwarden.gateway.inside_server import mark_as_server
    from pinwarden.lock.extension import has_surface
    from pinwarden.project.project import load_policies
    from pinwarden.project.run import find_entry, is_bundle, prepare_locked_launch
    from pinwarden.project.server_start import prepare_start

    policy = load_policies(project).gateway
    entry = find_entry(project, args.server, args.client)
    locked = has_surface(entry)
    if args.require_lock and not locked:
        raise PinwardenError(
            "SERVER_NOT_LOCKED",
            f"the lock has no approved surface for {args.server[:120]!a}",
            hint=f"Review and approve it: pinwarden approve {args.server} --allow-execute",
        )
    prepared = prepare_start(
        project,
        args.server,
        lambda: prepare_locked_launch(project, entry, arguments_given=args.command, notify=print_notice),
        sandbox=args.sandbox,
        confine=not is_bundle(entry) or _can_sandbox(args),
    )
    name = args.server if locked else name_command((args.server, entry.client), str(project.lock.resolve()))
    return GatedServer(
        server=name,
        command=mark_as_server(prepared, name),
        has_approved_surface=locked,
        policy=policy,
        client=args.client,
        options=_build_options(args),
    )


def _build_options(args: Namespace) -> RunOptions:
    from pinwarden.gateway.gated_server import RunOptions

    return RunOptions(
        database=args.audit,
        when_unavailable=args.when_away,
        response_seconds=args.response_seconds,
        log_level=args.log_level,
        log_format=args.log_format,
    )


def _replace_process(server: GatedServer) -> None:
    command = server.command
    try:
        if command.cwd is not None:
            os.chdir(command.cwd)
        os.execve(command.words[0], list(command.words), dict(command.environment))  # noqa: S606  no shell
    except OSError as err:
        problem = err.strerror or str(err)
        raise PinwardenError("PROGRAM_UNKNOWN", f"{server.server[:120]!a} could not be started: {problem}") from err


def _can_sandbox(args: Namespace) -> bool:
    """Return False with --unsafe-no-sandbox, else True. Raises SANDBOX_UNAVAILABLE if bubblewrap is missing."""
    from pinwarden.system.sandbox import find_bubblewrap

    if args.unsafe_no_sandbox:
        print_notice(f"{args.server} starts without its sandbox: its permissions are not enforced")
        return False
    if find_bubblewrap() is None:
        raise PinwardenError("SANDBOX_UNAVAILABLE", f"{args.server[:120]!a} was not started: bubblewrap is missing")
    return True
