"""Builds environments from verified files, and checks them before every start.

Start with ``store.py`` (files and environments by digest) and ``tree.py`` (an unpacked tree and its manifest).
``node.py``, ``python.py``, ``mcpb.py`` and ``images.py`` build, audit and start one type of environment each. Every
``pinwarden run`` imports them, so they import slow modules only in the functions that need them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pinwarden.core.errors import PinwardenError

_MAX_NAMES = 20  # names of programs in an error message; the data of the error has up to 50


def get_processor_architecture() -> str:
    """Return the processor architecture. Like ``platform.machine()``, but ``platform`` is slow to import."""
    return os.uname().machine if hasattr(os, "uname") else os.environ.get("PROCESSOR_ARCHITECTURE", "")


def has_glibc() -> bool:
    """Whether programs on this machine are linked with the GNU C library."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):  # other C libraries do not have this setting
        return False


def unknown_program_error(package: str, program: str, available: Sequence[str]) -> PinwardenError:
    """Return the error for a program that a package does not have. The message lists the package's programs."""
    names = ", ".join(f"{name[:80]!a}" for name in available[:_MAX_NAMES])
    more = f" and {len(available) - _MAX_NAMES} more" if len(available) > _MAX_NAMES else ""
    return PinwardenError(
        "PROGRAM_UNKNOWN",
        f"{package} has no program {program[:80]!a}; available: {names or 'none'}{more}",
        data={"programs": list(available[:50])},
    )
