"""A package that does not have the program that it is to start."""

from __future__ import annotations

from collections.abc import Sequence

from pinwarden.core.errors import PinwardenError

_SHOWN = 20  # names in a message; the data has more


def program_unknown(package: str, program: str, there: Sequence[str]) -> PinwardenError:
    """The error, with the programs that are there."""
    names = ", ".join(f"{name[:80]!a}" for name in there[:_SHOWN])
    more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    return PinwardenError(
        "PROGRAM_UNKNOWN",
        f"{package} has no program {program[:80]!a}; it has {names or 'none'}{more}",
        data={"programs": list(there[:50])},
    )
