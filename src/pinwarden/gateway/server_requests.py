"""Requests of the server to the client: each one is judged by what it asks and carries, and recorded."""

from __future__ import annotations

from typing import Any

from pinwarden.gateway.forwarded_request import Asked
from pinwarden.gateway.gates.lists import digest_text
from pinwarden.gateway.gates.request_content import JudgedRequest
from pinwarden.gateway.gates.requests import Refusal, Requests, judge_request
from pinwarden.gateway.gates.verdict import WARN
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.session_audit import Journal, Output
from pinwarden.gateway.tasks import FETCHING, TOLD

_PING = "ping"


class ServerRequests:
    """The part of a session that decides about server requests, wherever in a message they are."""

    def __init__(self, guard: Guard, journal: Journal) -> None:
        self._guard = guard
        self._journal = journal

    def denied(self, method: str, params: Any) -> Refusal | None:
        """Why the policy does not let the server ask this at all; None if it does."""
        return judge_request(method, params, self._guard.requests(self._journal.client))

    def all_refused(self, requests: Requests | Refusal, asked: Asked, out: Output) -> Refusal | None:
        """Why a message with these requests may not pass; None if it may, and then each of them is recorded."""
        if isinstance(requests, Refusal):
            return requests
        most = self._guard.limits.max_input_requests
        if len(requests) > most:
            reason = f"The server sends {len(requests)} requests in one message; the limit is {most}."
            return Refusal(code="request_too_many", reason=reason)
        passing: list[JudgedRequest] = []
        for method, params in requests:
            judged = self.denied(method, params) or self._guard.judge_server_request(
                method, params, self._journal.client
            )
            if isinstance(judged, Refusal):
                return judged
            if not judged.verdict.passes:
                return self._blocked(judged, method, asked, out)
            passing.append(judged)
        for judged in passing:
            self._record(judged, asked, out)
        return None

    def tools_refused(self, result: Any, asked: Asked, out: Output) -> Refusal | None:
        """Why a result with tool definitions may not pass although it is no list; None if it may."""
        if type(result) is not dict or "tools" not in result:
            return None
        judged = self._guard.judge_tools_in_result(asked.method, result, self._journal.client)
        if judged is None or isinstance(judged, Refusal):
            return judged
        if not judged.verdict.passes:
            return self._blocked(judged, asked.method, asked, out)
        self._record(judged, asked, out)
        return None

    def _blocked(self, judged: JudgedRequest, method: str, asked: Asked, out: Output) -> Refusal:
        """The refusal, which the caller records; the definitions that it is about are recorded here."""
        self._record_definitions(judged, method, asked, out)
        verdict = judged.verdict
        return Refusal(code=verdict.code, reason=verdict.reason, observed=digest_text(verdict.digest))

    def _record(self, judged: JudgedRequest, asked: Asked, out: Output) -> None:
        verdict = judged.verdict
        self._record_definitions(judged, verdict.key, asked, out)
        call = self._call(asked)
        if asked.method in FETCHING or asked.method in TOLD:  # each poll repeats the requests that are open
            self._journal.used_once(verdict, verdict.key, call, out, (asked.use, digest_text(verdict.digest)))
        elif verdict.key == _PING:
            self._journal.pinged(verdict, call, out)
        else:
            self._journal.used(verdict, verdict.key, call, out)
        if verdict.action == WARN:
            asked.warning = asked.warning or verdict

    def _record_definitions(self, judged: JudgedRequest, method: str, asked: Asked, out: Output) -> None:
        for definition in judged.definitions:
            name = (method, digest_text(definition.digest))
            self._journal.used_once(definition, method, self._call(asked), out, name)

    def _call(self, asked: Asked) -> str:
        return "" if asked.number is None else self._journal.call_id(asked.number)
