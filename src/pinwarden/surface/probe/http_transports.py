"""MCP over Streamable HTTP (each message is a POST with a JSON or event stream response) and the older HTTP+SSE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from urllib.parse import urljoin

from pinwarden.core.errors import PinwardenError
from pinwarden.surface.probe.event_stream import Event, EventParser
from pinwarden.surface.probe.message import NoMessage
from pinwarden.system.net.http_client import HttpClient, HttpOptions, HttpRequest, HttpResponse, NoResponse
from pinwarden.system.probe_budget import ProbeBudget, probe_error
from pinwarden.system.target import HttpAddress

_ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_EVENTS = "text/event-stream"
_MAX_SESSION_ID = 1024
_DELETE_SECONDS = 2.0
_RESPONSE_ENDED = NoMessage(reason="ended", detail="the server's response ended without a message")
_CONNECTION_CLOSED = NoMessage(
    reason="ended", detail="the server closed the connection before its response was complete"
)
_TIMED_OUT = NoMessage(reason="quiet", detail="the server sent nothing")


class StreamableHttpTransport:
    """One MCP endpoint. The session id of the older revisions stays inside this class."""

    name = "streamable-http"
    line_based = False

    def __init__(self, options: HttpOptions, budget: ProbeBudget) -> None:
        self._budget = budget
        self._client = HttpClient(options, budget)
        self._session: dict[str, str] = {}
        self._version: Mapping[str, str] = {}
        self._messages: Iterator[bytes] = iter(())
        self._response: HttpResponse | None = None
        self._if_no_message = _RESPONSE_ENDED

    def send(
        self, message: bytes, headers: Mapping[str, str], *, expects_response: bool, wait: float | None = None
    ) -> None:
        """Post one message. If a response is expected, ``receive`` returns it."""
        if expects_response:
            self._discard_response()
        all_headers = {**_ACCEPT, **self._session, **headers}
        request = HttpRequest(method="POST", address=self._client.address, headers=all_headers, body=message, wait=wait)
        try:
            response = self._client.request(request)
            if expects_response:
                self._store_session(response, headers)
                self._read_response(response)
            else:
                response.close()
        except NoResponse as err:
            if expects_response:
                self._if_no_message = _CONNECTION_CLOSED if err.hung_up else _TIMED_OUT

    def receive(self, wait: float | None = None) -> bytes | NoMessage:
        """The next message of the response to the last request."""
        del wait  # the request was sent with it
        try:
            return next(self._messages, self._if_no_message)
        except NoResponse as err:
            return _CONNECTION_CLOSED if err.hung_up else _TIMED_OUT

    def restart(self) -> None:
        """Discard the last response and the session."""
        self._discard_response()
        self._session = {}

    def close(self) -> None:
        """End the session, if there is one, and close all connections."""
        self._discard_response()
        if self._session and not self._budget.is_expired:
            with suppress(PinwardenError, NoResponse):
                headers = {**self._session, **self._version}
                address = self._client.address
                delete_session = HttpRequest(method="DELETE", address=address, headers=headers, wait=_DELETE_SECONDS)
                self._client.request(delete_session).close()
        self._client.close()

    def abort(self) -> None:
        """Close all connections immediately."""
        self._client.abort()

    def _store_session(self, response: HttpResponse, headers: Mapping[str, str]) -> None:
        self._version = {name: value for name, value in headers.items() if name == "MCP-Protocol-Version"}
        session = response.header("mcp-session-id")
        if session and not self._session and len(session) <= _MAX_SESSION_ID and session.isprintable():
            self._session = {"Mcp-Session-Id": session}

    def _read_response(self, response: HttpResponse) -> None:
        self._if_no_message = _RESPONSE_ENDED
        if response.content_type == _EVENTS and response.status < 400:
            self._response = response
            self._messages = self._event_messages(response)
            return
        body = response.body(self._budget.limits.max_message_bytes).strip()
        if body.startswith(b"{") or (response.status < 300 and body):
            self._messages = iter((body,))
        else:
            self._if_no_message = NoMessage(
                reason="refused", detail=f"HTTP status {response.status}", status=response.status
            )

    def _event_messages(self, response: HttpResponse) -> Iterator[bytes]:
        parser = EventParser(self._budget.limits.max_message_bytes)
        for chunk in response.chunks():
            yield from (event.data for event in parser.feed(chunk) if event.name == "message")

    def _discard_response(self) -> None:
        self._messages = iter(())
        self._if_no_message = _RESPONSE_ENDED
        response, self._response = self._response, None
        if response is not None:
            response.close()


_MAX_IGNORED_BODY = 1 << 16


class SseTransport:
    """HTTP+SSE: the stream is opened with the first message, and its first event is the address to post to."""

    name = "sse"
    line_based = False

    def __init__(self, options: HttpOptions, budget: ProbeBudget) -> None:
        self._budget = budget
        self._client = HttpClient(options, budget)
        self._response: HttpResponse | None = None
        self._events: Iterator[Event] = iter(())
        self._endpoint: HttpAddress | None = None

    def send(
        self, message: bytes, headers: Mapping[str, str], *, expects_response: bool, wait: float | None = None
    ) -> None:
        """Post one message. The response arrives on the stream."""
        if self._endpoint is None:
            self._response = self._open()
            self._events = self._read(self._response)
            self._endpoint = self._find_endpoint()
        all_headers = {"Content-Type": "application/json", **headers}
        request = HttpRequest(method="POST", address=self._endpoint, headers=all_headers, body=message, wait=wait)
        try:
            response = self._client.request(request)
        except NoResponse as err:
            raise probe_error("ended", "the server did not accept a message") from err
        if response.status >= 400 and expects_response:
            response.close()
            raise probe_error("refused", f"HTTP status {response.status} for a message", {"status": response.status})
        with suppress(NoResponse):  # the body of this response is not used
            response.body(_MAX_IGNORED_BODY)

    def receive(self, wait: float | None = None) -> bytes | NoMessage:
        """The next message of the stream."""
        del wait  # messages arrive on the open stream, which has its own timeout
        with suppress(NoResponse):
            for event in self._events:
                if event.name == "message":
                    return event.data
        return NoMessage(reason="ended", detail="the server ended its stream")

    def restart(self) -> None:
        """Do nothing: the stream is the session."""

    def close(self) -> None:
        """End the stream."""
        if self._response is not None:
            self._response.close()
        self._client.close()

    def abort(self) -> None:
        """Close all connections immediately."""
        self._client.abort()

    def _open(self) -> HttpResponse:
        try:
            headers = {"Accept": "text/event-stream"}
            response = self._client.request(HttpRequest(method="GET", address=self._client.address, headers=headers))
        except NoResponse as err:
            raise probe_error("ended", "the server did not open its event stream") from err
        if response.status != 200 or response.content_type != "text/event-stream":
            response.close()
            details = {"status": response.status}
            raise probe_error("refused", f"no event stream: HTTP status {response.status}", details)
        return response

    def _read(self, response: HttpResponse) -> Iterator[Event]:
        parser = EventParser(self._budget.limits.max_message_bytes)
        for chunk in response.chunks():
            yield from parser.feed(chunk)

    def _find_endpoint(self) -> HttpAddress:
        try:
            event = next(self._events, None)
        except NoResponse as err:
            raise probe_error("ended", "the event stream ended before its first event") from err
        if event is None or event.name != "endpoint":
            raise probe_error("protocol", "the event stream does not begin with the endpoint")
        base = self._client.address
        text = event.data.decode("utf-8", "replace")
        try:
            endpoint = HttpAddress.parse(urljoin(f"{base.scheme}://{base.host_header}{base.path}", text))
        except (PinwardenError, ValueError) as err:
            raise probe_error("protocol", "the endpoint of the event stream is not a web address") from err
        if endpoint.origin != base.origin:
            # Otherwise the server could have our headers sent to any host.
            raise PinwardenError(
                "ADDRESS_REFUSED",
                "the endpoint and its event stream are on different hosts",
                data={"reason": "endpoint"},
            )
        return endpoint
