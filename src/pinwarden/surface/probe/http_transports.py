"""The two HTTP transports of MCP, as a client: Streamable HTTP and the older HTTP+SSE."""

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

_POST_HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_EVENT_STREAM_TYPE = "text/event-stream"
_MAX_SESSION_ID = 1024
_DELETE_SECONDS = 2.0
_RESPONSE_ENDED = NoMessage(reason="ended", detail="the server's response ended without a message")
_CONNECTION_CLOSED = NoMessage(
    reason="ended", detail="the server closed the connection before its response was complete"
)
_TIMED_OUT = NoMessage(reason="quiet", detail="the server sent nothing in time")


class StreamableHttpTransport:
    """Streamable HTTP: each message is a POST, and the response is JSON or an event stream.

    The transport also manages the session id that older protocol revisions use.
    """

    name = "streamable-http"
    line_based = False

    def __init__(self, options: HttpOptions, budget: ProbeBudget) -> None:
        self._budget = budget
        self._client = HttpClient(options, budget)
        self._session: dict[str, str] = {}
        self._version: Mapping[str, str] = {}
        self._messages: Iterator[bytes] = iter(())
        self._response: HttpResponse | None = None
        self._no_message = _RESPONSE_ENDED

    def send(
        self, message: bytes, headers: Mapping[str, str], *, expects_response: bool, wait: float | None = None
    ) -> None:
        """Send one message as a POST. If ``expects_response``, the next ``receive`` reads the response."""
        if expects_response:
            self._discard_response()
        all_headers = {**_POST_HEADERS, **self._session, **headers}
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
                self._no_message = _CONNECTION_CLOSED if err.connection_closed else _TIMED_OUT

    def receive(self, wait: float | None = None) -> bytes | NoMessage:
        """Return the next message of the response to the last request."""
        del wait  # ``send`` already applied it to the request
        try:
            return next(self._messages, self._no_message)
        except NoResponse as err:
            return _CONNECTION_CLOSED if err.connection_closed else _TIMED_OUT

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
        self._no_message = _RESPONSE_ENDED
        if response.content_type == _EVENT_STREAM_TYPE and response.status < 400:
            self._response = response
            self._messages = self._read_event_messages(response)
            return
        body = response.body(self._budget.limits.max_message_bytes).strip()
        if body.startswith(b"{") or (response.status < 300 and body):
            self._messages = iter((body,))
        else:
            self._no_message = NoMessage(
                reason="refused", detail=f"HTTP status {response.status} without a message", status=response.status
            )

    def _read_event_messages(self, response: HttpResponse) -> Iterator[bytes]:
        parser = EventParser(self._budget.limits.max_message_bytes)
        for chunk in response.chunks():
            yield from (event.data for event in parser.feed(chunk) if event.name == "message")

    def _discard_response(self) -> None:
        self._messages = iter(())
        self._no_message = _RESPONSE_ENDED
        response, self._response = self._response, None
        if response is not None:
            response.close()


_MAX_IGNORED_BODY = 1 << 16


class SseTransport:
    """HTTP+SSE: the server sends all messages on one event stream, whose first event is the URL to POST to.

    The first ``send`` opens the stream.
    """

    name = "sse"
    line_based = False

    def __init__(self, options: HttpOptions, budget: ProbeBudget) -> None:
        self._budget = budget
        self._client = HttpClient(options, budget)
        self._response: HttpResponse | None = None
        self._events: Iterator[Event] = iter(())
        self._endpoint: HttpAddress | None = None

    @property
    def is_open(self) -> bool:
        """Whether the server has opened the stream and named its endpoint."""
        return self._endpoint is not None

    def send(
        self, message: bytes, headers: Mapping[str, str], *, expects_response: bool, wait: float | None = None
    ) -> None:
        """Send one message as a POST. The response arrives on the event stream."""
        if self._endpoint is None:
            self._response = self._open_stream()
            self._events = self._read_events(self._response)
            self._endpoint = self._read_endpoint()
        all_headers = {"Content-Type": "application/json", **headers}
        request = HttpRequest(method="POST", address=self._endpoint, headers=all_headers, body=message, wait=wait)
        try:
            response = self._client.request(request)
        except NoResponse as err:
            raise probe_error("ended", "the server did not accept a POST request with a message") from err
        if response.status >= 400 and expects_response:
            response.close()
            details = {"status": response.status}
            raise probe_error("refused", f"the server refused a message: HTTP status {response.status}", details)
        with suppress(NoResponse):  # the body of this response is not used
            response.body(_MAX_IGNORED_BODY)

    def receive(self, wait: float | None = None) -> bytes | NoMessage:
        """Return the next message of the event stream."""
        del wait  # messages arrive on the open stream, which has its own timeout
        with suppress(NoResponse):
            for event in self._events:
                if event.name == "message":
                    return event.data
        return NoMessage(reason="ended", detail="the server ended its stream")

    def restart(self) -> None:
        """Do nothing: the session lasts as long as the event stream."""

    def close(self) -> None:
        """Close the event stream and all connections."""
        if self._response is not None:
            self._response.close()
        self._client.close()

    def abort(self) -> None:
        """Close all connections immediately."""
        self._client.abort()

    def _open_stream(self) -> HttpResponse:
        try:
            headers = {"Accept": "text/event-stream"}
            response = self._client.request(HttpRequest(method="GET", address=self._client.address, headers=headers))
        except NoResponse as err:
            raise probe_error("ended", "the server did not open its event stream") from err
        if response.status != 200 or response.content_type != "text/event-stream":
            response.close()
            details = {"status": response.status}
            raise probe_error("refused", f"the server opened no event stream: HTTP status {response.status}", details)
        return response

    def _read_events(self, response: HttpResponse) -> Iterator[Event]:
        parser = EventParser(self._budget.limits.max_message_bytes)
        for chunk in response.chunks():
            yield from parser.feed(chunk)

    def _read_endpoint(self) -> HttpAddress:
        try:
            event = next(self._events, None)
        except NoResponse as err:
            raise probe_error("ended", "the event stream ended before its first event") from err
        if event is None or event.name != "endpoint":
            raise probe_error("protocol", "the first event of the event stream is not the endpoint")
        base = self._client.address
        text = event.data.decode("utf-8", "replace")
        try:
            endpoint = HttpAddress.parse(urljoin(f"{base.scheme}://{base.host_header}{base.path}", text))
        except (PinwardenError, ValueError) as err:
            raise probe_error("protocol", "the endpoint in the event stream is not a valid URL") from err
        if endpoint.origin != base.origin:
            # Otherwise a server could make Pinwarden send the user's headers to any host.
            raise PinwardenError(
                "ADDRESS_REFUSED",
                "the event stream names an endpoint on another host",
                data={"reason": "endpoint"},
            )
        return endpoint
