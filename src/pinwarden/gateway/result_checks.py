"""Checks of what a server sends: requests inside results, hidden characters, size, and links to resources.

Servers need not list what they link to. A link in a result that was passed on comes from the server itself, so its
address may be read; an address of unknown origin may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinwarden.gateway import splice
from pinwarden.gateway.gates.lists import digest_text
from pinwarden.gateway.gates.requests import (
    JudgedRequest,
    Refusal,
    Requests,
    judge_request,
    requests_in_result,
    requests_in_task,
    too_many_rounds,
)
from pinwarden.gateway.gates.verdict import WARN, Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.in_flight import ForwardedRequest
from pinwarden.gateway.messages import encode
from pinwarden.gateway.pages import warning_edit
from pinwarden.gateway.session_audit import OutputBuilder, SessionAudit
from pinwarden.gateway.tasks import TASK_METHODS, TASK_NOTIFICATIONS, is_task
from pinwarden.surface.drift.changes import REVIEW

_CALL = "tools/call"
_ENDED = frozenset({"completed", "failed", "cancelled"})
_MAX_COUNTED = 10_000  # calls and tasks in which the server asks back
_MAX_QUESTIONS = 100  # of a task that are remembered; one that asks more is counted each time that it is looked at


class ResultChecks:
    """The part of a session that decides about results."""

    def __init__(self, guard: Guard, journal: SessionAudit, links: ResourceLinks, requests: ServerRequests) -> None:
        self._guard = guard
        self._requests = requests
        self._journal = journal
        self._links = links
        self._rounds: dict[str, int] = {}
        """By what is used, how often in a row the server asked back."""
        self._questions: dict[str, frozenset[int]] = {}
        """By task, marks of the questions that it asked: each poll tells all that are open."""

    @property
    def relays(self) -> bool:
        """Whether the policy wants nothing to be done about results, and nobody counts who asks back how often."""
        results = self._guard.policy.results
        return not results.max_bytes and results.hidden_characters == "relay" and not self._rounds

    def too_large(self, frame: bytes) -> Refusal | None:
        """Why a message is too large to pass, if it is."""
        most = self._guard.policy.results.max_bytes
        if not most or len(frame) <= most:
            return None
        return Refusal(code="result_too_large", reason=f"The result has {len(frame)} bytes; the policy allows {most}.")

    def refused(self, frame: bytes, result: Any, asked: ForwardedRequest, out: OutputBuilder) -> Refusal | None:
        """Why a result, or what is reported about a task, may not pass; None if it may."""
        refused = self.too_large(frame)
        if refused is not None or type(result) is not dict:
            return refused
        if asked.method in TASK_METHODS or asked.method in TASK_NOTIFICATIONS:
            return self._refused_task(result, asked, out)
        if is_task(result):
            if asked.method == _CALL:
                self._guard.tasks.remember(result, asked.use, self._journal.owner)
            tasks = [each for each in (result, result.get("task")) if type(each) is dict]
            refusals = (self._refused_parts(task, requests_in_task(task), asked, out) for task in tasks)
            return next((each for each in refusals if each is not None), None)
        if result.get("resultType", "complete") == "complete" and "inputRequests" not in result:
            if self._rounds:
                self._rounds.pop(asked.use, None)
            return self._requests.tools_refused(result, asked, out)
        return self._counted(asked.use) or self._refused_parts(result, requests_in_result(result), asked, out)

    def _refused_task(self, task: dict[str, Any], asked: ForwardedRequest, out: OutputBuilder) -> Refusal | None:
        use = asked.use
        questions = task.get("inputRequests")
        known = self._questions.get(use, frozenset())
        if type(questions) is dict and not known.issuperset(map(hash, questions)):
            refused = self._counted(use)
            if refused is not None:
                return refused
            known = known.union(map(hash, questions))
            if len(known) <= _MAX_QUESTIONS:
                self._questions[use] = known
        elif task.get("status") in _ENDED:
            self._rounds.pop(use, None)
            self._questions.pop(use, None)
        return self._refused_parts(task, requests_in_task(task), asked, out)

    def _refused_parts(
        self, value: dict[str, Any], requests: Requests | Refusal, asked: ForwardedRequest, out: OutputBuilder
    ) -> Refusal | None:
        """Why a result or a task may not pass because of the requests and tool definitions in it."""
        refused = self._requests.all_refused(requests, asked, out)
        for part in (value, value.get("result")):
            refused = refused or self._requests.tools_refused(part, asked, out)
        return refused

    def _counted(self, use: str) -> Refusal | None:
        """One more round; why it is one too many, if it is."""
        if len(self._rounds) >= _MAX_COUNTED and use not in self._rounds:
            oldest = next(iter(self._rounds))
            del self._rounds[oldest]
            self._questions.pop(oldest, None)
        self._rounds[use] = self._rounds.get(use, 0) + 1
        requests = self._guard.requests(self._journal.client)
        return too_many_rounds(requests) if self._rounds[use] > requests.max_rounds else None

    def checked(self, frame: bytes, message: Any, member: str, asked: ForwardedRequest, out: OutputBuilder) -> bytes:
        """A message that passes, with what the policy wants done about it. ``member`` holds what is looked at."""
        value, hidden = message.get(member), self._guard.policy.results.hidden_characters
        if hidden != "relay":
            from pinwarden.gateway.gates.results import has_hidden, without_hidden

            if has_hidden(value):
                # The id of a task may be all that it takes to get its result, so it is not written down.
                verdict = _hidden_verdict("task" if asked.use.startswith("task/") else asked.use, hidden)
                call = "" if asked.number is None else self._journal.call_id(asked.number)
                self._journal.used(verdict, asked.method, call, out)
                if hidden == "strip":
                    value = without_hidden(value)
                    frame = encode({**message, member: value})
                asked.warning = asked.warning or verdict
        if member == "error":
            return frame
        if member == "result" or asked.method in TASK_NOTIFICATIONS:
            self._links.learn(value)
        if asked.warning is None or type(value) is not dict:
            return frame
        text = frame.decode()
        place = splice.member(text, 0, member)
        return (
            frame if place is None else splice.edited(text, [warning_edit(text, place.start, [asked.warning])]).encode()
        )


def _hidden_verdict(use: str, what_is_done: str) -> Verdict:
    reason = "What the server sent holds characters that nobody sees."
    if what_is_done == "strip":
        reason = "Characters that nobody sees were removed from what the server sent."
    return Verdict(
        entity="result",
        key=use,
        value=None,
        digest=None,
        action=WARN,
        level=REVIEW,
        code="hidden_characters",
        reason=reason,
    )


_PING = "ping"


class ServerRequests:
    """The part of a session that decides about server requests, wherever in a message they are."""

    def __init__(self, guard: Guard, journal: SessionAudit) -> None:
        self._guard = guard
        self._journal = journal

    def denied(self, method: str, params: Any) -> Refusal | None:
        """Why the policy does not let the server ask this at all; None if it does."""
        return judge_request(method, params, self._guard.requests(self._journal.client))

    def all_refused(self, requests: Requests | Refusal, asked: ForwardedRequest, out: OutputBuilder) -> Refusal | None:
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

    def tools_refused(self, result: Any, asked: ForwardedRequest, out: OutputBuilder) -> Refusal | None:
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

    def _blocked(self, judged: JudgedRequest, method: str, asked: ForwardedRequest, out: OutputBuilder) -> Refusal:
        """The refusal, which the caller records; the definitions that it is about are recorded here."""
        self._record_definitions(judged, method, asked, out)
        verdict = judged.verdict
        return Refusal(code=verdict.code, reason=verdict.reason, observed=digest_text(verdict.digest))

    def _record(self, judged: JudgedRequest, asked: ForwardedRequest, out: OutputBuilder) -> None:
        verdict = judged.verdict
        self._record_definitions(judged, verdict.key, asked, out)
        call = self._call(asked)
        if (
            asked.method in TASK_METHODS or asked.method in TASK_NOTIFICATIONS
        ):  # each poll repeats the requests that are open
            self._journal.used_once(verdict, verdict.key, call, out, (asked.use, digest_text(verdict.digest)))
        elif verdict.key == _PING:
            self._journal.pinged(verdict, call, out)
        else:
            self._journal.used(verdict, verdict.key, call, out)
        if verdict.action == WARN:
            asked.warning = asked.warning or verdict

    def _record_definitions(
        self, judged: JudgedRequest, method: str, asked: ForwardedRequest, out: OutputBuilder
    ) -> None:
        for definition in judged.definitions:
            name = (method, digest_text(definition.digest))
            self._journal.used_once(definition, method, self._call(asked), out, name)

    def _call(self, asked: ForwardedRequest) -> str:
        return "" if asked.number is None else self._journal.call_id(asked.number)


LINK_MARKER = b'"resource'
"""Stands in every result that holds a link or a resource, unless somebody took pains to write it otherwise; then the
link is not noticed, and not followed."""
_MAX_LINKS = 10_000
_MAX_URI_LENGTH = 8192


class ResourceLinks:
    """The addresses that a session has seen."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    def __contains__(self, uri: str) -> bool:
        return uri in self._seen

    def learn(self, result: Any) -> None:
        """Keep the addresses in a result that is passed on."""
        for uri in _linked_uris(result):
            if type(uri) is str and len(uri) <= _MAX_URI_LENGTH:
                self._seen.pop(uri, None)
                self._seen[uri] = None
                if len(self._seen) > _MAX_LINKS:
                    del self._seen[next(iter(self._seen))]


def _linked_uris(result: Any) -> Iterator[Any]:
    """Of the contents of a tool's result, the messages of a prompt, the contents of a resource, and a task's result."""
    if type(result) is not dict:
        return
    for content in _objects(result.get("content")):
        yield from _content_uris(content)
    for message in _objects(result.get("messages")):
        inside = message.get("content")
        for each in _objects(inside if type(inside) is list else [inside]):
            yield from _content_uris(each)
    for resource in _objects(result.get("contents")):
        yield resource.get("uri")
    if type(result.get("result")) is dict:
        yield from _linked_uris(result["result"])


def _content_uris(content: dict[str, Any]) -> Iterator[Any]:
    if content.get("type") == "resource_link":
        yield content.get("uri")
    resource = content.get("resource")
    if content.get("type") == "resource" and type(resource) is dict:
        yield resource.get("uri")


def _objects(values: Any) -> Iterator[dict[str, Any]]:
    if type(values) is list:
        yield from (each for each in values if type(each) is dict)
