"""The room for large requests: bounded for all clients together, and for each of them."""

from __future__ import annotations

from pinwarden.gateway.http.limits import HttpLimits
from pinwarden.gateway.http.request import Refused


class Bodies:
    """Counts what came of large requests that are not answered yet. What is only announced takes nobody's room."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._of: dict[str, int] = {}
        self.size = 0

    def check(self, client: str, size: int) -> None:
        """Refuse what there is no room for now."""
        if self._of.get(client, 0) + size > self._limits.max_client_body_bytes:
            raise Refused(503, "too many large requests of one client at once")
        if self.size + size > self._limits.max_all_body_bytes:
            raise Refused(503, "too many large requests at once")

    def add(self, client: str, size: int) -> None:
        """So many bytes more of a client."""
        self.check(client, size)
        self._of[client] = self._of.get(client, 0) + size
        self.size += size

    def give_back(self, client: str, size: int) -> None:
        """A request is answered, or nobody waits for that."""
        self.size -= size
        left = self._of.get(client, 0) - size
        if left > 0:
            self._of[client] = left
        else:
            self._of.pop(client, None)

    def move(self, client: str, to: str, size: int) -> None:
        """Another client goes on with the connection of the first."""
        self.give_back(client, size)
        self._of[to] = self._of.get(to, 0) + size
        self.size += size
