"""The version-control repository around a folder, and the folders in it that configure MCP clients."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.core.visible import fold_file_name

MAX_FOLDERS = 200_000
"""Folders of one repository that are searched. A larger repository is an error, never a clean result."""

_MARKERS = (".git", ".hg", ".jj", ".svn")
_DEPENDENCIES = frozenset({"node_modules", "site-packages", *_MARKERS})


def find_repository_root(folder: Path) -> Path | None:
    """The root of the repository that a folder is in, or None outside of any."""
    try:
        start = folder.resolve()
    except (OSError, RuntimeError):  # RuntimeError: a loop of links
        return None
    return next((each for each in (start, *start.parents) if any((each / name).exists() for name in _MARKERS)), None)


def find_folders_with(root: Path, names: Collection[str]) -> Iterator[Path]:
    """Every folder of a repository that holds one of these names, in the order of their paths.

    Names match as on a file system that ignores case. Links are not followed. Installed dependencies
    (``node_modules``, ``site-packages``) and clones of other repositories are not searched. Raises
    FILE_UNREADABLE for a folder that cannot be listed, and for more than ``MAX_FOLDERS``.
    """
    wanted = {fold_file_name(name) for name in names}
    pending = [root]
    visited = 0
    while pending:
        folder = pending.pop()
        visited += 1
        if visited > MAX_FOLDERS:
            raise PinwardenError("FILE_UNREADABLE", f"{root} has more than {MAX_FOLDERS} folders")
        entries = _entries(folder)
        if folder != root and entries.get(".git"):
            # A clone of another repository. Git tracks no folder of this name, so a pull request cannot hide one this
            # way; a submodule has a file of this name, and is searched.
            continue
        if any(fold_file_name(name) in wanted for name in entries):
            yield folder
        below = [name for name, is_folder in entries.items() if is_folder and name not in _DEPENDENCIES]
        pending.extend(folder / name for name in sorted(below, reverse=True))


def _entries(folder: Path) -> dict[str, bool]:
    """The names in a folder, and whether each is a folder itself."""
    try:
        with os.scandir(folder) as listing:
            return {entry.name: entry.is_dir(follow_symlinks=False) for entry in listing}
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"{folder}: {err.strerror or err}") from err


def read_file_at_revision(path: Path, revision: str, variables: Mapping[str, str]) -> bytes | None:
    """A file as a git revision has it; None if the revision has no such file. Nothing that the repository configures is
    run. Raises FILE_UNREADABLE for a revision that is not there."""
    from pinwarden.system.files import find_program
    from pinwarden.system.processes import BoundedTask, run_bounded

    git = find_program("git", variables.get("PATH", os.defpath))
    if git is None:
        raise PinwardenError("FILE_UNREADABLE", f"git is not installed, and is needed to read {revision[:120]!a}")
    task = BoundedTask(name=f"git, asked for {revision[:120]!a},", error_code="FILE_UNREADABLE", timeout_seconds=60)

    def ask(*words: str) -> bytes:
        return run_bounded([str(git), *words], path.parent.resolve(), variables, task)

    commit = ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").decode().strip()
    name = f"{commit}:./{path.name}"
    if not ask("ls-tree", "--name-only", commit, "--", f"./{path.name}").strip():
        return None
    return ask("cat-file", "blob", name)
