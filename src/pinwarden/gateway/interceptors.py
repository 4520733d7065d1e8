"""Interceptors of SEP-2624 (formerly SEP-1763).

`InterceptorHost` implements ``interceptors/list`` and ``interceptor/invoke``. `build_gateway_host` offers the gateway's
checks of lists, uses and server requests as interceptors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.gates.server_requests import ELICITATION, ROOTS, SAMPLING, Refusal, check_request_policy
from pinwarden.gateway.gates.verdict import ALLOW, BLOCK, WARN, Verdict
from pinwarden.gateway.guard import Guard, SessionClient
from pinwarden.gateway.session.messages import LIST_METHODS, make_printable
from pinwarden.surface.protocol import INTERNAL_ERROR, INVALID_PARAMS
from pinwarden.surface.surface import PROMPT, RESOURCE, TOOL, Item, ItemKind
from pinwarden.system.fair_executor import check_items

REQUEST, RESPONSE = "request", "response"
VALIDATION, MUTATION = "validation", "mutation"

RunInterceptor = Callable[[str, str, Any], Mapping[str, Any]]
"""Function of event, phase and payload. The result has ``valid``, or for a mutation ``modified`` and ``payload``."""


class Interceptor(Record):
    """One interceptor that a host offers."""

    name: str
    kind: str
    """``validation`` or ``mutation``."""
    events: tuple[str, ...]
    phases: tuple[str, ...]
    run: RunInterceptor
    mode: str = "active"
    """``active`` or ``audit``. The result of an audit interceptor never blocks or changes a message."""
    fail_open: bool = False
    """Whether messages pass if the interceptor fails."""
    priority: int = 0
    description: str = ""

    def handles(self, event: str, phase: str | None = None) -> bool:
        """Whether the interceptor handles an event, in this phase or in any."""
        return (event in self.events or "*" in self.events) and (phase is None or phase in self.phases)

    def to_json(self) -> dict[str, Any]:
        """Return the descriptor, without members that have their default value."""
        descriptor: dict[str, Any] = {
            "name": self.name,
            "type": self.kind,
            "hooks": [{"events": list(self.events), "phase": phase} for phase in self.phases],
        }
        if self.description:
            descriptor["description"] = self.description
        if self.mode != "active":
            descriptor["mode"] = self.mode
        if self.fail_open:
            descriptor["failOpen"] = True
        if self.priority:
            descriptor["priorityHint"] = self.priority
        return descriptor


class InterceptorError(Exception):
    """The JSON-RPC error of a failed invocation."""

    def __init__(self, code: int, message: str, data: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class InterceptorHost:
    """The interceptors of one server, in order of registration."""

    def __init__(self, interceptors: Iterable[Interceptor]) -> None:
        self._interceptors = {interceptor.name: interceptor for interceptor in interceptors}

    def list_interceptors(self, event: str | None = None) -> dict[str, Any]:
        """Return the result of ``interceptors/list``."""
        hooked = (entry for entry in self._interceptors.values() if event is None or entry.handles(event))
        return {"interceptors": [interceptor.to_json() for interceptor in hooked]}

    def invoke(self, params: Any) -> dict[str, Any]:
        """Return the result of ``interceptor/invoke``. Raises `InterceptorError`."""
        name, event, phase = _parse_params(params)
        interceptor = self._interceptors.get(name)
        if interceptor is None:
            raise InterceptorError(INVALID_PARAMS, "no interceptor has this name", {"name": name[:200]})
        if not interceptor.handles(event, phase):
            data = {
                "name": name,
                "event": event[:200],
                "phase": phase[:20],
                "advertisedHooks": interceptor.to_json()["hooks"],
            }
            raise InterceptorError(INVALID_PARAMS, "the interceptor does not handle this event", data)
        return _run_interceptor(interceptor, event, phase, params.get("payload"))


def _parse_params(params: Any) -> tuple[str, str, str]:
    values = [params.get(name) if isinstance(params, dict) else None for name in ("name", "event", "phase")]
    if not all(isinstance(value, str) for value in values) or values[2] not in (REQUEST, RESPONSE):
        raise InterceptorError(INVALID_PARAMS, "name, event and phase are required", {})
    name, event, phase = values
    return str(name), str(event), str(phase)


def _run_interceptor(interceptor: Interceptor, event: str, phase: str, payload: Any) -> dict[str, Any]:
    try:
        result = interceptor.run(event, phase, payload)
    except (PinwardenError, ValueError, LookupError, TypeError, ArithmeticError) as err:
        reason = err.message if isinstance(err, PinwardenError) else type(err).__name__
        data = {"interceptor": interceptor.name, "reason": reason}
        if isinstance(err, PinwardenError) and err.code == "INPUT_LIMIT":
            raise InterceptorError(INVALID_PARAMS, f"pinwarden: {err.message}", data) from err
        raise InterceptorError(INTERNAL_ERROR, "the interceptor failed", data) from err
    return {"interceptor": interceptor.name, "type": interceptor.kind, "phase": phase, **result}


LISTS = "pinwarden/lists"
USES = "pinwarden/uses"
SERVER_REQUESTS = "pinwarden/questions"
_USES = {
    "tools/call": (TOOL, "name"),
    "prompts/get": (PROMPT, "name"),
    "resources/read": (RESOURCE, "uri"),
    "resources/subscribe": (RESOURCE, "uri"),
}
"""The kind of the item that a request uses, and the member with the item's key, by method."""
_SERVER_METHODS = (SAMPLING, ELICITATION, ROOTS)
EVENTS = (*LIST_METHODS, *_USES, *_SERVER_METHODS)
"""The events that the gateway's interceptors handle."""
_SEVERITY = {BLOCK: "error", WARN: "warn"}


