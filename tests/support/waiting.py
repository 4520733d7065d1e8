"""Waiting for what happens, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable


def poll(done: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something is so, and no longer than that."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
