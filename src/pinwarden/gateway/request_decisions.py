"""Deciding about a request of the client by what it would use."""

from __future__ import annotations

from typing import Any

from pinwarden.core.text import pattern
from pinwarden.gateway.ambiguity import is_ambiguous_request
from pinwarden.gateway.gates.lists import LIST_FAILED, strictest
from pinwarden.gateway.gates.verdict import ALLOW, AUDIT, BLOCK, WARN, Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.in_flight import ForwardedRequest
from pinwarden.gateway.judged_lists import JudgedList, JudgedLists
from pinwarden.gateway.judged_server import INTERCEPTORS, JudgedServer
from pinwarden.gateway.messages import LIST_METHODS, LISTEN, blocked_response, encode, error_response
from pinwarden.gateway.result_checks import ResourceLinks
from pinwarden.gateway.session_audit import OutputBuilder, SessionAudit
from pinwarden.gateway.tasks import CANCEL_TASK, LIST_TASKS, TASK_METHODS
from pinwarden.surface.drift.changes import CRITICAL, REVIEW
from pinwarden.surface.protocol import INVALID_REQUEST
from pinwarden.surface.surface import PROMPT, RESOURCE, TEMPLATE, TOOL, ItemKind

_NAMED = {"tools/call": TOOL, "prompts/get": PROMPT}
_ADDRESSED = frozenset({"resources/read", "resources/subscribe"})
_COMPLETE = "completion/complete"
_LIST_INTERCEPTORS, _INVOKE_INTERCEPTOR = "interceptors/list", "interceptor/invoke"
_MOST_SUBSCRIBED = 1000  # resources, or tasks, in one subscription
_FREE = frozenset({"initialize", "server/discover", "ping"})
_PLAIN = _FREE | {"logging/setLevel", "resources/unsubscribe", LIST_TASKS}
"""What nothing is to be decided about."""

_BY_LINK = "linked"
"""The code of a resource that no list has, but a result of this session led to."""
_BY_TOOL = "named_by_tool"
"""The same, where a definition that passes names it."""

Decision = ForwardedRequest | bytes | None
"""Passed on; answered by us; or held."""


