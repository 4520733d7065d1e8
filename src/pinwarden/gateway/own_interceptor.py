"""The gateway's own gate as an interceptor, so that other gateways can ask for its judgement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pinwarden.gateway.gates.requests import ELICITATION, ROOTS, SAMPLING, Refusal, judge_request
from pinwarden.gateway.gates.verdict import ALLOW, BLOCK, WARN, Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.interceptors import REQUEST, RESPONSE, VALIDATION, Host, Interceptor, Run
from pinwarden.gateway.messages import LIST_METHODS, shown
from pinwarden.surface.surface import PROMPT, RESOURCE, TOOL, Item, ItemKind
from pinwarden.system.fair_executor import check_items

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
            "message": f"{each.entity} '{shown(each.key)}': {each.reason} ({each.code})",
            "severity": _SEVERITY.get(each.action, "info"),
        }
        for path, each in found
    ]
    worst = next(word for word in ("error", "warn", "info") if any(each["severity"] == word for each in told))
    return {"valid": worst == "info", "severity": worst, "messages": told}
