"""Passing on what a server answers and asks: lists without what was not approved, results as they came."""

from __future__ import annotations

from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.ambiguity import is_ambiguous_answer, is_ambiguous_server_request, is_ambiguous_task
from pinwarden.gateway.gates.requests import (
    ELICITATION,
    SAMPLING,
    Refusal,
    requests_in_error,
    too_many_rounds,
)
from pinwarden.gateway.gates.verdict import ALLOW, BLOCK, WARN, Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.in_flight import ForwardedRequest, ServerAnswer, TaskNotification
from pinwarden.gateway.judged_lists import JudgedList, JudgedLists, has_two_names
from pinwarden.gateway.judged_server import JudgedServer
from pinwarden.gateway.messages import blocked_response, error_response, is_id
from pinwarden.gateway.pages import ListPage, filtered, read_page
from pinwarden.gateway.request_decisions import SERVER_NOTIFICATIONS, RequestDecider, UnknownMethodDecider
from pinwarden.gateway.result_checks import ResourceLinks, ResultChecks, ServerRequests
from pinwarden.gateway.session_audit import OutputBuilder, SessionAudit
from pinwarden.gateway.tasks import LIST_TASKS, TASK_METHODS, is_task, listed_tasks, without_tasks
from pinwarden.surface.drift.changes import REVIEW
from pinwarden.surface.protocol import INVALID_PARAMS, INVALID_REQUEST, SERVER_AWAY
from pinwarden.surface.surface import Item, ItemKind

_OPENINGS = frozenset({"initialize", "server/discover"})
_PAYLOADS = frozenset({"result", "error", "inputRequests"})
_TRIES = 3  # how often a page is held against a list that was asked for anew