class RequestDecider:
    """The part of a session that decides about requests."""

    def __init__(
        self, guard: Guard, journal: SessionAudit, views: JudgedLists, opening: JudgedServer, links: ResourceLinks
    ) -> None:
        self._links = links
        self._guard = guard
        self._journal = journal
        self._views = views
        self._opening = opening
        self._methods = UnknownMethodDecider(guard, journal, "client")

    def decide(self, message: Any, now: float, out: OutputBuilder) -> Decision:
        """What becomes of one request."""
        method, number = message["method"], message["id"]
        params = message.get("params")
        if is_ambiguous_request(message):
            return self._doubtful(number, method, out)
        if method not in _FREE and (barred := self._opening.barred(method, out)) is not None:
            return self._decided(barred, message, "", out)
        if method not in _FREE and not self._views.knows_server(now, out):
            return None  # it may be another one than was approved, which is refused as a whole
        kind = _NAMED.get(method)
        if kind is not None:
            name = params.get("name") if type(params) is dict else None
            if type(name) is not str:
                return error_response(number, INVALID_REQUEST, f"pinwarden: {method} without a name")
            return self._named(kind, name, message, now, out)
        listed = LIST_METHODS.get(method)
        if listed is not None:
            asked = ForwardedRequest(number, method)
            asked.kind = listed
            asked.notices, asked.order = self._views.notices(listed), self._views.next_order()
            asked.cursor = type(params) is dict and params.get("cursor") is not None
            return asked
        if method in _ADDRESSED:
            return self._addressed(params.get("uri") if type(params) is dict else None, message, now, out)
        if method in TASK_METHODS or method == CANCEL_TASK:
            return self._fetched(params.get("taskId") if type(params) is dict else None, message, now, out)
        if method == LISTEN:
            return self._listened(params.get("notifications") if type(params) is dict else None, message, now, out)
        if method == _COMPLETE:
            return self._completed(params.get("ref") if type(params) is dict else None, message, now, out)
        if method in (_LIST_INTERCEPTORS, _INVOKE_INTERCEPTOR):
            return self._intercepted(message, now, out)
        return ForwardedRequest(number, method) if method in _PLAIN else self._unknown(message, out)

    def notice_passes(self, method: str, out: OutputBuilder) -> bool:
        """Whether a notification of the client goes to the server."""
        return method in CLIENT_NOTIFICATIONS or self._methods.notice(method, out).passes

    def clear_view(self, now: float) -> JudgedList | None:
        """The list of tools, if it counts now and nothing stands against the server as such."""
        return self._views.counting(TOOL, now) if self._opening.is_clear else None

    def count(self, calls: int) -> None:
        """So many calls of tools were made that this did not see."""
        self._views.count(TOOL, calls)

    def _unknown(self, message: Any, out: OutputBuilder) -> Decision:
        number, method = message["id"], message["method"]
        call = self._journal.call_id(number)
        verdict = self._methods.request(method, call, out)
        if verdict.passes:
            return ForwardedRequest(number, method, "", verdict if verdict.action == WARN else None)
        return blocked_response(number, verdict, self._guard.server, call)

    def _named(self, kind: ItemKind, name: str, message: Any, now: float, out: OutputBuilder) -> Decision:
        view = self._views.need(kind, now, out)
        if view is None:
            return None
        return self._decided(self._verdict(view, name), message, name, out)

    def _addressed(self, uri: Any, message: Any, now: float, out: OutputBuilder) -> Decision:
        if type(uri) is not str:
            return error_response(message["id"], INVALID_REQUEST, f"pinwarden: {message['method']} without a uri")
        verdict = self._verdict_at(uri, now, out)
        return None if verdict is None else self._decided(verdict, message, uri, out)

    def _verdict_at(self, uri: str, now: float, out: OutputBuilder) -> Verdict | None:
        """A resource that is listed counts as what it is listed; one that is not, as its template.

        What nobody approved may be read if the server itself led there: by a link in a result of this session, or by
        a definition that passes. Anything else is unknown. None if a list has to be waited for.
        """
        resources = self._views.need(RESOURCE, now, out)
        if resources is None:
            return None
        verdict = resources.by_key.get(uri)
        if verdict is None:
            templates = self._views.need(TEMPLATE, now, out)
            if templates is None:
                return None
            if (problem := resources.problem or templates.problem) is not None:
                return self._unjudged(RESOURCE, uri, problem)
            fitting = [each for key, each in templates.by_key.items() if template_fits(key, uri)]
            verdict = next((each for each in fitting if not each.passes), fitting[0] if fitting else None)
        if uri in self._links and (verdict is None or _is_only_new(verdict)):
            return _linked_verdict(uri, _BY_LINK)
        if verdict is not None:
            return verdict
        tools = self._views.need(TOOL, now, out)
        if tools is None:
            return None
        if any(each.passes and _names(each.value, uri) for each in tools.by_key.values()):
            return _linked_verdict(uri, _BY_TOOL)
        return self._guard.judge_unlisted(RESOURCE, uri, self._journal.client)

    def _listened(self, wanted: Any, message: Any, now: float, out: OutputBuilder) -> Decision:
        """A subscription is one to each of the resources and tasks that it names."""
        wanted = wanted if type(wanted) is dict else {}
        asked = ForwardedRequest(message["id"], LISTEN, " ".join(name for name, each in wanted.items() if each is True))
        uris, tasks = (wanted.get(name) or [] for name in ("resourceSubscriptions", "taskIds"))
        if not (_is_name_list(uris) and _is_name_list(tasks)):
            return error_response(
                message["id"], INVALID_REQUEST, "pinwarden: these resources or tasks cannot be told apart"
            )
        resources = [self._verdict_at(uri, now, out) for uri in uris]
        calls = [self.verdict_of_task(task, now, out) for task in tasks]
        verdicts = [each for each in (*resources, *calls) if each is not None]
        if len(verdicts) < len(uris) + len(tasks):
            return None
        named = (*uris, *("" for _ in tasks))
        worst = next(((name, each) for name, each in zip(named, verdicts, strict=True) if not each.passes), None)
        if worst is not None:
            return self._decided(worst[1], message, worst[0], out)
        for verdict in verdicts:
            if verdict.entity == RESOURCE.entity or verdict.action != ALLOW:  # to hear of a task is no call of its tool
                self._journal.used(verdict, LISTEN, self._journal.call_id(message["id"]), out)
        return asked

    def _fetched(self, task: Any, message: Any, now: float, out: OutputBuilder) -> Decision:
        """The result of a task is that of its tool, which has to be approved also when it is fetched."""
        if type(task) is not str:
            return error_response(message["id"], INVALID_REQUEST, f"pinwarden: {message['method']} without a taskId")
        if message["method"] == CANCEL_TASK and self._guard.tasks.tools_of(task, self._journal.owner):
            return ForwardedRequest(message["id"], CANCEL_TASK)
        verdict = self.verdict_of_task(task, now, out)
        return None if verdict is None else self._decided(verdict, message, f"task/{task}", out)

    def verdict_of_task(self, task: str, now: float, out: OutputBuilder) -> Verdict | None:
        """The verdict about the tool that a task is a call of; None if its list has to be waited for."""
        view = self._views.need(TOOL, now, out)
        if view is None:
            return None
        tools = self._guard.tasks.tools_of(task, self._journal.owner)
        verdicts = [self._verdict(view, tool) for tool in sorted(tools)]
        if not verdicts:
            return self._guard.judge_unknown_task(task, self._journal.client, self._journal.owner)
        worst = strictest(*(each.action for each in verdicts))
        return next(each for each in verdicts if each.action == worst)

    def _completed(self, ref: Any, message: Any, now: float, out: OutputBuilder) -> Decision:
        ref = ref if type(ref) is dict else {}
        name, uri = ref.get("name"), ref.get("uri")
        if ref.get("type") == "ref/prompt" and type(name) is str:
            return self._named(PROMPT, name, message, now, out)
        if ref.get("type") == "ref/resource" and type(uri) is str:
            templates = self._views.need(TEMPLATE, now, out)
            if templates is None:
                return None
            if uri in templates.by_key:
                return self._decided(templates.by_key[uri], message, uri, out)
            return self._addressed(uri, message, now, out)
        return error_response(message["id"], INVALID_REQUEST, "pinwarden: completion of something that cannot be told")

    def _verdict(self, view: JudgedList, name: str) -> Verdict:
        verdict = view.by_key.get(name)
        if verdict is not None:
            return verdict
        if view.problem is not None:
            return self._unjudged(view.kind, name, view.problem)
        unlisted = self._guard.judge_unlisted(view.kind, name, self._journal.client)
        if not unlisted.passes:
            return unlisted
        # A server may take another spelling for the same name; what is blocked is blocked under each.
        plain = _plain_name(name)
        alike = (each for key, each in view.by_key.items() if not each.passes and _plain_name(key) == plain)
        return next(alike, unlisted)

    def _unjudged(self, kind: ItemKind, name: str, problem: str) -> Verdict:
        """Something whose list cannot be read is refused, unless the policy only watches it."""
        policy = self._guard.policy.for_item(self._guard.server, name, self._journal.client)
        action = {"audit": AUDIT, "warn": WARN}.get(policy.enforcement, BLOCK)
        return Verdict(
            entity=kind.entity,
            key=name,
            value=None,
            digest=None,
            action=action,
            level=REVIEW,
            code=LIST_FAILED,
            reason=problem,
        )

    def _decided(self, verdict: Verdict, message: Any, use: str, out: OutputBuilder) -> Decision:
        number, method = message["id"], message["method"]
        call = self._journal.call_id(number)
        self._journal.used(verdict, method, call, out, self._arguments(message, use))
        if verdict.passes:
            return ForwardedRequest(number, method, use, verdict if verdict.action == WARN else None)
        by_address = verdict.entity in (RESOURCE.entity, TEMPLATE.entity)
        return blocked_response(number, verdict, self._guard.server, call, use if by_address else "")

    def records_arguments(self, item: str) -> bool:
        """Whether the log keeps what an item is called with."""
        return self._guard.policy.records_arguments(self._guard.server, item, self._journal.client)

    def _arguments(self, message: Any, name: str) -> bytes | None:
        """What a tool or prompt is called with, if the log is to have it."""
        params = message.get("params")
        if message["method"] not in _NAMED or type(params) is not dict or not self.records_arguments(name):
            return None
        from pinwarden.gateway.gates.results import recorded_arguments

        return recorded_arguments(params.get("arguments"))

    def _doubtful(self, number: Any, method: str, out: OutputBuilder) -> bytes:
        call = self._journal.call_id(number)
        reason = "Two readers may differ on what this message asks for."
        self._journal.refused("message_doubtful", reason, method, call, out)
        data = {"pinwarden": {"code": "message_doubtful", "call": call}}
        return error_response(number, INVALID_REQUEST, f"pinwarden: {reason}", data)

    def _intercepted(self, message: Any, now: float, out: OutputBuilder) -> Decision:
        """Requests to the gates themselves (SEP-2624), unless the server has interceptors of its own."""
        from pinwarden.gateway.interceptors import InterceptorError, NotYetError, own_host

        if self._opening.extends(INTERCEPTORS, out):
            return ForwardedRequest(message["id"], message["method"])

        def verdict_of(kind: ItemKind, key: str) -> Verdict | None:
            if kind is RESOURCE:
                return self._verdict_at(key, now, out)
            view = self._views.need(kind, now, out)
            return None if view is None else self._verdict(view, key)

        host = own_host(self._guard, self._journal.client, verdict_of)
        params = message.get("params")
        try:
            if message["method"] == _LIST_INTERCEPTORS:
                event = params.get("event") if isinstance(params, dict) else None
                result = host.list(event if isinstance(event, str) else None)
            else:
                result = host.invoke(params)
        except NotYetError:
            return None
        except InterceptorError as err:
            return error_response(message["id"], err.code, err.message, err.data)
        return encode({"jsonrpc": "2.0", "id": message["id"], "result": result})


