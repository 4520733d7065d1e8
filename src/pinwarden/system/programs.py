"""Programs on this machine's search path."""

from __future__ import annotations

import os
from pathlib import Path


def find_program(name: str, search_path: str) -> Path | None:
    """Where a bare name leads; None if no folder of the search path has such a program.

    As `shutil.which`, whose module loads every compression there is: that is time before a server starts.
    """
    if not search_path:
        return None
    if os.name != "posix":  # where a program has an ending that its name leaves out
        from shutil import which

        found = which(name, path=search_path)
        return None if found is None else Path(found)
    for folder in [""] if "/" in name else search_path.split(os.pathsep):
        place = os.path.join(folder, name)  # noqa: PTH118  an empty folder is the one where we are
        if os.access(place, os.F_OK | os.X_OK) and not os.path.isdir(place):  # noqa: PTH112
            return Path(place)
    return None


def relative_folders(search_path: str) -> list[str]:
    """The folders of a search path whose place depends on where a program was started; an empty one is this folder."""
    return [folder for folder in search_path.split(os.pathsep) if not Path(folder).is_absolute()] if search_path else []
