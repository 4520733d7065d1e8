"""The fast path for tool calls: which messages may be forwarded without the session.

Nearly every message is a call of an approved tool, its progress, or its result. `CallFastPath.admit` decides whether a
call may take the fast path, and `CallFastPath.take_relayable` whether a message from the server may. stdio, HTTP and
the session itself use both methods. Both check the parsed message, so the formatting of the JSON does not matter. Both
make the same decision as the session, or leave the message to the session.

Strict parsing would be a large part of a call's latency, so stdio parses with orjson and passes the text along. The
fast path then refuses texts that orjson accepts but the strict parser does not (`core/fast_json.py`).

The tools that may be called stay valid until one of these happens: the approved surface, the policy or a list of the
server changes (each increases the guard's generation), a message of another kind arrives, or the policy requires a new
list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pinwarden.core.strict_json import SHORT_TEXT_BYTES
from pinwarden.gateway.audit.event import AuditEvent
from pinwarden.gateway.guard import CallCheck, Guard
from pinwarden.gateway.session.lists import CheckedLists
from pinwarden.gateway.session.messages import CALL, OpenRequest
from pinwarden.gateway.session.output import SessionAudit
from pinwarden.gateway.session.responses import ResponseDecider
from pinwarden.gateway.session.server import CheckedServer
from pinwarden.surface.protocol import CLIENT_META, PROGRESS
from pinwarden.surface.surface import TOOL

LONGEST_TEXT_ID = 256
"""Maximum length of a string request id on the fast path, in characters."""
LINK_MARKER = b'"resource'
"""Text that every result with a resource or a link contains, unless the server escaped its letters."""
_COMPLETE = "complete"
# The only members of a call, a result and a progress notification on the fast path. The session checks whether another
# member makes the message ambiguous.
_PARAMS = frozenset({"name", "arguments", "_meta", "task"})
_RESULT = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
_PROGRESS = frozenset({"progressToken", "progress", "total", "message"})
_ESCAPED_LETTER = re.compile(rb"\\u00[5-7]")
_ID_TYPES = frozenset({int, str})


class CallFastPath:
    """The tools of one session that may be called without a further decision."""

    __slots__ = (
        *("checks", "events", "generation", "guard", "max_open", "open"),
        *("progressed", "relays_unchecked_results", "remaining", "until"),
        *("_audit", "_client", "_granted", "_id_prefix", "_is_strict", "_lists", "_responses", "_server"),
    )

    def __init__(  # noqa: PLR0913, PLR0917  the objects of one session
        self,
        guard: Guard,
        audit: SessionAudit,
        lists: CheckedLists,
        server: CheckedServer,
        responses: ResponseDecider,
        open_requests: dict[Any, OpenRequest],
    ) -> None:
        """``open_requests`` is the session's own table: calls are added to it and removed from it here as well.

        This happens without the session's lock. Each change is one dictionary operation, which is atomic. Who goes
        through the whole table therefore copies it first, with ``tuple``.
        """
        self.guard = guard
        self._audit = audit
        self._lists = lists
        self._server = server
        self._responses = responses
        self._id_prefix = lists.id_prefix
        self.open = open_requests
        self.max_open = guard.limits.max_open
        self.events: Mapping[str, AuditEvent] = {}
        """Audit events for calls of the callable tools, by tool name. ``call`` lacks the request id at its end."""
        self.checks: Mapping[str, CallCheck] = {}
        """The checks of calls of the tools that need one, by tool name."""
        self.generation = -1
        """The guard's generation when `refresh` ran; -1 after `invalidate`."""
        self._client = ""
        """The client's name in ``events``."""
        self.until = 0.0
        self._granted = self.remaining = 0
        self.progressed = False
        """Whether the server reported progress since the last check for timeouts."""
        self._is_strict: Callable[[bytes, Any], bool] = _is_never_strict
        """The exact check of `load_parser`'s module. Until that is loaded, no text counts as strictly valid."""
        self.relays_unchecked_results = False
        """Whether results and progress may be forwarded without the session."""

    def load_parser(self) -> Callable[[bytes], Any]:
        """Import and return the fast JSON parser, which raises ValueError and is less strict than the session's parser.

        Pass ``text`` to `admit` and ``fast_parsed`` to `take_relayable` for a message that it parsed, so that these
        methods make the checks that it omits.
        """
        from pinwarden.core.fast_json import is_strict, loads

        self._is_strict = is_strict
        return loads

    def admit(self, message: Any, now: float, text: bytes | None = None) -> AuditEvent | None:
        """Return the audit event of a call that may be forwarded; None if the session has to decide.

        Pass ``text`` if the message was parsed with `load_parser`'s parser, and omit it after strict parsing. The call
        counts as open from here on: record the event with the request id, then forward the message, or `withdraw` it.

        stdio calls this on the thread that reads from the client, without the session's lock. Dictionary operations are
        atomic, and a concurrent change by another thread has the same effect as one that comes a moment later. If the
        other thread counts the calls at the same time, one call may not be counted. A list may then be refreshed one
        call later than the policy says, but its maximum age still applies.
        """
        try:
            request_id, params = message["id"], message["params"]
            name = params["name"]
            event = self.events[name]
            if len(message) != 4 or message["method"] != CALL or "jsonrpc" not in message:
                return None
            count = len(params)
            if count != 2 or "arguments" not in params:
                if not params.keys() <= _PARAMS:
                    return None
                if (
                    "_meta" in params
                    and (about := params["_meta"].get(CLIENT_META)) is not None
                    and about["name"] != self._client
                    and not self._audit.client.has_token
                ):
                    return None  # the policy may have other rules for the new name
            if text is not None:
                members = 4 + count
                if type(arguments := params.get("arguments")) is dict:
                    members += len(arguments)
                if count > 2 and type(meta := params.get("_meta")) is dict:
                    members += len(meta)
                if not self._is_strictly_valid(text, message, members):
                    return None
        except (KeyError, TypeError, AttributeError):
            return None
        open_requests = self.open
        if (
            (
                type(request_id) is not int
                and (
                    type(request_id) is not str
                    or len(request_id) > LONGEST_TEXT_ID
                    or request_id.startswith(self._id_prefix)
                )
            )
            or request_id in open_requests
            or self.generation != self.guard.generation
            or now >= self.until
            or (remaining := self.remaining) <= 0
            or len(open_requests) >= self.max_open
        ):
            return None
        if self.checks and (check := self.checks.get(name)) is not None and check.find_refusal(now) is not None:
            return None  # the session refuses the call
        self.remaining = remaining - 1
        open_requests[request_id] = name
        return event

    def withdraw(self, request_id: int | str) -> None:
        """Forget a call that was admitted but not forwarded."""
        self.open.pop(request_id, None)

    def take_relayable(self, data: bytes, message: Any, fast_parsed: bool = False) -> bool:
        """Return whether to forward a message from the server unchanged. If it is a result, that closes its call.

        Only the complete result of a call that `admit` let pass, and progress, may be forwarded. ``fast_parsed`` means
        that the parser of `load_parser` parsed the message, and not the strict parser.
        """
        try:
            if "method" in message:
                return self._take_relayable_progress(data, message, fast_parsed=fast_parsed)
            request_id, result = message["id"], message["result"]
            if type(self.open[request_id]) is not str or type(request_id) not in _ID_TYPES:
                return False
            if type(result) is not dict:
                return False
            if (len(result) != 1 or "content" not in result) and (
                not result.keys() <= _RESULT or result.get("resultType", _COMPLETE) != _COMPLETE
            ):
                return False
            if fast_parsed:
                members, content = 3 + len(result), result.get("content")
                if type(content) is list and len(content) == 1 and type(content[0]) is dict:
                    members += len(content[0])
                if not self._is_strictly_valid(data, message, members):
                    return False
        except (KeyError, TypeError, AttributeError):
            return False
        # `find` takes two thirds of the time of `in`, which creates an exception before it searches.
        if len(message) != 3 or "jsonrpc" not in message or data.find(LINK_MARKER) >= 0:
            return False
        if data.find(b"\\") >= 0 and _ESCAPED_LETTER.search(data) is not None:
            return False  # it may be an escaped resource link
        if self.generation != self.guard.generation or not self.relays_unchecked_results:
            return False
        # If another thread removed the call in the meantime, the session handles the result as a late one.
        return self.open.pop(request_id, None) is not None

    def _take_relayable_progress(self, data: bytes, message: Any, *, fast_parsed: bool) -> bool:
        params = message["params"]
        relayed = (
            message["method"] == PROGRESS
            and params.keys() <= _PROGRESS
            and len(message) == 3
            and "jsonrpc" in message
            and self.generation == self.guard.generation
            and self.relays_unchecked_results
            and (not fast_parsed or self._is_strictly_valid(data, message, 3 + len(params)))
        )
        self.progressed = self.progressed or relayed
        return relayed

    def _is_strictly_valid(self, text: bytes, message: Any, members: int) -> bool:
        """Whether the strict parser would accept this text, which the fast parser parsed as ``message``.

        ``members`` is a lower bound: the number of members of some objects in ``message``. If the text is short and has
        exactly as many colons, it is strictly valid, and the slower exact check is not needed:

        1. A member is written with one colon outside strings. So a text has at least as many colons as members are
           written in it.
        2. A repeated member is written more than once, but is one member of ``message``. So at least as many members
           are written as ``message`` has, and ``message`` has at least as many as were counted.
        3. If the first and the last of these numbers are equal, all are. So no member is repeated, which is what the
           strict parser refuses and the fast parser does not. (No string contains a colon, and no member was left out
           of the count.)
        4. The other texts that only the strict parser refuses, with deep nesting or long numbers, are not short.
        """
        return (text.count(b":") == members and len(text) <= SHORT_TEXT_BYTES) or self._is_strict(text, message)

    def invalidate(self) -> None:
        """Leave all messages to the session until `refresh` runs. Adds the calls so far to the list's use count."""
        if self.generation >= 0:
            self.generation = -1
            self._lists.count_uses(TOOL, self._granted - self.remaining)

    def refresh(self, now: float) -> None:
        """Update the callable tools from the checked list, if that list is current and the server is not blocked."""
        guard = self.guard
        generation = guard.generation  # read first: if another thread changes it, the values below are invalid
        tools = self._lists.find_current(TOOL, now) if self._server.passing_epoch == guard.epoch else None
        if tools is None:
            return
        policy = guard.policy
        self.events, self._client = self._lists.find_allowed_call_events(tools), self._audit.client.name
        self.checks = self._lists.find_call_checks(tools)
        self.until = min(tools.received_at + policy.relist_seconds, guard.next_refresh)
        self._granted = self.remaining = (policy.relist_calls - tools.uses - 1) if policy.relist_calls else 1 << 62
        self.relays_unchecked_results = self._responses.relays_unchecked_results
        self.generation = generation


def _is_never_strict(_text: bytes, _message: Any) -> bool:
    return False
