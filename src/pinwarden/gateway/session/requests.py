"""Decides on requests from the client by the item that they use."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from pinwarden.core.text import lazy_pattern
from pinwarden.gateway.gates.lists import LIST_FAILED, choose_strictest_action
from pinwarden.gateway.gates.verdict import ALLOW, AUDIT, BLOCK, WARN, Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.session.lists import CheckedList, CheckedLists
from pinwarden.gateway.session.messages import (
    CALL,
    LIST_METHODS,
    LISTEN,
    ForwardedRequest,
    build_blocked_response,
    build_error_response,
    encode,
    is_ambiguous_request,
)
from pinwarden.gateway.session.output import OutputBuilder, SessionAudit, with_request_id
from pinwarden.gateway.session.server import INTERCEPTORS, CheckedServer
from pinwarden.gateway.session.tasks import CANCEL_TASK, LIST_TASKS, TASK_METHODS
from pinwarden.surface.drift.changes import CRITICAL, REVIEW
from pinwarden.surface.protocol import INVALID_REQUEST
from pinwarden.surface.surface import PROMPT, RESOURCE, TEMPLATE, TOOL, ItemKind

_BY_NAME = {CALL: TOOL, "prompts/get": PROMPT}
_BY_URI = frozenset({"resources/read", "resources/subscribe"})
_COMPLETE = "completion/complete"
_LIST_INTERCEPTORS, _INVOKE_INTERCEPTOR = "interceptors/list", "interceptor/invoke"
_MAX_SUBSCRIBED = 1000  # maximum number of resources or tasks in one subscription
_BEFORE_IDENTITY = frozenset({"initialize", "server/discover", "ping"})
"""Methods that are forwarded before the server has identified itself."""
_WITHOUT_ITEM = _BEFORE_IDENTITY | {"logging/setLevel", "resources/unsubscribe", LIST_TASKS}
"""Methods that are forwarded without a decision, because they use no item."""

_LINKED = "linked"
"""The code for an unlisted resource that a result in this session links to."""
_NAMED_BY_TOOL = "named_by_tool"
"""The code for an unlisted resource that the definition of an allowed tool mentions."""

Decision = ForwardedRequest | bytes | None
"""A `ForwardedRequest` to forward a request, the bytes of a response, or None to defer it until a list is checked."""


class RequestDecider:
    """Decides on requests and notifications from the client, in one session."""

    def __init__(
        self, guard: Guard, audit: SessionAudit, lists: CheckedLists, server: CheckedServer, links: Container[str]
    ) -> None:
        self._guard = guard
        self._audit = audit
        self._lists = lists
        self._server = server
        self._links = links
        self._unknown_methods = UnknownMethodDecider(guard, audit, "client")

    def decide(self, message: Any, now: float, out: OutputBuilder) -> Decision:
        """Decide on one request."""
        method, request_id = message["method"], message["id"]
        if is_ambiguous_request(message):
            return self._refuse_ambiguous(request_id, method, out)
        if method not in _BEFORE_IDENTITY:
            if self._server.passing_epoch != self._guard.epoch:
                refusal = self._server.find_method_refusal(method, out)
                if refusal is not None:
                    return self._apply_verdict(refusal, message, "", out)
            if not self._lists.knows_server(now, out):
                return None  # wait until the server identifies itself: it may not be the approved one
        params = message.get("params")
        params = params if type(params) is dict else {}
        if (kind := _BY_NAME.get(method)) is not None:
            name = params.get("name")
            if type(name) is not str:
                return build_error_response(request_id, INVALID_REQUEST, f"pinwarden: {method} without a name")
            return self._decide_named(kind, name, message, now, out)
        if (kind := LIST_METHODS.get(method)) is not None:
            return self._build_list_request(kind, message, has_cursor=params.get("cursor") is not None)
        if method in _BY_URI:
            return self._decide_resource(params.get("uri"), message, now, out)
        if method in TASK_METHODS or method == CANCEL_TASK:
            return self._decide_task(params.get("taskId"), message, now, out)
        if method == LISTEN:
            return self._decide_subscription(params.get("notifications"), message, now, out)
        if method == _COMPLETE:
            return self._decide_completion(params.get("ref"), message, now, out)
        if method in (_LIST_INTERCEPTORS, _INVOKE_INTERCEPTOR):
            return self._invoke_interceptor(message, now, out)
        if method in _WITHOUT_ITEM:
            return ForwardedRequest(request_id, method)
        return self._decide_unknown(message, out)

    def allows_notification(self, method: str, out: OutputBuilder) -> bool:
        """Whether a notification from the client is forwarded."""
        return method in CLIENT_NOTIFICATIONS or self._unknown_methods.decide_notification(method, out).passes

    def _refuse_ambiguous(self, request_id: Any, method: str, out: OutputBuilder) -> bytes:
        call = self._audit.make_call_id(request_id)
        reason = "Two JSON parsers could read this message as different requests."
        self._audit.record_refused_message("message_doubtful", reason, method, call, out)
        details = {"pinwarden": {"code": "message_doubtful", "call": call}}
        return build_error_response(request_id, INVALID_REQUEST, f"pinwarden: {reason}", details)

    def _build_list_request(self, kind: ItemKind, message: Any, *, has_cursor: bool) -> ForwardedRequest:
        forwarded = ForwardedRequest(message["id"], message["method"])
        forwarded.list_kind = kind
        forwarded.change_count, forwarded.order = self._lists.get_change_count(kind), self._lists.take_next_order()
        forwarded.has_cursor = has_cursor
        return forwarded

    def _decide_unknown(self, message: Any, out: OutputBuilder) -> Decision:
        request_id, method = message["id"], message["method"]
        call = self._audit.make_call_id(request_id)
        verdict = self._unknown_methods.decide_request(method, call, out)
        if verdict.passes:
            return ForwardedRequest(request_id, method, "", verdict if verdict.action == WARN else None)
        return build_blocked_response(request_id, verdict, self._guard.server, call)

    # Tools and prompts

    def _decide_named(self, kind: ItemKind, name: str, message: Any, now: float, out: OutputBuilder) -> Decision:
        checked_list = self._lists.require(kind, now, out)
        if checked_list is None:
            return None
        if kind is TOOL and self._guard.has_call_rules:
            check = self._guard.find_call_check(self._find_verdict(checked_list, name), self._audit.client)
            if check is not None and (refusal := check.find_refusal(now)) is not None:
                return self._apply_verdict(refusal, message, name, out)
        if kind is TOOL and (event := self._lists.find_allowed_call_events(checked_list).get(name)) is not None:
            # The verdict about the tool is "allow without a warning": only such a tool has an event.
            out.events.append(with_request_id(event, message["id"]))
            return ForwardedRequest(message["id"], CALL, name)
        return self._apply_verdict(self._find_verdict(checked_list, name), message, name, out)

    def _find_verdict(self, checked_list: CheckedList, name: str) -> Verdict:
        verdict = checked_list.by_key.get(name)
        if verdict is not None:
            return verdict
        if checked_list.problem is not None:
            return self._build_list_failed_verdict(checked_list.kind, name, checked_list.problem)
        unlisted = self._guard.check_unlisted_item(checked_list.kind, name, self._audit.client)
        if not unlisted.passes:
            return unlisted
        # Some servers ignore case or Unicode form in names, so a blocked item is blocked under all such variants.
        folded = _fold_name(name)
        lookalikes = (
            verdict for key, verdict in checked_list.by_key.items() if not verdict.passes and _fold_name(key) == folded
        )
        return next(lookalikes, unlisted)

    def _build_list_failed_verdict(self, kind: ItemKind, name: str, problem: str) -> Verdict:
        """Return the verdict about an item whose list could not be read."""
        policy = self._guard.policy.get_item_policy(self._guard.server, name, self._audit.client.name)
        return Verdict(
            entity=kind.entity,
            key=name,
            value=None,
            digest=None,
            action={"audit": AUDIT, "warn": WARN}.get(policy.enforcement, BLOCK),
            level=REVIEW,
            code=LIST_FAILED,
            reason=problem,
        )

    def _apply_verdict(self, verdict: Verdict, message: Any, target: str, out: OutputBuilder) -> Decision:
        """Record a verdict about a request, and forward or block the request."""
        request_id, method = message["id"], message["method"]
        call = self._audit.make_call_id(request_id)
        self._audit.record_use(verdict, method, call, out, self._mask_arguments(message, target))
        if verdict.passes:
            return ForwardedRequest(request_id, method, target, verdict if verdict.action == WARN else None)
        by_address = verdict.entity in (RESOURCE.entity, TEMPLATE.entity)
        return build_blocked_response(request_id, verdict, self._guard.server, call, target if by_address else "")

    def _mask_arguments(self, message: Any, name: str) -> bytes | None:
        """Return the masked arguments of a tool or prompt if the policy records them; otherwise None."""
        params, policy = message.get("params"), self._guard.policy
        if message["method"] not in _BY_NAME or type(params) is not dict:
            return None
        if not policy.records_arguments(self._guard.server, name, self._audit.client.name):
            return None
        from pinwarden.gateway.gates.results import mask_arguments

        return mask_arguments(params.get("arguments"))

    # Resources

    def _decide_resource(self, uri: Any, message: Any, now: float, out: OutputBuilder) -> Decision:
        if type(uri) is not str:
            return build_error_response(message["id"], INVALID_REQUEST, f"pinwarden: {message['method']} without a uri")
        verdict = self._find_resource_verdict(uri, now, out)
        return None if verdict is None else self._apply_verdict(verdict, message, uri, out)

    def _find_resource_verdict(self, uri: str, now: float, out: OutputBuilder) -> Verdict | None:
        """Return the verdict about a resource; None if the gateway must wait for a list first.

        The first rule that applies decides:

        1. A listed resource has the verdict from the list of resources.
        2. If the list of resources or of templates could not be read, the policy's enforcement decides.
        3. A URI that matches templates has the verdict of a blocked template, or else of the first one.
        4. A URI in a result of this session, or in the definition of an allowed tool, may be read.
        5. For any other URI, the policy for unlisted items decides.

        Exception: if rule 1 or 3 blocks a URI only because it is new, and a result of this session links to the URI,
        it may be read.
        """
        resources = self._lists.require(RESOURCE, now, out)
        if resources is None:
            return None
        verdict = resources.by_key.get(uri)
        if verdict is None:
            templates = self._lists.require(TEMPLATE, now, out)
            if templates is None:
                return None
            if (problem := resources.problem or templates.problem) is not None:
                return self._build_list_failed_verdict(RESOURCE, uri, problem)
            matching = [verdict for key, verdict in templates.by_key.items() if template_matches(key, uri)]
            blocked = (verdict for verdict in matching if not verdict.passes)
            verdict = next(blocked, matching[0] if matching else None)
        if uri in self._links and (verdict is None or _is_blocked_as_new(verdict)):
            return _build_resource_verdict(uri, _LINKED)
        if verdict is not None:
            return verdict
        tools = self._lists.require(TOOL, now, out)
        if tools is None:
            return None
        if any(tool.passes and _mentions_uri(tool.value, uri) for tool in tools.by_key.values()):
            return _build_resource_verdict(uri, _NAMED_BY_TOOL)
        return self._guard.check_unlisted_item(RESOURCE, uri, self._audit.client)

    def _decide_completion(self, ref: Any, message: Any, now: float, out: OutputBuilder) -> Decision:
        ref = ref if type(ref) is dict else {}
        name, uri = ref.get("name"), ref.get("uri")
        if ref.get("type") == "ref/prompt" and type(name) is str:
            return self._decide_named(PROMPT, name, message, now, out)
        if ref.get("type") == "ref/resource" and type(uri) is str:
            templates = self._lists.require(TEMPLATE, now, out)
            if templates is None:
                return None
            if uri in templates.by_key:
                return self._apply_verdict(templates.by_key[uri], message, uri, out)
            return self._decide_resource(uri, message, now, out)
        text = "pinwarden: the completion names neither a prompt nor a resource"
        return build_error_response(message["id"], INVALID_REQUEST, text)

    # Tasks and subscriptions

    def _decide_task(self, task: Any, message: Any, now: float, out: OutputBuilder) -> Decision:
        """Allow a request about a task only if the tool that started the task may still be called.

        A client may always cancel its own tasks.
        """
        if type(task) is not str:
            return build_error_response(
                message["id"], INVALID_REQUEST, f"pinwarden: {message['method']} without a taskId"
            )
        if message["method"] == CANCEL_TASK and self._guard.tasks.find_tools(task, self._audit.client.owner):
            return ForwardedRequest(message["id"], CANCEL_TASK)
        verdict = self.find_task_verdict(task, now, out)
        return None if verdict is None else self._apply_verdict(verdict, message, f"task/{task}", out)

    def find_task_verdict(self, task: str, now: float, out: OutputBuilder) -> Verdict | None:
        """Return the verdict about the tool that started a task; None if the gateway must wait for the tools."""
        checked_list = self._lists.require(TOOL, now, out)
        if checked_list is None:
            return None
        tools = self._guard.tasks.find_tools(task, self._audit.client.owner)
        verdicts = [self._find_verdict(checked_list, tool) for tool in sorted(tools)]
        if not verdicts:
            return self._guard.check_unknown_task(task, self._audit.client)
        worst = choose_strictest_action(*(verdict.action for verdict in verdicts))
        return next(verdict for verdict in verdicts if verdict.action == worst)

    def _decide_subscription(self, filters: Any, message: Any, now: float, out: OutputBuilder) -> Decision:
        """Allow a subscription only if every resource and task in it is allowed."""
        filters = filters if type(filters) is dict else {}
        forwarded = ForwardedRequest(
            message["id"], LISTEN, " ".join(name for name, value in filters.items() if value is True)
        )
        uris, tasks = (filters.get(name) or [] for name in ("resourceSubscriptions", "taskIds"))
        if not (_is_string_list(uris) and _is_string_list(tasks)):
            text = f"pinwarden: resourceSubscriptions and taskIds must be lists of at most {_MAX_SUBSCRIBED} strings"
            return build_error_response(message["id"], INVALID_REQUEST, text)
        verdicts = [
            *(self._find_resource_verdict(uri, now, out) for uri in uris),
            *(self.find_task_verdict(task, now, out) for task in tasks),
        ]
        targets = (*uris, *("" for _ in tasks))
        known = [(target, verdict) for target, verdict in zip(targets, verdicts, strict=True) if verdict is not None]
        if len(known) < len(verdicts):
            return None
        for target, verdict in known:
            if not verdict.passes:
                return self._apply_verdict(verdict, message, target, out)
        for _, verdict in known:
            if (
                verdict.entity == RESOURCE.entity or verdict.action != ALLOW
            ):  # a subscription to a task does not call its tool
                self._audit.record_use(verdict, LISTEN, self._audit.make_call_id(message["id"]), out)
        return forwarded

    # Interceptors

    def _invoke_interceptor(self, message: Any, now: float, out: OutputBuilder) -> Decision:
        """Run the gateway's interceptors (SEP-2624), or forward the request to a server with its own interceptors."""
        from pinwarden.gateway.interceptors import InterceptorError, ListPendingError, build_gateway_host

        if self._server.has_extension(INTERCEPTORS, out):
            return ForwardedRequest(message["id"], message["method"])

        def find_verdict(kind: ItemKind, key: str) -> Verdict | None:
            if kind is RESOURCE:
                return self._find_resource_verdict(key, now, out)
            checked_list = self._lists.require(kind, now, out)
            return None if checked_list is None else self._find_verdict(checked_list, key)

        host = build_gateway_host(self._guard, self._audit.client, find_verdict)
        params = message.get("params")
        try:
            if message["method"] == _LIST_INTERCEPTORS:
                event = params.get("event") if isinstance(params, dict) else None
                result = host.list_interceptors(event if isinstance(event, str) else None)
            else:
                result = host.invoke(params)
        except ListPendingError:
            return None
        except InterceptorError as err:
            return build_error_response(message["id"], err.code, err.message, err.data)
        return encode({"jsonrpc": "2.0", "id": message["id"], "result": result})


