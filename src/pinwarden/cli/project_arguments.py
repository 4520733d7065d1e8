"""Options that many commands share: the project, who approves, and the gateway's database."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.project.project import LOCK_NAME, SCOPES, Project, find_project_root, project_in_scope
from pinwarden.project.scopes import list_used_scopes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinwarden.gateway.state import GatewayState
    from pinwarden.lock.entry import Entry, ToolPinScope
    from pinwarden.project.lock import Approver

_LOCK_HELP = f"lockfile (default: {LOCK_NAME} in the project folder)"
_PROJECT_HELP = "project folder (default: the nearest parent folder with a lock or a repository)"


def add_project_arguments(parser: ArgumentParser) -> None:
    """Add ``--project``, ``--file`` and ``--scope``."""
    parser.add_argument("--project", metavar="DIR", help=_PROJECT_HELP)
    parser.add_argument("--file", metavar="LOCK", help=_LOCK_HELP)
    add_scope_argument(parser)


def add_repeatable_project_arguments(parser: ArgumentParser) -> None:
    """Add ``--project``, which may be repeated, and ``--file``."""
    parser.add_argument(
        "--project",
        action="append",
        metavar="DIR",
        help=f"{_PROJECT_HELP}; repeat the option for several projects",
    )
    parser.add_argument("--file", metavar="LOCK", help=_LOCK_HELP)


def add_scope_argument(parser: ArgumentParser) -> None:
    """Add ``--scope``: whose servers the command is about."""
    parser.add_argument(
        "--scope",
        choices=SCOPES,
        help="whose servers: those in the project's files (project), your own in every project (user), or your own in "
        "this project (local)",
    )


def add_release_arguments(parser: ArgumentParser) -> None:
    """Add ``--version`` and ``--source``."""
    parser.add_argument("--version", metavar="VERSION", help="version of the server (default: the latest)")
    parser.add_argument("--source", metavar="ID", help="id of the MCP registry to use, if several list the server")


def add_offline_argument(parser: ArgumentParser) -> None:
    """Add ``--offline``."""
    parser.add_argument("--offline", action="store_true", help="use only local files and caches, no network")


def add_approval_arguments(parser: ArgumentParser) -> None:
    """Add ``--by`` and ``--why``."""
    parser.add_argument(
        "--by", metavar="NAME", help="name to record as the approver (default: PINWARDEN_APPROVER, or your user name)"
    )
    parser.add_argument("--why", default="", metavar="TEXT", help="reason to record with the approval")


def add_warnings_argument(parser: ArgumentParser) -> None:
    """Add ``--approve-warnings``."""
    parser.add_argument(
        "--approve-warnings",
        action="store_true",
        help="approve text even if pinwarden scan warns that it may try to manipulate the model",
    )


def add_undo_argument(parser: ArgumentParser, what: str) -> None:
    """Add ``--undo``."""
    parser.add_argument("--undo", action="store_true", help=what)


def add_undo_arguments(parser: ArgumentParser, command: str) -> None:
    """Add ``--undo``, and ``--yes`` for it, to a command that does not ask before it edits."""
    add_undo_argument(parser, f"restore the clients' files and the lock as they were before {command}")
    parser.add_argument("--yes", action="store_true", help="with --undo: restore without asking")


def roll_back_interrupted_edits(projects: Sequence[Project]) -> None:
    """Roll back earlier edits of these scopes that were interrupted, and print a notice about it."""
    from pinwarden.project.edit_backups import has_backups

    if has_backups(projects[0]):
        from pinwarden.cli.streams import print_notice
        from pinwarden.project.undo_edits import recover_interrupted

        for note in recover_interrupted(projects):
            print_notice(note)


def add_database_argument(parser: ArgumentParser) -> None:
    """Add ``--audit``: the gateway's database."""
    parser.add_argument(
        "--audit",
        "--database",
        dest="audit",
        metavar="DATABASE",
        help="database of the audit log and reviews: a file or postgresql://… "
        "(default: PINWARDEN_DATABASE, or a file in your data folder)",
    )


def project_from(args: Namespace) -> Project:
    """Return the project and scope that the options name.

    Without options, the scope is the first whose lock has all named servers; else the first with a lock or a client
    configuration.
    """
    here = _find_named_project(args)
    if args.scope is not None:
        return project_in_scope(here, args.scope)
    if args.project is not None or args.file is not None:
        return here
    named = getattr(args, "server", None)
    names = {named} if isinstance(named, str) else set(named or ())
    if names:
        for scope in SCOPES:
            scoped = project_in_scope(here, scope)
            if names <= {entry.name for entry in _read_lock_entries(scoped)}:
                return scoped
    return here if here.lock.exists() else list_used_scopes(here)[0]


def find_project_to_extend(args: Namespace) -> Project:
    """Return the project, in the scope that a new server is added to: ``--scope``, or else ``project``."""
    return project_in_scope(_find_named_project(args), args.scope or "project")


def get_client_scope(args: Namespace) -> ToolPinScope:
    """Return the scope of a new server in ToolPin's words: ``global`` for ``--scope user``, else ``project``."""
    if args.scope == "local":
        raise PinwardenError(
            "USAGE", "a new server cannot have the scope local", hint="Add it in its client, then run: pinwarden init"
        )
    from pinwarden.lock.entry import to_toolpin_scope

    return to_toolpin_scope(args.scope)


def to_path(text: str | None) -> Path | None:
    """Return the path that an option names; None if the option was not given."""
    return None if text is None else Path(text)


