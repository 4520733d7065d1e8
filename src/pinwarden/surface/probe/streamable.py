"""MCP over Streamable HTTP: each message is a POST, answered with JSON or with a stream of events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from pinwarden.core.errors import PinwardenError
from pinwarden.surface.probe.sse_stream import EventParser
from pinwarden.surface.probe.wire import Silence
from pinwarden.system.net.http_client import HttpClient, HttpOptions, HttpRequest, HttpResponse, NoResponse
from pinwarden.system.probe_budget import ProbeBudget

_ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_EVENTS = "text/event-stream"
_MAX_SESSION_ID = 1024
_GOODBYE_SECONDS = 2.0
_OVER = Silence(reason="ended", detail="the server's answer ended without a message")
_HUNG_UP = Silence(reason="ended", detail="the server closed the connection before its answer was complete")
_QUIET = Silence(reason="quiet", detail="the server said nothing")


class StreamableWire:
    """One MCP endpoint. The session id of the older revisions is kept here and shown to nobody."""

    transport = "streamable-http"
    line_based = False

    def __init__(self, options: HttpOptions, allowance: ProbeBudget) -> None:
        self._allowance = allowance
        self._client = HttpClient(options, allowance)
        self._session: dict[str, str] = {}
        self._version: Mapping[str, str] = {}
        self._messages: Iterator[bytes] = iter(())
        self._response: HttpResponse | None = None
        self._silence = _OVER

    def send(
        self, message: bytes, headers: Mapping[str, str], *, expects_answer: bool, wait: float | None = None
    ) -> None:
        """Post one message. The answer to a question is then ready to be received."""
        if expects_answer:
            self._let_go()
        sent = {**_ACCEPT, **self._session, **headers}
        request = HttpRequest(method="POST", address=self._client.address, headers=sent, body=message, wait=wait)
        try:
            response = self._client.request(request)
            if expects_answer:
                self._remember(response, headers)
                self._expect(response)
            else:
                response.close()
        except NoResponse as unanswered:
            if expects_answer:
                self._silence = _HUNG_UP if unanswered.hung_up else _QUIET

    def receive(self, wait: float | None = None) -> bytes | Silence:
        """The next message of the answer to the last question."""
        del wait  # the question was sent with it
        try:
            return next(self._messages, self._silence)
        except NoResponse as unanswered:
            return _HUNG_UP if unanswered.hung_up else _QUIET

    def restart(self) -> None:
        """Forget the last answer."""
        self._let_go()
        self._session = {}

    def close(self) -> None:
        """End the session, if there is one, and let go of all connections."""
        self._let_go()
        if self._session and not self._allowance.is_expired:
            with suppress(PinwardenError, NoResponse):
                headers = {**self._session, **self._version}
                address = self._client.address
                goodbye = HttpRequest(method="DELETE", address=address, headers=headers, wait=_GOODBYE_SECONDS)
                self._client.request(goodbye).close()
        self._client.close()

    def abort(self) -> None:
        """Cut all connections."""
        self._client.abort()

    def _remember(self, response: HttpResponse, headers: Mapping[str, str]) -> None:
        self._version = {name: value for name, value in headers.items() if name == "MCP-Protocol-Version"}
        session = response.header("mcp-session-id")
        if session and not self._session and len(session) <= _MAX_SESSION_ID and session.isprintable():
            self._session = {"Mcp-Session-Id": session}

    def _expect(self, response: HttpResponse) -> None:
        self._silence = _OVER
        if response.content_type == _EVENTS and response.status < 400:
            self._response = response
            self._messages = self._events(response)
            return
        body = response.body(self._allowance.limits.max_message_bytes).strip()
        if body.startswith(b"{") or (response.status < 300 and body):
            self._messages = iter((body,))
        else:
            self._silence = Silence(reason="refused", detail=f"HTTP status {response.status}", status=response.status)

    def _events(self, response: HttpResponse) -> Iterator[bytes]:
        parser = EventParser(self._allowance.limits.max_message_bytes)
        for chunk in response.chunks():
            yield from (event.data for event in parser.feed(chunk) if event.name == "message")

    def _let_go(self) -> None:
        self._messages = iter(())
        self._silence = _OVER
        response, self._response = self._response, None
        if response is not None:
            response.close()