def _is_string_list(value: Any) -> bool:
    return type(value) is list and len(value) <= _MAX_SUBSCRIBED and all(type(name) is str for name in value)


def _fold_name(name: str) -> str:
    from unicodedata import normalize

    return normalize("NFKC", name).casefold()


def _is_blocked_as_new(verdict: Verdict) -> bool:
    """Whether an item is blocked only because no item of that name is approved.

    If a server lists a resource that a result already linked to, the resource may still be read.
    """
    return not (verdict.passes or verdict.expected or verdict.digest is None or verdict.level == CRITICAL)


def _build_resource_verdict(uri: str, code: str) -> Verdict:
    return Verdict(entity=RESOURCE.entity, key=uri, value=None, digest=None, action=ALLOW, code=code)


def _mentions_uri(definition: Any, uri: str) -> bool:
    """Whether a tool definition contains a URI in its ``_meta``, as tools with a user interface do."""
    pending = [definition.get("_meta") if type(definition) is dict else None]
    while pending:
        value = pending.pop()
        if value == uri:
            return True
        if type(value) is dict:
            pending += value.values()
        elif type(value) is list:
            pending += value
    return False


_TEMPLATE_EXPRESSION = lazy_pattern(r"\{[^{}]*\}")


def template_matches(template: str, uri: str) -> bool:
    """Whether a URI can come from a URI template: the literal parts of the template occur in it, in order.

    An expression matches any text, so a URI may match a template that cannot produce it, but never the reverse.
    """
    first, *others = _TEMPLATE_EXPRESSION.split(template)
    if not others:
        return uri == template
    last = others.pop()
    if not uri.startswith(first) or not uri.endswith(last) or len(uri) < len(first) + len(last):
        return False
    position, end = len(first), len(uri) - len(last)
    for literal in others:
        start = uri.find(literal, position, end)
        if start < 0:
            return False
        position = start + len(literal)
    return True


