"""Programs that the configured servers need and this machine does not have, with the way to install each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.clients.command_line import parse_launch
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.files import find_program
from pinwarden.system.masking import mask_name
from pinwarden.system.program_installers import describe_installation

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfiguredServer
    from pinwarden.project.project import LockScope, Project

_PROGRAMS = {"npm": "node", "pypi": "uv", "oci": "docker"}
"""By kind of package, what Pinwarden needs to verify and start it."""
_TITLES = {"node": "Node.js with npm", "docker": "Docker or Podman"}


class MissingProgram(Record):
    """A program, the servers that need it, and how to install it."""

    name: str
    needed_by: tuple[tuple[LockScope, str], ...]
    """The scope and the name of each server that needs it."""
    installation: str | None
    """A command, or a page that says how; None if that is not known."""

    @property
    def title(self) -> str:
        """What the program is called in a sentence."""
        return _TITLES.get(self.name, self.name)

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of the servers that need it, safe to show."""
        return tuple(dict.fromkeys(mask_name(name) for _, name in self.needed_by))

    def describe(self, consequence: str = "") -> str:
        """Say what is missing, which servers need it, and how to get it. ``consequence`` is a sentence in between."""
        sentences = [f"{self.title} is not installed, but needed by: {', '.join(self.servers)}."]
        sentences += [consequence] if consequence else []
        sentences += [f"To install it: {self.installation}"] if self.installation is not None else []
        return " ".join(sentences)


def find_missing_programs(projects: Sequence[Project]) -> tuple[MissingProgram, ...]:
    """Find the programs that servers configured in these scopes need and this machine lacks. Starts nothing."""
    if not projects:
        return ()
    needed: dict[str, dict[tuple[LockScope, str], None]] = {}
    for project in projects:
        for server in project.find_servers():
            program = _find_needed_program(server)
            if program is not None:
                needed.setdefault(program, {})[project.scope, server.name] = None
    variables = projects[0].variables
    return tuple(
        MissingProgram(name=name, needed_by=tuple(servers), installation=describe_installation(name, variables))
        for name, servers in needed.items()
        if not _is_installed(name, projects[0])
    )


def _find_needed_program(server: ConfiguredServer) -> str | None:
    if server.target is None or server.disabled:
        return None
    launch = parse_launch(server.target)
    return _PROGRAMS.get((launch.via or launch).kind)


def _is_installed(program: str, project: Project) -> bool:
    search_path = project.variables.get("PATH", "")
    if program == "docker":
        return any(find_program(engine, search_path) is not None for engine in ("docker", "podman"))
    if program == "node":
        return all(find_program(part, search_path) is not None for part in ("node", "npm"))
    from pinwarden.artifacts.resolvers import find_uv

    try:
        find_uv(project.variables)
    except PinwardenError:
        return False
    return True
