"""Verify the audit log in the background: a log with a million entries takes half a minute."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.audit.report import verify_log

if TYPE_CHECKING:
    from pinwarden.core.report import Report
    from pinwarden.gateway.state import GatewayState


class LogCheckResult(Record):
    """The result of one verification."""

    at: str
    report: Report | None = None
    problem: PinwardenError | None = None
    """Why the log could not be read."""


class LogCheck:
    """The last verification of the log. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._thread: Thread | None = None
        self.result: LogCheckResult | None = None
        """None before the first one has finished."""

    @property
    def is_running(self) -> bool:
        """Whether a verification is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, state: GatewayState, now: Callable[[], str]) -> None:
        """Begin a verification, unless one is in progress."""
        with self._lock:
            if not self.is_running:
                self._thread = Thread(target=self._verify, args=(state, now), name="log check", daemon=True)
                self._thread.start()

    def _verify(self, state: GatewayState, now: Callable[[], str]) -> None:
        try:
            report = verify_log(state, ())
        except PinwardenError as err:
            self.result = LogCheckResult(at=now(), problem=err)
        else:
            self.result = LogCheckResult(at=now(), report=report)
