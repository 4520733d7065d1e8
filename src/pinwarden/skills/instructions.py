"""Read the instructions of a project: ``AGENTS.md`` and the other files that clients pass to the model.

A file that imports others (``@docs/rules.md`` in ``CLAUDE.md``) is locked together with them, because the client puts
their text in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pinwarden.clients.instruction_files import describe_instruction_file
from pinwarden.clients.skill_folders import SkillRoots, list_clients_by_folder
from pinwarden.core.errors import PinwardenError
from pinwarden.skills.skill import FileBytes, FoundSkill, build_instructions
from pinwarden.skills.skill_reader import read_regular_file, walk_project

_MAX_BYTES = 1024 * 1024  # of one file; clients cut or refuse far smaller ones
_MAX_FOUND = 5_000
_MAX_IMPORTED = 100
_MAX_DEPTH = 5  # as Claude Code and Gemini CLI
_IMPORT = re.compile(r"(?:^|(?<=\s))@((?:\.{0,2}/|~/)?[\w.+-]+(?:/[\w.+-]+)*)", re.MULTILINE)


def find_instructions(roots: SkillRoots) -> tuple[FoundSkill, ...]:
    """Read all instruction files of a project and of its subfolders, except those inside skills."""
    if roots.project.resolve() == roots.home.resolve():
        return ()  # the files of a home folder are the user's own
    skill_folders = tuple(f"/{folder}/" for folder in list_clients_by_folder(user=False))
    found = []
    for folder, entries in walk_project(roots.project):
        parent = folder.relative_to(roots.project).as_posix()
        if any(one in f"/{parent}/" for one in skill_folders):
            continue  # a file of a skill
        for entry in entries:
            path = entry.name if parent == "." else f"{parent}/{entry.name}"
            described = describe_instruction_file(path)
            if described is not None and not entry.is_dir():
                found.append(_read(roots.project, path, described.clients, imports=described.imports))
                if len(found) > _MAX_FOUND:
                    message = f"{roots.project} has more than {_MAX_FOUND} instruction files"
                    raise PinwardenError("FILE_UNREADABLE", message)
    return tuple(sorted(found, key=lambda one: one.place))


def read_instruction_file(path: Path) -> FoundSkill:
    """Read one text file that the user named. Its place and clients are left empty. Raises FILE_UNREADABLE."""
    content = read_regular_file(path.resolve(), _MAX_BYTES)
    if isinstance(content, str):
        raise PinwardenError("FILE_UNREADABLE", f"{path.name[:120]} {content}")
    return FoundSkill(skill=build_instructions(path.name, {path.name: content}), place="", clients=())


def _read(project: Path, path: str, clients: tuple[str, ...], *, imports: bool) -> FoundSkill:
    files: dict[str, FileBytes] = {}
    problems: list[str] = []
    content = _read_inside(project, path)
    if isinstance(content, str):
        problems.append(f"{path} {content}")
    else:
        files[path] = content
        pending = [(path, 1)] if imports else []
        while pending:
            current, depth = pending.pop()
            for imported in _list_imports(current, files[current]):
                if imported in files or depth > _MAX_DEPTH or len(files) > _MAX_IMPORTED:
                    continue
                text = _read_inside(project, imported)
                if isinstance(text, FileBytes):
                    files[imported] = text
                    pending.append((imported, depth + 1))
    return FoundSkill(
        skill=build_instructions(path, files), place=path, clients=clients, problems=tuple(sorted(problems))
    )


def _read_inside(project: Path, path: str) -> FileBytes | str:
    """Read a file of a project. A link is followed if it leads to another file of the project."""
    try:
        real = (project / path).resolve(strict=True)
    except (OSError, RuntimeError):
        return "is a broken link, or missing"
    if not real.is_relative_to(project.resolve()):
        return "is a link to a file outside of the project"
    return read_regular_file(real, _MAX_BYTES)


def _list_imports(path: str, content: FileBytes) -> Iterator[str]:
    """Yield the paths of the files inside of the project that a file names as ``@path``."""
    folder = PurePosixPath(path).parent
    for match in _IMPORT.finditer(content.data.decode("utf-8", "replace")):
        name = match[1].rstrip(".")
        if name.startswith(("~", "/")):
            continue  # a file of the user: another machine has another one
        parts: list[str] = []
        for part in (folder / name).parts:
            if part == "..":
                if not parts:
                    break
                parts.pop()
            else:
                parts.append(part)
        else:
            if parts:
                yield "/".join(parts)
