"""Decides about responses from the server: unapproved items are removed from lists, and results are checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.gates.requests import (
    Refusal,
    Requests,
    requests_in_error,
    requests_in_result,
    requests_in_task,
    rounds_refusal,
)
from pinwarden.gateway.gates.verdict import ALLOW, BLOCK, WARN, Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.session import splice
from pinwarden.gateway.session.lists import CheckedList, CheckedLists, has_two_names
from pinwarden.gateway.session.messages import (
    CALL,
    ForwardedRequest,
    ServerResponse,
    TaskNotification,
    build_blocked_response,
    build_error_response,
    encode,
    is_ambiguous_response,
    is_ambiguous_task,
    is_task_result,
)
from pinwarden.gateway.session.output import OutputBuilder, SessionAudit
from pinwarden.gateway.session.pages import filter_page, parse_list_response, warning_edit
from pinwarden.gateway.session.requests import RequestDecider
from pinwarden.gateway.session.server import CheckedServer
from pinwarden.gateway.session.server_requests import RequestChecks, ServerRequestDecider
from pinwarden.gateway.session.tasks import LIST_TASKS, TASK_METHODS, task_ids, without_tasks
from pinwarden.surface.drift.changes import REVIEW
from pinwarden.surface.probe.message import ListPage
from pinwarden.surface.protocol import INVALID_PARAMS, TASK_NOTIFICATIONS
from pinwarden.surface.surface import Item, ItemKind

_IDENTITY = frozenset({"initialize", "server/discover"})
_TASK_PAYLOADS = frozenset({"result", "error", "inputRequests"})
_TASK_ENDED = frozenset({"completed", "failed", "cancelled"})
_MAX_ATTEMPTS = 3  # how often a page is compared with a list that was requested again
_MAX_COUNTED = 10_000  # items and tasks whose rounds of requests are counted
_MAX_TASK_REQUESTS = 100  # remembered for a task; with more of them, each poll counts as a round


class ResponseDecider:
    """The part of a session that decides about responses from the server."""

    def __init__(  # noqa: PLR0913, PLR0917  the parts of one session
        self,
        guard: Guard,
        audit: SessionAudit,
        lists: CheckedLists,
        server: CheckedServer,
        requests: RequestDecider,
        links: ResourceLinks,
    ) -> None:
        self._guard = guard
        self._audit = audit
        self._lists = lists
        self._server = server
        self._requests = requests
        self._checks = RequestChecks(guard, audit)
        self._results = ResultChecks(guard, audit, links, self._checks)
        self.server_requests = ServerRequestDecider(guard, audit, server, self._checks, self._results)

    def may_relay(self) -> bool:
        """Whether results may pass unchecked: the policy has no checks, and no rounds of requests are being counted."""
        return self._results.may_relay and not self.server_requests.rounds

    def decide(self, response: ServerResponse, now: float, out: OutputBuilder) -> bool:
        """Send a response, filtered, or a refusal to the client. Returns False if a list must be awaited first.

        Raises if the response cannot be evaluated.
        """
        data, message, request = response.data, response.message, response.request
        if message is not None and is_ambiguous_response(message):
            raise _ambiguous_error()
        if message is not None and "result" not in message:
            refusal = self._checks.refusal(requests_in_error(message.get("error")), request, out)
            self._send(refusal or self._results.too_large(data), data, message, request, out)
            return True
        if request.list_kind is not None:
            return self._decide_list(response, request.list_kind, now, out)
        if message is None:
            raise PinwardenError("JSON_CANONICALIZATION_ERROR", "the response is not strict JSON")
        if request.method in _IDENTITY:
            self._decide_identity(data, message, request, out)
            return True
        if request.method == LIST_TASKS:
            return self._decide_task_list(response, now, out)
        self.server_requests.rounds = 0
        result = message["result"]
        if (request.method in TASK_METHODS or is_task_result(result)) and is_ambiguous_task(result):
            raise _ambiguous_error()
        self._send(self._results.refusal(data, result, request, out), data, message, request, out)
        return True

    def _send(
        self, refusal: Refusal | None, data: bytes, message: Any, request: ForwardedRequest, out: OutputBuilder
    ) -> None:
        if refusal is not None:
            call = self._audit.call_id(request.request_id)
            self._audit.record_refusal(refusal, request.method, call, out)
            details = {"pinwarden": {"code": refusal.code, "call": call}}
            text = f"pinwarden: the response is refused: {refusal.reason}"
            out.to_client.append(build_error_response(request.request_id, INVALID_PARAMS, text, details))
        else:
            member = "result" if "result" in message else "error"
            out.to_client.append(self._results.sanitize(data, message, member, request, out))

    # Lists

    def _decide_list(self, response: ServerResponse, kind: ItemKind, now: float, out: OutputBuilder) -> bool:
        page = parse_list_response(response.data, response.message, kind, self._guard)
        request = response.request
        if not request.has_cursor and page.cursor is None:
            if not response.attempts:
                self._lists.add_list(kind, tuple(page.items), now, request.change_count, request.order, out)
            checked_list = self._lists.latest(kind, out)
            if checked_list is None:
                self._lists.require(kind, now, out)  # the first use, for which all lists are needed
                checked_list = self._lists.latest(kind, out)
        else:
            checked_list = self._lists.require(kind, now, out)
        if checked_list is None:
            return False
        if response.attempts < _MAX_ATTEMPTS and not _contains_page(checked_list, page):
            self._lists.expire(kind)  # the page is newer, or the server lists something else to the gateway
            self._lists.require(kind, now, out)
            return False
        self._send_page(response.data, kind, page, checked_list, out)
        return True

    def _send_page(
        self, data: bytes, kind: ItemKind, page: ListPage, checked_list: CheckedList, out: OutputBuilder
    ) -> None:
        removed: set[int] = set()
        warnings: list[Verdict] = []
        for index, item in enumerate(page.items):
            verdict = None if item.digest is None else checked_list.by_item.get((item.key, item.digest.raw))
            if verdict is None:
                removed.add(index)
                if item.digest is not None:
                    self._audit.record_definition(_unstable_item_verdict(kind, item), kind.method, out)
            elif not checked_list.by_key[item.key].passes:
                removed.add(index)
            elif verdict.action == WARN:
                warnings.append(verdict)
        ttl = self._guard.policy.relist_seconds * 1000
        out.to_client.append(filter_page(data, kind, removed, ttl=ttl, warnings=warnings))

    # The server itself

    def _decide_identity(self, data: bytes, message: Any, request: ForwardedRequest, out: OutputBuilder) -> None:
        result = message["result"]
        if not isinstance(result, dict) or result.get("resultType", "complete") != "complete":
            raise PinwardenError("PROBE_FAILED", "the server does not identify itself")
        if has_two_names(result):
            raise PinwardenError("JSON_CANONICALIZATION_ERROR", "the server states two different names for itself")
        response = self._server.filter_response(data, result, self._guard.policy.relist_seconds * 1000, out)
        if isinstance(response, bytes):
            out.to_client.append(response)
            return
        call = self._audit.call_id(request.request_id)
        self._audit.record_use(response, request.method, call, out)
        out.to_client.append(build_blocked_response(request.request_id, response, self._guard.server, call))

    # Tasks

    def decide_task_notification(self, notification: TaskNotification, now: float, out: OutputBuilder) -> bool:
        """Send a notification about a task to the client, unless it is refused: the client can still poll the task.

        Returns False if a list must be awaited first. Raises if the notification cannot be evaluated.
        """
        params = notification.message.get("params")
        if type(params) is not dict or type(params.get("taskId")) is not str or is_ambiguous_task(params):
            raise _ambiguous_error()
        verdict: Verdict | None = None
        # Servers may report the status of a task before they answer its call. A status alone needs no verdict.
        if self._is_known_task(params["taskId"]) or not _TASK_PAYLOADS.isdisjoint(params):
            verdict = self._requests.task_verdict(params["taskId"], now, out)
            if verdict is None:
                return False
        if verdict is not None and not verdict.passes:
            self._audit.record_use(verdict, notification.method, "", out)
            return True
        request = ForwardedRequest(None, notification.method, f"task/{params['taskId']}")
        refusal = self._results.refusal(notification.data, params, request, out)
        if refusal is not None:
            self._audit.record_refusal(refusal, notification.method, "", out)
        else:
            out.to_client.append(
                self._results.sanitize(notification.data, notification.message, "params", request, out)
            )
        return True

    def _is_known_task(self, task: str) -> bool:
        tasks, owner = self._guard.tasks, self._audit.owner
        return bool(tasks.tools_of(task, owner)) or tasks.belongs_to_other_client(task, owner)

    def _decide_task_list(self, response: ServerResponse, now: float, out: OutputBuilder) -> bool:
        """Send the tasks that the client may fetch. The server may treat all clients of the gateway as one client."""
        data, message, request = response.data, response.message, response.request
        verdicts = [self._requests.task_verdict(task, now, out) for task in task_ids(message["result"])]
        known = [verdict for verdict in verdicts if verdict is not None]
        if len(known) < len(verdicts):
            return False
        removed = {index for index, verdict in enumerate(known) if not verdict.passes}
        if removed:
            data, message = without_tasks(data, message, removed)
        for verdict in known:
            if verdict.action != ALLOW:
                self._audit.record_use_once(verdict, request.method, self._audit.call_id(request.request_id), out)
        request.warning = next((verdict for verdict in known if verdict.action == WARN), None)
        self._send(self._results.refusal(data, message["result"], request, out), data, message, request, out)
        return True


class ResultChecks:
    """Checks the content of results: size, hidden characters, requests and tool definitions in them, and links."""

    def __init__(self, guard: Guard, audit: SessionAudit, links: ResourceLinks, checks: RequestChecks) -> None:
        self._guard = guard
        self._audit = audit
        self._links = links
        self._checks = checks
        self._rounds: dict[str, int] = {}
        """By target, how often in a row a result contained requests."""
        self._task_requests: dict[str, frozenset[int]] = {}
        """By task, hashes of its requests: each poll repeats all that are open."""

    @property
    def may_relay(self) -> bool:
        """Whether the policy has no checks, and no rounds are being counted."""
        results = self._guard.policy.results
        return not results.max_bytes and results.hidden_characters == "relay" and not self._rounds

    def too_large(self, data: bytes) -> Refusal | None:
        """Why a message is too large; None if it is not."""
        limit = self._guard.policy.results.max_bytes
        if not limit or len(data) <= limit:
            return None
        return Refusal(code="result_too_large", reason=f"The result has {len(data)} bytes; the policy allows {limit}.")

    def refusal(self, data: bytes, result: Any, request: ForwardedRequest, out: OutputBuilder) -> Refusal | None:
        """Why a result, or the state of a task, is refused; None if it passes."""
        refusal = self.too_large(data)
        if refusal is not None or type(result) is not dict:
            return refusal
        if request.method in TASK_METHODS or request.method in TASK_NOTIFICATIONS:
            return self._task_refusal(result, request, out)
        if is_task_result(result):
            if request.method == CALL:
                self._guard.tasks.remember(result, request.target, self._audit.owner)
            tasks = [task for task in (result, result.get("task")) if type(task) is dict]
            refusals = (self._content_refusal(task, requests_in_task(task), request, out) for task in tasks)
            return next((refusal for refusal in refusals if refusal is not None), None)
        if result.get("resultType", "complete") == "complete" and "inputRequests" not in result:
            if self._rounds:
                self._rounds.pop(request.target, None)
            return self._checks.tools_refusal(result, request, out) if "tools" in result else None
        refusal = self._count_round(request.target)
        return refusal or self._content_refusal(result, requests_in_result(result), request, out)

    def _task_refusal(self, task: dict[str, Any], request: ForwardedRequest, out: OutputBuilder) -> Refusal | None:
        target = request.target
        requests = task.get("inputRequests")
        known = self._task_requests.get(target, frozenset())
        if type(requests) is dict and not known.issuperset(map(hash, requests)):
            refusal = self._count_round(target)
            if refusal is not None:
                return refusal
            known = known.union(map(hash, requests))
            if len(known) <= _MAX_TASK_REQUESTS:
                self._task_requests[target] = known
        elif task.get("status") in _TASK_ENDED:
            self._rounds.pop(target, None)
            self._task_requests.pop(target, None)
        return self._content_refusal(task, requests_in_task(task), request, out)

    def _content_refusal(
        self, value: dict[str, Any], requests: Requests | Refusal, request: ForwardedRequest, out: OutputBuilder
    ) -> Refusal | None:
        """Why a result or a task is refused because of the requests and tool definitions in it."""
        refusal = self._checks.refusal(requests, request, out)
        for part in (value, value.get("result")):
            refusal = refusal or self._checks.tools_refusal(part, request, out)
        return refusal

    def _count_round(self, target: str) -> Refusal | None:
        """Count a result with requests. Returns the refusal if there were too many in a row."""
        if len(self._rounds) >= _MAX_COUNTED and target not in self._rounds:
            oldest = next(iter(self._rounds))
            del self._rounds[oldest]
            self._task_requests.pop(oldest, None)
        self._rounds[target] = self._rounds.get(target, 0) + 1
        policy = self._guard.request_policy(self._audit.client)
        return rounds_refusal(policy) if self._rounds[target] > policy.max_rounds else None

    def sanitize(self, data: bytes, message: Any, member: str, request: ForwardedRequest, out: OutputBuilder) -> bytes:
        """A message that passes, without hidden characters if the policy says so, and with warnings.

        ``member`` is the part that is checked: result, error or params.
        """
        value, hidden = message.get(member), self._guard.policy.results.hidden_characters
        if hidden != "relay":
            from pinwarden.gateway.gates.results import has_hidden_text, strip_hidden_text

            if has_hidden_text(value):
                # Anyone who knows the id of a task may be able to get its result, so the id is not recorded.
                verdict = _hidden_text_verdict("task" if request.target.startswith("task/") else request.target, hidden)
                call = "" if request.request_id is None else self._audit.call_id(request.request_id)
                self._audit.record_use(verdict, request.method, call, out)
                if hidden == "strip":
                    value = strip_hidden_text(value)
                    data = encode({**message, member: value})
                request.warning = request.warning or verdict
        if member == "error":
            return data
        if member == "result" or request.method in TASK_NOTIFICATIONS:
            self._links.learn(value)
        if request.warning is None or type(value) is not dict:
            return data
        text = data.decode()
        span = splice.find_member(text, 0, member)
        if span is None:
            return data
        return splice.apply_edits(text, [warning_edit(text, span.start, [request.warning])]).encode()


def _ambiguous_error() -> PinwardenError:
    return PinwardenError("JSON_CANONICALIZATION_ERROR", "two parsers could read it differently")


def _contains_page(checked_list: CheckedList, page: ListPage) -> bool:
    return checked_list.problem is not None or all(
        item.digest is None or (item.key, item.digest.raw) in checked_list.by_item for item in page.items
    )


def _unstable_item_verdict(kind: ItemKind, item: Item) -> Verdict:
    return Verdict(
        entity=kind.entity,
        key=item.key,
        value=item.value,
        digest=item.digest,
        action=BLOCK,
        level=REVIEW,
        code="list_unstable",
        reason="The server lists this item to the client, but not to the gateway.",
    )


def _hidden_text_verdict(target: str, handling: str) -> Verdict:
    reason = "The message from the server contains invisible characters."
    if handling == "strip":
        reason = "Invisible characters were removed from the message from the server."
    return Verdict(
        entity="result",
        key=target,
        value=None,
        digest=None,
        action=WARN,
        level=REVIEW,
        code="hidden_characters",
        reason=reason,
    )


_MAX_LINKS = 10_000
_MAX_URI_LENGTH = 8192


class ResourceLinks:
    """The addresses in results of one session. They may be read, because servers need not list linked resources."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    def __contains__(self, uri: object) -> bool:
        return uri in self._seen

    def learn(self, result: Any) -> None:
        """Remember the addresses in a result that reaches the client."""
        for uri in _linked_uris(result):
            if type(uri) is str and len(uri) <= _MAX_URI_LENGTH:
                self._seen.pop(uri, None)
                self._seen[uri] = None
                if len(self._seen) > _MAX_LINKS:
                    del self._seen[next(iter(self._seen))]


def _linked_uris(result: Any) -> Iterator[Any]:
    """The addresses in a tool result, a prompt, a resource, or the result of a task."""
    if type(result) is not dict:
        return
    for content in _objects(result.get("content")):
        yield from _content_uris(content)
    for message in _objects(result.get("messages")):
        inside = message.get("content")
        for content in _objects(inside if type(inside) is list else [inside]):
            yield from _content_uris(content)
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
        yield from (value for value in values if type(value) is dict)
