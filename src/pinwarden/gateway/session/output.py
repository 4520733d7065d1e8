"""The output of a session for one message: messages to send, and audit events to record before that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pinwarden.core.record import replace
from pinwarden.gateway.audit.event import ALLOWED, BLOCKED, CALLED, OBSERVED, TRUSTED, WARNED, AuditEvent
from pinwarden.gateway.gates.lists import format_digest
from pinwarden.gateway.gates.server_requests import Refusal
from pinwarden.gateway.gates.verdict import ALLOW, AUDIT, BLOCK, RULE_DENIED, WARN, Verdict
from pinwarden.gateway.guard import Guard, SessionClient
from pinwarden.surface.surface import RESOURCE, Surface


class SessionOutput:
    """Messages to send, in order for each side, and audit events to record before they are sent.

    Outputs must not be modified. This class is not a `Record`, because records are slower to create and every message
    needs an output.
    """

    __slots__ = ("durable", "events", "sightings", "to_client", "to_server")

    def __init__(
        self,
        to_client: tuple[bytes, ...] = (),
        to_server: tuple[bytes, ...] = (),
        events: tuple[AuditEvent, ...] = (),
        durable: bool = False,
        sightings: tuple[Verdict, ...] = (),
    ) -> None:
        self.to_client = to_client
        """JSON-RPC messages without line ends."""
        self.to_server = to_server
        self.events = events
        self.durable = durable
        """Whether the events include a refusal, so that they must be on disk before a message is sent."""
        self.sightings = sightings
        """Verdicts about definitions that are new in this session, or that came back after another definition of the
        same item. A definition whose action is not ``allow`` becomes pending review."""


NO_OUTPUT = SessionOutput()


class OutputBuilder:
    """Collects the messages and events of one `SessionOutput`."""

    __slots__ = ("durable", "events", "sightings", "to_client", "to_server")

    def __init__(self) -> None:
        self.to_client: list[bytes] = []
        self.to_server: list[bytes] = []
        self.events: list[AuditEvent] = []
        self.sightings: list[Verdict] = []
        self.durable = False

    def build(self) -> SessionOutput:
        """Return the collected output."""
        if not (self.to_client or self.to_server or self.events or self.sightings):
            return NO_OUTPUT
        return SessionOutput(
            to_client=tuple(self.to_client),
            to_server=tuple(self.to_server),
            events=tuple(self.events),
            durable=self.durable,
            sightings=tuple(self.sightings),
        )


_DEFINITION_EVENT_KINDS = {ALLOW: OBSERVED, AUDIT: ALLOWED, WARN: WARNED, BLOCK: BLOCKED}
_USE_EVENT_KINDS = {ALLOW: CALLED, AUDIT: ALLOWED, WARN: WARNED, BLOCK: BLOCKED}
_MAX_NAME, _MAX_NAMES = 60, 12  # the event of a first use has at most 12 names of at most 60 characters
_MAX_REASONS = 100  # reasons that are counted separately; about a dozen exist, but some contain text of a server
_MAX_SERVER_REQUESTS = 100  # requests of a server that are all recorded; of later requests, only some are
_MAX_REMEMBERED = 50_000  # definitions, and as many uses, that are not recorded again in a session


class SessionAudit:
    """Creates the audit events of one session. Repeated events are recorded once, or counted."""

    def __init__(self, guard: Guard, session: str, client: SessionClient) -> None:
        self.client = client
        self._guard = guard
        self._session = session
        self._recorded: set[tuple[str, str, bytes, str]] = set()
        """Recorded definitions: entity, key, digest and action."""
        self._latest: dict[tuple[str, str], tuple[bytes, str]] = {}
        """The digest and action of the last served definition, by item."""
        self._recorded_uses: set[tuple[str, str, int, str]] = set()
        """Recorded uses. Separate from definitions, so that a server with very long lists cannot use up the limit."""
        self._refusals: dict[tuple[str, str], int] = {}
        """The number of refused messages that belong to no call, by code and reason."""
        self._server_requests = self._pings = 0

    def make_call_id(self, request_id: object) -> str:
        """Return the correlation id of a request, which the audit log and refusals contain."""
        return f"{self._session}/{request_id}"

    def record_definition(self, verdict: Verdict, method: str, out: OutputBuilder) -> None:
        """Record the verdict about a definition, once for each digest and action."""
        mark = (verdict.entity, verdict.key, verdict.digest.raw if verdict.digest else b"", verdict.action)
        returned = self._differs_from_latest(mark, verdict)
        if mark in self._recorded:
            if returned:
                out.sightings.append(replace(verdict, again=True))
            return
        if len(self._recorded) < _MAX_REMEMBERED:
            self._recorded.add(mark)
        out.events.append(self.build_event(_DEFINITION_EVENT_KINDS[verdict.action], verdict, method, ""))
        out.durable = out.durable or verdict.action == BLOCK
        # A tool that a rule denies to this client has an approved definition, so there is nothing to review.
        is_denied = verdict.code == RULE_DENIED
        out.sightings.append(replace(verdict, action=ALLOW, code="", reason="") if is_denied else verdict)

    def _differs_from_latest(self, mark: tuple[str, str, bytes, str], verdict: Verdict) -> bool:
        """Whether the item's previous definition or action was different. A review must show the latest definition."""
        if verdict.code == "duplicate_name":  # two definitions of one name would replace each other in every list
            return False
        item, content = mark[:2], mark[2:]
        before = self._latest.get(item)
        if before is not None or len(self._latest) < _MAX_REMEMBERED:
            self._latest[item] = content
        return before not in (None, content)

    def record_use(
        self, verdict: Verdict, method: str, call: str, out: OutputBuilder, arguments: bytes | None = None
    ) -> None:
        """Record that a client requested the use of an item."""
        out.events.append(self.build_event(_USE_EVENT_KINDS[verdict.action], verdict, method, call, arguments))
        out.durable = out.durable or verdict.action == BLOCK

    def record_use_once(self, verdict: Verdict, method: str, call: str, out: OutputBuilder, name: object = "") -> None:
        """Record a use like `record_use`, but only once for each name and action."""
        mark = (verdict.entity, verdict.key, hash(name), verdict.action)
        if mark in self._recorded_uses:
            return
        if len(self._recorded_uses) < _MAX_REMEMBERED:
            self._recorded_uses.add(mark)
        self.record_use(verdict, method, call, out)

    def build_call_events(self, verdicts: Iterable[Verdict], method: str) -> dict[str, AuditEvent]:
        """Return the events for calls of allowed tools, by tool name. ``call`` lacks the request id at its end."""
        return {verdict.key: self.build_event(CALLED, verdict, method, f"{self._session}/") for verdict in verdicts}

    def record_ping(self, verdict: Verdict, call: str, out: OutputBuilder) -> None:
        """Record a ping from the server: the first hundred, then the thousandth, the ten-thousandth and so on."""
        self._pings += 1
        if self._pings <= _MAX_SERVER_REQUESTS:
            self.record_use(verdict, verdict.key, call, out)
        elif self._pings == 10 ** (len(str(self._pings)) - 1):
            self.record_use(replace(verdict, reason=f"{self._pings} times in this session."), verdict.key, call, out)

    def record_refused_message(self, code: str, reason: str, method: str, call: str, out: OutputBuilder) -> None:
        """Record a refused message, in the same way as `record_refusal`."""
        self.record_refusal(Refusal(code=code, reason=reason), method, call, out)

    def record_refusal(self, refusal: Refusal, method: str, call: str, out: OutputBuilder) -> None:
        """Record a refusal.

        Of refusals that belong to no call, only the first, tenth, hundredth and so on are recorded, so that a flood of
        messages does not fill the log.
        """
        if not call:
            mark = (refusal.code, refusal.reason)
            if mark not in self._refusals and len(self._refusals) >= _MAX_REASONS:
                mark = (refusal.code, "")
            count = self._refusals[mark] = self._refusals.get(mark, 0) + 1
            if count != 10 ** (len(str(count)) - 1):
                return
            if count > 1:
                refusal = replace(refusal, reason=f"{refusal.reason} {count} times in this session.")
        self._append_refusal(refusal, method, call, out)

    def record_refused_server_request(
        self, refusal: Refusal, method: str, request_id: object, out: OutputBuilder
    ) -> None:
        """Record the refusal of a server request. After the first hundred, it counts as a refusal without a call."""
        self._server_requests += 1
        call = self.make_call_id(f"server/{request_id}") if self._server_requests <= _MAX_SERVER_REQUESTS else ""
        self.record_refusal(refusal, method, call, out)

    def record_refused_message_once(self, code: str, reason: str, method: str, out: OutputBuilder) -> None:
        """Record a refused message like `record_refused_message`, but only once for each method."""
        mark = ("", code, hash(method), BLOCK)
        if mark not in self._recorded_uses and len(self._recorded_uses) < _MAX_REMEMBERED:
            self._recorded_uses.add(mark)
            self._append_refusal(Refusal(code=code, reason=reason), method, "", out)

    def _append_refusal(self, refusal: Refusal, method: str, call: str, out: OutputBuilder) -> None:
        event = self._build(
            BLOCKED,
            call=call,
            method=method,
            observed=refusal.observed,
            code=refusal.code,
            reason=refusal.reason,
            policy=self._guard.policy.digest,
        )
        out.events.append(event)
        out.durable = True

    def record_first_use(self, surface: Surface, listed: int, out: OutputBuilder) -> None:
        """Record that a surface was approved on first use; the server listed ``listed`` items."""
        names = [item.name for items in surface.items.values() for item in items]
        count, excluded = len(names), listed - len(names)
        reason = f"First use of this server: {count} {'item was' if count == 1 else 'items were'} trusted"
        reason += f": {', '.join(name[:_MAX_NAME] for name in names[:_MAX_NAMES])}" if names else ""
        reason += f" and {count - _MAX_NAMES} more." if count > _MAX_NAMES else "."
        if excluded:
            reason += f" Items that look like an attack or are ambiguous are blocked: {excluded}."
        out.events.append(self._build(TRUSTED, observed=str(surface.digest or ""), reason=reason))
        out.durable = True

    def build_event(
        self, kind: str, verdict: Verdict, method: str, call: str, arguments: bytes | None = None
    ) -> AuditEvent:
        """Return the event for a verdict."""
        return self._build(
            kind,
            call=call,
            method=method,
            item_kind=verdict.entity,
            item=_mask_item(verdict),
            expected=verdict.expected,
            observed=format_digest(verdict.digest),
            level=verdict.level,
            code=verdict.code,
            reason=verdict.reason,
            policy=self._guard.policy.digest,
            arguments=arguments,
        )

    def build_lifecycle_event(self, kind: str, reason: str) -> AuditEvent:
        """Return the event for the start or the end of the session."""
        return self._build(kind, reason=reason)

    def _build(self, kind: str, **members: Any) -> AuditEvent:
        """Return an event with the members that all events of the session share."""
        return AuditEvent(
            kind=kind, server=self._guard.server, session=self._session, **self.client.audit_members(), **members
        )

    def forget_recorded(self) -> None:
        """Forget which events were recorded, because recording failed. Repeated events are then recorded again."""
        self._recorded.clear()
        self._latest.clear()
        self._recorded_uses.clear()
        self._refusals.clear()
        self._server_requests = self._pings = 0


def with_request_id(event: AuditEvent, request_id: int | str) -> AuditEvent:
    """Add the request id to an event from `SessionAudit.build_call_events`."""
    return replace(event, call=f"{event.call}{request_id}")


def _mask_item(verdict: Verdict) -> str:
    if verdict.entity != RESOURCE.entity:
        return verdict.key
    from pinwarden.system.masking import mask_item_key  # not loaded for servers without resources

    return mask_item_key(verdict.entity, verdict.key)
