"""The gateway's own gate as an interceptor, so that other gateways can ask for its judgement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pinwarden.documents.surface import PROMPT, TOOL, Item, Kind
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.interceptors import REQUEST, RESPONSE, VALIDATION, Host, Interceptor
from pinwarden.gateway.messages import LIST_METHODS, shown
from pinwarden.rules.gates.verdict import ALLOW, BLOCK, WARN, Verdict

LISTS = "pinwarden/lists"
USES = "pinwarden/uses"
_USED = {"tools/call": TOOL, "prompts/get": PROMPT}
EVENTS = (*LIST_METHODS, *_USED)
"""All that these interceptors look at."""
_SEVERITY = {BLOCK: "error", WARN: "warn"}


def own_host(guard: Guard, client: str, verdict_of: Callable[[Kind, str], Verdict]) -> Host:
    """The two interceptors of a session: one for list answers, one for the use of an item."""

    def judge_list(event: str, phase: str, payload: Any) -> Mapping[str, Any]:
        del phase
        kind = LIST_METHODS[event]
        values = _inner(payload, "result").get(kind.member)
        if not isinstance(values, list):
            raise ValueError("no list")
        items = tuple(Item.of(kind, value) for value in values)
        verdicts = guard.judge_list(kind, items, client, None)
        return _validation([(f"/{kind.member}/{place}", each) for place, each in enumerate(verdicts)])

    def judge_use(event: str, phase: str, payload: Any) -> Mapping[str, Any]:
        del phase
        name = _inner(payload, "params").get("name")
        if not isinstance(name, str):
            raise ValueError("no name")
        return _validation([("/name", verdict_of(_USED[event], name))])

    return Host(
        (
            Interceptor(
                name=LISTS,
                kind=VALIDATION,
                events=tuple(LIST_METHODS),
                phases=(RESPONSE,),
                run=judge_list,
                description="Holds every listed item against what was approved.",
            ),
            Interceptor(
                name=USES,
                kind=VALIDATION,
                events=tuple(_USED),
                phases=(REQUEST,),
                run=judge_use,
                description="Lets only approved items be used.",
            ),
        )
    )


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