CLIENT_NOTIFICATIONS = frozenset(
    f"notifications/{name}" for name in ("initialized", "cancelled", "progress", "roots/list_changed", "tasks/status")
)
MAX_UNKNOWN_METHODS = 100
"""How many unknown methods one session records. Real extensions have a handful."""
_MAX_METHOD = 100  # characters of a method; longer ones are blocked, because a rule could match the truncated name


class UnknownMethodDecider:
    """Decides on methods that no revision of MCP defines.

    Each method is recorded once in a session, so that many messages cannot flood the audit log.
    """

    def __init__(self, guard: Guard, audit: SessionAudit, sender: str) -> None:
        """``sender`` is client or server."""
        self._guard = guard
        self._audit = audit
        self._sender = sender
        self._seen: set[int] = set()
        """Hashes of the methods so far. The names themselves may be as long as a message."""

    def decide_request(self, method: str, call: str, out: OutputBuilder) -> Verdict:
        """Return the verdict about a request. Every refusal is recorded; a method that passes is recorded once."""
        verdict = self._decide(method)
        if verdict.passes:
            self._audit.record_use_once(verdict, verdict.key, call, out, (self._sender, method))
        else:
            self._audit.record_use(verdict, method[:_MAX_METHOD], call, out)
        return verdict

    def decide_notification(self, method: str, out: OutputBuilder) -> Verdict:
        """Return the verdict about a notification. Each method is recorded once."""
        verdict = self._decide(method)
        self._audit.record_use_once(verdict, verdict.key, "", out, (self._sender, method if verdict.key else ""))
        return verdict

    def _decide(self, method: str) -> Verdict:
        mark, check = hash(method), self._guard.check_unknown_method
        sender, client = self._sender, self._audit.client
        if mark not in self._seen:
            if len(self._seen) >= MAX_UNKNOWN_METHODS:  # the log would not record further methods
                reason = f"The {sender} sent more than {MAX_UNKNOWN_METHODS} methods that no revision of MCP defines."
                return check("", sender, client, block_reason=reason)
            self._seen.add(mark)
        if len(method) > _MAX_METHOD:
            reason = f"No revision of MCP defines this method, and its name has more than {_MAX_METHOD} characters."
            return check(method[:_MAX_METHOD], sender, client, block_reason=reason)
        return check(method, sender, client)
