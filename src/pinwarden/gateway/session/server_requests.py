"""Decides about requests and notifications from the server, and about requests inside its results and errors."""

from __future__ import annotations

from typing import Any, Protocol

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.gates.lists import digest_text
from pinwarden.gateway.gates.requests import (
    ELICITATION,
    SAMPLING,
    CheckedRequest,
    Refusal,
    Requests,
    check_request_policy,
    requests_in_error,
    rounds_refusal,
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
_MAX_METHOD = 100  # characters in the log
SERVER_NOTIFICATIONS = frozenset(
    f"notifications/{name}"
    for name in (
        *("cancelled", "progress", "message", "elicitation/complete", "subscriptions/acknowledged"),
        *("tools/list_changed", "prompts/list_changed", "resources/list_changed", "resources/updated"),
        *("tasks", "tasks/status"),
    )
)


class ContentChecks(Protocol):
    """Checks the content of a message from the server (`responses.ResultChecks`)."""

    def too_large(self, data: bytes) -> Refusal | None:
        """Why a message is too large; None if it is not."""

    def sanitize(self, data: bytes, message: Any, member: str, request: ForwardedRequest, out: OutputBuilder) -> bytes:
        """The message for the client."""


class ServerRequestDecider:
    """The part of a session that decides about server messages that are not responses."""

    def __init__(
        self, guard: Guard, audit: SessionAudit, server: CheckedServer, checks: RequestChecks, content: ContentChecks
    ) -> None:
        self._guard = guard
        self._audit = audit
        self._server = server
        self._checks = checks
        self._content = content
        self._unknown_methods = UnknownMethodDecider(guard, audit, "server")
        self.open: dict[Any, str] = {}
        """Requests that wait for a response from the client: method by id."""
        self.rounds = 0
        """How many sampling and elicitation requests came since the last result."""

    def on_request(self, data: bytes, message: Any, method: str, out: OutputBuilder) -> None:
        """Forward a request from the server to the client, or answer it with a refusal."""
        request_id = message["id"]
        if not is_id(request_id) or request_id in self.open:
            out.to_server.append(build_error_response(None, INVALID_REQUEST, "pinwarden: the id cannot be used"))
            return
        request = ForwardedRequest(f"server/{request_id}", method)
        refusal = self._refusal(data, message, method, out)
        refusal = refusal or self._checks.refusal(((method, message.get("params")),), request, out)
        if refusal is not None:
            self._audit.record_refused_server_request(refusal, method, request_id, out)
            details = {"pinwarden": {"code": refusal.code}}
            out.to_server.append(
                build_error_response(request_id, SERVER_UNAVAILABLE, f"pinwarden: {refusal.reason}", details)
            )
            return
        self.open[request_id] = method
        out.to_client.append(self._content.sanitize(data, message, "params", request, out))

    def on_client_response(self, data: bytes, message: Any, out: OutputBuilder) -> None:
        """Forward the client's response to a request from the server. Any other response is dropped."""
        request_id = message.get("id")
        if is_id(request_id) and self.open.pop(request_id, None) is not None:
            out.to_server.append(data)

    def on_notification(self, data: bytes, message: Any, method: str, out: OutputBuilder) -> None:
        """Forward a notification from the server, with the checks of a result."""
        refusal = self._server_refusal(out)
        if refusal is not None:
            self._audit.record_refused_message_once(refusal.code, refusal.reason, method[:_MAX_METHOD], out)
            return
        refusal = self._content.too_large(data)
        if refusal is not None:
            self._audit.record_refused_message(refusal.code, refusal.reason, method[:_MAX_METHOD], "", out)
            return
        request = ForwardedRequest(None, method[:_MAX_METHOD])
        if method not in SERVER_NOTIFICATIONS:
            verdict = self._unknown_methods.notification(method, out)
            if not verdict.passes:
                return
            request.warning = verdict if verdict.action == WARN else None
        out.to_client.append(self._content.sanitize(data, message, "params", request, out))

    def on_error(self, data: bytes, message: Any, out: OutputBuilder) -> None:
        """Forward an error that belongs to no request."""
        request = ForwardedRequest(None, "")
        refusal = self._server_refusal(out) or self._content.too_large(data)
        refusal = refusal or self._checks.refusal(requests_in_error(message.get("error")), request, out)
        if refusal is not None:
            self._audit.record_refused_message(refusal.code, refusal.reason, "", "", out)
        else:
            out.to_client.append(self._content.sanitize(data, message, "error", request, out))

    def _refusal(self, data: bytes, message: Any, method: str, out: OutputBuilder) -> Refusal | None:
        """Why a request is refused, apart from its content."""
        refusal = self._server_refusal(out)
        if refusal is not None:
            return refusal
        if is_ambiguous_server_request(message):
            reason = "Two parsers could read different requests from this message."
            return Refusal(code="message_doubtful", reason=reason)
        policy = self._guard.request_policy(self._audit.client)
        if len(self.open) >= self._guard.limits.max_open:
            return rounds_refusal(policy)
        if method in (SAMPLING, ELICITATION) and self._checks.denial(method, message.get("params")) is None:
            self.rounds += 1
            if self.rounds > policy.max_rounds:
                return rounds_refusal(policy)
        return self._content.too_large(data)

    def _server_refusal(self, out: OutputBuilder) -> Refusal | None:
        """Why everything from the server is blocked; None if it is not."""
        try:
            identity = self._server.refusal(out)
        except PinwardenError as err:
            return Refusal(code=err.code, reason="The approvals cannot be read, so everything is blocked.")
        return None if identity is None else Refusal(code=identity.code, reason=identity.reason)


class RequestChecks:
    """Checks server requests and tool definitions in any kind of message."""

    def __init__(self, guard: Guard, audit: SessionAudit) -> None:
        self._guard = guard
        self._audit = audit

    def denial(self, method: str, params: Any) -> Refusal | None:
        """Why the policy denies such a request whatever its content; None if it does not."""
        return check_request_policy(method, params, self._guard.request_policy(self._audit.client))

    def refusal(self, requests: Requests | Refusal, request: ForwardedRequest, out: OutputBuilder) -> Refusal | None:
        """Why a message with these requests is refused; None if it passes, and then each of them is recorded."""
        if isinstance(requests, Refusal):
            return requests
        limit = self._guard.limits.max_input_requests
        if len(requests) > limit:
            reason = f"The server sends {len(requests)} requests in one message; the limit is {limit}."
            return Refusal(code="request_too_many", reason=reason)
        passing: list[CheckedRequest] = []
        for method, params in requests:
            checked = self.denial(method, params) or self._guard.check_server_request(
                method, params, self._audit.client
            )
            if isinstance(checked, Refusal):
                return checked
            if not checked.verdict.passes:
                return self._blocked(checked, method, request, out)
            passing.append(checked)
        for checked in passing:
            self._record(checked, request, out)
        return None

    def tools_refusal(self, result: Any, request: ForwardedRequest, out: OutputBuilder) -> Refusal | None:
        """Why a result that is not a list is refused because of the tool definitions in it; None if it passes."""
        if type(result) is not dict or "tools" not in result:
            return None
        checked = self._guard.check_tools_in_result(request.method, result, self._audit.client)
        if checked is None or isinstance(checked, Refusal):
            return checked
        if not checked.verdict.passes:
            return self._blocked(checked, request.method, request, out)
        self._record(checked, request, out)
        return None

    def _blocked(self, checked: CheckedRequest, method: str, request: ForwardedRequest, out: OutputBuilder) -> Refusal:
        """The refusal, which the caller records. The definitions in the request are recorded here."""
        self._record_definitions(checked, method, request, out)
        verdict = checked.verdict
        return Refusal(code=verdict.code, reason=verdict.reason, observed=digest_text(verdict.digest))

    def _record(self, checked: CheckedRequest, request: ForwardedRequest, out: OutputBuilder) -> None:
        verdict = checked.verdict
        self._record_definitions(checked, verdict.key, request, out)
        call = self._call_id(request)
        if request.method in TASK_METHODS or request.method in TASK_NOTIFICATIONS:
            # Every poll of a task repeats its open requests.
            self._audit.record_use_once(verdict, verdict.key, call, out, (request.target, digest_text(verdict.digest)))
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
            name = (method, digest_text(definition.digest))
            self._audit.record_use_once(definition, method, self._call_id(request), out, name)

    def _call_id(self, request: ForwardedRequest) -> str:
        return "" if request.request_id is None else self._audit.call_id(request.request_id)
