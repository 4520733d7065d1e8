"""The gateway's own subscription to notices, in the era in which nobody is told without asking (2026-07-28).

There a server tells that a list changed only to who opened ``subscriptions/listen``. A client that did not would never
hear of it, and we would see a change only when we list again. So the session opens a subscription of its own, behind
the client's back: whatever comes on it ends here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pinwarden.gateway.guard import Guard
from pinwarden.gateway.judged_lists import JudgedLists
from pinwarden.gateway.messages import LISTEN, request
from pinwarden.gateway.session_audit import OutputBuilder
from pinwarden.surface.protocol import CANCELLED, METHOD_NOT_FOUND, SUBSCRIPTION_META

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_FILTERS = {"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"}
_MOST_DOUBLED = 7  # how often the pause before the next attempt is doubled: up to about an hour


class ListSubscription:
    """The subscription of one session. It ends with the connection."""

    def __init__(self, guard: Guard, views: JudgedLists) -> None:
        self._guard = guard
        self._views = views
        self._number = ""
        self._not_before = 0.0
        self._failures = 0

    def open_if_due(self, now: float, client_hears: Callable[[Iterable[str]], bool], out: OutputBuilder) -> None:
        """Open it, once it is known that the server tells of changes, and unless the client hears of them anyway."""
        views = self._views
        if self._number or views.meta is None or now < self._not_before:
            return
        wanted = {} if self._guard.refuses_to_tell else _announced_lists(views.server)
        if not wanted or client_hears(wanted):
            return
        self._number = views.new_id()
        out.to_server.append(request(self._number, LISTEN, {"notifications": wanted, "_meta": views.meta}))

    def is_it(self, number: Any) -> bool:
        """Whether an id is that of the subscription."""
        return bool(self._number) and number == self._number

    def belongs(self, method: str, params: Any) -> bool:
        """Whether a notification came on a subscription of ours, or is about it."""
        if type(params) is not dict:
            return False
        meta = params.get("_meta")
        if type(meta) is dict and self._views.is_own(meta.get(SUBSCRIPTION_META)):
            return True
        return method == CANCELLED and self._views.is_own(params.get("requestId"))

    def told(self, method: str, params: Any, now: float, out: OutputBuilder) -> None:
        """A notification that belongs to it and is no notice of a change."""
        if method == ACKNOWLEDGED:
            self._failures = 0
            self._views.refresh(now, out)  # what changed before it was open, nobody told
        elif method == CANCELLED and self.is_it(params.get("requestId")):
            self.ended(None, now)

    def unsent(self) -> None:
        """It was not opened after all."""
        self._number = ""

    def ended(self, message: Any, now: float) -> None:
        """It is over. A server that does not know it is not asked again; any other is, after a while.

        Any other error may be about what this client says of itself, and must not make us deaf for all others.
        """
        error = message.get("error") if type(message) is dict else None
        if type(error) is dict and error.get("code") == METHOD_NOT_FOUND:
            self._guard.refuses_to_tell = True
        self._number = ""
        self._not_before = now + self._guard.policy.relist_seconds * 2 ** min(self._failures, _MOST_DOUBLED)
        self._failures += 1


def _announced_lists(server: dict[str, Any] | None) -> dict[str, bool]:
    """Of which lists a server says that it tells when they change."""
    capabilities = (server or {}).get("capabilities")
    if not isinstance(capabilities, dict):
        return {}
    offered = {name: capabilities.get(name) for name in _FILTERS}
    return {
        _FILTERS[name]: True
        for name, each in offered.items()
        if isinstance(each, dict) and each.get("listChanged") is True
    }
