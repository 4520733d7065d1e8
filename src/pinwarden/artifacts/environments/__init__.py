"""Environments built from verified files and checked before every start.

Start with ``store.py`` (files and environments by content) and ``tree.py`` (an unpacked tree and its manifest).
``node.py``, ``python.py``, ``mcpb.py`` and ``images.py`` build, audit and start one kind of environment each. They are
imported by every ``pinwarden run``, so anything slow to load is imported in the function that needs it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pinwarden.core.errors import PinwardenError

_MAX_NAMES = 20  # in a message; the error data lists more


def processor_architecture() -> str:
    """Return the processor architecture. Like ``platform.machine()``, but ``platform`` is slow to import."""
    return os.uname().machine if hasattr(os, "uname") else os.environ.get("PROCESSOR_ARCHITECTURE", "")


def has_glibc() -> bool:
    """Whether programs on this machine are linked with the GNU C library."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):  # other C libraries do not know the name
        return False


def unknown_program_error(package: str, program: str, available: Sequence[str]) -> PinwardenError:
    """Return the error for a program that a package does not have. Its message lists the programs the package has."""
    names = ", ".join(f"{name[:80]!a}" for name in available[:_MAX_NAMES])
    more = f" and {len(available) - _MAX_NAMES} more" if len(available) > _MAX_NAMES else ""
    return PinwardenError(
        "PROGRAM_UNKNOWN",
        f"{package} has no program {program[:80]!a}; available: {names or 'none'}{more}",
        data={"programs": list(available[:50])},
    )
