"""The folders that a sandboxed server may write: only those that a policy names, and nothing in them that other
programs obey without being asked (docs/decisions/0015-writable-folders.md).

1. A folder that is or contains a repository is refused: git runs what a repository's configuration names.
2. What clients, editors and shells obey is mounted read-only where it exists, with the folders above it.
3. What does not exist yet is watched for while the server runs (``system/write_guard.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.clients.table import CLIENTS
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.lock_store import closures_folder, surfaces_folder
from pinwarden.project.project import OWN_POLICY, TOOLPIN_POLICY
from pinwarden.system.write_guard import (
    MAX_ENTRIES,
    REPOSITORY_NAMES,
    TooManyFilesError,
    forbidden_names,
    forbidden_paths,
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
"""What editors, agents, shells and hook managers act on as soon as a folder is opened or entered."""
_STARTUP_PATHS = (
    *(".bashrc", ".zshrc", ".profile", ".ssh", ".gnupg", ".gitconfig", ".local/bin", "bin", "Library/LaunchAgents"),
    *(".config/autostart", ".config/systemd", ".config/environment.d", ".config/fish", ".config/git", ".config/nvim"),
    *(".config/pinwarden", ".local/share/applications", ".local/share/systemd"),
)
"""What runs when the user logs in, opens a shell or types a command, below the home folder."""
_HINT = 'Name folders in pinwarden.toml that hold only what the server works on, for example write = ["docs", "build"].'


class WritableFolders(Record):
    """Folders that were checked, with what stays read-only in them and what must not be created there."""

    folders: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()


def writable_folders(project: Project, folders: Sequence[str]) -> WritableFolders:
    """Check the folders that a server is to write. Raises POLICY_REFUSED for one that it cannot be trusted with."""
    if not folders:
        return WritableFolders()
    names = _forbidden_names(project)
    kept: list[str] = []
    for folder in folders:
        _refuse_protected(project, folder, names)
        try:
            protected_paths = list(forbidden_paths(folder, names))
        except TooManyFilesError:
            raise _refused(
                folder, f"holds more than {MAX_ENTRIES} files, which cannot be checked at every start"
            ) from None
        except OSError as err:
            raise _refused(folder, f"cannot be looked through ({err.strerror}: {str(err.filename)[:300]!a})") from err
        for path in protected_paths:
            if Path(path).is_symlink():
                raise _refused(folder, f"contains a link that other programs obey ({path[:300]!a})")
            if Path(path).name.casefold() in REPOSITORY_NAMES or Path(path).name.casefold() == "head":
                raise _refused(folder, f"contains a repository ({path[:300]!a}), whose configuration names programs")
        kept += (str(Path(path).resolve()) for path in protected_paths)
    return WritableFolders(folders=tuple(folders), protected=tuple(dict.fromkeys(kept)), forbidden=tuple(sorted(names)))


def _forbidden_names(project: Project) -> frozenset[str]:
    """The names that other programs obey, in lower case."""
    lock = project.lock
    own = (lock.name, surfaces_folder(lock), closures_folder(lock), OWN_POLICY.name, TOOLPIN_POLICY.parts[0])
    places = (place.path for client in CLIENTS.values() for place in client.locations)
    first = (path.removeprefix(_PROJECT).partition("/")[0] for path in places if path.startswith(_PROJECT))
    exact = (name for name in first if "*" not in name)
    return frozenset(name.casefold() for name in (*REPOSITORY_NAMES, *_CONFIGURATION_NAMES, *own, *exact))


def _refuse_protected(project: Project, folder: str, names: frozenset[str]) -> None:
    """Refuse a folder that lies within a repository's own files, or within the settings of a program."""
    path = Path(folder).resolve()
    for own in (project.home.resolve() / name for name in _STARTUP_PATHS):
        if own.is_relative_to(path) or path.is_relative_to(own):
            raise _refused(folder, f"holds what runs when you log in or open a shell, such as {str(own)[:300]!a}")
    for base in (project.root.resolve(), project.home.resolve()):
        if not path.is_relative_to(base):
            continue
        below = path.relative_to(base).parts
        if any(part.casefold() in names for part in below):
            raise _refused(folder, "belongs to what other programs obey")
        for above in (path, *path.parents[: len(below)]):
            if above.is_dir() and forbidden_names([child.name for child in above.iterdir()], ()):
                raise _refused(folder, f"lies in a repository of git without a work tree ({str(above)[:300]!a})")
        return


def _refused(folder: str, why: str) -> PinwardenError:
    message = f"a sandboxed server cannot be given {folder[:300]!a} to write: it {why}"
    return PinwardenError("POLICY_REFUSED", message, hint=_HINT)
