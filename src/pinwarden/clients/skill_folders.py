"""The folders in which clients look for skills, and which of two skills with one name each client uses."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from pinwarden.core.record import Record

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
