"""Decides on responses from the server: unapproved items are removed from lists, and results are checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.gates.server_requests import (
    EmbeddedRequests,
    Refusal,
    build_max_rounds_refusal,
    find_requests_in_error,
    find_requests_in_result,
    find_requests_in_task,
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
from pinwarden.gateway.session.pages import build_warning_edit, filter_page, parse_list_response
from pinwarden.gateway.session.requests import RequestDecider
from pinwarden.gateway.session.server import CheckedServer
from pinwarden.gateway.session.server_requests import RequestChecker, ServerRequestDecider
from pinwarden.gateway.session.tasks import LIST_TASKS, TASK_METHODS, read_task_ids, remove_tasks
from pinwarden.surface.drift.changes import REVIEW
from pinwarden.surface.probe.message import ListPage
from pinwarden.surface.protocol import INVALID_PARAMS, TASK_NOTIFICATIONS
from pinwarden.surface.surface import Item, ItemKind

_IDENTITY = frozenset({"initialize", "server/discover"})
_TASK_PAYLOADS = frozenset({"result", "error", "inputRequests"})
_TASK_ENDED = frozenset({"completed", "failed", "cancelled"})
_MAX_ATTEMPTS = 3  # times that the gateway requests a list again if it lacks an item of the client's page
_MAX_COUNTED = 10_000  # maximum number of items and tasks whose rounds of requests the gateway counts
_MAX_TASK_REQUESTS = 100  # requests remembered for each task; after that, each poll counts as a round of requests


class ResponseDecider:
    """Decides on responses and task notifications from the server, in one session."""

    def __init__(  # noqa: PLR0913, PLR0917  the objects of one session
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
        self._request_checker = RequestChecker(guard, audit)
        self._result_checker = ResultChecker(guard, audit, links, self._request_checker)
        self.server_requests = ServerRequestDecider(guard, audit, server, self._request_checker, self._result_checker)

    @property
    def relays_unchecked_results(self) -> bool:
        """Whether the fast path may forward complete results that `decide` has not checked.

        False while requests for input are counted, because the next result has to reset the count.
        """
        return self._result_checker.relays_unchecked_results and not self.server_requests.rounds

    def decide(self, response: ServerResponse, now: float, out: OutputBuilder) -> bool:
        """Send a filtered response or a refusal to the client. Returns False if a list is needed first.

        Raises PinwardenError if the response is malformed or ambiguous.
        """
        data, message, request = response.data, response.message, response.request
        if message is not None and is_ambiguous_response(message):
            raise _build_ambiguous_error()
        if message is not None and "result" not in message:
            refusal = self._request_checker.find_refusal(find_requests_in_error(message.get("error")), request, out)
            self._send(refusal or self._result_checker.find_size_refusal(data), data, message, request, out)
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
            raise _build_ambiguous_error()
        self._send(self._result_checker.find_refusal(data, result, request, out), data, message, request, out)
        return True

    def _send(
        self, refusal: Refusal | None, data: bytes, message: Any, request: ForwardedRequest, out: OutputBuilder
    ) -> None:
        if refusal is not None:
            call = self._audit.make_call_id(request.request_id)
            self._audit.record_refusal(refusal, request.method, call, out)
            details = {"pinwarden": {"code": refusal.code, "call": call}}
            text = f"pinwarden: the response is refused: {refusal.reason}"
            out.to_client.append(build_error_response(request.request_id, INVALID_PARAMS, text, details))
        else:
            member = "result" if "result" in message else "error"
            out.to_client.append(self._result_checker.sanitize(data, message, member, request, out))

    # Lists

    def _decide_list(self, response: ServerResponse, kind: ItemKind, now: float, out: OutputBuilder) -> bool:
        page = parse_list_response(response.data, response.message, kind, self._guard)
        request = response.request
        if not request.has_cursor and page.cursor is None:
            if not response.attempts:
                self._lists.add_list(kind, tuple(page.items), now, request.change_count, request.order, out)
            checked_list = self._lists.find_latest(kind, out)
            if checked_list is None:
                self._lists.require(kind, now, out)  # the first use, for which all lists are needed
                checked_list = self._lists.find_latest(kind, out)
        else:
            checked_list = self._lists.require(kind, now, out)
        if checked_list is None:
            return False
        if response.attempts < _MAX_ATTEMPTS and not _contains_page(checked_list, page):
            self._lists.mark_outdated(kind)  # the page is newer, or the gateway gets another list than the client
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
                    self._audit.record_definition(_build_inconsistent_list_verdict(kind, item), kind.method, out)
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
        call = self._audit.make_call_id(request.request_id)
        self._audit.record_use(response, request.method, call, out)
        out.to_client.append(build_blocked_response(request.request_id, response, self._guard.server, call))

    # Tasks

    def decide_task_notification(self, notification: TaskNotification, now: float, out: OutputBuilder) -> bool:
        """Send a task notification to the client, or drop it if it is refused: the client can still poll the task.

        Returns False if a list is needed first. Raises PinwardenError if the notification is malformed or ambiguous.
        """
        params = notification.message.get("params")
        if type(params) is not dict or type(params.get("taskId")) is not str or is_ambiguous_task(params):
            raise _build_ambiguous_error()
        verdict: Verdict | None = None
        # Servers may report the status of a task before they respond to its call. A status alone needs no verdict.
        if self._is_known_task(params["taskId"]) or not _TASK_PAYLOADS.isdisjoint(params):
            verdict = self._requests.find_task_verdict(params["taskId"], now, out)
            if verdict is None:
                return False
        if verdict is not None and not verdict.passes:
            self._audit.record_use(verdict, notification.method, "", out)
            return True
        request = ForwardedRequest(None, notification.method, f"task/{params['taskId']}")
        refusal = self._result_checker.find_refusal(notification.data, params, request, out)
        if refusal is not None:
            self._audit.record_refusal(refusal, notification.method, "", out)
        else:
            out.to_client.append(
                self._result_checker.sanitize(notification.data, notification.message, "params", request, out)
            )
        return True

    def _is_known_task(self, task: str) -> bool:
        tasks, owner = self._guard.tasks, self._audit.client.owner
        return bool(tasks.find_tools(task, owner)) or tasks.belongs_to_other_client(task, owner)

    def _decide_task_list(self, response: ServerResponse, now: float, out: OutputBuilder) -> bool:
        """Send only the tasks that this client may fetch. The server may see all clients of the gateway as one."""
        data, message, request = response.data, response.message, response.request
        verdicts = [self._requests.find_task_verdict(task, now, out) for task in read_task_ids(message["result"])]
        known = [verdict for verdict in verdicts if verdict is not None]
        if len(known) < len(verdicts):
            return False
        removed = {index for index, verdict in enumerate(known) if not verdict.passes}
        if removed:
            data, message = remove_tasks(data, message, removed)
        for verdict in known:
            if verdict.action != ALLOW:
                self._audit.record_use_once(verdict, request.method, self._audit.make_call_id(request.request_id), out)
        request.warning = next((verdict for verdict in known if verdict.action == WARN), None)
        self._send(
            self._result_checker.find_refusal(data, message["result"], request, out), data, message, request, out
        )
        return True


class ResultChecker:
    """Checks results: their size, hidden characters, and the requests and tool definitions in them. Collects links."""

    def __init__(
        self, guard: Guard, audit: SessionAudit, links: ResourceLinks, request_checker: RequestChecker
    ) -> None:
        self._guard = guard
        self._audit = audit
        self._links = links
        self._request_checker = request_checker
        self._rounds: dict[str, int] = {}
        """The number of consecutive results that contained requests, by target."""
        self._task_requests: dict[str, frozenset[int]] = {}
        """Hashes of the requests so far, by task. Each poll of a task repeats its open requests."""

    @property
    def relays_unchecked_results(self) -> bool:
        """Whether complete results need none of these checks.

        False if the policy limits their size or does more with hidden characters than relay them. Also False while
        results with requests are counted, because a complete result has to reset the count.
        """
        policy = self._guard.policy
        return not policy.max_result_bytes and policy.hidden_characters == "relay" and not self._rounds

    def find_size_refusal(self, data: bytes) -> Refusal | None:
        """Return the refusal of a message that is too large; None if its size is allowed."""
        limit = self._guard.policy.max_result_bytes
        if not limit or len(data) <= limit:
            return None
        return Refusal(code="result_too_large", reason=f"The result has {len(data)} bytes; the policy allows {limit}.")

    def find_refusal(self, data: bytes, result: Any, request: ForwardedRequest, out: OutputBuilder) -> Refusal | None:
        """Return why a result, or the state of a task, is refused; None if it passes."""
        refusal = self.find_size_refusal(data)
        if refusal is not None or type(result) is not dict:
            return refusal
        if request.method in TASK_METHODS or request.method in TASK_NOTIFICATIONS:
            return self._find_task_refusal(result, request, out)
        if is_task_result(result):
            if request.method == CALL:
                self._guard.tasks.remember(result, request.target, self._audit.client.owner)
            tasks = [task for task in (result, result.get("task")) if type(task) is dict]
            refusals = (self._find_content_refusal(task, find_requests_in_task(task), request, out) for task in tasks)
            return next((refusal for refusal in refusals if refusal is not None), None)
        if result.get("resultType", "complete") == "complete" and "inputRequests" not in result:
            if self._rounds:
                self._rounds.pop(request.target, None)
            return self._request_checker.find_tools_refusal(result, request, out) if "tools" in result else None
        refusal = self._count_round(request.target)
        return refusal or self._find_content_refusal(result, find_requests_in_result(result), request, out)

    def _find_task_refusal(self, task: dict[str, Any], request: ForwardedRequest, out: OutputBuilder) -> Refusal | None:
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
        return self._find_content_refusal(task, find_requests_in_task(task), request, out)

    def _find_content_refusal(
        self, value: dict[str, Any], requests: EmbeddedRequests | Refusal, request: ForwardedRequest, out: OutputBuilder
    ) -> Refusal | None:
        """Return why the requests or tool definitions in a result or task are refused; None if they pass."""
        refusal = self._request_checker.find_refusal(requests, request, out)
        for part in (value, value.get("result")):
            refusal = refusal or self._request_checker.find_tools_refusal(part, request, out)
        return refusal

    def _count_round(self, target: str) -> Refusal | None:
        """Count a result that contains requests. Returns a refusal if there were too many in a row."""
        if len(self._rounds) >= _MAX_COUNTED and target not in self._rounds:
            oldest = next(iter(self._rounds))
            del self._rounds[oldest]
            self._task_requests.pop(oldest, None)
        self._rounds[target] = self._rounds.get(target, 0) + 1
        policy = self._guard.get_server_request_policy(self._audit.client)
        return build_max_rounds_refusal(policy) if self._rounds[target] > policy.max_rounds else None

    def sanitize(self, data: bytes, message: Any, member: str, request: ForwardedRequest, out: OutputBuilder) -> bytes:
        """Return the message for the client: with warnings, and without hidden characters if the policy strips them.

        ``member`` is the member that is checked: result, error or params.
        """
        value, hidden = message.get(member), self._guard.policy.hidden_characters
        if hidden != "relay":
            from pinwarden.gateway.gates.results import has_hidden_text, strip_hidden_text

            if has_hidden_text(value):
                # Anyone who knows the id of a task may be able to get its result, so the id is not recorded.
                verdict = _build_hidden_text_verdict(
                    "task" if request.target.startswith("task/") else request.target, hidden
                )
                call = "" if request.request_id is None else self._audit.make_call_id(request.request_id)
                self._audit.record_use(verdict, request.method, call, out)
                if hidden == "strip":
                    value = strip_hidden_text(value)
                    data = encode({**message, member: value})
                request.warning = request.warning or verdict
        if member == "error":
            return data
        if member == "result" or request.method in TASK_NOTIFICATIONS:
            self._links.add_from_result(value)
        if request.warning is None or type(value) is not dict:
            return data
        text = data.decode()
        span = splice.find_member(text, 0, member)
        if span is None:
            return data
        return splice.apply_edits(text, [build_warning_edit(text, span.start, [request.warning])]).encode()


def _build_ambiguous_error() -> PinwardenError:
    return PinwardenError("JSON_CANONICALIZATION_ERROR", "two JSON parsers could read the response differently")


def _contains_page(checked_list: CheckedList, page: ListPage) -> bool:
    return checked_list.problem is not None or all(
        item.digest is None or (item.key, item.digest.raw) in checked_list.by_item for item in page.items
    )


def _build_inconsistent_list_verdict(kind: ItemKind, item: Item) -> Verdict:
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


def _build_hidden_text_verdict(target: str, handling: str) -> Verdict:
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
    """The resource URIs in the results of one session. The client may read them even if no list has them."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    def __contains__(self, uri: object) -> bool:
        return uri in self._seen

    def add_from_result(self, result: Any) -> None:
        """Remember the resource URIs in a result that reaches the client."""
        for uri in _find_linked_uris(result):
            if type(uri) is str and len(uri) <= _MAX_URI_LENGTH:
                self._seen.pop(uri, None)
                self._seen[uri] = None
                if len(self._seen) > _MAX_LINKS:
                    del self._seen[next(iter(self._seen))]


def _find_linked_uris(result: Any) -> Iterator[Any]:
    """Yield the resource URIs in the result of a tool, prompt, resource or task."""
    if type(result) is not dict:
        return
    for content in _iterate_objects(result.get("content")):
        yield from _find_content_uris(content)
    for message in _iterate_objects(result.get("messages")):
        inside = message.get("content")
        for content in _iterate_objects(inside if type(inside) is list else [inside]):
            yield from _find_content_uris(content)
    for resource in _iterate_objects(result.get("contents")):
        yield resource.get("uri")
    if type(result.get("result")) is dict:
        yield from _find_linked_uris(result["result"])


def _find_content_uris(content: dict[str, Any]) -> Iterator[Any]:
    if content.get("type") == "resource_link":
        yield content.get("uri")
    resource = content.get("resource")
    if content.get("type") == "resource" and type(resource) is dict:
        yield resource.get("uri")


def _iterate_objects(values: Any) -> Iterator[dict[str, Any]]:
    if type(values) is list:
        yield from (value for value in values if type(value) is dict)
