"""The folders that a sandboxed server may write: only those that a policy names, and nothing in them that other
programs act on by themselves (docs/decisions/0015-writable-folders.md).

1. A folder that is or contains a repository is refused: git runs what a repository's configuration names.
2. Existing files that clients, editors and shells act on are mounted read-only, with the folders above them.
3. New files of that kind are watched for while the server runs (``system/write_guard.py``).
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
"""Files that editors, agents, shells and hook managers act on when a folder is opened or entered."""
_STARTUP_PATHS = (
    *(".bashrc", ".zshrc", ".profile", ".ssh", ".gnupg", ".gitconfig", ".local/bin", "bin", "Library/LaunchAgents"),
    *(".config/autostart", ".config/systemd", ".config/environment.d", ".config/fish", ".config/git", ".config/nvim"),
    *(".config/pinwarden", ".local/share/applications", ".local/share/systemd"),
)
"""Paths below the home folder that run when the user logs in, opens a shell or types a command."""
_HINT = (
    'Name folders in pinwarden.toml that contain only what the server works on, for example write = ["docs", "build"].'
)


class WritableFolders(Record):
    """Checked folders, the paths in them that stay read-only, and the names that must not be created there."""

    folders: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()


def check_writable_folders(project: Project, folders: Sequence[str]) -> WritableFolders:
    """Check the folders that a server may write. Raises POLICY_REFUSED for a folder that is too dangerous."""
    if not folders:
        return WritableFolders()
    names = _forbidden_names(project)
    kept: list[str] = []
    for folder in folders:
        _refuse_protected(project, folder, names)
        try:
            protected_paths = list(find_forbidden_paths(folder, names))
        except TooManyFilesError:
            raise _refused_error(
                folder, f"has more than {MAX_ENTRIES} files, which cannot be checked at every start"
            ) from None
        except OSError as err:
            raise _refused_error(folder, f"cannot be searched ({err.strerror}: {str(err.filename)[:300]!a})") from err
        for path in protected_paths:
            if Path(path).is_symlink():
                raise _refused_error(folder, f"contains a link that other programs act on ({path[:300]!a})")
            if Path(path).name.casefold() in REPOSITORY_NAMES or Path(path).name.casefold() == "head":
                raise _refused_error(
                    folder, f"contains a repository ({path[:300]!a}), whose configuration names programs"
                )
        kept += (str(Path(path).resolve()) for path in protected_paths)
    return WritableFolders(folders=tuple(folders), protected=tuple(dict.fromkeys(kept)), forbidden=tuple(sorted(names)))


def _forbidden_names(project: Project) -> frozenset[str]:
    """Return the names of files that other programs act on, in lower case."""
    lock = project.lock
    own = (lock.name, surfaces_folder_name(lock), closures_folder_name(lock), OWN_POLICY.name, TOOLPIN_POLICY.parts[0])
    paths = (location.path for client in CLIENTS.values() for location in client.locations)
    first = (path.removeprefix(_PROJECT).partition("/")[0] for path in paths if path.startswith(_PROJECT))
    exact = (name for name in first if "*" not in name)
    return frozenset(name.casefold() for name in (*REPOSITORY_NAMES, *_CONFIGURATION_NAMES, *own, *exact))


def _refuse_protected(project: Project, folder: str, names: frozenset[str]) -> None:
    """Refuse a folder inside a repository's own files or a program's settings."""
    path = Path(folder).resolve()
    for own in (project.home.resolve() / name for name in _STARTUP_PATHS):
        if own.is_relative_to(path) or path.is_relative_to(own):
            raise _refused_error(
                folder, f"contains what runs when you log in or open a shell, such as {str(own)[:300]!a}"
            )
    for base in (project.root.resolve(), project.home.resolve()):
        if not path.is_relative_to(base):
            continue
        below = path.relative_to(base).parts
        if any(part.casefold() in names for part in below):
            raise _refused_error(folder, "belongs to files that other programs act on")
        for above in (path, *path.parents[: len(below)]):
            if above.is_dir() and find_forbidden_names([child.name for child in above.iterdir()], ()):
                raise _refused_error(folder, f"is in a bare git repository ({str(above)[:300]!a})")
        return


def _refused_error(folder: str, why: str) -> PinwardenError:
    message = f"a sandboxed server must not write to {folder[:300]!a}: it {why}"
    return PinwardenError("POLICY_REFUSED", message, hint=_HINT)
