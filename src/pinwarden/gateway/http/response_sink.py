"""One request of a client and everything that it is answered with."""

from __future__ import annotations

from typing import Any, Protocol

from pinwarden.gateway.http.messages import Frame, error_frame, status_of
from pinwarden.gateway.http.reply import Reply
from pinwarden.surface.protocol import SERVER_AWAY


class Waiting(Protocol):
    """Who waits for the answer to a request."""

    @property
    def open(self) -> bool:
        """Whether anybody still hears what is told before the answer."""

    def message(self, frame: Frame) -> None:
        """A message that belongs to the request and is not its answer."""

    def answered(self, frame: Frame, status: int) -> None:
        """The answer."""

    def failed(self, code: int, why: str) -> None:
        """There will be no answer."""

    def refused_unread(self, why: str) -> None:
        """There will be no answer in this session, and the server did not execute the request."""

    def dropped(self) -> None:
        """There will be no answer, and the client said that it waits for none."""


class HttpExchange:
    """A POST. It is answered with one document if the answer is the first thing that comes, else with a stream."""

    __slots__ = ("_headers", "_id", "_modern", "_reply")

    def __init__(
        self, reply: Reply, number: Any, *, modern: bool = False, headers: dict[str, str] | None = None
    ) -> None:
        self._reply = reply
        self._id = number
        self._modern = modern
        self._headers = headers

    @property
    def open(self) -> bool:
        """Whether the client still waits."""
        return self._reply.open

    def message(self, frame: Frame) -> None:
        """An event before the answer."""
        self._reply.start_events(self._headers)
        self._reply.event(frame.data)

    def answered(self, frame: Frame, status: int) -> None:
        """The answer ends the exchange."""
        reply = self._reply
        if reply.streaming:
            reply.event(frame.data)
            reply.end_events()
            return
        if not status:
            status = status_of(frame.message) if self._modern else 200
        reply.send(status, frame.data, headers=self._headers)

    def failed(self, code: int, why: str) -> None:
        """Tell it as the answer to the request."""
        data = error_frame(self._id, code, why)
        if self._reply.streaming:
            self._reply.event(data)
            self._reply.end_events()
        else:
            # A status of its own would make older clients forget the reason.
            self._reply.send(200, data, headers=self._headers)

    def refused_unread(self, why: str) -> None:
        """Tell it with the status by which clients of a session know that they have to begin another one."""
        if self._modern or self._reply.streaming:
            self.failed(SERVER_AWAY, why)
        else:
            self._reply.send(404, error_frame(self._id, SERVER_AWAY, why), headers=self._headers)

    def dropped(self) -> None:
        """End it without a word, as servers do that were told to cancel."""
        self._reply.start_events(self._headers)
        self._reply.end_events()
