"""Read the skills in the folders of all clients. Nothing in such a folder is left out."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from pinwarden.artifacts.archives.rules import PathSet, check_portable
from pinwarden.clients.skill_folders import SkillRoots, list_clients_by_folder, list_skill_entries
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.skills.skill import MAIN_FILE, MAX_BYTES, MAX_FILES, FileBytes, FoundSkill, build_skill

HAS_MODES = os.name == "posix"
"""Whether files have executable bits here."""
_MAX_FOLDERS = 200_000  # that are searched for nested skill folders
_MAX_ENTRIES = 4 * MAX_FILES  # in one skill: files, folders and links
_MAX_TOTAL = 256 * 1024 * 1024  # bytes of all skills of a project or user, which are compared in memory
_NEVER_SEARCHED = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__"})


def find_project_skills(roots: SkillRoots, *, nested: bool = False) -> tuple[FoundSkill, ...]:
    """Read the skills of a project. With ``nested``, also those in its subfolders, where clients look for more."""
    if roots.project.resolve() == roots.home.resolve():
        return ()  # the skills of a home folder are the user's own
    folders = dict(roots.list_folders(user=False))
    for folder in _find_nested(roots.project) if nested else ():
        folders.setdefault(folder, dict(_nested_readers())[folder.relative_to(folder.parents[1]).as_posix()])
    return _read_all(roots, folders, within=roots.project, of_user=False)


def find_user_skills(roots: SkillRoots) -> tuple[FoundSkill, ...]:
    """Read the user's own skills."""
    return _read_all(roots, dict(roots.list_folders(user=True)), within=roots.home, of_user=True)


def read_skill_folder(folder: Path, name: str | None = None) -> FoundSkill | None:
    """Read one skill; None if the folder has no ``SKILL.md``. Its place and clients are left empty."""
    files: dict[str, FileBytes] = {}
    problems: list[str] = []
    known, size, is_skill = PathSet(), 0, False
    for path, entry in _walk(folder):
        is_skill = is_skill or entry.name.lower() == MAIN_FILE.lower()
        try:
            known.add(check_portable(path))
        except PinwardenError as err:
            problems.append(f"it {err.message.removeprefix('the archive ')}")
            continue
        content = read_regular_file(Path(entry.path))
        if isinstance(content, str):
            problems.append(f"{path[:200]} {content}")
            continue
        size += len(content.data)
        files[path] = content
        if len(files) > MAX_FILES or size > MAX_BYTES:
            problems.append(f"it has more than {MAX_FILES} files or {MAX_BYTES} bytes")
            break
    if not is_skill:
        return None
    skill = build_skill(name or folder.name, files)
    return FoundSkill(skill=skill, place="", clients=(), problems=tuple(sorted(problems)))


def _read_all(
    roots: SkillRoots, folders: Mapping[Path, tuple[str, ...]], *, within: Path, of_user: bool
) -> tuple[FoundSkill, ...]:
    found: dict[str, FoundSkill] = {}
    total = 0
    for folder, clients in folders.items():
        for entry in list_skill_entries(folder):
            place = roots.display(folder / entry.name)
            if place in found:
                found[place] = replace(found[place], clients=(*found[place].clients, *clients))
                continue
            one = _read_entry(folder / entry.name, within)
            if one is not None:
                found[place] = replace(one, place=place, clients=clients, of_user=of_user)
                total += sum(file.size for file in one.skill.files)
                if total > _MAX_TOTAL:
                    message = f"the skills in {folder.parent} have more than {_MAX_TOTAL} bytes"
                    raise PinwardenError("FILE_UNREADABLE", message)
    return tuple(found[place] for place in sorted(found))


def _read_entry(path: Path, within: Path) -> FoundSkill | None:
    """Read the skill at a path. A link to a skill inside of ``within`` is read like a folder."""
    try:
        real = path.resolve(strict=True)
        inside = real.is_relative_to(within.resolve())
    except (OSError, RuntimeError):
        return None  # a broken link: no client can read it either
    if not real.is_dir():
        return None
    one = read_skill_folder(real, path.name)
    if one is None or inside:
        return one
    return replace(one, problems=(*one.problems, f"it is a link to {real}, outside of {within.name or within}"))


def _walk(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield everything in a folder that is not a folder. Raises FILE_UNREADABLE if there is too much in it."""
    pending, count = [(folder, "")], 0
    while pending:
        current, prefix = pending.pop()
        try:
            with os.scandir(current) as scan:
                entries = list(scan)
        except OSError as err:
            raise PinwardenError("FILE_UNREADABLE", f"{current} cannot be read: {err.strerror or err}") from err
        count += len(entries)
        if count > _MAX_ENTRIES:
            raise PinwardenError("FILE_UNREADABLE", f"{folder} has more than {_MAX_ENTRIES} files and folders")
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append((Path(entry.path), f"{prefix}{entry.name}/"))
            else:
                yield prefix + entry.name, entry


def read_regular_file(path: Path, limit: int = MAX_BYTES) -> FileBytes | str:
    """Return the content of a file, or why it is not read."""
    if path.is_symlink():
        return "is a link"
    if not path.is_file():
        return "is a device or pipe"
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(path, flags), "rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read(limit + 1) if stat.S_ISREG(mode) else None
    except OSError as err:
        return f"cannot be read: {err.strerror or err}"
    if data is None or len(data) > limit:
        return "is too large, or no regular file"
    return FileBytes(data=data, executable=HAS_MODES and bool(mode & stat.S_IXUSR))


def _nested_readers() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from list_clients_by_folder(user=False).items()


def _find_nested(project: Path) -> Iterator[Path]:
    """Find skill folders in subfolders of a project. Raises FILE_UNREADABLE if there are too many folders."""
    parents = {folder.partition("/")[0] for folder, _ in _nested_readers()}
    for current, entries in walk_project(project):
        for entry in entries:
            if current != project and entry.name in parents and entry.is_dir(follow_symlinks=False):
                folder = current / entry.name / "skills"
                if folder.is_dir():
                    yield folder


def walk_project(project: Path) -> Iterator[tuple[Path, list[os.DirEntry[str]]]]:
    """Yield each folder of a project with what is in it. Raises FILE_UNREADABLE if there are too many folders.

    Follows no links, and leaves out version control and installed packages, in which clients do not look.
    """
    pending, visited = [project], 0
    while pending:
        current = pending.pop()
        visited += 1
        if visited > _MAX_FOLDERS:
            raise PinwardenError("FILE_UNREADABLE", f"{project} has more than {_MAX_FOLDERS} folders")
        try:
            with os.scandir(current) as scan:
                entries = list(scan)
        except OSError:
            continue  # no client of this user can read it either
        yield current, entries
        below = (entry for entry in entries if entry.name not in _NEVER_SEARCHED)
        pending += (current / entry.name for entry in below if entry.is_dir(follow_symlinks=False))
