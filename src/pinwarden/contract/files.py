"""The author's lock on disk: the only side effects of the format."""

from __future__ import annotations

from pathlib import Path

from pinwarden.contract.canonical import LOCKFILE_LIMITS
from pinwarden.contract.dialect import Dialect
from pinwarden.contract.lockfile import Lockfile, parse_lockfile, serialize_lockfile
from pinwarden.core.errors import PinwardenError
from pinwarden.system.files import read_file, write_atomically


def read_lockfile(path: Path, *, compat: Dialect | None = None) -> Lockfile | None:
    """The lockfile at a path; None if there is none. One that cannot be read is an error, never "not found".

    With ``compat`` it is read as that dialect reads it, to which whatever it cannot take is "not found".
    """
    if not path.exists() and not path.is_symlink():
        return None
    data = read_file(path, LOCKFILE_LIMITS.max_bytes)
    try:
        return parse_lockfile(data, compat=compat)
    except PinwardenError as err:
        if compat is not None:
            return None
        raise PinwardenError(err.code, f"{path}: {err.message}", hint=err.hint, data=err.data) from err


def write_lockfile(path: Path, lockfile: Lockfile) -> None:
    """Write the lockfile in one step: a reader sees the old one or the new one."""
    write_atomically(path, serialize_lockfile(lockfile))
