"""What waits for a list to be judged, in the order in which it came."""

from __future__ import annotations

from typing import Any

from pinwarden.gateway.forwarded_request import Answer, Notice, Request
from pinwarden.gateway.limits import SessionLimits
from pinwarden.gateway.messages import error
from pinwarden.gateway.session_audit import Journal, Output
from pinwarden.surface.protocol import INVALID_PARAMS, SERVER_AWAY

Waiting = Request | Answer | Notice


class Held:
    """The messages of one session that wait. None waits for ever, and there is room for so many only."""

    def __init__(self, limits: SessionLimits, journal: Journal) -> None:
        self._limits = limits
        self._journal = journal
        self._line: list[Waiting] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._line)

    def __contains__(self, number: Any) -> bool:
        """Whether a message that is answered under this id waits."""
        return any(held.number == number for held in self._line if not isinstance(held, Notice))

    def hold(self, held: Waiting, out: Output) -> None:
        """Let one more wait, or tell who waits for it that there is no room."""
        size = len(held.frame)
        if len(self._line) < self._limits.max_held and self._bytes + size <= self._limits.max_held_bytes:
            self._line.append(held)
            self._bytes += size
        elif not isinstance(held, Notice):  # of a notice: who waits for the result can ask for it
            out.to_client.append(error(held.number, SERVER_AWAY, "pinwarden: too many requests wait for a list"))

    def drop(self, number: Any) -> bool:
        """Nobody waits for the answer to a request any more; whether it was held."""
        before = len(self._line)
        self._keep([held for held in self._line if not isinstance(held, Request) or held.number != number])
        return len(self._line) != before

    def forget(self, number: Any) -> None:
        """Nobody waits for anything under an id any more, and it may soon be that of another request."""
        self._keep([held for held in self._line if isinstance(held, Notice) or held.number != number])

    def take(self) -> list[Waiting]:
        """All of them; none is held then."""
        taken = self._line
        self._keep([])
        return taken

    def answered(self) -> list[Any]:
        """The ids under which somebody waits for an answer to one of them; none is held then."""
        return [held.number for held in self.take() if not isinstance(held, Notice)]

    def refuse_late(self, now: float, out: Output) -> None:
        """What waited longer than any list may take is refused, whatever it waits for."""
        limit = self._limits.list_seconds * 2
        late = [held for held in self._line if now - held.since > limit]
        self._keep([held for held in self._line if now - held.since <= limit])
        for held in late:
            call = self._journal.call_id(held.number)
            self._journal.refused("list_failed", "The server's lists could not be had.", held.method, call, out)
            if not isinstance(held, Notice):
                text = "pinwarden: the server's lists could not be judged in time"
                out.to_client.append(error(held.number, INVALID_PARAMS, text, {"pinwarden": {"code": "list_failed"}}))

    def _keep(self, line: list[Waiting]) -> None:
        self._line = line
        self._bytes = sum(len(held.frame) for held in line)
