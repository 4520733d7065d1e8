"""Coalescing ``list_changed`` notices: the first few of an interval pass at once, the last one when it ends.

Every notice costs a new list, for the client as well as here. A server that sends thousands in a second would take the
event loop from all clients. Nothing is lost: the session knows at once that its list is old, and calls wait for a new
one; only the message itself is late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.strict_json import parse_json
from pinwarden.surface.protocol import LIST_CHANGED, SUBSCRIPTION_META

_MARK = b"list_changed"
_LONGEST = 1024  # bytes of a notice; real ones have below 200
_BURST = 16  # notices of one kind that pass in an interval; real servers send a few when they start
_MOST = 32  # kinds of notices, with their subscriptions, that are coalesced in one conversation
_JSON = Limits(max_bytes=_LONGEST)

_Key = tuple[str, Any]


class ListNotices:
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
