"""Which messages take long to judge by themselves, so that they are judged beside the event loop.

What counts is the method and the size: nothing else is known before a message is judged.
"""

from __future__ import annotations

from typing import Any

from pinwarden.gateway.messages import LISTEN
from pinwarden.gateway.tasks import TOLD

_SHORT = 4096  # bytes; what so few can hold is judged in a millisecond or two
_JUDGED = frozenset({"interceptor/invoke", LISTEN})
"""Requests of the client that hold many things to be judged."""
_EMBEDDING = frozenset({"inputRequests", "tools", "task", "result"})
"""Members of a result that hold requests or tool definitions."""


def is_long_of_client(message: Any, size: int) -> bool:
    """Whether judging a message of the client takes long."""
    return size > _SHORT and type(message) is dict and message.get("method") in _JUDGED


def is_long_of_server(message: Any, size: int) -> bool:
    """Whether judging a message of the server takes long: requests, and what holds requests, are scanned."""
    if size <= _SHORT or type(message) is not dict:
        return False
    if "method" in message:
        return "id" in message or message["method"] in TOLD
    result = message.get("result")
    if type(result) is dict:
        return not _EMBEDDING.isdisjoint(result)
    error = message.get("error")
    return type(error) is dict and "data" in error
