"""The files of a project that belong in its repository and are not committed yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.lock.lock_store import closures_folder_name, skills_file_name, surfaces_folder_name
from pinwarden.project.project import TOOLPIN_POLICY
from pinwarden.system.repository import find_repository_root, run_git

if TYPE_CHECKING:
    from pinwarden.project.project import Project

_STATUS = ("--no-optional-locks", "-c", "core.fsmonitor=false", "status", "--porcelain", "-z", "--no-renames")


def find_uncommitted_files(project: Project, others: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Return those files of a project that are not committed: lock, files next to it, policies and clients' files.

    ``others`` are further files to commit. Ignored files are left out. Outside a git repository there are none.
    """
    root = find_repository_root(project.root)
    if root is None:
        return ()
    files = {path: name for path in (*_list_files(project), *others) if (name := _name_in_repository(path, root))}
    if not files:
        return ()
    try:
        output = run_git(root, project.variables, *_STATUS, "--untracked-files=all", "--", *files.values())
    except PinwardenError:
        return ()
    changed = [record[3:] for record in output.split("\0") if record]
    return tuple(path for path, name in files.items() if any(_is_in(entry, name) for entry in changed))


def _list_files(project: Project) -> Iterator[Path]:
    lock = project.lock
    yield from (lock, lock.with_name(surfaces_folder_name(lock)), lock.with_name(closures_folder_name(lock)))
    yield lock.with_name(skills_file_name(lock))
    yield from (project.policy_file, project.root / TOOLPIN_POLICY)
    yield from (Path(file.path) for file in project.find_configs() if file.servers)


def _name_in_repository(path: Path, root: Path) -> str | None:
    """The path below the root, with slashes; None if it does not exist or is elsewhere."""
    try:
        resolved = path.resolve()
        return resolved.relative_to(root).as_posix() if resolved.exists() else None
    except (ValueError, OSError, RuntimeError):  # outside, or a loop of links
        return None


def _is_in(entry: str, name: str) -> bool:
    return entry == name or entry.startswith(f"{name}/")
