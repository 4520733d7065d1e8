"""The answer to one request of a client: one document, or a stream of events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinwarden.gateway.http.connection import ClientConnection

_REASONS = {each.value: each.phrase for each in HTTPStatus}
_ALWAYS = b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n"
USUAL = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + _ALWAYS + b"content-length: %d\r\n\r\n"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\n"
    b"x-accel-buffering: no\r\nx-content-type-options: nosniff\r\ntransfer-encoding: chunked\r\n"
)
_PING = b": \r\n\r\n"
JSON = "application/json"


class Reply:
    """The answer to one request: one document, or a stream of events."""

    def __init__(self, connection: ClientConnection | None, *, keep_alive: bool) -> None:
        self._connection = connection
        self._keep_alive = keep_alive
        self._chunked = False
        self.client = ""
        """Whose request it answers, if a token was shown."""
        self.bodiless = False
        """Whether only the head is wanted: whatever came behind it would be read as the next answer."""
        self.shared: Mapping[str, str] | None = None
        """Headers for the browser, if a page of another site asks that may do so."""
        self.on_gone: Callable[[], object] | None = None
        """Called if the client goes away before the answer is complete."""
        self.weight = 0
        """Bytes of a large request."""
        self.on_over: Callable[[int], None] | None = None
        """Called with the weight when the answer comes that nobody waits for any more."""

    def is_for(self, client: str) -> None:
        """The request shows the token of a client."""
        self.client = client
        if self._connection is not None:
            self._connection.is_of(client)

    @property
    def open(self) -> bool:
        """Whether something can still be sent."""
        return self._connection is not None

    @property
    def streaming(self) -> bool:
        """Whether the answer is a stream of events."""
        return self._chunked

    def send(
        self, status: int, body: bytes = b"", *, kind: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        """The whole answer."""
        connection = self._connection
        if connection is None:
            self._over()
            return
        keep = self._keep_alive and not connection.owner.draining
        if self.shared is not None:
            headers = {**(headers or {}), **self.shared}
        if self.bodiless:
            connection.write(head_of(status, len(body), kind if body else "", headers, keep=keep))
        elif status == 200 and keep and headers is None and kind is JSON and body:
            connection.write(USUAL % len(body) + body)  # what nearly always is sent
        else:
            connection.write(head_of(status, len(body), kind if body else "", headers, keep=keep) + body)
        self._done(keep=keep)

    def start_events(self, headers: Mapping[str, str] | None = None) -> None:
        """Begin a stream of events."""
        connection = self._connection
        if connection is None or self._chunked:
            return
        self._chunked = True
        more = "".join(f"{name}: {value}\r\n" for name, value in {**(headers or {}), **(self.shared or {})}.items())
        connection.write(_STREAM + more.encode("latin-1") + b"\r\n")
        connection.ping_later(self)

    def event(self, frame: bytes) -> None:
        """One message as an event. Messages are JSON without line ends outside of strings, so one line holds it."""
        if self._connection is not None:
            if b"\n" in frame or b"\r" in frame:
                # Between the tokens of JSON only; inside of strings they are escaped.
                frame = frame.replace(b"\r", b" ").replace(b"\n", b" ")
            self._chunk(b"event: message\r\ndata: " + frame + b"\r\n\r\n")

    def ping(self) -> None:
        """A comment, which clients skip."""
        self._chunk(_PING)

    def end_events(self) -> None:
        """End the stream."""
        connection = self._connection
        if connection is not None:
            connection.write(b"0\r\n\r\n")
            self._done(keep=self._keep_alive and not connection.owner.draining)
        else:
            self._over()

    def gone(self) -> None:
        """The client went away."""
        if self._connection is not None:
            self._connection = None
            if self.on_gone is not None:
                self.on_gone()

    def _chunk(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.write(b"%x\r\n" % len(data) + data + b"\r\n")

    def _over(self) -> None:
        told, self.on_over = self.on_over, None
        if told is not None:
            told(self.weight)

    def _done(self, *, keep: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.answered(keep=keep)


def head_of(status: int, length: int, kind: str, headers: Mapping[str, str] | None, *, keep: bool) -> bytes:
    """The head of an answer that has a length."""
    lines = f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\ncontent-length: {length}\r\n"
    if kind:
        lines += f"content-type: {kind}\r\n"
    if headers:
        lines += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if not keep:
        lines += "connection: close\r\n"
    return lines.encode("latin-1") + _ALWAYS + b"\r\n"
