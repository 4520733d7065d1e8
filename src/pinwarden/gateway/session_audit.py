"""What a session returns for one message, and the audit events it makes."""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.core.record import replace
from pinwarden.gateway.audit.event import ALLOWED, BLOCKED, CALLED, OBSERVED, TRUSTED, WARNED, AuditEvent
from pinwarden.gateway.gates.lists import digest_text
from pinwarden.gateway.gates.requests import Refusal
from pinwarden.gateway.gates.verdict import ALLOW, AUDIT, BLOCK, WARN, Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.surface.surface import RESOURCE, Surface


class SessionOutput:
    """Messages to send, in this order for each side, and what has to be recorded about them.

    It is never changed, but it is no record: one is made for every message, and a record takes as long to make as the
    rest of the work on a call.
    """

    __slots__ = ("durable", "facts", "sightings", "to_client", "to_server")

    def __init__(
        self,
        to_client: tuple[bytes, ...] = (),
        to_server: tuple[bytes, ...] = (),
        facts: tuple[AuditEvent, ...] = (),
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


NO_OUTPUT = SessionOutput()


_SERVED = {ALLOW: OBSERVED, AUDIT: ALLOWED, WARN: WARNED, BLOCK: BLOCKED}
_USED = {ALLOW: CALLED, AUDIT: ALLOWED, WARN: WARNED, BLOCK: BLOCKED}
_NAME, _NAMES = 60, 12  # letters of a name, and names, that a sentence has of what was trusted
_MAX_REASONS = 100  # that are counted one by one; ours are a dozen, but some name what a server said
_MAX_SERVER_REQUESTS = 100  # of a server that are told one by one
_MAX_SEEN = 50_000  # definitions, and uses, that a session remembers to have told


class OutputBuilder:
    """Messages and facts, in the order in which they came up."""

    __slots__ = ("durable", "facts", "sightings", "to_client", "to_server")

    def __init__(self) -> None:
        self.to_client: list[bytes] = []
        self.to_server: list[bytes] = []
        self.facts: list[AuditEvent] = []
        self.sightings: list[Verdict] = []
        self.durable = False

    def step(self) -> SessionOutput:
        """All of it as a value."""
        if not (self.to_client or self.to_server or self.facts or self.sightings):
            return NO_OUTPUT
        return SessionOutput(
            to_client=tuple(self.to_client),
            to_server=tuple(self.to_server),
            facts=tuple(self.facts),
            durable=self.durable,
            sightings=tuple(self.sightings),
        )


class SessionAudit:
    """Makes facts for one session, and tells each definition once."""

    def __init__(self, guard: Guard, session: str, client: str) -> None:
        self.client = client
        self.owner = client
        """The name that a token stands for, which nobody can give himself; empty without one."""
        self._guard = guard
        self._session = session
        self._told: set[tuple[str, str, bytes, str]] = set()
        self._last: dict[tuple[str, str], tuple[bytes, str]] = {}
        """The content of each item that was served last, and what was decided about it."""
        self._told_uses: set[tuple[str, str, int, str]] = set()
        """Apart from the definitions, of which a server can list so many that nothing else is remembered."""
        self._refusals: dict[tuple[str, str], int] = {}
        """How often a message that belongs to no call was refused, by why."""
        self._questions = self._pings = 0

    def call_id(self, number: object) -> str:
        """The correlation id of the client's request with this id."""
        return f"{self._session}/{number}"

    def served(self, verdict: Verdict, method: str, out: OutputBuilder) -> None:
        """A definition was judged. Told once for each content and decision."""
        mark = (verdict.entity, verdict.key, verdict.digest.raw if verdict.digest else b"", verdict.action)
        another = self._is_another(mark, verdict)
        if mark in self._told:
            if another:
                out.sightings.append(replace(verdict, again=True))
            return
        if len(self._told) < _MAX_SEEN:
            self._told.add(mark)
        out.facts.append(self.fact(_SERVED[verdict.action], verdict, method, ""))
        out.durable = out.durable or verdict.action == BLOCK
        out.sightings.append(verdict)

    def _is_another(self, mark: tuple[str, str, bytes, str], verdict: Verdict) -> bool:
        """Whether the item was something else the last time: what waits for review is what is served now."""
        if verdict.code == "duplicate_name":  # each of the two would be another one than the other, in every list
            return False
        place, now = mark[:2], mark[2:]
        before = self._last.get(place)
        if before is not None or len(self._last) < _MAX_SEEN:
            self._last[place] = now
        return before not in (None, now)

    def tell_anew(self) -> None:
        """What was told was not recorded, so it is told again."""
        self._told.clear()
        self._last.clear()
        self._told_uses.clear()
        self._refusals.clear()
        self._questions = self._pings = 0

    def used(
        self, verdict: Verdict, method: str, call: str, out: OutputBuilder, arguments: bytes | None = None
    ) -> None:
        """A client wanted to use something."""
        out.facts.append(self.fact(_USED[verdict.action], verdict, method, call, arguments))
        out.durable = out.durable or verdict.action == BLOCK

    def used_once(self, verdict: Verdict, method: str, call: str, out: OutputBuilder, name: object = "") -> None:
        """The same for what may come again and again: told once for each name and decision."""
        mark = (verdict.entity, verdict.key, hash(name), verdict.action)
        if mark in self._told_uses:
            return
        if len(self._told_uses) < _MAX_SEEN:
            self._told_uses.add(mark)
        self.used(verdict, method, call, out)

    def call_events(self, verdicts: Iterable[Verdict], method: str) -> dict[str, AuditEvent]:
        """By the name of what is used, the event of a use that passes; the request id at the end of ``call`` is
        missing."""
        return {each.key: self.fact(CALLED, each, method, f"{self._session}/") for each in verdicts}

    def pinged(self, verdict: Verdict, call: str, out: OutputBuilder) -> None:
        """The server sent a ping. A client answers any number of them by itself, so from some on they are counted."""
        self._pings += 1
        if self._pings <= _MAX_SERVER_REQUESTS:
            self.used(verdict, verdict.key, call, out)
        elif self._pings == 10 ** (len(str(self._pings)) - 1):
            self.used(replace(verdict, reason=f"{self._pings} times in this session."), verdict.key, call, out)

    def refused(self, code: str, reason: str, method: str, call: str, out: OutputBuilder) -> None:
        """A message was refused for what it is."""
        self.refuse(Refusal(code=code, reason=reason), method, call, out)

    def refuse(self, refused: Refusal, method: str, call: str, out: OutputBuilder) -> None:
        """The same, given the refusal.

        What belongs to no call may come again and again, and would fill the log and the disk: it is counted, and told
        each time that there are ten times as many.
        """
        if not call:
            mark = (refused.code, refused.reason)
            if mark not in self._refusals and len(self._refusals) >= _MAX_REASONS:
                mark = (refused.code, "")
            count = self._refusals[mark] = self._refusals.get(mark, 0) + 1
            if count != 10 ** (len(str(count)) - 1):
                return
            if count > 1:
                refused = replace(refused, reason=f"{refused.reason} {count} times in this session.")
        self._refuse(refused, method, call, out)

    def refused_question(self, refused: Refusal, method: str, number: object, out: OutputBuilder) -> None:
        """A server's question to the client was refused. A server that asks for ever is counted."""
        self._questions += 1
        call = self.call_id(f"server/{number}") if self._questions <= _MAX_SERVER_REQUESTS else ""
        self.refuse(refused, method, call, out)

    def _refuse(self, refused: Refusal, method: str, call: str, out: OutputBuilder) -> None:
        fact = AuditEvent(
            kind=BLOCKED,
            server=self._guard.server,
            client=self.client,
            session=self._session,
            call=call,
            method=method,
            observed=refused.observed,
            code=refused.code,
            reason=refused.reason,
            policy=self._guard.policy.digest,
        )
        out.facts.append(fact)
        out.durable = True

    def refused_once(self, code: str, reason: str, method: str, out: OutputBuilder) -> None:
        """The same for what may come again and again: told once for each method."""
        mark = ("", code, hash(method), BLOCK)
        if mark not in self._told_uses and len(self._told_uses) < _MAX_SEEN:
            self._told_uses.add(mark)
            self._refuse(Refusal(code=code, reason=reason), method, "", out)

    def trusted(self, surface: Surface, seen: int, out: OutputBuilder) -> None:
        """The surface was taken as the approved one because it was the first; so many items were seen."""
        names = [item.name for listed in surface.items.values() for item in listed]
        items, left_out = len(names), seen - len(names)
        reason = f"First use of this server: {items} {'item was' if items == 1 else 'items were'} taken as approved"
        reason += f": {', '.join(name[:_NAME] for name in names[:_NAMES])}" if names else ""
        reason += f" and {items - _NAMES} more." if items > _NAMES else "."
        if left_out:
            reason += f" What else it lists ({left_out}) reads like an attack or cannot be told apart, and is withheld."
        fact = AuditEvent(
            kind=TRUSTED,
            server=self._guard.server,
            client=self.client,
            session=self._session,
            observed=str(surface.digest or ""),
            reason=reason,
        )
        out.facts.append(fact)
        out.durable = True

    def fact(self, kind: str, verdict: Verdict, method: str, call: str, arguments: bytes | None = None) -> AuditEvent:
        """What was decided, as a fact."""
        return AuditEvent(
            kind=kind,
            server=self._guard.server,
            client=self.client,
            session=self._session,
            call=call,
            method=method,
            item_kind=verdict.entity,
            item=_item(verdict),
            expected=verdict.expected,
            observed=digest_text(verdict.digest),
            level=verdict.level,
            code=verdict.code,
            reason=verdict.reason,
            policy=self._guard.policy.digest,
            arguments=arguments,
        )


def _item(verdict: Verdict) -> str:
    if verdict.entity != RESOURCE.entity:
        return verdict.key
    from pinwarden.system.masking import mask_item_key  # a server without resources starts without it

    return mask_item_key(verdict.entity, verdict.key)
