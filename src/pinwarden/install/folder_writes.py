"""Write folders of skills: all of them together with the lock, or nothing.

Each new folder is complete next to the folder of the skills before the first one is swapped in. If anything fails, the
earlier folders are restored. After a kill, the next command restores a folder that is missing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.project.edit_backups import hold_backups

if TYPE_CHECKING:
    from pinwarden.project.project import Project
    from pinwarden.skills.skill import FileBytes


class FolderWrite(Record):
    """A folder to replace, or to remove."""

    target: Path
    files: Mapping[str, FileBytes] | None
    """The files of the new folder, by path; None to remove the folder."""

    @property
    def staged(self) -> Path:
        """The new folder, before it has its name. It is outside of the folder in which clients look for skills."""
        return self._beside("new")

    @property
    def earlier(self) -> Path:
        """The earlier folder, until everything is written."""
        return self._beside("old")

    def _beside(self, kind: str) -> Path:
        return self.target.parent.parent / f".pinwarden-{self.target.parent.name}-{self.target.name}.{kind}"


def write_folders(
    project: Project, plan: Callable[[], Sequence[FolderWrite]], commit: Callable[[], None], targets: Sequence[Path]
) -> None:
    """Write all folders that ``plan`` returns, and call ``commit``. If anything raises, everything is as before.

    ``targets`` are all folders that may be written; what a killed command left of them is cleaned up before ``plan``.
    """
    with hold_backups(project):
        try:
            for target in targets:
                _recover(FolderWrite(target=target, files=None))
            _write_all(plan(), commit)
        except OSError as err:
            raise PinwardenError("FILE_UNWRITABLE", f"a skill cannot be written: {err.strerror or err}") from err


def _write_all(writes: Sequence[FolderWrite], commit: Callable[[], None]) -> None:
    swapped: list[FolderWrite] = []
    try:
        for write in writes:
            if write.files is not None:
                _stage(write, write.files)
        for write in writes:
            swapped.append(write)
            if write.target.is_symlink() or write.target.exists():
                write.target.rename(write.earlier)
            if write.files is not None:
                write.staged.rename(write.target)
        commit()
    except BaseException:
        for write in reversed(swapped):
            _undo(write)
        raise
    finally:
        for write in writes:
            shutil.rmtree(write.staged, ignore_errors=True)
    for write in writes:
        shutil.rmtree(write.earlier, ignore_errors=True)


def _stage(write: FolderWrite, files: Mapping[str, FileBytes]) -> None:
    write.target.parent.mkdir(parents=True, exist_ok=True)
    write.staged.mkdir()
    for path, content in files.items():
        file = write.staged / path
        file.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o755 if content.executable else 0o644
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            stream.write(content.data)
            stream.flush()
            os.fsync(stream.fileno())


def _undo(write: FolderWrite) -> None:
    if write.earlier.exists():
        shutil.rmtree(write.target, ignore_errors=True)
        write.earlier.rename(write.target)
    elif write.files is not None and not write.staged.exists():
        shutil.rmtree(write.target, ignore_errors=True)


def _recover(write: FolderWrite) -> None:
    if write.earlier.exists() and not write.target.exists():
        write.earlier.rename(write.target)
    for left in (write.earlier, write.staged):
        shutil.rmtree(left, ignore_errors=True)
