"""Which files to commit, as a command that works when pasted."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinwarden.project.project import Project


def build_commit_command(projects: Sequence[Project], others: Sequence[Path] = ()) -> str | None:
    """Return ``git add`` with the project's files that are not committed yet.

    ``others`` are further files that belong to the same commit. Returns None if there are no such files, or if a name
    is not printable.
    """
    from pinwarden.project.uncommitted_files import find_uncommitted_files

    found = [
        path for project in projects if project.scope == "project" for path in find_uncommitted_files(project, others)
    ]
    names = list(dict.fromkeys(os.path.relpath(path) for path in found))
    return f"git add {shlex.join(names)}" if names and all(name.isprintable() for name in names) else None