def _is_name_list(value: Any) -> bool:
    return type(value) is list and len(value) <= _MOST_SUBSCRIBED and all(type(each) is str for each in value)


def _plain_name(name: str) -> str:
    from unicodedata import normalize

    return normalize("NFKC", name).casefold()


def _is_only_new(verdict: Verdict) -> bool:
    """Whether it is blocked for no other reason than that nothing of its name was approved.

    A server that hands out a link may list what it leads to from then on; that makes it no worse.
    """
    return not (verdict.passes or verdict.expected or verdict.digest is None or verdict.level == CRITICAL)


def _linked_verdict(uri: str, code: str) -> Verdict:
    return Verdict(entity=RESOURCE.entity, key=uri, value=None, digest=None, action=ALLOW, code=code)


def _names(definition: Any, uri: str) -> bool:
    """Whether a definition names an address in its ``_meta``, as one does that comes with a view for people."""
    pending = [definition.get("_meta") if type(definition) is dict else None]
    while pending:
        each = pending.pop()
        if each == uri:
            return True
        if type(each) is dict:
            pending += each.values()
        elif type(each) is list:
            pending += each
    return False


_EXPRESSION = pattern(r"\{[^{}]*\}")


def template_fits(template: str, uri: str) -> bool:
    """Whether an address can come from a template: what stands between its expressions occurs in that order.

    Expressions are taken to stand for anything, so that an address is rather held against a template too many.
    """
    first, *others = _EXPRESSION.split(template)
    if not others:
        return uri == template
    last = others.pop()
    if not uri.startswith(first) or not uri.endswith(last) or len(uri) < len(first) + len(last):
        return False
    place, end = len(first), len(uri) - len(last)
    for literal in others:
        found = uri.find(literal, place, end)
        if found < 0:
            return False
        place = found + len(literal)
    return True


