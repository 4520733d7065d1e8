"""Requests that the server does not answer in time."""

from __future__ import annotations

from typing import Any

from pinwarden.gateway.forwarded_request import Asked
from pinwarden.gateway.messages import LISTEN

_CALL = "tools/call"
_MOST_GIVEN_UP = 1_000


class OverdueRequests:
    """Finds them, by a look about once a second at those that are open."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._given_up: dict[Any, None] = {}
        """Ids of requests that were answered with an error, and that the server may still answer."""
        self._since: dict[Any, tuple[object, float]] = {}
        self._alive = 0.0

    def alive(self, now: float) -> None:
        """The server shows that it is at work, or waits for the client: all open requests have the whole time again."""
        self._alive = now

    def find(self, open_requests: dict[Any, Asked | str], now: float) -> list[Asked]:
        """Those whose time is over. A subscription is answered when it ends, so it has no such time."""
        since: dict[Any, tuple[object, float]] = {}
        due: list[Asked] = []
        for number, asked in tuple(open_requests.items()):
            if number in self._given_up:
                continue
            known = self._since.get(number)
            if known is None or known[0] is not asked:
                since[number] = asked, now
            elif type(asked) is str:
                # A call on the fast path is only a name, and the next one under this id would be the same name.
                made = Asked(number, _CALL, asked)
                if open_requests.get(number) is asked:
                    open_requests[number] = made
                since[number] = made, known[1]
            else:
                since[number] = known
                late = now - max(known[1], self._alive) >= self.seconds
                if late and isinstance(asked, Asked) and asked.method != LISTEN:
                    due.append(asked)
        self._since = since
        return due

    def give_up(self, number: Any) -> None:
        """A request was answered with an error."""
        if len(self._given_up) >= _MOST_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[number] = None

    def dropped(self, number: Any) -> bool:
        """Whether the answer to a request comes after it was given up. It is forgotten with that."""
        return number in self._given_up and self._given_up.pop(number) is None
