"""A request that waits for its answer, and the id that it has on the way to the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pinwarden.gateway.http.call import Call
from pinwarden.gateway.http.messages import Frame, Id, encoded, with_value
from pinwarden.gateway.http.response_sink import Waiting
from pinwarden.surface.protocol import PROGRESS, SUBSCRIPTION_META


class Pending:
    """Any request but a plain call."""

    __slots__ = ("deadline", "given_up", "own_id", "own_token", "parameters", "renumbered", "sent", "token", "waiting")

    def __init__(self, frame: Frame, waiting: Waiting, parameters: bytes) -> None:
        self.waiting = waiting
        self.parameters = parameters
        self.sent = self.deadline = 0.0
        self.own_id = frame.members.get("id")
        self.own_token = frame.meta.get("progressToken")
        self.token: Id | None = None
        self.given_up: Callable[[], None] | None = None
        """Called if nobody waits any more."""
        self.renumbered = False


def renumbered(frame: Frame, number: str) -> Frame:
    """A request under another id; its progress is told by that id too."""
    text = b'"' + number.encode() + b'"'
    data = with_value(frame.data, ("id",), text)
    if frame.progress_token is not None:
        data = with_value(data, ("params", "_meta", "progressToken"), text)
    return Frame(data=data, message=_changed(frame, number))


def _changed(frame: Frame, number: str) -> dict[str, Any]:
    message = {**frame.members, "id": number}
    if frame.progress_token is not None:
        message["params"] = {**frame.params, "_meta": {**frame.meta, "progressToken": number}}
    return message


def restored(frame: Frame, pending: Pending | Call) -> Frame:
    """A message of the server under the id and the progress token that the client chose, in bytes and in members."""
    if not pending.renumbered:
        return frame
    data, message = frame.data, {**frame.members}
    if "id" in message and "method" not in message:
        data = with_value(data, ("id",), encoded(pending.own_id))
        message["id"] = pending.own_id
    if frame.method == PROGRESS and "progressToken" in frame.params:
        data = with_value(data, ("params", "progressToken"), encoded(pending.own_token))
        message["params"] = {**frame.params, "progressToken": pending.own_token}
    if SUBSCRIPTION_META in frame.meta:
        data = with_value(data, ("params", "_meta", SUBSCRIPTION_META), encoded(pending.own_id))
        meta = {**frame.meta, SUBSCRIPTION_META: pending.own_id}
        message["params"] = {**message["params"], "_meta": meta}
    return Frame(data, frame.message if frame.message is None else message)
