"""The short way for what nearly every message is: a call of a tool that passes, and its complete answer.

It does what the long way does, or leaves the message to that. What it knows counts as long as nothing else happened:
no other measure, policy or notice (the guard's stamp), no other message of the server, not too much time, and not too
many calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pinwarden.documents.gateway_event import Fact
from pinwarden.gateway.answers import Answers
from pinwarden.gateway.asked import Asked
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.output import Journal
from pinwarden.gateway.resource_links import LINKED
from pinwarden.gateway.step import Step
from pinwarden.gateway.uses import Uses
from pinwarden.rules.gates.verdict import ALLOW

CALL = "tools/call"
COMPLETE = "complete"
ARGUMENTS = "arguments"
CONTENT = "content"
PARAMS = frozenset({"name", ARGUMENTS, "_meta", "task"})
RESULT = frozenset({CONTENT, "structuredContent", "isError", "_meta", "resultType"})
"""All that a plain call and its answer may have. A member beside these may be one that another reader takes for one of
them (``gateway/shape.py``), so the long way looks at it."""


class PlainCalls:
    """What a session knows about tools that may simply be called."""

    __slots__ = (
        *("forms", "guard", "left", "most", "open", "relays", "stamp", "until"),
        *("_answers", "_given", "_journal", "_tools", "_uses"),
    )

    def __init__(
        self, guard: Guard, journal: Journal, uses: Uses, answers: Answers, open_requests: dict[Any, Asked | str]
    ) -> None:
        self.guard = guard
        self._journal = journal
        self._uses = uses
        self._answers = answers
        self.open = open_requests
        self.most = guard.limits.max_open
        self._tools: dict[str, Callable[[int], Fact]] = {}
        self.forms: dict[str, Fact] = {}
        """By the name of a tool, the fact of its call but for the call's number."""
        self.stamp = -1
        """The guard's stamp at which all of this was learned; -1 if it is not known any more."""
        self.until = 0.0
        self._given = self.left = 0
        self.relays = False
        """Whether nothing is to be done about results."""

    def call(self, frame: bytes, message: Any, now: float) -> Step | None:
        """The call passed on, if it is a plain one."""
        if self.stamp != self.guard.stamp or type(message) is not dict or message.get("method") != CALL:
            return None
        number, params = message.get("id"), message.get("params")
        if type(number) is not int or type(params) is not dict or number in self.open:
            return None
        if len(message) != 4 or "jsonrpc" not in message or not params.keys() <= PARAMS:
            return None
        name = params.get("name")
        if type(name) is not str or now >= self.until or self.left <= 0 or len(self.open) >= self.most:
            return None
        fact_of = self._tools.get(name)
        if fact_of is None:
            return None
        self.left -= 1
        self.open[number] = name
        return Step((), (frame,), (fact_of(number),))

    def form(self, message: Any, now: float) -> Fact | None:
        """`call` for a caller that records facts by their form; the call is open from then on.

        For the one thread that reads from the client, without the session's lock: a dictionary takes one change at a
        time, and what another thread finds out while this looks might as well have come a moment later. If that thread
        counts the calls so far in this very moment, one of them is not counted, so a list may be asked for one call
        later than the policy says; never later in time, which is what bounds how long a change stays unseen.
        """
        if now >= self.until or self.stamp != self.guard.stamp:
            return None
        try:
            if message["method"] != CALL or len(message) != 4 or "jsonrpc" not in message:
                return None
            number, params = message["id"], message["params"]
            name = params["name"]
            form = self.forms[name]
            if not params.keys() <= PARAMS:
                return None
        except (KeyError, TypeError, AttributeError):
            return None
        if type(number) is not int or number in self.open or len(self.open) >= self.most or self.left <= 0:
            return None
        self.left -= 1
        self.open[number] = name
        return form

    def take_back(self, number: int) -> None:
        """A call that `form` let pass went nowhere."""
        self.open.pop(number, None)

    def answers(self, frame: bytes, message: Any) -> bool:
        """Whether this is the complete answer to a plain call, about which nothing is to be done."""
        try:
            number, result = message["id"], message["result"]
            if type(self.open[number]) is not str:
                return False
        except (KeyError, TypeError):
            return False
        if type(number) is not int or type(result) is not dict or not result.keys() <= RESULT:
            return False
        if len(message) != 3 or "jsonrpc" not in message or result.get("resultType", COMPLETE) != COMPLETE:
            return False
        if not self.relays or self.stamp != self.guard.stamp or LINKED in frame:
            return False
        del self.open[number]
        return True

    def spend(self) -> None:
        """Forget everything, because something else happens; the calls so far are counted."""
        if self.stamp >= 0:
            self.stamp = -1
            self._uses.count(self._given - self.left)

    def learn(self, now: float) -> None:
        """Know again what may simply be called, if that is known at all."""
        stamp = self.guard.stamp  # what another thread changes from here on makes all of this count no more
        view = self._uses.clear_view(now)
        if view is None:
            return
        policy = self.guard.policy
        if view.makers is None:
            passing = [each for each in view.by_key.values() if each.action == ALLOW and each.entity == "tool"]
            passing = [each for each in passing if not self._uses.records_arguments(each.key)]
            view.makers = {each.key: self._journal.maker(each, CALL) for each in passing}
            view.forms = self._journal.forms(passing, CALL)
        self._tools, self.forms = view.makers, view.forms
        self.until = min(view.at + policy.relist_seconds, self.guard.look_at)
        self._given = self.left = (policy.relist_calls - view.calls - 1) if policy.relist_calls else 1 << 62
        self.relays = self._answers.relays()
        self.stamp = stamp
