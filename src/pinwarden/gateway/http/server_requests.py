"""What several servers ask of one client: under ids that no server chooses, so that each answer goes to who asked."""

from __future__ import annotations

import secrets
from typing import Any

from pinwarden.gateway.http.backend import Backend
from pinwarden.gateway.http.messages import Frame, Id, encoded, key_of, with_value
from pinwarden.surface.protocol import SERVER_AWAY

_RANDOM_BYTES = 16  # of an id: what nobody can guess in the life of a session


class Questions:
    """The open questions of the servers behind one conversation."""

    def __init__(self, most: int) -> None:
        """``most`` of one server are kept. A server that asks more loses its own oldest, and no other's."""
        self._most = most
        self._open: dict[str, tuple[Backend, Any]] = {}
        """By the id that the client sees: who asked, and its own id."""

    def __len__(self) -> int:
        return len(self._open)

    def asked(self, backend: Backend, frame: Frame) -> Frame:
        """A question of a server as the client gets it."""
        own = [number for number, (asker, _) in self._open.items() if asker is backend]
        if len(own) >= self._most:
            del self._open[own[0]]
        chosen = frame.members.get("id")
        number = f"{backend.slug}:{secrets.token_urlsafe(_RANDOM_BYTES)}:{chosen}"
        self._open[number] = backend, chosen
        return Frame(with_value(frame.data, ("id",), encoded(number)), {**frame.members, "id": number})

    def answer(self, frame: Frame) -> None:
        """Give an answer of the client to the server that asked; one to no question goes nowhere."""
        number = frame.members.get("id")
        found = self._open.pop(number, None) if type(number) is str else None
        if found is not None:
            backend, own = found
            backend.tell(Frame(with_value(frame.data, ("id",), encoded(own)), {**frame.members, "id": own}))

    def withdrawn(self, backend: Backend, frame: Frame) -> Frame | None:
        """A server does not wait for an answer any more: what the client is told; None if it did not ask."""
        own = key_of(frame.params.get("requestId"))
        number = None if own is None else self._number_of(backend, own)
        if number is None:
            return None
        del self._open[number]
        params = {**frame.params, "requestId": number}
        data = with_value(frame.data, ("params", "requestId"), encoded(number))
        return Frame(data, {**frame.members, "params": params})

    def _number_of(self, backend: Backend, own: Id) -> str | None:
        asked = (number for number, (asker, each) in self._open.items() if asker is backend and key_of(each) == own)
        return next(asked, None)


def refuse(backend: Backend, frame: Frame, why: str) -> None:
    """Answer a question in place of the client: nobody else ever would, and the server would wait."""
    answer = {"jsonrpc": "2.0", "id": frame.members.get("id"), "error": {"code": SERVER_AWAY, "message": why}}
    backend.tell(Frame(encoded(answer), answer))
