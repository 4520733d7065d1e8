"""Checked files onto the disk: all of them into a new folder that takes its place in one step, or none."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pinwarden.artifacts.archives.rules import check_all_portable
from pinwarden.bundle.archive.bundle_archive import Contents
from pinwarden.bundle.manifest import Entry
from pinwarden.core.errors import PinwardenError


def unpack(entries: Iterable[Entry], contents: Contents, destination: Path) -> None:
    """Write the files below a folder that must not exist yet.

    The contents were checked (``check_archive``). The paths are checked here once more, because this is where they
    begin to mean something.
    """
    from tempfile import mkdtemp

    from pinwarden.artifacts.environments.store import remove_tree

    listed = list(entries)
    check_all_portable([entry.path for entry in listed])
    if destination.exists() or destination.is_symlink():
        raise PinwardenError("FILE_EXISTS", f"{destination} exists already")
    try:
        # A folder of our own that nobody else can write to, so no link can be put in the way.
        fresh = Path(mkdtemp(dir=destination.parent, prefix=f".{destination.name}."))
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{destination.parent}: {err.strerror or err}") from err
    try:
        made: set[str] = set()
        for entry in listed:
            _write(fresh, entry, contents[entry.path], made)
        fresh.chmod(0o755)
        fresh.rename(destination)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{destination}: {err.strerror or err}") from err
    finally:
        remove_tree(fresh)


def _write(folder: Path, entry: Entry, data: memoryview | bytes, made: set[str]) -> None:
    place = folder / entry.path
    above = entry.path.rpartition("/")[0]
    if above and above not in made:
        place.parent.mkdir(parents=True, exist_ok=True)
        made.add(above)
    mode = 0o755 if entry.executable else 0o644
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, mode)  # whatever the umask is
        stream.write(data)
