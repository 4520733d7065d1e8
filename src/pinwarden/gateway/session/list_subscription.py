"""The gateway's own subscription to list-changed notifications (2026-07-28).

Since that revision, servers send list-changed notifications only to subscribers. If the client does not subscribe, the
gateway would notice a change only when it next requests the list. So the session also sends a
``subscriptions/listen`` request and does not forward its notifications to the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pinwarden.gateway.guard import Guard
from pinwarden.gateway.session.lists import CheckedLists
from pinwarden.gateway.session.messages import LISTEN, build_request
from pinwarden.gateway.session.output import OutputBuilder
from pinwarden.surface.protocol import CANCELLED, METHOD_NOT_FOUND, SUBSCRIPTION_META

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_FILTERS = {"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"}
_MAX_DOUBLINGS = 7  # times that the delay before an attempt doubles, up to about an hour


class ListSubscription:
    """The gateway's subscription within one session. The subscription ends with the connection to the server."""

    def __init__(self, guard: Guard, lists: CheckedLists) -> None:
        self._guard = guard
        self._lists = lists
        self._request_id = ""
        self._not_before = 0.0
        self._failures = 0

    def open_if_due(self, now: float, client_subscribed: Callable[[Iterable[str]], bool], out: OutputBuilder) -> None:
        """Subscribe if the server offers list-changed notifications that the client does not get already."""
        lists = self._lists
        if self._request_id or lists.meta is None or now < self._not_before:
            return
        filters = {} if self._guard.refuses_subscriptions else _list_offered_filters(lists.server)
        if not filters or client_subscribed(filters):
            return
        self._request_id = lists.create_request_id()
        out.to_server.append(build_request(self._request_id, LISTEN, {"notifications": filters, "_meta": lists.meta}))

    def is_gateway_id(self, request_id: Any) -> bool:
        """Whether this is the request id of the subscription."""
        return bool(self._request_id) and request_id == self._request_id

    def owns_notification(self, method: str, params: Any) -> bool:
        """Whether a notification belongs to a subscription of the gateway, or cancels a request of the gateway."""
        if type(params) is not dict:
            return False
        meta = params.get("_meta")
        if type(meta) is dict and self._lists.is_gateway_id(meta.get(SUBSCRIPTION_META)):
            return True
        return method == CANCELLED and self._lists.is_gateway_id(params.get("requestId"))

    def on_notification(self, method: str, params: Any, now: float, out: OutputBuilder) -> None:
        """Handle a notification of the subscription other than list-changed."""
        if method == ACKNOWLEDGED:
            self._failures = 0
            self._lists.request_known_lists(now, out)  # lists may have changed before the subscription was open
        elif method == CANCELLED and self.is_gateway_id(params.get("requestId")):
            self.on_ended(None, now)

    def forget_request(self) -> None:
        """Forget the subscription request, because it was not sent."""
        self._request_id = ""

    def on_ended(self, message: Any, now: float) -> None:
        """Schedule the next attempt after the subscription ended.

        After "method not found" no session subscribes to this server again. Another error may be caused by this client
        and only delays this session's next attempt.
        """
        error = message.get("error") if type(message) is dict else None
        if type(error) is dict and error.get("code") == METHOD_NOT_FOUND:
            self._guard.refuses_subscriptions = True
        self._request_id = ""
        self._not_before = now + self._guard.policy.relist_seconds * 2 ** min(self._failures, _MAX_DOUBLINGS)
        self._failures += 1


def _list_offered_filters(server: dict[str, Any] | None) -> dict[str, bool]:
    """Return the filters of the list-changed notifications that the server offers."""
    capabilities = (server or {}).get("capabilities")
    if not isinstance(capabilities, dict):
        return {}
    offered = {name: capabilities.get(name) for name in _FILTERS}
    return {
        _FILTERS[name]: True
        for name, capability in offered.items()
        if isinstance(capability, dict) and capability.get("listChanged") is True
    }
