"""The one clock of the program. Rules and documents are told the time; they never ask for it."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from pinwarden.core.errors import PinwardenError


def now() -> str:
    """This moment as lockfiles write it; with ``SOURCE_DATE_EPOCH`` set, that moment, for reproducible files."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None:
        return wall_clock()
    try:
        return _written(datetime.fromtimestamp(int(epoch), UTC))
    except (ValueError, OverflowError, OSError) as err:
        raise PinwardenError("USAGE", f"SOURCE_DATE_EPOCH is {epoch[:40]!a}, not a number of seconds") from err


def wall_clock() -> str:
    """This moment by the clock, whatever the environment says: for what is judged by its age, or ends at some time."""
    return _written(datetime.now(UTC))


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
