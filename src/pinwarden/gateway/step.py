"""What comes out of a session for one message that went in."""

from __future__ import annotations

from pinwarden.gateway.event import Fact
from pinwarden.gateway.gates.verdict import Verdict


class Step:
    """Messages to send, in this order for each side, and what has to be recorded about them.

    It is never changed, but it is no record: one is made for every message, and a record takes as long to make as the
    rest of the work on a call.
    """

    __slots__ = ("durable", "facts", "sightings", "to_client", "to_server")

    def __init__(
        self,
        to_client: tuple[bytes, ...] = (),
        to_server: tuple[bytes, ...] = (),
        facts: tuple[Fact, ...] = (),
        durable: bool = False,
        sightings: tuple[Verdict, ...] = (),
    ) -> None:
        self.to_client = to_client
        """JSON-RPC messages without line ends."""
        self.to_server = to_server
        self.facts = facts
        self.durable = durable
        """The facts have to be on disk before the first message is sent: one is a refusal that a client sees."""
        self.sightings = sightings
        """Definitions that this session sees for the first time, or anew after another one of the same item, with what
        was decided: for observation and review.

        Those with the action ``block``, ``warn`` or ``audit`` become review items."""


NOTHING = Step()
