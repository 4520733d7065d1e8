"""Interceptors as SEP-2624 (formerly SEP-1763) describes them.

``Host`` answers ``interceptors/list`` and ``interceptor/invoke``. ``apply`` is the invoker's side, which has no method
on the wire. What the gateway's own gates offer in this form is in ``gateway/interceptors.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.gates.requests import ELICITATION, ROOTS, SAMPLING, Refusal, judge_request
from pinwarden.gateway.gates.verdict import ALLOW, BLOCK, WARN, Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.messages import LIST_METHODS, printable_name
from pinwarden.surface.protocol import INTERNAL_ERROR, INVALID_PARAMS
from pinwarden.surface.surface import PROMPT, RESOURCE, TOOL, Item, ItemKind
from pinwarden.system.fair_executor import check_items

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


LISTS = "pinwarden/lists"
USES = "pinwarden/uses"
QUESTIONS = "pinwarden/questions"
_USED = {
    "tools/call": (TOOL, "name"),
    "prompts/get": (PROMPT, "name"),
    "resources/read": (RESOURCE, "uri"),
    "resources/subscribe": (RESOURCE, "uri"),
}
"""What a request uses, and the member that says which."""
_ASKED = (SAMPLING, ELICITATION, ROOTS)
EVENTS = (*LIST_METHODS, *_USED, *_ASKED)
"""All that these interceptors look at."""
_SEVERITY = {BLOCK: "error", WARN: "warn"}


class NotYetError(Exception):
    """The server has yet to list what is asked about."""


def own_host(guard: Guard, client: str, verdict_of: Callable[[ItemKind, str], Verdict | None]) -> Host:
    """The interceptors of a session: for list answers, for the use of an item, and for questions of the server.

    ``verdict_of`` gives None while the server's list is waited for; then an invocation raises `NotYetError`.
    """

    def judge_list(event: str, phase: str, payload: Any) -> Mapping[str, Any]:
        del phase
        kind = LIST_METHODS[event]
        values = _inner(payload, "result").get(kind.member)
        if not isinstance(values, list):
            raise ValueError("no list")
        check_items(len(values), guard.limits.max_items, "items in one list")
        items = tuple(Item.from_value(kind, value) for value in values)
        verdicts = guard.judge_list(kind, items, client, None)
        return _validation([(f"/{kind.member}/{place}", each) for place, each in enumerate(verdicts)])

    def judge_use(event: str, phase: str, payload: Any) -> Mapping[str, Any]:
        del phase
        kind, member = _USED[event]
        key = _inner(payload, "params").get(member)
        if not isinstance(key, str):
            raise ValueError("no name")
        verdict = verdict_of(kind, key)
        if verdict is None:
            raise NotYetError
        return _validation([(f"/{member}", verdict)])

    def judge_question(event: str, phase: str, payload: Any) -> Mapping[str, Any]:
        del phase
        params = _inner(payload, "params")
        refused = judge_request(event, params, guard.requests(client))
        judged = refused or guard.judge_server_request(event, params, client)
        if isinstance(judged, Refusal):
            message = {"path": "", "message": f"{judged.reason} ({judged.code})", "severity": "error"}
            return {"valid": False, "severity": "error", "messages": [message]}
        return _validation([("", judged.verdict), *(("/tools", each) for each in judged.definitions)])

    return Host(
        (
            _gate(
                LISTS, tuple(LIST_METHODS), RESPONSE, judge_list, "Holds every listed item against what was approved."
            ),
            _gate(USES, tuple(_USED), REQUEST, judge_use, "Lets only approved items be used."),
            _gate(QUESTIONS, _ASKED, REQUEST, judge_question, "Lets a server ask for what the policy allows."),
        )
    )


def _gate(name: str, events: tuple[str, ...], phase: str, run: Run, description: str) -> Interceptor:
    return Interceptor(name=name, kind=VALIDATION, events=events, phases=(phase,), run=run, description=description)


def _inner(payload: Any, member: str) -> dict[str, Any]:
    """The payload itself, or what a whole message holds."""
    if isinstance(payload, dict) and isinstance(payload.get(member), dict):
        payload = payload[member]
    if not isinstance(payload, dict):
        raise ValueError("no object")
    return payload


def _validation(judged: list[tuple[str, Verdict]]) -> dict[str, Any]:
    found = [(path, each) for path, each in judged if each.action != ALLOW]
    if not found:
        return {"valid": True}
    told = [
        {
            "path": path,
            "message": f"{each.entity} '{printable_name(each.key)}': {each.reason} ({each.code})",
            "severity": _SEVERITY.get(each.action, "info"),
        }
        for path, each in found
    ]
    worst = next(word for word in ("error", "warn", "info") if any(each["severity"] == word for each in told))
    return {"valid": worst == "info", "severity": worst, "messages": told}