class ServerMessageDecider:
    """The part of a session that decides about messages of the server."""

    def __init__(  # noqa: PLR0913, PLR0917  the parts of one session
        self,
        guard: Guard,
        journal: SessionAudit,
        views: JudgedLists,
        opening: JudgedServer,
        uses: RequestDecider,
        links: ResourceLinks,
    ) -> None:
        self.asked_of_client: dict[Any, str] = {}
        self._guard = guard
        self._journal = journal
        self._views = views
        self._opening = opening
        self._uses = uses
        self._requests = ServerRequests(guard, journal)
        self._results = ResultChecks(guard, journal, links, self._requests)
        self._server_asks = 0
        self._methods = UnknownMethodDecider(guard, journal, "server")

    def relays(self) -> bool:
        """Whether the policy wants nothing to be done about results, and nobody counts who asks back how often."""
        return self._results.relays and not self._server_asks

    def pass_on(self, answer: ServerAnswer, now: float, out: OutputBuilder) -> bool:
        """Pass an answer on to the client; False if it has to wait."""
        frame, message, asked = answer.frame, answer.message, answer.asked
        if message is not None and is_ambiguous_answer(message):
            raise PinwardenError("JSON_CANONICALIZATION_ERROR", "two readers may differ on what it says")
        if message is not None and "result" not in message:
            refused = self._requests.all_refused(requests_in_error(message.get("error")), asked, out)
            self._settle(refused or self._results.too_large(frame), frame, message, asked, out)
            return True
        if asked.kind is not None:
            return self._list(answer, asked.kind, now, out)
        if message is None:
            raise PinwardenError("JSON_CANONICALIZATION_ERROR", "it has no single meaning")
        if asked.method in _OPENINGS:
            self._open(frame, message, asked, out)
            return True
        if asked.method == LIST_TASKS:
            return self._list_tasks(answer, now, out)
        self._server_asks = 0
        result = message["result"]
        if (asked.method in TASK_METHODS or is_task(result)) and is_ambiguous_task(result):
            raise PinwardenError("JSON_CANONICALIZATION_ERROR", "two readers may differ on what it says")
        self._settle(self._results.refused(frame, result, asked, out), frame, message, asked, out)
        return True

    def pass_on_notice(self, notice: TaskNotification, now: float, out: OutputBuilder) -> bool:
        """Pass on what the server tells of a task; False if it has to wait. What is refused can be asked for."""
        params = notice.message.get("params")
        if type(params) is not dict or type(params.get("taskId")) is not str or is_ambiguous_task(params):
            raise PinwardenError("JSON_CANONICALIZATION_ERROR", "two readers may differ on what it says")
        verdict: Verdict | None = None
        # Servers tell of a task before they answer the call that it belongs to. That says how it is doing, no more.
        if self._is_known(params["taskId"]) or not _PAYLOADS.isdisjoint(params):
            verdict = self._uses.verdict_of_task(params["taskId"], now, out)
            if verdict is None:
                return False
        if verdict is not None and not verdict.passes:
            self._journal.used(verdict, notice.method, "", out)
            return True
        asked = ForwardedRequest(None, notice.method, f"task/{params['taskId']}")
        refused = self._results.refused(notice.frame, params, asked, out)
        if refused is not None:
            self._journal.refuse(refused, notice.method, "", out)
        else:
            out.to_client.append(self._results.checked(notice.frame, notice.message, "params", asked, out))
        return True

    def _is_known(self, task: str) -> bool:
        tasks, owner = self._guard.tasks, self._journal.owner
        return bool(tasks.tools_of(task, owner)) or tasks.is_of_another(task, owner)

    def _list_tasks(self, answer: ServerAnswer, now: float, out: OutputBuilder) -> bool:
        """Pass on those tasks that the client could fetch. A server may take all clients of the gateway for one."""
        frame, message, asked = answer.frame, answer.message, answer.asked
        verdicts = [self._uses.verdict_of_task(task, now, out) for task in listed_tasks(message["result"])]
        known = [each for each in verdicts if each is not None]
        if len(known) < len(verdicts):
            return False
        gone = {number for number, each in enumerate(known) if not each.passes}
        if gone:
            frame, message = without_tasks(frame, message, gone)
        for verdict in known:
            if verdict.action != ALLOW:
                self._journal.used_once(verdict, asked.method, self._journal.call_id(asked.number), out)
        asked.warning = next((each for each in known if each.action == WARN), None)
        self._settle(self._results.refused(frame, message["result"], asked, out), frame, message, asked, out)
        return True

    def _settle(
        self, refused: Refusal | None, frame: bytes, message: Any, asked: ForwardedRequest, out: OutputBuilder
    ) -> None:
        if refused is not None:
            out.to_client.append(self._refuse(refused, asked, out))
        else:
            member = "result" if "result" in message else "error"
            out.to_client.append(self._results.checked(frame, message, member, asked, out))

    def _refuse(self, refused: Refusal, asked: ForwardedRequest, out: OutputBuilder) -> bytes:
        call = self._journal.call_id(asked.number)
        self._journal.refuse(refused, asked.method, call, out)
        return _refused_answer(asked.number, refused, call)

    # Lists

    def _list(self, answer: ServerAnswer, kind: ItemKind, now: float, out: OutputBuilder) -> bool:
        page = read_page(answer.frame, answer.message, kind, self._guard)
        if not answer.asked.cursor and page.cursor is None:
            if not answer.tries:
                self._views.take(kind, page.items, now, answer.asked.notices, answer.asked.order, out)
            view = self._views.judged(kind, out)
            if view is None:
                self._views.need(kind, now, out)  # the first use: everything has to be seen first
                view = self._views.judged(kind, out)
        else:
            view = self._views.need(kind, now, out)
        if view is None:
            return False
        if answer.tries < _TRIES and not _covers(view, page):
            self._views.expire(kind)  # the page is newer than the list, or the list was another one for us
            self._views.need(kind, now, out)
            return False
        self._release(answer.frame, kind, page, view, out)
        return True

    def _release(self, frame: bytes, kind: ItemKind, page: ListPage, view: JudgedList, out: OutputBuilder) -> None:
        gone: set[int] = set()
        warnings: list[Verdict] = []
        for number, item in enumerate(page.items):
            verdict = None if item.digest is None else view.by_item.get((item.key, item.digest.raw))
            if verdict is None:
                gone.add(number)
                if item.digest is not None:
                    self._journal.served(_unstable(kind, item), kind.method, out)
            elif not view.by_key[item.key].passes:
                gone.add(number)
            elif verdict.action == WARN:
                warnings.append(verdict)
        ttl = self._guard.policy.relist_seconds * 1000
        out.to_client.append(filtered(frame, kind, gone, ttl=ttl, warnings=warnings))

    # What the server says of itself

    def _open(self, frame: bytes, message: Any, asked: ForwardedRequest, out: OutputBuilder) -> None:
        result = message["result"]
        if not isinstance(result, dict) or result.get("resultType", "complete") != "complete":
            raise PinwardenError("PROBE_FAILED", "the server does not say who it is")
        if has_two_names(result):
            raise PinwardenError("JSON_CANONICALIZATION_ERROR", "the server gives itself two names")
        passed = self._opening.passed_on(frame, result, self._guard.policy.relist_seconds * 1000, out)
        if isinstance(passed, bytes):
            out.to_client.append(passed)
            return
        call = self._journal.call_id(asked.number)
        self._journal.used(passed, asked.method, call, out)
        out.to_client.append(blocked_response(asked.number, passed, self._guard.server, call))

    # Requests of the server

    def server_request(self, frame: bytes, message: Any, method: str, out: OutputBuilder) -> None:
        """A question of the server to the client: passed on, or answered with a refusal."""
        number = message["id"]
        if not is_id(number) or number in self.asked_of_client:
            out.to_server.append(error_response(None, INVALID_REQUEST, "pinwarden: the id cannot be used"))
            return
        asked = ForwardedRequest(f"server/{number}", method)
        refused = self._refused_request(frame, message, method, out)
        refused = refused or self._requests.all_refused(((method, message.get("params")),), asked, out)
        if refused is not None:
            self._journal.refused_question(refused, method, number, out)
            data = {"pinwarden": {"code": refused.code}}
            out.to_server.append(error_response(number, SERVER_AWAY, f"pinwarden: {refused.reason}", data))
            return
        self.asked_of_client[number] = method
        out.to_client.append(self._results.checked(frame, message, "params", asked, out))

    def _refused_request(self, frame: bytes, message: Any, method: str, out: OutputBuilder) -> Refusal | None:
        """Why a server request may not pass, whatever it carries."""
        barred = self._barred(out)
        if barred is not None:
            return barred
        if is_ambiguous_server_request(message):
            reason = "Two readers may differ on what the server asks for."
            return Refusal(code="message_doubtful", reason=reason)
        policy = self._guard.requests(self._journal.client)
        if len(self.asked_of_client) >= self._guard.limits.max_open:
            return too_many_rounds(policy)
        if method in (SAMPLING, ELICITATION) and self._requests.denied(method, message.get("params")) is None:
            self._server_asks += 1
            if self._server_asks > policy.max_rounds:
                return too_many_rounds(policy)
        return self._results.too_large(frame)

    def tell(self, frame: bytes, message: Any, method: str, out: OutputBuilder) -> None:
        """A notification of the server that nothing is to be decided about: it is looked at as a result is."""
        barred = self._barred(out)
        if barred is not None:
            self._journal.refused_once(barred.code, barred.reason, method[:100], out)
            return
        refused = self._results.too_large(frame)
        if refused is not None:
            self._journal.refused(refused.code, refused.reason, method[:100], "", out)
            return
        asked = ForwardedRequest(None, method[:100])
        if method not in SERVER_NOTIFICATIONS:
            verdict = self._methods.notice(method, out)
            if not verdict.passes:
                return
            asked.warning = verdict if verdict.action == WARN else None
        out.to_client.append(self._results.checked(frame, message, "params", asked, out))

    def tell_error(self, frame: bytes, message: Any, out: OutputBuilder) -> None:
        """An error that belongs to no request: it is looked at as one is that does."""
        asked = ForwardedRequest(None, "")
        refused = self._barred(out) or self._results.too_large(frame)
        refused = refused or self._requests.all_refused(requests_in_error(message.get("error")), asked, out)
        if refused is not None:
            self._journal.refused(refused.code, refused.reason, "", "", out)
        else:
            out.to_client.append(self._results.checked(frame, message, "error", asked, out))

    def _barred(self, out: OutputBuilder) -> Refusal | None:
        """Why nothing at all of the server passes; None if something does."""
        try:
            identity = self._opening.identity(out)
        except PinwardenError as err:
            return Refusal(code=err.code, reason="What was approved cannot be read, so that nothing passes.")
        return None if identity is None else Refusal(code=identity.code, reason=identity.reason)

    def from_client(self, frame: bytes, message: Any, out: OutputBuilder) -> None:
        """An answer of the client; one that nobody asked for goes nowhere."""
        number = message.get("id")
        if is_id(number) and self.asked_of_client.pop(number, None) is not None:
            out.to_server.append(frame)


def _covers(view: JudgedList, page: ListPage) -> bool:
    return view.problem is not None or all(
        item.digest is None or (item.key, item.digest.raw) in view.by_item for item in page.items
    )


def _unstable(kind: ItemKind, item: Item) -> Verdict:
    return Verdict(
        entity=kind.entity,
        key=item.key,
        value=item.value,
        digest=item.digest,
        action=BLOCK,
        level=REVIEW,
        code="list_unstable",
        reason="The server lists it to the client, and not when it is asked again.",
    )


def _refused_answer(number: Any, refused: Refusal, call: str) -> bytes:
    data = {"pinwarden": {"code": refused.code, "call": call}}
    return error_response(number, INVALID_PARAMS, f"pinwarden: the answer is refused: {refused.reason}", data)
