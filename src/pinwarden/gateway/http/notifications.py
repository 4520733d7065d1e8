"""Who hears what belongs to no request, and what waits until somebody does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.strict_json import parse_json
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.surface.protocol import LIST_CHANGED, SUBSCRIPTION_META


class EventSink(Protocol):
    """A stream to a client."""

    @property
    def open(self) -> bool:
        """Whether anybody still listens."""

    def start_events(self) -> None:
        """Begin."""

    def event(self, frame: bytes) -> None:
        """One message."""

    def end_events(self) -> None:
        """No more will come."""


class NotificationStream:
    """The stream of one conversation, if its client has one open."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._stream: EventSink | None = None
        self._unheard: deque[bytes] = deque()
        self._unheard_bytes = 0

    @property
    def open(self) -> bool:
        """Whether anybody listens."""
        return self._stream is not None and self._stream.open

    def listen(self, stream: EventSink) -> None:
        """Begin to listen, with what came before. A newer stream takes the place of an older one."""
        before, self._stream = self._stream, stream
        if before is not None and before.open:
            before.end_events()
        stream.start_events()
        while self._unheard:
            stream.event(self._unheard.popleft())
        self._unheard_bytes = 0

    def hear(self, data: bytes) -> bool:
        """A message; whether anybody heard it."""
        if self._stream is None or not self._stream.open:
            return False
        self._stream.event(data)
        return True

    def keep(self, data: bytes) -> None:
        """Keep a message until somebody listens; the oldest go when there are too many, or too much of them."""
        self._unheard.append(data)
        self._unheard_bytes += len(data)
        limits = self._limits
        while len(self._unheard) > limits.max_waiting_frames or self._unheard_bytes > limits.max_waiting_bytes:
            self._unheard_bytes -= len(self._unheard.popleft())

    def end(self) -> None:
        """Nothing more will come."""
        stream, self._stream = self._stream, None
        if stream is not None and stream.open:
            stream.end_events()


_MARK = b"list_changed"
_LONGEST = 1024  # bytes of a notice; real ones have below 200
_BURST = 16  # notices of one kind that pass in an interval; real servers send a few when they start
_MOST = 32  # kinds of notices, with their subscriptions, that are coalesced in one conversation
_JSON = Limits(max_bytes=_LONGEST)

_Key = tuple[str, Any]


class ListChangedThrottle:
    """The notices of one conversation."""

    __slots__ = ("_deliver", "_passed", "_seconds", "_waiting")

    def __init__(self, seconds: float, deliver: Callable[[bytes], None]) -> None:
        """``deliver`` gets the last notice of an interval, when that ends."""
        self._seconds = seconds
        self._deliver = deliver
        self._passed: dict[_Key, int] = {}
        """By kind of notice, how many passed in an interval that has not ended."""
        self._waiting: dict[_Key, bytes] = {}
        """The last one of those that did not."""

    def deferred(self, data: bytes) -> str:
        """The method of a notice that is kept until its interval ends; empty for any message that is to go on now."""
        if len(data) > _LONGEST or _MARK not in data:
            return ""
        key = _key(data)
        if key is None:
            return ""
        passed = self._passed.get(key)
        if passed is None:
            if len(self._passed) < _MOST:
                self._begin(key)
        elif passed < _BURST:
            self._passed[key] = passed + 1
        else:
            self._waiting[key] = data
            return key[0]
        return ""

    def clear(self) -> None:
        """Forget all of them."""
        self._waiting.clear()

    def _begin(self, key: _Key) -> None:
        self._passed[key] = 1
        asyncio.get_running_loop().call_later(self._seconds, self._ended, key)

    def _ended(self, key: _Key) -> None:
        del self._passed[key]
        data = self._waiting.pop(key, None)
        if data is not None:
            self._begin(key)
            self._deliver(data)


def _key(data: bytes) -> _Key | None:
    """What tells a notice from others; None for any other message, and for one that has to be looked at closely."""
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
