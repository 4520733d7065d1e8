"""Decides on requests and notifications from the server, and about requests inside its results and errors."""

from __future__ import annotations

from typing import Any, Protocol

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.gates.lists import format_digest
from pinwarden.gateway.gates.server_requests import (
    ELICITATION,
    SAMPLING,
    CheckedRequest,
    EmbeddedRequests,
    Refusal,
    build_max_rounds_refusal,
    check_request_policy,
    find_requests_in_error,
)
from pinwarden.gateway.gates.verdict import WARN
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.session.messages import (
    ForwardedRequest,
    build_error_response,
    is_ambiguous_server_request,
    is_id,
)
from pinwarden.gateway.session.output import OutputBuilder, SessionAudit
from pinwarden.gateway.session.requests import UnknownMethodDecider
from pinwarden.gateway.session.server import CheckedServer
from pinwarden.gateway.session.tasks import TASK_METHODS
from pinwarden.surface.protocol import INVALID_REQUEST, SERVER_UNAVAILABLE, TASK_NOTIFICATIONS

_PING = "ping"
_MAX_METHOD = 100  # characters of a method in the audit log
SERVER_NOTIFICATIONS = frozenset(
    f"notifications/{name}"
    for name in (
        *("cancelled", "progress", "message", "elicitation/complete", "subscriptions/acknowledged"),
        *("tools/list_changed", "prompts/list_changed", "resources/list_changed", "resources/updated"),
        *("tasks", "tasks/status"),
    )
)


class ContentChecker(Protocol):
    """Checks the content of a message from the server (`responses.ResultChecker`)."""

    def find_size_refusal(self, data: bytes) -> Refusal | None:
        """Return the refusal of a message that is too large; None if its size is allowed."""

    def sanitize(self, data: bytes, message: Any, member: str, request: ForwardedRequest, out: OutputBuilder) -> bytes:
        """Return the message for the client: with warnings, and without hidden characters if the policy strips them."""


class ServerRequestDecider:
    """Decides on requests, notifications and unmatched errors from the server, in one session."""

    def __init__(
        self,
        guard: Guard,
        audit: SessionAudit,
        server: CheckedServer,
        request_checker: RequestChecker,
        content_checker: ContentChecker,
    ) -> None:
        self._guard = guard
        self._audit = audit
        self._server = server
        self._request_checker = request_checker
        self._content_checker = content_checker
        self._unknown_methods = UnknownMethodDecider(guard, audit, "server")
        self.open: dict[Any, str] = {}
        """The methods of requests that wait for a response from the client, by id."""
        self.rounds = 0
        """The number of sampling and elicitation requests since the last result."""

    def on_request(self, data: bytes, message: Any, method: str, out: OutputBuilder) -> None:
        """Forward a request from the server to the client, or send the server a refusal."""
        request_id = message["id"]
        if not is_id(request_id) or request_id in self.open:
            out.to_server.append(
                build_error_response(None, INVALID_REQUEST, "pinwarden: the id of this request is invalid or in use")
            )
            return
        request = ForwardedRequest(f"server/{request_id}", method)
        refusal = self._find_request_refusal(data, message, method, out)
        refusal = refusal or self._request_checker.find_refusal(((method, message.get("params")),), request, out)
        if refusal is not None:
            self._audit.record_refused_server_request(refusal, method, request_id, out)
            details = {"pinwarden": {"code": refusal.code}}
            out.to_server.append(
                build_error_response(request_id, SERVER_UNAVAILABLE, f"pinwarden: {refusal.reason}", details)
            )
            return
        self.open[request_id] = method
        out.to_client.append(self._content_checker.sanitize(data, message, "params", request, out))

    def on_client_response(self, data: bytes, message: Any, out: OutputBuilder) -> None:
        """Forward the client's response to a request from the server. Any other response is dropped."""
        request_id = message.get("id")
        if is_id(request_id) and self.open.pop(request_id, None) is not None:
            out.to_server.append(data)

    def on_notification(self, data: bytes, message: Any, method: str, out: OutputBuilder) -> None:
        """Check a notification from the server like a result, and forward it."""
        refusal = self._find_server_refusal(out)
        if refusal is not None:
            self._audit.record_refused_message_once(refusal.code, refusal.reason, method[:_MAX_METHOD], out)
            return
        refusal = self._content_checker.find_size_refusal(data)
        if refusal is not None:
            self._audit.record_refused_message(refusal.code, refusal.reason, method[:_MAX_METHOD], "", out)
            return
        request = ForwardedRequest(None, method[:_MAX_METHOD])
        if method not in SERVER_NOTIFICATIONS:
            verdict = self._unknown_methods.decide_notification(method, out)
            if not verdict.passes:
                return
            request.warning = verdict if verdict.action == WARN else None
        out.to_client.append(self._content_checker.sanitize(data, message, "params", request, out))

    def on_error(self, data: bytes, message: Any, out: OutputBuilder) -> None:
        """Forward an error response that belongs to no request."""
        request = ForwardedRequest(None, "")
        refusal = self._find_server_refusal(out) or self._content_checker.find_size_refusal(data)
        refusal = refusal or self._request_checker.find_refusal(
            find_requests_in_error(message.get("error")), request, out
        )
        if refusal is not None:
            self._audit.record_refused_message(refusal.code, refusal.reason, "", "", out)
        else:
            out.to_client.append(self._content_checker.sanitize(data, message, "error", request, out))

    def _find_request_refusal(self, data: bytes, message: Any, method: str, out: OutputBuilder) -> Refusal | None:
        """Return why a request is refused before its content is checked; None if its content must be checked."""
        refusal = self._find_server_refusal(out)
        if refusal is not None:
            return refusal
        if is_ambiguous_server_request(message):
            reason = "Two JSON parsers could read this message as different requests."
            return Refusal(code="message_doubtful", reason=reason)
        policy = self._guard.get_server_request_policy(self._audit.client)
        if len(self.open) >= self._guard.limits.max_open:
            return build_max_rounds_refusal(policy)
        if (
            method in (SAMPLING, ELICITATION)
            and self._request_checker.find_denial(method, message.get("params")) is None
        ):
            self.rounds += 1
            if self.rounds > policy.max_rounds:
                return build_max_rounds_refusal(policy)
        return self._content_checker.find_size_refusal(data)

    def _find_server_refusal(self, out: OutputBuilder) -> Refusal | None:
        """Return why all messages of the server are refused; None if they are not."""
        try:
            identity = self._server.find_refusal(out)
        except PinwardenError as err:
            return Refusal(code=err.code, reason="The approvals cannot be read, so everything is blocked.")
        return None if identity is None else Refusal(code=identity.code, reason=identity.reason)


