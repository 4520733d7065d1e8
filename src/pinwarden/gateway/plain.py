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
from pinwarden.gateway.step import Step
from pinwarden.gateway.uses import Uses
from pinwarden.rules.gates.verdict import ALLOW

CALL = "tools/call"


class PlainCalls:
    """What a session knows about tools that may simply be called."""

    __slots__ = (
        "_answers",
        "_given",
        "_guard",
        "_journal",
        "_left",
        "_most",
        "_open",
        "_relays",
        "_stamp",
        "_templates",
        "_tools",
        "_until",
        "_uses",
    )

    def __init__(
        self, guard: Guard, journal: Journal, uses: Uses, answers: Answers, open_requests: dict[Any, Asked | str]
    ) -> None:
        self._guard = guard
        self._journal = journal
        self._uses = uses
        self._answers = answers
        self._open = open_requests
        self._most = guard.limits.max_open
        self._tools: dict[str, Callable[[int], Fact]] = {}
        self._templates: dict[str, bytes] = {}
        self._stamp = -1
        self._until = 0.0
        self._given = self._left = 0
        self._relays = False

    def call(self, frame: bytes, message: Any, now: float) -> Step | None:
        """The call passed on, if it is a plain one."""
        if self._stamp != self._guard.stamp or type(message) is not dict or message.get("method") != CALL:
            return None
        number, params = message.get("id"), message.get("params")
        if type(number) is not int or type(params) is not dict or number in self._open:
            return None
        name = params.get("name")
        if type(name) is not str or now >= self._until or self._left <= 0 or len(self._open) >= self._most:
            return None
        fact_of = self._tools.get(name)
        if fact_of is None:
            return None
        self._left -= 1
        self._open[number] = name
        return Step((), (frame,), (fact_of(number),))

    def template(self, message: Any, now: float) -> bytes | None:
        """`call` for a caller that writes packed facts: how the fact is packed; the call is open from then on.

        For the one thread that reads from the client, without the session's lock: a dictionary takes one change at a
        time, and what another thread finds out while this looks might as well have come a moment later.
        """
        if now >= self._until or self._stamp != self._guard.stamp:
            return None
        try:
            if message["method"] != CALL:
                return None
            number, name = message["id"], message["params"]["name"]
            template = self._templates[name]
        except (KeyError, TypeError):
            return None
        if type(number) is not int or number in self._open or len(self._open) >= self._most or self._left <= 0:
            return None
        self._left -= 1
        self._open[number] = name
        return template

    def take_back(self, number: int) -> None:
        """A call that `template` let pass went nowhere."""
        self._open.pop(number, None)

    def answers(self, message: Any) -> bool:
        """Whether this is the complete answer to a plain call, about which nothing is to be done."""
        try:
            number, result = message["id"], message["result"]
            if type(self._open[number]) is not str:
                return False
        except (KeyError, TypeError):
            return False
        if type(number) is not int or type(result) is not dict or "resultType" in result or "method" in message:
            return False
        if not self._relays or self._stamp != self._guard.stamp:
            return False
        del self._open[number]
        return True

    def spend(self) -> None:
        """Forget everything, because something else happens; the calls so far are counted."""
        if self._stamp >= 0:
            self._stamp = -1
            self._uses.count(self._given - self._left)

    def learn(self, now: float) -> None:
        """Know again what may simply be called, if that is known at all."""
        view = self._uses.clear_view(now)
        if view is None:
            return
        policy = self._guard.policy
        if view.makers is None:
            passing = [each for each in view.by_key.values() if each.action == ALLOW and each.entity == "tool"]
            view.makers = {each.key: self._journal.maker(each, CALL) for each in passing}
            view.templates = self._journal.templates(passing, CALL)
        self._tools, self._templates = view.makers, view.templates
        self._until = min(view.at + policy.relist_seconds, self._guard.look_at)
        self._given = self._left = (policy.relist_calls - view.calls - 1) if policy.relist_calls else 1 << 62
        self._relays = self._answers.relays()
        self._stamp = self._guard.stamp
