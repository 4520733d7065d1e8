"""What comes out of a session for one message that went in."""

from __future__ import annotations

from pinwarden.core.record import Record
from pinwarden.documents.gateway_event import Fact
from pinwarden.rules.gates.verdict import Verdict


class Step(Record):
    """Messages to send, in this order for each side, and what has to be recorded about them."""

    to_client: tuple[bytes, ...] = ()
    """JSON-RPC messages without line ends."""
    to_server: tuple[bytes, ...] = ()
    facts: tuple[Fact, ...] = ()
    durable: bool = False
    """The facts have to be on disk before the first message is sent: one of them is a refusal that a client sees."""
    sightings: tuple[Verdict, ...] = ()
    """Definitions that this session sees for the first time, with what was decided: for observation and review.

    Those with the action ``block``, ``warn`` or ``audit`` become review items."""


NOTHING = Step()