def projects_in_scope(args: Namespace) -> tuple[Project, ...]:
    """Return the project in each scope that the command is about: by default, all with a lock or client files."""
    here = _find_named_project(args)
    if args.scope is not None:
        return (project_in_scope(here, args.scope),)
    if args.project is not None or args.file is not None:
        return (here,)
    return list_used_scopes(here)


def names_by_scope(args: Namespace, names: Sequence[str] = ()) -> list[tuple[Project, tuple[str, ...]]]:
    """Return the projects of `projects_in_scope`, each with those of ``names`` that it has.

    Without ``names``, each project has an empty tuple, which means all servers. Raises SERVER_NOT_LOCKED for a name
    that is neither locked nor configured in any scope.
    """
    projects = projects_in_scope(args)
    if not names:
        return [(project, ()) for project in projects]
    chosen: list[tuple[Project, tuple[str, ...]]] = []
    configured: set[str] = set()
    for project in projects:
        locked = {entry.name for entry in _read_lock_entries(project)}
        known = locked | {server.name for server in project.find_servers()}
        configured |= known
        if not known.issuperset(names):
            known |= _list_bundles_of_skills(project)
        if present := tuple(name for name in names if name in known):
            chosen.append((project, present))
    for name in names:
        if not any(name in present for _, present in chosen):
            from pinwarden.project.locked_servers import not_locked_error

            hint = "No client's file has it either; pinwarden status shows the servers."
            raise not_locked_error((), name, hint, configured=configured)
    return chosen


def find_projects(args: Namespace) -> tuple[Project, ...]:
    """Return the projects that the options name, without repetitions. ``--file`` is only for a single project."""
    if not args.project:
        return (_find_named_project(args),)
    for folder in args.project:
        _refuse_missing_folder(folder)
    roots = {Path(folder).resolve(): Path(folder) for folder in args.project}
    if args.file and len(roots) > 1:
        raise PinwardenError(
            "USAGE", "--file cannot be used with several projects", hint="Run the command once per project."
        )
    return tuple(find_current_project(root, Path(args.file) if args.file else None) for root in roots.values())


def find_current_project(root: Path | None = None, lock: Path | None = None) -> Project:
    """Return the project in a folder, or the one around the current folder, with this user's client configurations."""
    from pinwarden.clients.files import detect_system

    if root is None:
        found = find_project_root(Path(), Path.home())
        root = Path() if found == Path.cwd() else found
    lock = lock or root / LOCK_NAME
    return Project(root=root, lock=lock, home=Path.home(), system=detect_system(), variables=os.environ)


def _find_named_project(args: Namespace) -> Project:
    lock = Path(args.file) if args.file else None
    if not args.project:
        # A lockfile that is named alone belongs to the current folder.
        return find_current_project(None if lock is None else Path(), lock)
    _refuse_missing_folder(args.project)
    return find_current_project(Path(args.project), lock)


def _list_bundles_of_skills(project: Project) -> frozenset[str]:
    from pinwarden.project.skills import find_bundle_names

    return find_bundle_names(project)


def _read_lock_entries(project: Project) -> Sequence[Entry]:
    from pinwarden.lock import lock_store

    lock = lock_store.read(project.lock)
    return () if lock is None else lock.entries


def approver_from(args: Namespace, how: str = "") -> Approver:
    """Return who approves. ``how`` is recorded as the reason if ``--why`` gives none.

    Raises an error inside a running server or agent: only people approve.
    """
    from pinwarden.gateway.inside_server import refuse_inside_server
    from pinwarden.project.lock import Approver
    from pinwarden.system.state_folder import find_state_folder

    refuse_inside_server(find_state_folder(os.environ, Path.home()), os.environ)
    by = args.by or find_person()
    if not by:
        raise PinwardenError(
            "USAGE", "an approval needs a name", hint="Give your name with --by NAME or in PINWARDEN_APPROVER."
        )
    return Approver(by=by, why=args.why, default_reason=how, approves_warnings=getattr(args, "approve_warnings", False))


def find_person() -> str:
    """Return the name of the person at this machine: ``PINWARDEN_APPROVER``, or the user name; empty without one."""
    return os.environ.get("PINWARDEN_APPROVER") or _find_user_name() or ""


def open_database(args: Namespace, project: Project | None = None) -> GatewayState:
    """Return the gateway's database, created if it does not exist."""
    from pinwarden.gateway.state import open_state

    return open_state(project or find_current_project(), args.audit)


def read_database(args: Namespace, project: Project | None = None, *, must_exist: bool = False) -> GatewayState:
    """Return the gateway's database without creating it. Raises if ``must_exist`` and there is none."""
    from pinwarden.gateway.state import open_state_for_reading

    return open_state_for_reading(project or find_current_project(), args.audit, needed=must_exist)


def _refuse_missing_folder(folder: str) -> None:
    if not Path(folder).is_dir():
        raise PinwardenError("USAGE", f"--project: {folder[:200]!a} is not a folder")


def _find_user_name() -> str | None:
    """Return the name of this user. Containers and CI jobs often lack the variables for it."""
    name = os.environ.get("USER") or os.environ.get("USERNAME")
    if name or os.name != "posix":
        return name
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user id without a name on this machine
        return None


def list_client_ids() -> str:
    """Return the ids that options such as ``--client`` accept, for their help."""
    from pinwarden.clients.table import CLIENTS

    return ", ".join(CLIENTS)
