"""The time that is written into files and reports. Pure modules get it as an argument.

Durations and timeouts are measured with ``time.monotonic`` where they are needed.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from pinwarden.core.errors import PinwardenError


def now() -> str:
    """Return the current time as lockfiles write it, or the time in ``SOURCE_DATE_EPOCH``, for reproducible files."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None:
        return wall_clock()
    try:
        return _format_time(datetime.fromtimestamp(int(epoch), UTC))
    except (ValueError, OverflowError, OSError) as err:
        raise PinwardenError("USAGE", f"SOURCE_DATE_EPOCH is {epoch[:40]!a}, not a number of seconds") from err


def wall_clock() -> str:
    """Return the current time, ignoring ``SOURCE_DATE_EPOCH``: for everything that has an age or expires."""
    return _format_time(datetime.now(UTC))


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
