"""The options that say which project, and who approves."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.project.project import Project

if TYPE_CHECKING:
    from pinwarden.project.lock import Approver

_DEFAULT_LOCK = "mcp-lock.json"


def add_project_arguments(parser: ArgumentParser) -> None:
    """``--project`` and ``--file``."""
    parser.add_argument("--project", default=".", metavar="DIR", help="the project's folder (.)")
    parser.add_argument("--file", metavar="LOCK", help=f"the lockfile ({_DEFAULT_LOCK} in that folder)")


def add_projects_arguments(parser: ArgumentParser) -> None:
    """``--project``, which may be repeated, and ``--file``."""
    parser.add_argument(
        "--project", action="append", metavar="DIR", help="the project's folder (.); repeat it for several projects"
    )
    parser.add_argument("--file", metavar="LOCK", help=f"the lockfile ({_DEFAULT_LOCK} in that folder)")


def add_scope_argument(parser: ArgumentParser) -> None:
    """``--scope``."""
    parser.add_argument(
        "--scope",
        default="all",
        choices=["all", "project", "global"],
        help="whose configurations: of this project, of this user, or all",
    )


def add_release_arguments(parser: ArgumentParser) -> None:
    """``--version`` and ``--source``: which release of a server, and from which registry of servers."""
    parser.add_argument("--version", metavar="VERSION", help="another version than the latest")
    parser.add_argument("--source", metavar="ID", help="the registry to ask")


def add_offline_argument(parser: ArgumentParser) -> None:
    """``--offline``."""
    parser.add_argument("--offline", action="store_true", help="only local sources and caches")


def add_approval_arguments(parser: ArgumentParser) -> None:
    """``--by`` and ``--why``."""
    parser.add_argument("--by", metavar="NAME", help="who approves (PINWARDEN_APPROVER, or the user of this machine)")
    parser.add_argument("--why", default="", metavar="TEXT", help="why it is approved (what happened: shown, named)")


def add_warnings_argument(parser: ArgumentParser) -> None:
    """``--approve-warnings``."""
    parser.add_argument(
        "--approve-warnings", action="store_true", help="approve also text that pinwarden scan warns of"
    )


def project_of(args: Namespace) -> Project:
    """The project that the options name."""
    if args.project is None:
        return this_project(lock=Path(args.file) if args.file else None)
    if not Path(args.project).is_dir():
        raise PinwardenError("USAGE", f"{args.project[:200]!a} is not a folder")
    return this_project(Path(args.project), Path(args.file) if args.file else None)


def projects_of(args: Namespace) -> tuple[Project, ...]:
    """The projects that the options name, each once. ``--file`` names the lock of a single project."""
    folders = args.project or ["."]
    missing = next((folder for folder in folders if not Path(folder).is_dir()), None)
    if missing is not None:
        raise PinwardenError("USAGE", f"{missing[:200]!a} is not a folder")
    roots = {Path(folder).resolve(): Path(folder) for folder in folders}
    if args.file and len(roots) > 1:
        raise PinwardenError("USAGE", "--file names one lockfile, and there are several projects")
    return tuple(this_project(root, Path(args.file) if args.file else None) for root in roots.values())


def this_project(root: Path = Path(), lock: Path | None = None) -> Project:
    """The project in a folder, with the configurations of this user."""
    from pinwarden.clients.files import this_system

    lock = lock or root / _DEFAULT_LOCK
    return Project(root=root, lock=lock, home=Path.home(), system=this_system(), variables=os.environ)


def approver_of(args: Namespace, how: str = "") -> Approver:
    """Who approves, as the options or the environment say. Nobody does from inside a server or an agent.

    ``how`` says what happened; it is recorded where no reason is given.
    """
    from pinwarden.gateway.inside_server import refuse_inside_server
    from pinwarden.gateway.state import running_folder
    from pinwarden.project.lock import Approver

    refuse_inside_server(running_folder(os.environ, Path.home()), os.environ)
    by = args.by or os.environ.get("PINWARDEN_APPROVER") or _user()
    if not by:
        raise PinwardenError(
            "USAGE", "an approval needs a name", hint="Say who approves with --by NAME or in PINWARDEN_APPROVER"
        )
    return Approver(by=by, why=args.why, how=how, approves_warnings=getattr(args, "approve_warnings", False))


def _user() -> str | None:
    """The user of this machine. Containers and jobs often run without the variables that say it."""
    named = os.environ.get("USER") or os.environ.get("USERNAME")
    if named or os.name != "posix":
        return named
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a number that this machine has no name for
        return None
