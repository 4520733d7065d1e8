"""Start a locked server from verified bytes, exactly as it was approved; its standard streams are the client's.

What stands after -- are the server's own arguments, for clients that fill in values of theirs; without it, the approved
ones are used.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

from pinwarden.cli.project_arguments import add_project_arguments, project_of
from pinwarden.core.errors import PinwardenError

TAKES_COMMAND = True


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("server", help="the server's name in the lock")
    parser.add_argument("--client", metavar="CLIENT", help="for which client, if it is locked for several")
    parser.add_argument("--show", action="store_true", help="say what would be started, and do not start it")
    parser.add_argument(
        "--sandbox", action="store_true", help="start it in bubblewrap, without network, also if no policy says so"
    )
    parser.add_argument(
        "--unsafe-no-sandbox",
        action="store_true",
        help="start an installed bundle without the sandbox that holds it to what it was accepted with",
    )
    add_project_arguments(parser)


def run(args: Namespace) -> int:
    """Prepare, then become the server: nothing of ours stays between it and the client."""
    from pinwarden.flows.artifacts.running import prepare, sandbox_for

    project = project_of(args)
    started = prepare(project, args.server, client=args.client, given=args.command, say=_say)
    command = list(started.command)
    sandbox = sandbox_for(project, args.server, started, wanted=args.sandbox)
    if started.confined is not None and not _can_confine(args):
        sandbox = None
    if sandbox is not None:
        from pinwarden.adapters.sandbox import sandboxed

        command = sandboxed(tuple(command), dict(started.environment), started.cwd, sandbox)
    if args.show:
        sys.stdout.write("\n".join(command) + "\n")
        return 0
    sys.stdout.flush()
    try:
        if started.cwd is not None:
            os.chdir(started.cwd)
        os.execve(command[0], command, dict(started.environment))  # noqa: S606  verified parts, no shell
    except OSError as err:
        why = err.strerror or str(err)
        raise PinwardenError("PROGRAM_UNKNOWN", f"{args.server[:120]!a} could not be started: {why}") from err


def _can_confine(args: Namespace) -> bool:
    """Whether a bundle can be held to its bounds. Without that it starts only if somebody says so."""
    import shutil

    if args.unsafe_no_sandbox:
        _say(f"{args.server} is started without its sandbox: nothing holds it to what it was accepted with")
        return False
    if shutil.which("bwrap") is None:
        raise PinwardenError("SANDBOX_UNAVAILABLE", f"{args.server[:120]!a} was not started: there is no bubblewrap")
    return True


def _say(text: str) -> None:
    sys.stderr.write(f"pinwarden: {text}\n")
