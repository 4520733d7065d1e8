"""What machine this is. The ``platform`` module knows as well, and takes longer to load than a start may take."""

from __future__ import annotations

import os


def machine() -> str:
    """The processor, as the system calls it."""
    return os.uname().machine if hasattr(os, "uname") else os.environ.get("PROCESSOR_ARCHITECTURE", "")


def has_glibc() -> bool:
    """Whether programs here are linked with the GNU C library."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):  # another C library does not know the name
        return False
