"""Programs on this machine's search path."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def find_program(name: str, search_path: str) -> Path | None:
    """Where a bare name leads; None if no folder of the search path has such a program."""
    found = shutil.which(name, path=search_path) if search_path else None
    return None if found is None else Path(found)


def relative_folders(search_path: str) -> list[str]:
    """The folders of a search path whose place depends on where a program was started; an empty one is this folder."""
    return [folder for folder in search_path.split(os.pathsep) if not Path(folder).is_absolute()] if search_path else []