class RequestChecker:
    """Checks server requests and tool definitions in any kind of message."""

    def __init__(self, guard: Guard, audit: SessionAudit) -> None:
        self._guard = guard
        self._audit = audit

    def find_denial(self, method: str, params: Any) -> Refusal | None:
        """Return why the policy denies requests with this method or URL; None if it allows them."""
        return check_request_policy(method, params, self._guard.get_server_request_policy(self._audit.client))

    def find_refusal(
        self, requests: EmbeddedRequests | Refusal, request: ForwardedRequest, out: OutputBuilder
    ) -> Refusal | None:
        """Return why a message with these requests is refused; None if it passes. Requests that pass are recorded."""
        if isinstance(requests, Refusal):
            return requests
        limit = self._guard.limits.max_input_requests
        if len(requests) > limit:
            reason = f"The server sends {len(requests)} requests in one message; the limit is {limit}."
            return Refusal(code="request_too_many", reason=reason)
        passing: list[CheckedRequest] = []
        for method, params in requests:
            checked = self.find_denial(method, params) or self._guard.check_server_request(
                method, params, self._audit.client
            )
            if isinstance(checked, Refusal):
                return checked
            if not checked.verdict.passes:
                return self._build_refusal(checked, method, request, out)
            passing.append(checked)
        for checked in passing:
            self._record_request(checked, request, out)
        return None

    def find_tools_refusal(self, result: Any, request: ForwardedRequest, out: OutputBuilder) -> Refusal | None:
        """Return why tool definitions in a result that is not a list are refused; None if they pass."""
        if type(result) is not dict or "tools" not in result:
            return None
        checked = self._guard.check_tools_in_result(request.method, result, self._audit.client)
        if checked is None or isinstance(checked, Refusal):
            return checked
        if not checked.verdict.passes:
            return self._build_refusal(checked, request.method, request, out)
        self._record_request(checked, request, out)
        return None

    def _build_refusal(
        self, checked: CheckedRequest, method: str, request: ForwardedRequest, out: OutputBuilder
    ) -> Refusal:
        """Record the tool definitions in a blocked request, and return the refusal, which the caller records."""
        self._record_definitions(checked, method, request, out)
        verdict = checked.verdict
        return Refusal(code=verdict.code, reason=verdict.reason, observed=format_digest(verdict.digest))

    def _record_request(self, checked: CheckedRequest, request: ForwardedRequest, out: OutputBuilder) -> None:
        verdict = checked.verdict
        self._record_definitions(checked, verdict.key, request, out)
        call = self._make_call_id(request)
        if request.method in TASK_METHODS or request.method in TASK_NOTIFICATIONS:
            # Every poll of a task repeats its open requests.
            self._audit.record_use_once(
                verdict, verdict.key, call, out, (request.target, format_digest(verdict.digest))
            )
        elif verdict.key == _PING:
            self._audit.record_ping(verdict, call, out)
        else:
            self._audit.record_use(verdict, verdict.key, call, out)
        if verdict.action == WARN:
            request.warning = request.warning or verdict

    def _record_definitions(
        self, checked: CheckedRequest, method: str, request: ForwardedRequest, out: OutputBuilder
    ) -> None:
        for definition in checked.definitions:
            name = (method, format_digest(definition.digest))
            self._audit.record_use_once(definition, method, self._make_call_id(request), out, name)

    def _make_call_id(self, request: ForwardedRequest) -> str:
        return "" if request.request_id is None else self._audit.make_call_id(request.request_id)
