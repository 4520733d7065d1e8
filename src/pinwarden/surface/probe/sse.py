"""MCP over HTTP+SSE, as of revision 2024-11-05: one stream brings all messages, a second address takes ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from urllib.parse import urljoin

from pinwarden.core.errors import PinwardenError
from pinwarden.surface.probe.sse_stream import Event, EventParser
from pinwarden.surface.probe.wire import Silence
from pinwarden.system.net.http_client import HttpClient, HttpOptions, HttpRequest, HttpResponse, NoResponse
from pinwarden.system.probe_budget import ProbeBudget, probe_failed
from pinwarden.system.target import HttpAddress

_MAX_REPLY = 1 << 16


class SseWire:
    """The stream is opened with the first message; its first event says where to post."""

    transport = "sse"
    line_based = False

    def __init__(self, options: HttpOptions, allowance: ProbeBudget) -> None:
        self._allowance = allowance
        self._client = HttpClient(options, allowance)
        self._response: HttpResponse | None = None
        self._events: Iterator[Event] = iter(())
        self._endpoint: HttpAddress | None = None

    def send(
        self, message: bytes, headers: Mapping[str, str], *, expects_answer: bool, wait: float | None = None
    ) -> None:
        """Post one message; its answer comes on the stream."""
        if self._endpoint is None:
            self._response = self._open()
            self._events = self._read(self._response)
            self._endpoint = self._find_endpoint()
        sent = {"Content-Type": "application/json", **headers}
        request = HttpRequest(method="POST", address=self._endpoint, headers=sent, body=message, wait=wait)
        try:
            response = self._client.request(request)
        except NoResponse as unanswered:
            raise probe_failed("ended", "the server did not take a message") from unanswered
        if response.status >= 400 and expects_answer:
            response.close()
            raise probe_failed("refused", f"HTTP status {response.status} for a message", {"status": response.status})
        with suppress(NoResponse):  # what a server says beside the stream does not matter
            response.body(_MAX_REPLY)

    def receive(self, wait: float | None = None) -> bytes | Silence:
        """The next message of the stream."""
        del wait  # nothing else could be tried meanwhile
        with suppress(NoResponse):
            for event in self._events:
                if event.name == "message":
                    return event.data
        return Silence(reason="ended", detail="the server ended its stream")

    def restart(self) -> None:
        """Nothing to begin afresh: the stream is the session."""

    def close(self) -> None:
        """End the stream."""
        if self._response is not None:
            self._response.close()
        self._client.close()

    def abort(self) -> None:
        """Cut all connections."""
        self._client.abort()

    def _open(self) -> HttpResponse:
        try:
            headers = {"Accept": "text/event-stream"}
            response = self._client.request(HttpRequest(method="GET", address=self._client.address, headers=headers))
        except NoResponse as unanswered:
            raise probe_failed("ended", "the server did not open its stream of events") from unanswered
        if response.status != 200 or response.content_type != "text/event-stream":
            response.close()
            details = {"status": response.status}
            raise probe_failed("refused", f"no stream of events there: HTTP status {response.status}", details)
        return response

    def _read(self, response: HttpResponse) -> Iterator[Event]:
        parser = EventParser(self._allowance.limits.max_message_bytes)
        for chunk in response.chunks():
            yield from parser.feed(chunk)

    def _find_endpoint(self) -> HttpAddress:
        try:
            event = next(self._events, None)
        except NoResponse as unanswered:
            raise probe_failed("ended", "the stream of events ended before it began") from unanswered
        if event is None or event.name != "endpoint":
            raise probe_failed("protocol", "the stream of events does not begin with the endpoint")
        base = self._client.address
        text = event.data.decode("utf-8", "replace")
        try:
            endpoint = HttpAddress.parse(urljoin(f"{base.scheme}://{base.host_header}{base.path}", text))
        except (PinwardenError, ValueError) as err:
            raise probe_failed("protocol", "the endpoint that the server names is not a web address") from err
        if endpoint.origin != base.origin:
            # Our headers would go to whomever the server likes.
            raise PinwardenError(
                "ADDRESS_REFUSED", "the endpoint is on another host than its stream", data={"reason": "endpoint"}
            )
        return endpoint
