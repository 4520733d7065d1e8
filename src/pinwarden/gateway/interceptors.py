"""Interceptors as SEP-2624 (formerly SEP-1763) describes them.

``Host`` answers ``interceptors/list`` and ``interceptor/invoke``. What the gateway's own gates offer in this form is in
``gateway/own_interceptor.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.surface.protocol import INTERNAL_ERROR, INVALID_PARAMS

REQUEST, RESPONSE = "request", "response"
VALIDATION, MUTATION = "validation", "mutation"

Run = Callable[[str, str, Any], Mapping[str, Any]]
"""Given event, phase and payload: for a validation ``valid`` and more, for a mutation ``modified`` and ``payload``."""


class Interceptor(Record):
    """One interceptor that a host offers."""

    name: str
    kind: str
    """validation or mutation."""
    events: tuple[str, ...]
    phases: tuple[str, ...]
    run: Run
    mode: str = "active"
    """active, or audit: its verdict never blocks and its change is never made."""
    fail_open: bool = False
    """Whether a message passes if the interceptor itself fails."""
    priority: int = 0
    description: str = ""

    def hooks(self, event: str, phase: str | None = None) -> bool:
        """Whether it wants to see this event, in this phase or in any."""
        return (event in self.events or "*" in self.events) and (phase is None or phase in self.phases)

    def to_json(self) -> dict[str, Any]:
        """The descriptor on the wire, where defaults are left out."""
        described: dict[str, Any] = {
            "name": self.name,
            "type": self.kind,
            "hooks": [{"events": list(self.events), "phase": phase} for phase in self.phases],
        }
        if self.description:
            described["description"] = self.description
        if self.mode != "active":
            described["mode"] = self.mode
        if self.fail_open:
            described["failOpen"] = True
        if self.priority:
            described["priorityHint"] = self.priority
        return described


class InterceptorError(Exception):
    """Why an invocation has no result, as a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Host:
    """The interceptors of one server, in the order in which they were registered."""

    def __init__(self, interceptors: Iterable[Interceptor]) -> None:
        self._all = {each.name: each for each in interceptors}

    def list(self, event: str | None = None) -> dict[str, Any]:
        """The result of ``interceptors/list``."""
        return {"interceptors": [each.to_json() for each in self._all.values() if event is None or each.hooks(event)]}

    def invoke(self, params: Any) -> dict[str, Any]:
        """The result of ``interceptor/invoke``; raises `InterceptorError`."""
        name, event, phase = _words(params)
        found = self._all.get(name)
        if found is None:
            raise InterceptorError(INVALID_PARAMS, "no interceptor has this name", {"name": name[:200]})
        if not found.hooks(event, phase):
            data = {
                "name": name,
                "event": event[:200],
                "phase": phase[:20],
                "advertisedHooks": found.to_json()["hooks"],
            }
            raise InterceptorError(INVALID_PARAMS, "the interceptor does not look at this event", data)
        return _ran(found, event, phase, params.get("payload"))


def _words(params: Any) -> tuple[str, str, str]:
    words = [params.get(name) if isinstance(params, dict) else None for name in ("name", "event", "phase")]
    if not all(isinstance(word, str) for word in words) or words[2] not in (REQUEST, RESPONSE):
        raise InterceptorError(INVALID_PARAMS, "name, event and phase are needed", {})
    name, event, phase = words
    return str(name), str(event), str(phase)


def _ran(interceptor: Interceptor, event: str, phase: str, payload: Any) -> dict[str, Any]:
    try:
        result = interceptor.run(event, phase, payload)
    except (PinwardenError, ValueError, LookupError, TypeError, ArithmeticError) as err:
        reason = err.message if isinstance(err, PinwardenError) else type(err).__name__
        data = {"interceptor": interceptor.name, "reason": reason}
        if isinstance(err, PinwardenError) and err.code == "INPUT_LIMIT":
            raise InterceptorError(INVALID_PARAMS, f"pinwarden: {err.message}", data) from err
        raise InterceptorError(INTERNAL_ERROR, "the interceptor failed", data) from err
    return {"interceptor": interceptor.name, "type": interceptor.kind, "phase": phase, **result}
