"""The path of the program that runs now, as a client's configuration can name it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pinwarden.core.errors import PinwardenError

_NAME = "pinwarden.exe" if os.name == "nt" else "pinwarden"
_TEMPORARY_PARTS = frozenset({"archive-v0", "environments-v2", "builds-v0"})
"""Folders of uv's cache: ``uvx`` runs a program there, and a later clean-up removes it."""


def find_own_program(search_path: str, executable: str | None = None) -> str:
    """Return the absolute path of the ``pinwarden`` script that belongs to this Python.

    A link on the search path is preferred over its target: pipx, uv and Homebrew replace the target when they upgrade,
    and keep the link. Raises PROGRAM_UNKNOWN if there is no path that will still exist tomorrow.
    """
    own = Path(os.path.abspath(executable or sys.executable)).parent / _NAME  # noqa: PTH100  keep links
    if own.is_file():
        for folder in search_path.split(os.pathsep):
            candidate = Path(folder) / _NAME
            if candidate.is_absolute() and _is_same_program(candidate, own) and not _is_temporary(candidate):
                return str(candidate)
        if not _is_temporary(own):
            return str(own)
    raise PinwardenError(
        "PROGRAM_UNKNOWN",
        "Pinwarden runs from a temporary environment, which a client's configuration cannot name",
        hint="Install it, for example with `uv tool install pinwarden` or `pipx install pinwarden`, and try again.",
    )


def _is_same_program(candidate: Path, own: Path) -> bool:
    try:
        return os.access(candidate, os.X_OK) and candidate.samefile(own)
    except OSError:
        return False


def _is_temporary(path: Path) -> bool:
    return bool(_TEMPORARY_PARTS & set(path.parts))
