"""Decide which lock and policy apply to a server that ``pinwarden run`` starts.

Clients start the user's servers in whatever folder the user works in. If the lock and policy came from that folder, a
hostile repository could approve or allow what the user configured. So:

1. ``--scope``, ``--project`` or ``--file`` decides.
2. A server in a user-level configuration belongs to the user: the lock and policy in the user's own folder apply, and
   the policy of the current folder can only make them stricter.
3. A server in a configuration of the current folder belongs to that project.
4. For any other command the current folder does not count, with two exceptions: ``run NAME`` needs a lock, and a
   command typed at a terminal is meant for the current folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pinwarden.clients.command_line import parse_run_command
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.project.project import project_in_scope

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfiguredServer
    from pinwarden.project.project import LockScope, Project


class RunRequest(Record):
    """The server or command that ``pinwarden run`` was called with."""

    name: str | None
    command: tuple[str, ...]
    by_name: bool
    """Whether the server was named and no command was given."""
    names_project: bool
    scope: LockScope | None
    """The scope that the command names."""
    typed: bool
    """Whether a person typed the command at a terminal."""


class Authority(Record):
    """The project whose lock and policy apply, and who owns it."""

    project: Project
    owner: Literal["project", "user", "unknown"]


def resolve_authority(here: Project, start: RunRequest) -> Authority:
    """Decide whose lock and policy apply.

    Raises PROJECT_NOT_NAMED if the current folder's lock has a server of that name, but nothing says that the command
    belongs to this project.
    """
    if start.scope in ("user", "local"):
        return Authority(project=_build_user_project(here, start.scope), owner="user")
    if start.names_project or start.scope == "project":
        return Authority(project=here, owner="project")
    owner = _find_owner(here, start)
    if owner == "project":
        return Authority(project=here, owner=owner)
    if owner == "unknown" and start.name is not None and _has_locked_server(here.lock, start.name):
        raise PinwardenError(
            "PROJECT_NOT_NAMED",
            f"{start.name[:120]!a} is in {here.lock.resolve()}, but it is unclear whether it belongs to this project",
            hint="If it does, add --project . to its command, or configure it in this folder. If it does not, add "
            "--project with the folder that it belongs to.",
        )
    return Authority(project=_build_user_project(here, "user"), owner=owner)


def _build_user_project(here: Project, scope: LockScope) -> Project:
    return replace(project_in_scope(here, scope), restricting_root=here.root.resolve())


def describe_authority(authority: Authority) -> list[str]:
    """Describe the lock and the policy that apply, as lines of text."""
    from pinwarden.project.project import OWN_POLICY

    project = authority.project
    policy = project.policy_file
    lines = [
        f"lock: {project.lock.resolve()}{'' if project.lock.exists() else ' (there is none)'}",
        f"policy: {policy.resolve()}" if policy.exists() else "policy: the default, which is the strictest",
    ]
    if project.restricting_root is not None and (project.restricting_root / OWN_POLICY).exists():
        lines.append(f"made stricter by: {project.restricting_root / OWN_POLICY}, which cannot make anything looser")
    return lines


def _find_owner(here: Project, start: RunRequest) -> Literal["project", "user", "unknown"]:
    scopes = {
        _find_scope(here, server)
        for file in here.find_all_configs()
        for server in file.servers
        if _is_same_command(server, start)
    }
    if "user" in scopes:  # a repository that configures the same server must not take it over
        return "user"
    return "project" if "project" in scopes or start.by_name or start.typed else "unknown"


def _is_same_command(server: ConfiguredServer, start: RunRequest) -> bool:
    """Whether a client's entry has the same ``pinwarden run`` command, without naming a project."""
    command: Sequence[str] = getattr(server.target, "command", ())
    configured = parse_run_command(command)
    if configured is None or configured.names_project:
        return False
    if start.name is not None or configured.name is not None:
        return configured.name == start.name
    return configured.command == start.command


def _find_scope(here: Project, server: ConfiguredServer) -> str:
    """Return whose entry it is. One that the user's file has for a single project belongs to that project."""
    if server.scope == "local":
        same = server.folder is not None and Path(server.folder).resolve() == here.root.resolve()
        return "project" if same else "another project"
    return "project" if server.scope == "project" else "user"


def _has_locked_server(lock: Path, name: str) -> bool:
    """Whether a lock has a server of that name, or cannot be read."""
    from pinwarden.lock import lock_store

    try:
        known = lock_store.read(lock)
    except PinwardenError:
        return True
    return known is not None and any(entry.name == name for entry in known.entries)
