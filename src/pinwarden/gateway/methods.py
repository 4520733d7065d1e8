"""The methods of MCP, and what becomes of any other.

What a method does that no revision of MCP knows, nobody can say: a server may take it for the call of a tool that is
not approved, and a client may hand the text of such a notice to its model. So it is unknown, as a tool is that nobody
lists, and the policy for the unknown decides, in both directions.
"""

from __future__ import annotations

from pinwarden.gateway.gates.verdict import Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.session_audit import Journal, Output

NOTICES_OF_CLIENT = frozenset(
    f"notifications/{name}" for name in ("initialized", "cancelled", "progress", "roots/list_changed", "tasks/status")
)
NOTICES_OF_SERVER = frozenset(
    f"notifications/{name}"
    for name in (
        *("cancelled", "progress", "message", "elicitation/complete", "subscriptions/acknowledged"),
        *("tools/list_changed", "prompts/list_changed", "resources/list_changed", "resources/updated"),
        *("tasks", "tasks/status"),
    )
)
MOST_NAMED = 100
"""Methods that are told one by one in one session. Real extensions have a handful."""
_NAME = 100  # letters of a method that are told; no rule is asked about a longer one, as it could fit the cut-off name


class UnknownMethods:
    """What one side of a session sends that no revision knows. The log has each method once, so nobody can flood it."""

    def __init__(self, guard: Guard, journal: Journal, sender: str) -> None:
        """``sender`` is client or server."""
        self._guard = guard
        self._journal = journal
        self._sender = sender
        self._seen: set[int] = set()
        """Marks of methods, which may be as long as a message."""

    def request(self, method: str, call: str, out: Output) -> Verdict:
        """The verdict about a request. A refusal names its call, so each is told; of what passes, each method."""
        verdict = self._judged(method)
        if verdict.passes:
            self._journal.used_once(verdict, verdict.key, call, out, (self._sender, method))
        else:
            self._journal.used(verdict, method[:_NAME], call, out)
        return verdict

    def notice(self, method: str, out: Output) -> Verdict:
        """The verdict about a notification, which is told once for each method."""
        verdict = self._judged(method)
        self._journal.used_once(verdict, verdict.key, "", out, (self._sender, method if verdict.key else ""))
        return verdict

    def _judged(self, method: str) -> Verdict:
        """One more than are told is refused: it would pass without a word in the log."""
        mark, judge = hash(method), self._guard.judge_unknown_method
        sender, client = self._sender, self._journal.client
        if mark not in self._seen:
            if len(self._seen) >= MOST_NAMED:
                why = f"The {sender} sent more methods that no revision of MCP knows than the log tells one by one."
                return judge("", sender, client, why_not=why)
            self._seen.add(mark)
        if len(method) > _NAME:
            why = "No revision of MCP knows this, and its name is longer than any that a policy is asked about."
            return judge(method[:_NAME], sender, client, why_not=why)
        return judge(method, sender, client)
