"""The folders in which clients look for skills, and which of two skills with one name each client uses."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from pinwarden.clients.files import resolve_folder
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

if TYPE_CHECKING:
    from pinwarden.clients.table import System

Winner = Literal["user", "project", "all", "unknown"]
"""Which skill a client uses if the project and the user have one with the same name."""
SHARED_FOLDER = ".agents/skills"
"""The folder that most clients read."""


class SkillFolders(Record):
    """The skill folders of one client."""

    project: tuple[str, ...]
    """Relative to the project."""
    user: tuple[str, ...]
    """Paths that begin with a folder of ``FOLDERS`` in the table of clients."""
    winner: Winner = "unknown"

    def choose_project_folder(self) -> str:
        """Return the folder of the project that Pinwarden installs skills into."""
        return SHARED_FOLDER if SHARED_FOLDER in self.project else self.project[0]

    def choose_user_folder(self) -> str:
        """Return the folder of the user that Pinwarden installs skills into."""
        shared = "{home}/" + SHARED_FOLDER
        return shared if shared in self.user else self.user[0]


_HOME_AGENTS = "{home}/.agents/skills"
_CLAUDE = "{claude}/skills"

SKILL_FOLDERS: Mapping[str, SkillFolders] = MappingProxyType(
    {
        "claude": SkillFolders(project=(".claude/skills",), user=(_CLAUDE,), winner="user"),
        "codex": SkillFolders(
            project=(".agents/skills", ".codex/skills"), user=(_HOME_AGENTS, "{codex}/skills"), winner="all"
        ),
        "gemini": SkillFolders(
            project=(".agents/skills", ".gemini/skills"), user=(_HOME_AGENTS, "{home}/.gemini/skills"), winner="project"
        ),
        "cursor": SkillFolders(
            project=(".cursor/skills", ".agents/skills", ".claude/skills", ".codex/skills"),
            user=("{home}/.cursor/skills", _HOME_AGENTS, _CLAUDE, "{codex}/skills"),
        ),
        "vscode": SkillFolders(
            project=(".github/skills", ".agents/skills", ".claude/skills"),
            user=("{copilot}/skills", _HOME_AGENTS, _CLAUDE),
        ),
        "copilot-cli": SkillFolders(
            project=(".github/skills", ".agents/skills", ".claude/skills"),
            user=("{copilot}/skills", _HOME_AGENTS, _CLAUDE),
            winner="project",
        ),
        "opencode": SkillFolders(
            project=(".opencode/skills", ".claude/skills", ".agents/skills"),
            user=("{config}/opencode/skills", _CLAUDE, _HOME_AGENTS),
        ),
        "goose": SkillFolders(
            project=(".goose/skills", ".claude/skills", ".agents/skills"),
            user=(_HOME_AGENTS, "{config}/goose/skills", _CLAUDE, "{config}/agents/skills"),
            winner="project",
        ),
        "windsurf": SkillFolders(
            project=(".windsurf/skills", ".agents/skills", ".claude/skills"),
            user=("{home}/.codeium/windsurf/skills", _HOME_AGENTS),
        ),
        "amp": SkillFolders(
            project=(".agents/skills", ".claude/skills"),
            user=("{config}/agents/skills", "{config}/amp/skills", _CLAUDE),
        ),
        "crush": SkillFolders(
            project=(".agents/skills", ".crush/skills", ".claude/skills", ".cursor/skills"),
            user=("{config}/crush/skills", "{config}/agents/skills", _HOME_AGENTS, _CLAUDE),
        ),
    }
)
"""The skill folders of each client that reads ``SKILL.md``, by the id of the client."""

_MAX_SKILLS = 1_000  # in one folder


class SkillRoots(Record):
    """Where to look for skills: a project and the folders of its user."""

    project: Path
    home: Path
    system: System
    variables: Mapping[str, str]

    def find_install_folder(self, client: str, *, user: bool) -> Path:
        """Return the folder that Pinwarden installs skills for a client into. Raises USAGE for other clients."""
        folders = SKILL_FOLDERS.get(client)
        if folders is None:
            known = ", ".join(sorted(SKILL_FOLDERS))
            raise PinwardenError("USAGE", f"{client[:80]} reads no skills", hint=f"Clients that do: {known}.")
        if not user:
            return self.project / folders.choose_project_folder()
        return self._resolve(folders.choose_user_folder())

    def display(self, path: Path) -> str:
        """Return the path of a skill for the lock: relative to the project, or to the home folder as ``~/``."""
        for folder, prefix in ((self.project, ""), (self.home, "~/")):
            try:
                return prefix + path.absolute().relative_to(folder.absolute()).as_posix()
            except ValueError:
                continue
        return str(path)

    def locate_installed(self, place: str, *, user: bool) -> Path:
        """Return the folder of a place of an installed skill, as `display` wrote it.

        Raises LOCK_INVALID if it is not in a folder that skills of this scope are installed into: the lock can come
        from a repository, and what it names is written and removed.
        """
        path = self.home / place[2:] if place.startswith("~/") else self.project / place
        folders = [self.find_install_folder(client, user=user) for client in SKILL_FOLDERS]
        if path.parent not in folders or path.name in ("", ".", ".."):
            raise PinwardenError(
                "LOCK_INVALID",
                f"the lock has a skill at {place[:200]!a}, which is no folder that skills are installed into",
                hint="Nothing was written. Restore the lock, or lock the skills again: pinwarden init",
            )
        return path

    def has_skills(self, *, user: bool) -> bool:
        """Whether a skill folder of the project, or of the user, has anything in it."""
        if not user and self.project.resolve() == self.home.resolve():
            return False  # the skills of a home folder are the user's own
        return any(list_skill_entries(folder) for folder, _ in self.list_folders(user=user))

    def list_folders(self, *, user: bool) -> Iterator[tuple[Path, tuple[str, ...]]]:
        """Yield each folder with the ids of the clients that read it, without nested folders of the project."""
        for folder, clients in list_clients_by_folder(user=user).items():
            yield (self._resolve(folder) if user else self.project / folder), clients

    def _resolve(self, path: str) -> Path:
        return resolve_folder(path, self.project, self.home, self.system, self.variables)


def list_clients_by_folder(*, user: bool) -> dict[str, tuple[str, ...]]:
    """Return the ids of the clients that read each folder."""
    readers: dict[str, list[str]] = {}
    for client, folders in SKILL_FOLDERS.items():
        for folder in folders.user if user else folders.project:
            readers.setdefault(folder, []).append(client)
    return {folder: tuple(clients) for folder, clients in readers.items()}


def list_skill_entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the folders, and links to folders, in a folder of skills. Empty if there is no such folder."""
    try:
        with os.scandir(folder) as scan:
            entries = [entry for entry in scan if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"{folder} cannot be read: {err.strerror or err}") from err
    if len(entries) > _MAX_SKILLS:
        raise PinwardenError("FILE_UNREADABLE", f"{folder} has more than {_MAX_SKILLS} folders")
    return sorted(entries, key=lambda entry: entry.name)
