"""Checks the folders that a sandboxed server may write to (docs/decisions/0015-writable-folders.md).

A policy names these folders. Clients, editors and shells read certain files by themselves, such as ``.vscode``, so a
server that can write such a file could run code outside the sandbox. Therefore:

1. A folder that is or contains a repository is refused, because git runs programs that a repository's configuration
   names.
2. Existing files of this type are mounted read-only, with the folders above them.
3. While the server runs, ``system/write_guard.py`` watches for new files of this type.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.clients.table import CLIENTS
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.lock_store import closures_folder_name, surfaces_folder_name
from pinwarden.project.project import OWN_POLICY, TOOLPIN_POLICY
from pinwarden.system.write_guard import (
    MAX_ENTRIES,
    REPOSITORY_NAMES,
    TooManyFilesError,
    find_forbidden_names,
    find_forbidden_paths,
)

if TYPE_CHECKING:
    from pinwarden.project.project import Project

_PROJECT = "{project}/"
_CONFIGURATION_NAMES = (
    *(".claude", ".codex", ".cursor", ".gemini", ".idea", ".vscode", ".windsurf", ".zed", ".fleet", ".github"),
    *(".devcontainer", ".devcontainer.json", ".husky", ".pre-commit-config.yaml", ".lefthook", "lefthook.yml"),
    *(
        ".envrc",
        ".mise",
        ".mise.toml",
        "mise.toml",
        ".tool-versions",
        ".direnv",
        ".dir-locals.el",
        ".exrc",
        ".nvim.lua",
    ),
    *(".nvimrc", ".vimrc", ".lvimrc", ".mcp.json", ".npmrc", ".yarnrc.yml", ".pypirc"),
    *(".helix", ".mise.local.toml", "mise.local.toml", ".lefthook.yml", ".yarnrc", ".pnp.cjs", ".pnpmfile.cjs"),
    *(".cargo", "rust-toolchain", "rust-toolchain.toml", ".rprofile", ".gdbinit", ".lldbinit", ".ghci", ".pdbrc"),
    *("agents.md", "claude.md", "claude.local.md", "gemini.md", ".cursorrules", ".windsurfrules", ".clinerules"),
)
"""Files that editors, agents, shells and hook managers read when the user opens or enters a folder."""
_STARTUP_PATHS = (
    *(".bashrc", ".zshrc", ".profile", ".ssh", ".gnupg", ".gitconfig", ".local/bin", "bin", "Library/LaunchAgents"),
    *(".config/autostart", ".config/systemd", ".config/environment.d", ".config/fish", ".config/git", ".config/nvim"),
    *(".config/pinwarden", ".local/share/applications", ".local/share/systemd"),
)
"""Paths below the home folder with programs or settings for logins, shells and commands."""
_HINT = 'In pinwarden.toml, name only folders with files that the server works on, such as write = ["docs", "build"].'


class WritableFolders(Record):
    """Folders that a server may write to, with exceptions."""

    folders: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    """Existing paths in the folders that stay read-only."""
    forbidden: tuple[str, ...] = ()
    """File names in lower case that the server must not create in the folders."""


def check_writable_folders(project: Project, folders: Sequence[str]) -> WritableFolders:
    """Check the folders that a server may write to. Raises ``POLICY_REFUSED`` for a folder that is not safe."""
    if not folders:
        return WritableFolders()
    names = _list_forbidden_names(project)
    protected: list[str] = []
    for folder in folders:
        _refuse_protected(project, folder, names)
        try:
            protected_paths = list(find_forbidden_paths(folder, names))
        except TooManyFilesError:
            raise _refused_error(
                folder, f"has more than {MAX_ENTRIES} files, too many to check at every start"
            ) from None
        except OSError as err:
            raise _refused_error(folder, f"cannot be searched ({err.strerror}: {str(err.filename)[:300]!a})") from err
        for path in protected_paths:
            if Path(path).is_symlink():
                raise _refused_error(folder, f"contains a link to settings of other programs ({path[:300]!a})")
            if Path(path).name.casefold() in REPOSITORY_NAMES or Path(path).name.casefold() == "head":
                raise _refused_error(
                    folder, f"contains a repository ({path[:300]!a}), whose configuration can name programs to run"
                )
        protected += (str(Path(path).resolve()) for path in protected_paths)
    return WritableFolders(
        folders=tuple(folders), protected=tuple(dict.fromkeys(protected)), forbidden=tuple(sorted(names))
    )


def _list_forbidden_names(project: Project) -> frozenset[str]:
    """Return the names of files that Pinwarden or other programs read by themselves, in lower case."""
    lock = project.lock
    pinwarden_names = (
        *(lock.name, surfaces_folder_name(lock), closures_folder_name(lock)),
        *(OWN_POLICY.name, TOOLPIN_POLICY.parts[0]),
    )
    paths = (location.path for client in CLIENTS.values() for location in client.locations)
    first_parts = (path.removeprefix(_PROJECT).partition("/")[0] for path in paths if path.startswith(_PROJECT))
    client_names = (name for name in first_parts if "*" not in name)
    return frozenset(
        name.casefold() for name in (*REPOSITORY_NAMES, *_CONFIGURATION_NAMES, *pinwarden_names, *client_names)
    )


def _refuse_protected(project: Project, folder: str, names: frozenset[str]) -> None:
    """Refuse a folder with startup files, or inside a bare git repository or the settings of a program."""
    path = Path(folder).resolve()
    for startup_path in (project.home.resolve() / name for name in _STARTUP_PATHS):
        if startup_path.is_relative_to(path) or path.is_relative_to(startup_path):
            raise _refused_error(
                folder, f"contains files that run when you log in or open a shell: {str(startup_path)[:300]!a}"
            )
    for base in (project.root.resolve(), project.home.resolve()):
        if not path.is_relative_to(base):
            continue
        below = path.relative_to(base).parts
        if any(part.casefold() in names for part in below):
            raise _refused_error(folder, "is part of the settings of another program")
        for parent in (path, *path.parents[: len(below)]):
            if parent.is_dir() and find_forbidden_names([child.name for child in parent.iterdir()], ()):
                raise _refused_error(folder, f"is in a bare git repository ({str(parent)[:300]!a})")
        return


def _refused_error(folder: str, reason: str) -> PinwardenError:
    message = f"a sandboxed server must not write to {folder[:300]!a}: the folder {reason}"
    return PinwardenError("POLICY_REFUSED", message, hint=_HINT)
