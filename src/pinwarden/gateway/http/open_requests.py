"""The requests of one conversation that the server has not answered, by the id that they have on the way to it."""

from __future__ import annotations

from itertools import count
from typing import Any

from pinwarden.gateway.http.call import Call
from pinwarden.gateway.http.messages import Frame, Id, key_of
from pinwarden.gateway.http.pending import Pending, renumbered
from pinwarden.gateway.http.response_sink import Waiting
from pinwarden.surface.protocol import PROGRESS, SUBSCRIPTION_META

_NUMBERS = count(1 << 40)  # ids that no client is likely to choose, that every reader takes for a whole number, and
# that are unique among all conversations: some of them share a process


class OpenRequests:
    """Who waits for which answer, and for which answers nobody waits any more."""

    def __init__(self, conversation: str, most: int) -> None:
        """``conversation`` is its name, which is hard to guess; ``most`` may be open at once."""
        self._conversation = conversation
        self._most = most
        self.by_number: dict[Id, Pending | Call] = {}
        self.abandoned: dict[Id, None] = {}
        """Requests that nobody waits for, and that the server may still answer; the oldest are first."""
        self._tokens: dict[Id, Id] = {}
        self._cancelled: set[Pending | Call] = set()
        """Requests of which the client said that it does not wait any more. Most servers never answer these."""
        self._numbers = 0

    @property
    def full(self) -> bool:
        """Whether there is room for none."""
        return len(self.by_number) >= self._most

    def taken(self, number: Id) -> bool:
        """Whether an answer under this id would be taken for another one's."""
        return number in self.by_number or number in self.abandoned

    def add(self, frame: Frame, number: Id, pending: Pending, *, shared: bool = False) -> tuple[Frame, Id]:
        """One more, and the message and the id under which it goes to the server: another one, if its own is taken.

        In a process that others share, its own id and progress token may always be taken.
        """
        token = frame.progress_token
        if shared or self.taken(number) or (token is not None and token in self._tokens):
            self._numbers += 1
            pending.renumbered = True
            number = (str, f"pinwarden-{self._conversation}-{self._numbers}")
            frame = renumbered(frame, number[1])
            token = frame.progress_token
        pending.token = token
        self.by_number[number] = pending
        if token is not None:
            self._tokens[token] = number
        return frame, number

    def is_token(self, token: Id) -> bool:
        """Whether progress under this token would be taken for another request's."""
        return token in self._tokens

    def add_call(self, number: Id, call: Call, token: Id | None) -> None:
        """A call whose id and token are not taken."""
        self.by_number[number] = call
        if token is not None:
            call.token = token
            self._tokens[token] = number

    def another_number(self) -> Id | None:
        """A whole number for a call whose own is taken, if there is one."""
        number = (int, next(_NUMBERS))
        return None if number in self.by_number else number

    def forget(self, number: Id) -> Pending | Call | None:
        """Whoever waits for an answer, which is here, or will not come."""
        pending = self.by_number.pop(number, None)
        if pending is not None and pending.token is not None:
            self._tokens.pop(pending.token, None)
        return pending

    def abandon(self, number: Id) -> None:
        """Nobody waits for an answer that may still come."""
        if len(self.abandoned) >= self._most:
            del self.abandoned[next(iter(self.abandoned))]  # most servers never answer these
        self.abandoned[number] = None

    def cancel(self, number: Any) -> None:
        """The client says that it does not wait for the answer to a request."""
        key = key_of(number)
        pending = None if key is None else self.by_number.get(key)
        if pending is not None:
            self._cancelled.add(pending)

    def is_cancelled(self, pending: Pending | Call) -> bool:
        """Whether the client said so of this one."""
        return pending in self._cancelled

    def is_over(self, number: Id) -> bool:
        """Whether nobody waits for the answer to a request, whatever was told about that."""
        pending = self.by_number.get(number)
        return number in self.abandoned or (pending is not None and pending in self._cancelled)

    def due(self, now: float) -> list[tuple[Id, Pending | Call]]:
        """Those whose answer should have come by now."""
        self._cancelled.intersection_update(self.by_number.values())
        return [(number, pending) for number, pending in self.by_number.items() if pending.deadline <= now]

    def of_message(self, frame: Frame, asked: Id | None) -> Pending | Call | None:
        """The request that a message of the server belongs to: by what it says itself, or by where it came."""
        token = frame.progress_token if frame.method == PROGRESS else None
        number = self._tokens.get(token) if token is not None else None
        if number is None:
            number = key_of(frame.meta.get(SUBSCRIPTION_META))
        if number is None or number not in self.by_number:
            number = asked
        return None if number is None else self.by_number.get(number)

    def longest_open(self) -> Waiting | Call | None:
        """Who waits longest, of those who still hear: the likeliest reason for a message that names none."""
        for pending in self.by_number.values():
            if pending not in self._cancelled and pending.waiting.open:
                return pending.waiting
        return None

    def clear(self) -> None:
        """Forget all."""
        self.by_number.clear()
        self._tokens.clear()
        self._cancelled.clear()
