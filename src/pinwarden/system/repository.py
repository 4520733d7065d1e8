"""Version-control repositories: the root around a folder, the folders with client configurations, earlier revisions."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.core.text import fold_file_name

MAX_FOLDERS = 200_000
"""The maximum number of folders in a repository. A larger repository is an error, never a clean result."""

_MARKERS = (".git", ".hg", ".jj", ".svn")
_UNSEARCHED_NAMES = frozenset({"node_modules", "site-packages", *_MARKERS})


def find_repository_root(folder: Path) -> Path | None:
    """Return the root of the repository that contains a folder, or None."""
    try:
        start = folder.resolve()
    except (OSError, RuntimeError):  # RuntimeError: a loop of links
        return None
    folders = (start, *start.parents)
    return next((parent for parent in folders if is_repository_root(parent)), None)


def is_repository_root(folder: Path) -> bool:
    """Whether a folder is the root of a repository."""
    return any((folder / name).exists() for name in _MARKERS)


def find_folders_containing(root: Path, names: Collection[str]) -> Iterator[Path]:
    """Yield every folder of a repository that contains one of these names, in path order.

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
        entries = _list_folder(folder)
        if folder != root and entries.get(".git"):
            # A clone of another repository. Git does not track folders with this name, so a pull request cannot hide
            # files this way. A submodule has a file with this name and is searched.
            continue
        if any(fold_file_name(name) in wanted for name in entries):
            yield folder
        below = [name for name, is_folder in entries.items() if is_folder and name not in _UNSEARCHED_NAMES]
        pending.extend(folder / name for name in sorted(below, reverse=True))


def _list_folder(folder: Path) -> dict[str, bool]:
    """Return each name in a folder, and whether it is a folder too."""
    try:
        with os.scandir(folder) as listing:
            return {entry.name: entry.is_dir(follow_symlinks=False) for entry in listing}
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"{folder} cannot be read: {err.strerror or err}") from err


def read_file_at_revision(path: Path, revision: str, variables: Mapping[str, str]) -> bytes | None:
    """Return the content of a file in a git revision, or None if the revision does not have it.

    Runs nothing that the repository configures. Raises FILE_UNREADABLE for an unknown revision.
    """
    folder, name = path.parent.resolve(), f"./{path.name}"
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    commit = run_git(folder, variables, *words, subject=f"revision {revision[:120]!a}").strip()
    if not run_git(folder, variables, "ls-tree", "--name-only", commit, "--", name).strip():
        return None
    return run_git_bytes(folder, variables, "cat-file", "blob", f"{commit}:{name}")


def find_default_branch(root: Path, variables: Mapping[str, str]) -> str | None:
    """Return the branch that the remote repository ``origin`` checks out by default; None if git does not know it."""
    try:
        name = run_git(root, variables, "symbolic-ref", "--short", "refs/remotes/origin/HEAD").strip()
    except PinwardenError:
        return None
    return name.removeprefix("origin/") or None


def run_git(folder: Path, variables: Mapping[str, str], *words: str, subject: str = "this repository") -> str:
    """Run git in a folder and return its output. Use only commands that run nothing that the repository configures.

    Raises FILE_UNREADABLE if git is missing or fails.
    """
    return run_git_bytes(folder, variables, *words, subject=subject).decode("utf-8", "replace")


def run_git_bytes(folder: Path, variables: Mapping[str, str], *words: str, subject: str = "this repository") -> bytes:
    """Like `run_git`, but without decoding the output."""
    from pinwarden.system.bounded_task import BoundedTask, run_bounded
    from pinwarden.system.files import find_program

    git = find_program("git", variables.get("PATH", os.defpath))
    if git is None:
        raise PinwardenError("FILE_UNREADABLE", f"git is required to read {subject}, but is not installed")
    task = BoundedTask(name=f"git for {subject}", error_code="FILE_UNREADABLE", timeout_seconds=60)
    return run_bounded([str(git), *words], folder, variables, task)


_MAX_LOCATED_BYTES = 4 * 1024 * 1024
"""The largest file that is searched for the line of a finding. In larger files, all findings are at line 1."""


class LineFinder:
    """Finds the line that names a server in a JSON, TOML or YAML file. Reads each file once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._texts: dict[Path, str] = {}

    def find_line(self, file: Path, names: Sequence[str]) -> int:
        """Return the first line that has one of these names as a key or a table name; 1 if there is none."""
        text = self._read_text(file)
        for name in filter(None, names):
            escaped = re.escape(name)
            match = re.search(
                rf"""["']{escaped}["':]|^\s*{escaped}\s*:|\[[^\]\n]*\.{escaped}\]|name:\s*{escaped}\s*$""",
                text,
                re.MULTILINE,
            )
            if match is not None:
                return text.count("\n", 0, match.start()) + 1
        return 1

    def _read_text(self, file: Path) -> str:
        if file not in self._texts:
            from pinwarden.system.files import read_file

            try:
                data = read_file(self._root / file, _MAX_LOCATED_BYTES)
            except PinwardenError:
                data = b""
            self._texts[file] = data.decode("utf-8", "replace")
        return self._texts[file]
