"""The fast path for calls of tools: which messages may be forwarded without asking the session.

Nearly every message is a call of an approved tool, its progress, or its result. `CallFastPath.admit` is the one
predicate for "this call may take the fast path" and `CallFastPath.relays` the one for messages of the server. stdio,
HTTP and the session itself use them. Both look at what the message says, so how a client or a server spells JSON does
not matter. They decide as the session would, or leave the message to it.

Reading JSON strictly would take a good part of the time that a call may take, so stdio gives messages to the fast path
as orjson reads them, with their text. What orjson leaves open is checked here (`core/fast_json.py`).

What the fast path knows is valid as long as nothing else happened: no other approved surface, policy or notification
(the guard's stamp), no other kind of message, not too much time, and not too many calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pinwarden.core.record import replace
from pinwarden.core.strict_json import JITER_DEPTH
from pinwarden.gateway.audit.event import AuditEvent
from pinwarden.gateway.gates.verdict import ALLOW
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.in_flight import ForwardedRequest
from pinwarden.gateway.judged_lists import JudgedLists
from pinwarden.gateway.request_decisions import RequestDecider
from pinwarden.gateway.result_checks import LINK_MARKER
from pinwarden.gateway.server_messages import ServerMessageDecider
from pinwarden.gateway.session_audit import SessionAudit
from pinwarden.surface.protocol import PROGRESS

CALL = "tools/call"
LONGEST_TEXT_ID = 256
"""Characters of a request id on the fast path."""
_COMPLETE = "complete"
_SHORT = 2 * JITER_DEPTH  # bytes of a text that cannot have too many levels, nor too long a number
# All that a call, a result and a progress notification may have on the fast path. Another member may be one that some
# readers take for one of these (`gateway/ambiguity.py`), so the session looks at it.
_PARAMS = frozenset({"name", "arguments", "_meta", "task"})
_RESULT = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
_PROGRESS = frozenset({"progressToken", "progress", "total", "message"})
_ESCAPED_LETTER = re.compile(rb"\\u00[5-7]")
_ID_TYPES = frozenset({int, str})


class CallFastPath:
    """What a session knows about tools that may be called without a further decision."""

    __slots__ = (
        *("events", "guard", "left", "most", "open", "plain_results", "progressed", "stamp", "until"),
        *("_answers", "_given", "_is_strict", "_journal", "_own_ids", "_uses"),
    )

    def __init__(  # noqa: PLR0913, PLR0917  the parts of one session
        self,
        guard: Guard,
        journal: SessionAudit,
        views: JudgedLists,
        uses: RequestDecider,
        answers: ServerMessageDecider,
        open_requests: dict[Any, ForwardedRequest | str],
    ) -> None:
        self.guard = guard
        self._journal = journal
        self._own_ids = views.own_ids
        self._uses = uses
        self._answers = answers
        self.open = open_requests
        self.most = guard.limits.max_open
        self.events: dict[str, AuditEvent] = {}
        """By the name of a tool, the audit event of its call; only the request id at the end of ``call`` is missing."""
        self.stamp = -1
        """The guard's stamp at which all of this was learned; -1 if it is not valid any more."""
        self.until = 0.0
        self._given = self.left = 0
        self.progressed = False
        """Whether the server reported progress since the last look at overdue requests."""
        self._is_strict: Callable[[bytes, Any], bool]
        self.plain_results = False
        """Whether the policy wants nothing to be done about results."""

    def reader(self) -> Callable[[bytes], Any]:
        """Reads messages that are then given to `admit` and `relays` with their text. Raises ValueError."""
        from pinwarden.core.fast_json import is_strict, loads

        self._is_strict = is_strict
        return loads

    def admit(self, message: Any, now: float, text: bytes | None = None) -> AuditEvent | None:
        """The audit event of a call that may be forwarded; None if the session has to decide.

        Give the text of a message that was read by `reader`, and none for a message that was parsed strictly.

        The call counts as open from here on: record the event with the request id, then forward the message, or
        `withdraw` it.

        stdio calls this on the thread that reads from the client, without the session's lock: a dictionary takes one
        change at a time, and what another thread finds out meanwhile might as well have come a moment later. If that
        thread counts the calls so far in this very moment, one of them is not counted, so a list may be refreshed one
        call later than the policy says; never later in time, which is what bounds how long a change stays unseen.
        """
        try:
            request_id, params = message["id"], message["params"]
            name = params["name"]
            event = self.events[name]
            if len(message) != 4 or message["method"] != CALL or "jsonrpc" not in message:
                return None
            count = len(params)
            if (count != 2 or "arguments" not in params) and not params.keys() <= _PARAMS:
                return None
            if text is not None:
                members = 4 + count
                if type(arguments := params.get("arguments")) is dict:
                    members += len(arguments)
                if count > 2 and type(meta := params.get("_meta")) is dict:
                    members += len(meta)
                # As many colons as members: no member is repeated, and no string holds a colon.
                if (text.count(b":") != members or len(text) > _SHORT) and not self._is_strict(text, message):
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
                    or request_id.startswith(self._own_ids)
                )
            )
            or request_id in open_requests
            or self.stamp != self.guard.stamp
            or now >= self.until
            or (left := self.left) <= 0
            or len(open_requests) >= self.most
        ):
            return None
        self.left = left - 1
        open_requests[request_id] = name
        return event

    def withdraw(self, request_id: int | str) -> None:
        """A call that was admitted was not forwarded."""
        self.open.pop(request_id, None)

    def relays(self, frame: bytes, message: Any, skimmed: bool = False) -> bool:
        """Whether a message of the server may be forwarded as it is; then its call is not open any more.

        True for the complete result of a call that `admit` let pass, and for progress.
        ``skimmed`` says that the message was read by `reader`, and not parsed strictly.
        """
        try:
            if "method" in message:
                return self._relays_progress(frame, message, skimmed=skimmed)
            request_id, result = message["id"], message["result"]
            if type(self.open[request_id]) is not str or type(request_id) not in _ID_TYPES:
                return False
            if type(result) is not dict:
                return False
            if (len(result) != 1 or "content" not in result) and (
                not result.keys() <= _RESULT or result.get("resultType", _COMPLETE) != _COMPLETE
            ):
                return False
            if skimmed:
                members, content = 3 + len(result), result.get("content")
                if type(content) is list and len(content) == 1 and type(content[0]) is dict:
                    members += len(content[0])
                if (frame.count(b":") != members or len(frame) > _SHORT) and not self._is_strict(frame, message):
                    return False
        except (KeyError, TypeError, AttributeError):
            return False
        # `find` takes two thirds of the time of `in`, which makes an exception before it looks.
        if len(message) != 3 or "jsonrpc" not in message or frame.find(LINK_MARKER) >= 0:
            return False
        if frame.find(b"\\") >= 0 and _ESCAPED_LETTER.search(frame) is not None:
            return False  # it may be a resource link
        if self.stamp != self.guard.stamp or not self.plain_results:
            return False
        del self.open[request_id]
        return True

    def _relays_progress(self, frame: bytes, message: Any, *, skimmed: bool) -> bool:
        params = message["params"]
        relayed = (
            message["method"] == PROGRESS
            and params.keys() <= _PROGRESS
            and len(message) == 3
            and "jsonrpc" in message
            and self.stamp == self.guard.stamp
            and self.plain_results
            and (
                not skimmed
                or (frame.count(b":") == 3 + len(params) and len(frame) <= _SHORT)
                or self._is_strict(frame, message)
            )
        )
        self.progressed = self.progressed or relayed
        return relayed

    def spend(self) -> None:
        """Forget everything, because something else happens; the calls so far are counted."""
        if self.stamp >= 0:
            self.stamp = -1
            self._uses.count(self._given - self.left)

    def learn(self, now: float) -> None:
        """Find out again which tools may be called, if that is known at all."""
        stamp = self.guard.stamp  # what another thread changes from here on makes all of this invalid
        view = self._uses.clear_view(now)
        if view is None:
            return
        policy = self.guard.policy
        if view.call_events is None:
            passing = [each for each in view.by_key.values() if each.action == ALLOW and each.entity == "tool"]
            passing = [each for each in passing if not self._uses.records_arguments(each.key)]
            view.call_events = self._journal.call_events(passing, CALL)
        self.events = view.call_events
        self.until = min(view.at + policy.relist_seconds, self.guard.look_at)
        self._given = self.left = (policy.relist_calls - view.calls - 1) if policy.relist_calls else 1 << 62
        self.plain_results = self._answers.relays()
        self.stamp = stamp


def with_request_id(event: AuditEvent, request_id: int | str) -> AuditEvent:
    """The audit event of one call."""
    return replace(event, call=f"{event.call}{request_id}")
