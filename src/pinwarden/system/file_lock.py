"""An exclusive lock on an open file, which the system frees when its process dies."""

from __future__ import annotations

import errno
import os


def try_lock(descriptor: int) -> bool:
    """Whether the lock was free. A file system that knows no locks is an error, and not a busy neighbour."""
    try:
        if os.name == "posix":
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except OSError as err:
        if err.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True
