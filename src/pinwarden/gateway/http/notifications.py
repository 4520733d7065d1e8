"""Server messages that belong to no request: the client's notification stream, and throttling of ``list_changed``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import Limits, parse_json
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.surface.protocol import LIST_CHANGED, SUBSCRIPTION_META


class EventSink(Protocol):
    """An event stream to a client."""

    @property
    def is_open(self) -> bool:
        """Whether the client is still connected."""

    def start_events(self) -> None:
        """Send the head of the response."""

    def send_event(self, message: bytes) -> None:
        """Send a message."""

    def end_events(self) -> None:
        """End the stream."""


class NotificationStream:
    """The notification stream of one conversation, and the queue of messages until the client opens the stream."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._stream: EventSink | None = None
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether the client has the stream open."""
        return self._stream is not None and self._stream.is_open

    def listen(self, stream: EventSink) -> None:
        """Attach a stream in place of an older one, and send the queued messages."""
        replaced, self._stream = self._stream, stream
        if replaced is not None and replaced.is_open:
            replaced.end_events()
        stream.start_events()
        while self._queue:
            stream.send_event(self._queue.popleft())
        self._queued_bytes = 0

    def send(self, data: bytes) -> bool:
        """Send a message. Returns False if no stream is open."""
        if self._stream is None or not self._stream.is_open:
            return False
        self._stream.send_event(data)
        return True

    def enqueue(self, data: bytes) -> None:
        """Queue a message until a stream is attached. Above the limits, drop the oldest messages."""
        self._queue.append(data)
        self._queued_bytes += len(data)
        limits = self._limits
        while (
            len(self._queue) > limits.max_queued_notifications
            or self._queued_bytes > limits.max_queued_notification_bytes
        ):
            self._queued_bytes -= len(self._queue.popleft())

    def end(self) -> None:
        """End the stream."""
        stream, self._stream = self._stream, None
        if stream is not None and stream.is_open:
            stream.end_events()


LIST_CHANGED_MARK = b"list_changed"
"""Bytes that every ``list_changed`` notification contains."""
_MAX_BYTES = 1024  # in practice, notifications are below 200 bytes
_BURST = 16  # notifications of one kind to forward in one interval; servers send a few at start-up
_MAX_KINDS = 32  # kinds of notifications to throttle in one conversation; each subscription is a kind
_JSON = Limits(max_bytes=_MAX_BYTES)

_Key = tuple[str, Any]


class ListChangedThrottle:
    """Limits how many ``list_changed`` notifications of one conversation are forwarded per interval."""

    __slots__ = ("_deferred", "_deliver", "_forwarded", "_seconds")

    def __init__(self, seconds: float, deliver: Callable[[bytes], None]) -> None:
        """``deliver`` is called at the end of an interval with the last deferred notification of each kind."""
        self._seconds = seconds
        self._deliver = deliver
        self._forwarded: dict[_Key, int] = {}
        """The number of forwarded notifications in the current interval, by kind."""
        self._deferred: dict[_Key, bytes] = {}
        """The last deferred notification, by kind."""

    def defer(self, data: bytes) -> str:
        """Defer a notification if too many of its kind came in this interval.

        Returns its method, or an empty string if it was not deferred.
        """
        if len(data) > _MAX_BYTES or LIST_CHANGED_MARK not in data:
            return ""
        key = _parse_kind(data)
        if key is None:
            return ""
        passed = self._forwarded.get(key)
        if passed is None:
            if len(self._forwarded) < _MAX_KINDS:
                self._begin_interval(key)
        elif passed < _BURST:
            self._forwarded[key] = passed + 1
        else:
            self._deferred[key] = data
            return key[0]
        return ""

    def clear(self) -> None:
        """Drop deferred notifications."""
        self._deferred.clear()

    def _begin_interval(self, key: _Key) -> None:
        self._forwarded[key] = 1
        asyncio.get_running_loop().call_later(self._seconds, self._end_interval, key)

    def _end_interval(self, key: _Key) -> None:
        del self._forwarded[key]
        data = self._deferred.pop(key, None)
        if data is not None:
            self._begin_interval(key)
            self._deliver(data)


def _parse_kind(data: bytes) -> _Key | None:
    """Parse the method and the subscription of a ``list_changed`` notification; None for other messages."""
    try:
        message = parse_json(data, _JSON)
    except PinwardenError:
        return None
    if type(message) is not dict or "id" in message or message.get("method") not in LIST_CHANGED:
        return None
    params = message.get("params")
    meta = params.get("_meta") if type(params) is dict else None
    subscription = meta.get(SUBSCRIPTION_META) if type(meta) is dict else None
    return str(message["method"]), subscription if type(subscription) in (str, int) else None