CLIENT_NOTIFICATIONS = frozenset(
    f"notifications/{name}" for name in ("initialized", "cancelled", "progress", "roots/list_changed", "tasks/status")
)
SERVER_NOTIFICATIONS = frozenset(
    f"notifications/{name}"
    for name in (
        *("cancelled", "progress", "message", "elicitation/complete", "subscriptions/acknowledged"),
        *("tools/list_changed", "prompts/list_changed", "resources/list_changed", "resources/updated"),
        *("tasks", "tasks/status"),
    )
)
MAX_UNKNOWN_METHODS = 100
"""Methods that are told one by one in one session. Real extensions have a handful."""
_NAME = 100  # letters of a method that are told; no rule is asked about a longer one, as it could fit the cut-off name


class UnknownMethodDecider:
    """What one side of a session sends that no revision knows. The log has each method once, so nobody can flood it."""

    def __init__(self, guard: Guard, journal: SessionAudit, sender: str) -> None:
        """``sender`` is client or server."""
        self._guard = guard
        self._journal = journal
        self._sender = sender
        self._seen: set[int] = set()
        """Marks of methods, which may be as long as a message."""

    def request(self, method: str, call: str, out: OutputBuilder) -> Verdict:
        """The verdict about a request. A refusal names its call, so each is told; of what passes, each method."""
        verdict = self._judged(method)
        if verdict.passes:
            self._journal.used_once(verdict, verdict.key, call, out, (self._sender, method))
        else:
            self._journal.used(verdict, method[:_NAME], call, out)
        return verdict

    def notice(self, method: str, out: OutputBuilder) -> Verdict:
        """The verdict about a notification, which is told once for each method."""
        verdict = self._judged(method)
        self._journal.used_once(verdict, verdict.key, "", out, (self._sender, method if verdict.key else ""))
        return verdict

    def _judged(self, method: str) -> Verdict:
        """One more than are told is refused: it would pass without a word in the log."""
        mark, judge = hash(method), self._guard.judge_unknown_method
        sender, client = self._sender, self._journal.client
        if mark not in self._seen:
            if len(self._seen) >= MAX_UNKNOWN_METHODS:
                why = f"The {sender} sent more methods that no revision of MCP knows than the log tells one by one."
                return judge("", sender, client, why_not=why)
            self._seen.add(mark)
        if len(method) > _NAME:
            why = "No revision of MCP knows this, and its name is longer than any that a policy is asked about."
            return judge(method[:_NAME], sender, client, why_not=why)
        return judge(method, sender, client)
