"""Options that many commands share: the project, who approves, and the gateway's database."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.project.project import Project

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.lock import Approver

_DEFAULT_LOCK = "mcp-lock.json"
_LOCK_HELP = f"lockfile (default: {_DEFAULT_LOCK} in the project folder)"


def add_project_arguments(parser: ArgumentParser) -> None:
    """``--project`` and ``--file``."""
    parser.add_argument("--project", default=".", metavar="DIR", help="project folder (default: current folder)")
    parser.add_argument("--file", metavar="LOCK", help=_LOCK_HELP)


def add_projects_arguments(parser: ArgumentParser) -> None:
    """``--project``, which may be repeated, and ``--file``."""
    parser.add_argument(
        "--project",
        action="append",
        metavar="DIR",
        help="project folder (default: current folder); repeat the option for several projects",
    )
    parser.add_argument("--file", metavar="LOCK", help=_LOCK_HELP)


def add_scope_argument(parser: ArgumentParser) -> None:
    """``--scope``, for commands that read client configurations."""
    parser.add_argument(
        "--scope",
        default="all",
        choices=["all", "project", "global"],
        help="which client configurations to read: those in the project, those of this user (global), or all "
        "(default: all)",
    )


def add_release_arguments(parser: ArgumentParser) -> None:
    """``--version`` and ``--source``."""
    parser.add_argument("--version", metavar="VERSION", help="version of the server (default: the latest)")
    parser.add_argument("--source", metavar="ID", help="id of the MCP registry to use, if several list the server")


def add_offline_argument(parser: ArgumentParser) -> None:
    """``--offline``."""
    parser.add_argument("--offline", action="store_true", help="use only local files and caches, no network")


def add_approval_arguments(parser: ArgumentParser) -> None:
    """``--by`` and ``--why``."""
    parser.add_argument(
        "--by", metavar="NAME", help="name to record as the approver (default: PINWARDEN_APPROVER, or your user name)"
    )
    parser.add_argument("--why", default="", metavar="TEXT", help="reason to record with the approval")


def add_warnings_argument(parser: ArgumentParser) -> None:
    """``--approve-warnings``."""
    parser.add_argument(
        "--approve-warnings",
        action="store_true",
        help="approve text even if pinwarden scan warns that it may try to manipulate the model",
    )


def add_database_argument(parser: ArgumentParser) -> None:
    """``--audit``: the gateway's database."""
    parser.add_argument(
        "--audit",
        metavar="DATABASE",
        help="database of the audit log and reviews: a file or postgresql://… "
        "(default: PINWARDEN_DATABASE, or a file in your data folder)",
    )


def project_from(args: Namespace) -> Project:
    """The project that the options name."""
    lock = Path(args.file) if args.file else None
    if args.project is None:
        return current_project(lock=lock)
    _refuse_missing_folder(args.project)
    return current_project(Path(args.project), lock)


def projects_from(args: Namespace) -> tuple[Project, ...]:
    """The projects that the options name, without repetitions. ``--file`` is only for a single project."""
    folders = args.project or ["."]
    for folder in folders:
        _refuse_missing_folder(folder)
    roots = {Path(folder).resolve(): Path(folder) for folder in folders}
    if args.file and len(roots) > 1:
        raise PinwardenError(
            "USAGE", "--file cannot be used with several projects", hint="Run the command once per project."
        )
    return tuple(current_project(root, Path(args.file) if args.file else None) for root in roots.values())


def current_project(root: Path = Path(), lock: Path | None = None) -> Project:
    """The project in a folder, with this user's client configurations."""
    from pinwarden.clients.files import detect_system

    lock = lock or root / _DEFAULT_LOCK
    return Project(root=root, lock=lock, home=Path.home(), system=detect_system(), variables=os.environ)


def approver_from(args: Namespace, how: str = "") -> Approver:
    """Who approves. ``how`` is recorded as the reason if ``--why`` gives none.

    Raises an error inside a running server or agent: only people approve.
    """
    from pinwarden.gateway.inside_server import refuse_inside_server
    from pinwarden.gateway.state import find_running_folder
    from pinwarden.project.lock import Approver

    refuse_inside_server(find_running_folder(os.environ, Path.home()), os.environ)
    by = args.by or os.environ.get("PINWARDEN_APPROVER") or _user_name()
    if not by:
        raise PinwardenError(
            "USAGE", "an approval needs a name", hint="Give your name with --by NAME or in PINWARDEN_APPROVER."
        )
    return Approver(by=by, why=args.why, default_reason=how, approves_warnings=getattr(args, "approve_warnings", False))


def open_database(args: Namespace, project: Project | None = None) -> GatewayState:
    """The gateway's database, created if it does not exist."""
    from pinwarden.gateway.state import open_state

    return open_state(project or current_project(), args.audit)


def read_database(args: Namespace, project: Project | None = None, *, must_exist: bool = False) -> GatewayState:
    """The gateway's database, for commands that only read it. Raises if ``must_exist`` and there is none."""
    from pinwarden.gateway.state import open_state_for_reading

    return open_state_for_reading(project or current_project(), args.audit, needed=must_exist)


def _refuse_missing_folder(folder: str) -> None:
    if not Path(folder).is_dir():
        raise PinwardenError("USAGE", f"--project: {folder[:200]!a} is not a folder")


def _user_name() -> str | None:
    """The name of this user. Containers and CI jobs often lack the variables for it."""
    name = os.environ.get("USER") or os.environ.get("USERNAME")
    if name or os.name != "posix":
        return name
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user id without a name on this machine
        return None
