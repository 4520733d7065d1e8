"""Start a server behind the gateway: nothing that was not approved reaches the client on its standard streams.

With the name of a locked server, exactly its verified bytes are started; what stands after -- are then its own
arguments, for clients that fill in values of theirs. Without a name, what stands after -- is any command. With --name
it is held to what the lock approves for that name. What no lock holds is trusted as it is when it is used for the first
time, unless --require-lock is given.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.durations import add_answer_argument
from pinwarden.cli.project_arguments import add_project_arguments, project_of
from pinwarden.cli.streams import say
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from pinwarden.gateway.running import Behind, Options
    from pinwarden.project.authority import Authority
    from pinwarden.project.project import Project

TAKES_COMMAND = True


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument(
        "server", nargs="?", help="the server's name in the lock; without it, a command follows after --"
    )
    parser.add_argument("--client", metavar="CLIENT", help="for which client, if theirs differ")
    parser.add_argument(
        "--show", action="store_true", help="say what would be started and which lock and policy apply; start nothing"
    )
    parser.add_argument(
        "--sandbox", action="store_true", help="start it in bubblewrap, without network, also if no policy says so"
    )
    parser.add_argument("--name", metavar="NAME", help="the name of a command: in the lock, or to remember it by")
    parser.add_argument(
        "--require-lock",
        action="store_true",
        help="refuse what has no approved surface in the lock; trust no first use",
    )
    parser.add_argument("--policy", metavar="FILE", help="the policy (pinwarden.toml of the project)")
    parser.add_argument("--audit", metavar="URL", help="the database of the audit log (a file of this user)")
    parser.add_argument(
        "--when-away",
        choices=["spool", "refuse"],
        default="spool",
        help="while the audit database is away: keep events in a file, or let nothing pass (spool)",
    )
    add_answer_argument(parser)
    parser.add_argument(
        "--without-gateway",
        action="store_true",
        help="become the server: nothing stands between it and the client, and nothing is judged",
    )
    parser.add_argument(
        "--unsafe-no-sandbox",
        action="store_true",
        help="start an installed bundle without the sandbox that holds it to what it was accepted with",
    )
    add_project_arguments(parser)
    parser.set_defaults(project=None)  # whether it was given matters


def run(args: Namespace) -> int:
    """Find out what to start, then start it behind the gateway."""
    authority = _authority(args, project_of(args))
    project = authority.project
    behind = _any_command(args, project) if args.server is None else _locked(args, project)
    if args.show:
        from pinwarden.project.authority import explained

        sys.stdout.write("\n".join(behind.command.words) + "\n")
        for line in explained(authority):
            say(line)
        return 0
    sys.stdout.flush()
    if args.without_gateway:
        _become(behind)
    from pinwarden.gateway.running import run_behind

    return run_behind(project, behind, say)


def _authority(args: Namespace, here: Project) -> Authority:
    """Whose lock and policy apply. A policy that is named counts as it is."""
    from pinwarden.project.authority import Start, authority_of

    start = Start(
        name=args.server or args.name,
        command=tuple(args.command),
        by_name=args.server is not None,
        names_project=args.project is not None or args.file is not None,
        typed=sys.stdin is not None and sys.stdin.isatty(),
    )
    authority = authority_of(here, start)
    if not args.policy:
        return authority
    return replace(authority, project=replace(authority.project, policy=Path(args.policy)))


def _any_command(args: Namespace, project: Project) -> Behind:
    from pinwarden.gateway.running import Behind, gateway_policy_of, name_of_command
    from pinwarden.gateway.server_process import command_of
    from pinwarden.project.run import Started
    from pinwarden.project.server_start import prepare_start

    if not args.command:
        raise PinwardenError("USAGE", "name a locked server, or write a command after --")
    policy = gateway_policy_of(project)
    locked = args.name is not None and _is_approved(project, args.name, args.client)
    if args.client and not locked:
        raise PinwardenError("USAGE", "--client is for locked servers")
    words = tuple(args.command)
    if args.require_lock and not locked:
        raise PinwardenError(
            "SERVER_NOT_LOCKED",
            f"{(args.name or words[0])[:120]!a} is not approved in {project.lock.resolve()}",
            hint="Give it the name that it has in the lock with --name (pinwarden list shows what is locked), or "
            "name the folder of another lock with --project.",
        )
    name = args.name or name_of_command(words, str(Path.cwd()))

    def typed() -> Started:
        program = _program(words[0])
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PINWARDEN_")}
        return Started(command=(program, *words[1:]), environment=environment)

    prepared = prepare_start(project, name, typed, sandbox=args.sandbox)
    return Behind(
        server=name,
        command=command_of(prepared, name),
        locked=locked,
        policy=policy,
        client=args.client,
        options=_options(args),
    )


def _program(word: str) -> str:
    from pinwarden.system.programs import find_program

    program = word if "/" in word else find_program(word, os.environ.get("PATH", ""))
    if program is None:
        raise PinwardenError("PROGRAM_UNKNOWN", f"there is no program {word[:200]!a}")
    return str(program)


def _is_approved(project: Project, name: str, client: str | None) -> bool:
    """Whether a lock says what a server of this name may tell. A lock that cannot be read is no first use."""
    if not project.lock.exists():
        return False
    from pinwarden.lock.record import has_surface
    from pinwarden.project.run import find_entry

    try:
        return has_surface(find_entry(project, name, client))
    except PinwardenError as err:
        if err.code != "SERVER_NOT_LOCKED":
            raise
        return False


def _locked(args: Namespace, project: Project) -> Behind:
    from pinwarden.gateway.running import Behind, gateway_policy_of, name_of_command
    from pinwarden.gateway.server_process import command_of
    from pinwarden.lock.record import has_surface
    from pinwarden.project.run import find_entry, is_bundle, prepare
    from pinwarden.project.server_start import prepare_start

    policy = gateway_policy_of(project)
    entry = find_entry(project, args.server, args.client)
    locked = has_surface(entry)
    if args.require_lock and not locked:
        raise PinwardenError(
            "SERVER_NOT_LOCKED",
            f"nothing that {args.server[:120]!a} tells the model is approved in the lock",
            hint=f"Look at it and approve it with pinwarden approve {args.server} --allow-execute.",
        )
    prepared = prepare_start(
        project,
        args.server,
        lambda: prepare(project, entry, given=args.command, say=say),
        sandbox=args.sandbox,
        confine=not is_bundle(entry) or _can_confine(args),
    )
    name = args.server if locked else name_of_command((args.server, entry.client), str(project.lock.resolve()))
    return Behind(
        server=name,
        command=command_of(prepared, name),
        locked=locked,
        policy=policy,
        client=args.client,
        options=_options(args),
    )


def _options(args: Namespace) -> Options:
    from pinwarden.gateway.running import Options

    return Options(database=args.audit, when_away=args.when_away, answer_seconds=args.answer_seconds)


def _become(behind: Behind) -> None:
    command = behind.command
    try:
        if command.cwd is not None:
            os.chdir(command.cwd)
        os.execve(command.words[0], list(command.words), dict(command.environment))  # noqa: S606  no shell
    except OSError as err:
        why = err.strerror or str(err)
        raise PinwardenError("PROGRAM_UNKNOWN", f"{behind.server[:120]!a} could not be started: {why}") from err


def _can_confine(args: Namespace) -> bool:
    """Whether a bundle can be held to its bounds. Without that it starts only if somebody says so."""
    import shutil

    if args.unsafe_no_sandbox:
        say(f"{args.server} is started without its sandbox: nothing holds it to what it was accepted with")
        return False
    if shutil.which("bwrap") is None:
        raise PinwardenError("SANDBOX_UNAVAILABLE", f"{args.server[:120]!a} was not started: there is no bubblewrap")
    return True