class ListPendingError(Exception):
    """The server has not sent the list with the item yet."""


def build_gateway_host(
    guard: Guard, client: SessionClient, find_verdict: Callable[[ItemKind, str], Verdict | None]
) -> InterceptorHost:
    """Return the interceptors of a session: for lists, for the use of items and for server requests.

    ``find_verdict`` returns None while the server's list is pending; then an invocation raises `ListPendingError`.
    """

    def check_list(event: str, phase: str, payload: Any) -> Mapping[str, Any]:
        del phase
        kind = LIST_METHODS[event]
        values = _unwrap(payload, "result").get(kind.member)
        if not isinstance(values, list):
            raise ValueError("the payload has no list")
        check_items(len(values), guard.limits.max_items, "items in one list")
        items = tuple(Item.from_value(kind, value) for value in values)
        verdicts = guard.check_list(kind, items, client, None)
        return _build_validation([(f"/{kind.member}/{index}", verdict) for index, verdict in enumerate(verdicts)])

    def check_use(event: str, phase: str, payload: Any) -> Mapping[str, Any]:
        del phase
        kind, member = _USES[event]
        key = _unwrap(payload, "params").get(member)
        if not isinstance(key, str):
            raise ValueError("the payload names no item")
        verdict = find_verdict(kind, key)
        if verdict is None:
            raise ListPendingError
        return _build_validation([(f"/{member}", verdict)])

    def check_server_request(event: str, phase: str, payload: Any) -> Mapping[str, Any]:
        del phase
        params = _unwrap(payload, "params")
        refused = check_request_policy(event, params, guard.get_server_request_policy(client))
        checked = refused or guard.check_server_request(event, params, client)
        if isinstance(checked, Refusal):
            message = {"path": "", "message": f"{checked.reason} ({checked.code})", "severity": "error"}
            return {"valid": False, "severity": "error", "messages": [message]}
        return _build_validation(
            [("", checked.verdict), *(("/tools", definition) for definition in checked.definitions)]
        )

    return InterceptorHost(
        (
            _build_gate_interceptor(
                LISTS, tuple(LIST_METHODS), RESPONSE, check_list, "Compares listed items with the approved items."
            ),
            _build_gate_interceptor(USES, tuple(_USES), REQUEST, check_use, "Allows the use of approved items only."),
            _build_gate_interceptor(
                SERVER_REQUESTS,
                _SERVER_METHODS,
                REQUEST,
                check_server_request,
                "Allows server requests that the policy allows.",
            ),
        )
    )


def _build_gate_interceptor(
    name: str, events: tuple[str, ...], phase: str, run: RunInterceptor, description: str
) -> Interceptor:
    return Interceptor(name=name, kind=VALIDATION, events=events, phases=(phase,), run=run, description=description)


def _unwrap(payload: Any, member: str) -> dict[str, Any]:
    """Return this member of the payload if the payload is a complete message; otherwise the payload itself."""
    if isinstance(payload, dict) and isinstance(payload.get(member), dict):
        payload = payload[member]
    if not isinstance(payload, dict):
        raise ValueError("the payload is not an object")
    return payload


def _build_validation(checked: list[tuple[str, Verdict]]) -> dict[str, Any]:
    messages = [
        {
            "path": path,
            "message": f"{verdict.entity} '{make_printable(verdict.key)}': {verdict.reason} ({verdict.code})",
            "severity": _SEVERITY.get(verdict.action, "info"),
        }
        for path, verdict in checked
        if verdict.action != ALLOW
    ]
    if not messages:
        return {"valid": True}
    severities = {message["severity"] for message in messages}
    worst = next(severity for severity in ("error", "warn", "info") if severity in severities)
    return {"valid": worst == "info", "severity": worst, "messages": messages}
