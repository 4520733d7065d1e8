"""One conversation between a client and a server, without input or output: a message in, messages and facts out.

The same session serves stdio and HTTP. It keeps no clock; ``now`` is any number of seconds that never goes back.

What happens to a request of the client:

1. It is read strictly. What two readers could understand differently goes no further.
2. What it would use is looked up in the server's list, which is asked for if there is none that counts; until that is
   judged the request is held.
3. It is passed on byte for byte, or answered with a refusal.

What happens to a message of the server: an answer is matched with its question; list answers lose what was not
approved; requests are held against the policy; the rest is passed on byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import RLock
from typing import Any

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_slices import array_elements
from pinwarden.gateway.ambiguity import is_ambiguous_answer, is_ambiguous_request, is_ambiguous_server_request
from pinwarden.gateway.call_fast_path import CALL, CallFastPath, with_request_id
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.in_flight import (
    ClientRequest,
    DeferredMessages,
    ForwardedRequest,
    OverdueRequests,
    ServerAnswer,
    TaskNotification,
)
from pinwarden.gateway.judged_lists import JudgedLists
from pinwarden.gateway.judged_server import JudgedServer, stateless_meta
from pinwarden.gateway.list_subscription import ListSubscription
from pinwarden.gateway.messages import LISTEN, coerced_id, error_response, is_id, notification, unrecorded_response
from pinwarden.gateway.request_decisions import RequestDecider
from pinwarden.gateway.result_checks import ResourceLinks
from pinwarden.gateway.server_messages import ServerMessageDecider
from pinwarden.gateway.session_audit import NO_OUTPUT, OutputBuilder, SessionAudit, SessionOutput
from pinwarden.gateway.tasks import LIST_TASKS, TASK_NOTIFICATIONS
from pinwarden.surface.protocol import (
    BATCH_VERSION,
    CANCELLED,
    CLIENT_META,
    INITIALIZED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LIST_CHANGED,
    PARSE_ERROR,
    PROGRESS,
    SERVER_AWAY,
)
from pinwarden.surface.surface import TOOL

__all__ = ["NO_OUTPUT", "Session", "SessionOutput"]

_NOTICE = "notifications/"
_NO_METHOD = "pinwarden: the method of a message is a text"
_DOUBTFUL = "Readers may differ on what this message is."


def _undelivered(number: Any) -> bytes:
    return error_response(number, SERVER_AWAY, "pinwarden: the server takes no more messages")


class Session:
    """A client, a server, and the judge between them. Safe to call from several threads."""

    def __init__(self, guard: Guard, *, name: str, client: str = "", answer_seconds: float = 0.0) -> None:
        """``name`` is unique and hard to guess: it is part of the ids of our own requests and of correlation ids.

        ``client`` is the name that a token stands for; without one, the name that the client gives itself is used.
        ``answer_seconds`` is the time that the server has for an answer; 0 if others see to that.
        """
        self.guard = guard
        self.name = name
        self._named = bool(client)
        self._limits = guard.limits
        self._json = guard.limits.json
        self._lock = RLock()
        self._journal = SessionAudit(guard, name, client)
        self._views = JudgedLists(guard, self._journal, name)
        self._opening = JudgedServer(guard, self._journal)
        self._listening = ListSubscription(guard, self._views)
        links = ResourceLinks()
        self._uses = RequestDecider(guard, self._journal, self._views, self._opening, links)
        self._answers = ServerMessageDecider(guard, self._journal, self._views, self._opening, self._uses, links)
        self._open: dict[Any, ForwardedRequest | str] = {}
        """Requests by their id; of a call on the fast path only the name of the tool."""
        self.fast_path = CallFastPath(guard, self._journal, self._views, self._uses, self._answers, self._open)
        """For those who try it before they give a message to the session."""
        self._held = DeferredMessages(guard.limits, self._journal)
        self._cancelled: set[Any] = set()
        self._overdue = OverdueRequests(answer_seconds)
        self._active = False

    @property
    def client(self) -> str:
        """The client's name."""
        return self._journal.client

    @property
    def idle(self) -> bool:
        """Whether nothing is open or held: a session that may be closed without anybody missing an answer."""
        return not (self._open or self._held or self._answers.asked_of_client)

    @property
    def holds(self) -> bool:
        """Whether messages wait for something that the server has yet to answer, or will: what it lists may be a part
        of a list, and passes when the rest was asked for."""
        # A copy: the fast path opens and ends calls without our lock.
        asked = (each for number, each in tuple(self._open.items()) if number not in self._cancelled)
        lists = (
            each
            for each in asked
            if type(each) is ForwardedRequest and (each.kind is not None or each.method == LIST_TASKS)
        )
        return bool(self._held) or any(lists)

    def heavy(self, now: float) -> bool:
        """Whether the next message may mean that a long list is judged, which takes a while."""
        if now >= self.guard.look_at:
            self.guard.look(now)
        return self._views.heavy(now)

    def list_is_old(self, method: str) -> None:
        """A notice of this method came that follows later: until then nothing is decided by the list that is known."""
        with self._lock:
            self.fast_path.spend()
            for kind in LIST_CHANGED.get(method, ()):
                self._views.count_notice(kind)

    def definition(self, tool: str) -> Any:
        """What the server says of a tool, as far as is known."""
        return self._views.definition(TOOL, tool)

    def client_frame(self, frame: bytes, now: float, message: Any = None) -> SessionOutput:
        """A message from the client. ``message`` is its strictly parsed value, if the caller has it already.

        A line end behind it does no harm.
        """
        if message is None:
            try:
                message = strict_json.parse_json(frame, self._json)
            except PinwardenError as err:
                if frame.isspace():
                    return NO_OUTPUT
                out = OutputBuilder()
                self._journal.refused(err.code, "The client sent text that is not strict JSON.", "", "", out)
                out.to_client.append(error_response(None, PARSE_ERROR, f"pinwarden: {err.message}"))
                return out.step()
        with self._lock:
            if now >= self.guard.look_at:
                self.guard.look(now)
            self._active = True
            event = self.fast_path.admit(message, now)
            if event is not None:
                return SessionOutput((), (frame,), (with_request_id(event, message["id"]),))
            self.fast_path.spend()
            out = OutputBuilder()
            for one, value in self._each(frame.rstrip(), message, out.to_client):
                self._from_client(one, value, now, out)
            self._listen(now, out)
            self.fast_path.learn(now)
        return out.step()

    def server_frame(self, frame: bytes, now: float, message: Any = None) -> SessionOutput:
        """A message from the server."""
        if message is None:
            try:
                message = strict_json.parse_json(frame, self._json)
            except PinwardenError as err:
                return self._unreadable(frame.rstrip(), err, now)
        with self._lock:
            if now >= self.guard.look_at:
                self.guard.look(now)
            if self.fast_path.relays(frame, message):
                return SessionOutput((frame,))
            self.fast_path.spend()
            out = OutputBuilder()
            each = self._each(frame.rstrip(), message, None)
            for one, value in each:
                self._from_server(one, value, now, out)
            if not each and type(message) is list:
                self._batch(message, now, out)
            self._listen(now, out)
            self.fast_path.learn(now)
        return out.step()

    def tick(self, now: float) -> SessionOutput:
        """Whatever is due by now: lists asked for again, calls that waited too long. Call it about once a second."""
        out = OutputBuilder()
        with self._lock:
            self.guard.look(now)
            self.fast_path.spend()
            if self._active:
                self._active = False
                self._views.due(now, out)
            if self._views.overdue(now):
                self._retry(now, out)
            self._listen(now, out)
            self._held.refuse_late(now, out)
            if self._overdue.seconds:
                self._refuse_overdue(now, out)
        return out.step()

    def _refuse_overdue(self, now: float, out: OutputBuilder) -> None:
        """Answer requests that the server does not answer, and tell the server that the client does not wait."""
        if self._answers.asked_of_client or self.fast_path.progressed:
            self._overdue.alive(now)  # it is at work, or waits for what a person answers
            self.fast_path.progressed = False
        for asked in self._overdue.find(self._open, now):
            number, was_cancelled = asked.number, asked.number in self._cancelled
            # It stays open, so that no other request gets its id, and an answer that comes after all goes nowhere.
            self._cancelled.add(number)
            self._overdue.give_up(number)
            if was_cancelled:
                continue
            why = f"the server did not answer within {self._overdue.seconds:g} seconds"
            out.to_client.append(error_response(number, SERVER_AWAY, f"pinwarden: {why}"))
            if asked.method == "initialize":
                self._views.opened(None)
            else:  # a handshake cannot be cancelled
                out.to_server.append(notification(CANCELLED, {"requestId": number, "reason": why}))

    def server_gone(self, now: float) -> SessionOutput:
        """The server's end of the connection closed: every open request is answered with an error.

        But for those that the client cancelled: it does not wait for them, and is owed no answer.
        """
        del now
        out = OutputBuilder()
        with self._lock:
            waited_for = [number for number in tuple(self._open) if number not in self._cancelled]
            for number in (*waited_for, *self._held.answered()):
                out.to_client.append(
                    error_response(number, SERVER_AWAY, "pinwarden: the server ended without an answer")
                )
            self._open.clear()
            self._cancelled.clear()
        return out.step()

    def abandon(self, number: Any) -> bool:
        """Nobody waits for a request any more; whether the server has it, and has not answered it.

        For those who see that its answer, should one come after all, does not come here.
        """
        with self._lock:
            self._held.forget(number)
            self._cancelled.discard(number)
            asked = self._open.pop(number, None)
            if type(asked) is ForwardedRequest and asked.method == "initialize":
                self._views.opened(None)
        return asked is not None

    def take_back(self, step: SessionOutput, problem: PinwardenError) -> SessionOutput:
        """What could not be recorded does not happen: what is sent in place of it. Who waited for it is told why."""
        out = OutputBuilder()
        with self._lock:
            self.fast_path.spend()
            for part in (self._views, self._opening):
                part.judge_anew()
            self._journal.tell_anew()
            for frame in step.to_server:
                self._unsent(self._members(frame), lambda number: unrecorded_response(number, problem), out)
            for frame in step.to_client:
                message = self._members(frame)
                number = message.get("id")
                if "method" not in message:
                    out.to_client.append(unrecorded_response(number, problem))
                elif self._answers.asked_of_client.pop(number, None) is not None:
                    out.to_server.append(unrecorded_response(number, problem))
        return out.step()

    def not_taken(self, frames: Iterable[bytes]) -> SessionOutput:
        """The server takes no more messages, and these did not reach it: who waits for an answer is told so."""
        out = OutputBuilder()
        with self._lock:
            self.fast_path.spend()
            for frame in frames:
                self._unsent(self._members(frame), _undelivered, out)
        return out.step()

    def _members(self, frame: bytes) -> Any:
        """The members of a message that was about to be sent."""
        try:
            return strict_json.parse_json(frame, self._json)
        except PinwardenError:
            from pinwarden.surface.probe.message import parse_message

            return parse_message(frame, self._json).members

    def _unsent(self, message: Any, answer: Callable[[Any], bytes], out: OutputBuilder) -> None:
        """A request that did not go to the server is not open. If it was for a list, nobody waits for that either."""
        number = message.get("id")
        if "method" not in message or number is None:
            return
        if not self._views.is_own(number):
            self._cancelled.discard(number)
            if self._open.pop(number, None) is not None:  # or another thread has seen the server's end, and told it
                out.to_client.append(answer(number))
            return
        if self._listening.is_it(number):
            self._listening.unsent()
            return
        self._views.unsent(number)
        out.to_client += [answer(waiting) for waiting in self._held.answered()]

    # Messages of the client

    def _from_client(self, frame: bytes, message: Any, now: float, out: OutputBuilder) -> None:
        method = message.get("method")
        if type(method) is not str:
            if "method" not in message:
                self._answers.from_client(frame, message, out)
            elif "id" in message:
                number = message["id"]
                usable = is_id(number) and not self._views.is_own(number)
                out.to_client.append(error_response(number if usable else None, INVALID_REQUEST, _NO_METHOD))
        elif "id" in message:
            self._request(frame, message, method, now, out)
        elif not method.startswith(_NOTICE):
            reason = "A request without an id is no notification; a server might follow it all the same."
            self._journal.refused("request_without_id", reason, method[:100], "", out)
        elif is_ambiguous_request(message):
            self._journal.refused("message_doubtful", _DOUBTFUL, method[:100], "", out)
        elif method == CANCELLED and self._forget(message.get("params")):
            return
        elif self._uses.notice_passes(method, out):
            out.to_server.append(frame)
            if method == INITIALIZED:
                self._first_use(now, out)

    def _request(self, frame: bytes, message: Any, method: str, now: float, out: OutputBuilder) -> None:
        number = message["id"]
        taken = is_id(number) and (number in self._open or number in self._held)
        if not is_id(number) or taken or self._views.is_own(number):
            text = "pinwarden: the id of this request cannot be used"
            out.to_client.append(error_response(number if is_id(number) else None, INVALID_REQUEST, text))
            return
        if len(self._open) >= self._limits.max_open:
            for cancelled in self._cancelled:  # most servers never answer these
                self._open.pop(cancelled, None)
            self._cancelled.clear()
        if len(self._open) >= self._limits.max_open:
            out.to_client.append(error_response(number, SERVER_AWAY, "pinwarden: too many requests are open"))
            return
        self._introduce(method, message)
        self._forward(ClientRequest(frame, message, now), now, out)

    def _forward(self, held: ClientRequest, now: float, out: OutputBuilder) -> None:
        """Decide about a request: pass it on, answer it, or hold it."""
        message = held.message
        try:
            decided = self._uses.decide(message, now, out)
        except PinwardenError as err:
            call = self._journal.call_id(message["id"])
            self._journal.refused(err.code, "What was approved cannot be read.", message["method"], call, out)
            text = f"pinwarden: nothing passes, because what was approved cannot be read: {err.message}"
            out.to_client.append(error_response(message["id"], INVALID_PARAMS, text, {"pinwarden": {"code": err.code}}))
            return
        if decided is None:
            self._held.hold(held, out)
        elif isinstance(decided, bytes):
            out.to_client.append(decided)
        else:
            self._open[message["id"]] = decided
            out.to_server.append(held.frame)

    def is_own(self, request_id: Any) -> bool:
        """Whether an id belongs to a request of the session's own."""
        return self._views.is_own(request_id)

    @property
    def server_facts(self) -> dict[str, Any] | None:
        """What the server says of itself, before anything of it is left out."""
        return self._opening.facts

    def _introduce(self, method: str, message: Any) -> None:
        """Learn from a request who the client is and which era it speaks."""
        params = message.get("params")
        info = None
        if method == "initialize":
            self._views.opening()
            info = params.get("clientInfo") if isinstance(params, dict) else None
        elif not self._opening.version and (meta := stateless_meta(params)) is not None:
            self._views.stateless(meta)
            info = meta.get(CLIENT_META)
        if info is not None and not self._named and isinstance(info, dict) and isinstance(info.get("name"), str):
            self._journal.client = info["name"][:200]

    def _first_use(self, now: float, out: OutputBuilder) -> None:
        """The server may be asked from now on: see what it will be held to, if nothing of it is approved."""
        with suppress(PinwardenError):  # what was approved cannot be read: who uses the server meets that
            self._views.first_use(now, out)

    def _forget(self, params: Any) -> bool:
        """A cancelled request that is still held goes nowhere; nor does the wish to cancel one of ours."""
        number = params.get("requestId") if isinstance(params, dict) else None
        if self._views.is_own(number):
            return True
        if is_id(number) and (asked := self._open.get(number)) is not None:
            self._cancelled.add(number)
            if type(asked) is str:
                self._open[number] = ForwardedRequest(
                    number, CALL, asked
                )  # so that its answer ends both, on the long way
        return self._held.drop(number)

    # Messages of the server

    def _from_server(self, frame: bytes, message: Any, now: float, out: OutputBuilder) -> None:
        method = message.get("method")
        if type(method) is str:
            if "id" in message:
                self._answers.server_request(frame, message, method, out)
                return
            if not method.startswith(_NOTICE):
                reason = "A request without an id is no notification; a client might follow it all the same."
                self._journal.refused("request_without_id", reason, method[:100], "", out)
                return
            if is_ambiguous_server_request(message):
                self._journal.refused("message_doubtful", _DOUBTFUL, method[:100], "", out)
                return
            self._notice(frame, message, method, now, out)
            return
        number = message.get("id")
        if self._views.is_own(number):
            self._own_answer(frame, message, number, now, out)
            return
        asked = self._answered(number)
        if asked is None:
            if number is None and "error" in message and not is_ambiguous_answer(message):
                self._answers.tell_error(frame, message, out)  # about a message that the server could not read
                return
            if (asked := self._answered(coerced_id(number))) is not None:
                self._answer(ServerAnswer(b"", None, asked, now), now, out)
                return
            self._journal.refused("answer_unasked", "The server answered a question that nobody asked.", "", "", out)
            return
        self._answer(ServerAnswer(frame, message, asked, now), now, out)

    def _own_answer(self, frame: bytes, message: Any, number: str, now: float, out: OutputBuilder) -> None:
        """An answer to a request of ours; None for a message that cannot be read."""
        if self._listening.is_it(number):
            self._listening.ended(message, now)
            return
        try:
            known = self._views.answered(frame, message, number, now, out)
        except PinwardenError:
            known = True  # what was approved cannot be read: those who wait are told so, and nothing passes
        if known:
            self._retry(now, out)

    def _notice(self, frame: bytes, message: Any, method: str, now: float, out: OutputBuilder) -> None:
        """Something that the server tells without being asked, or because somebody listens."""
        params = message.get("params")
        if method == PROGRESS:
            self._overdue.alive(now)
        for kind in LIST_CHANGED.get(method, ()):
            self._views.changed(kind, now, out)
        if self._listening.belongs(method, params):
            self._listening.told(method, params, now, out)
        elif method not in TASK_NOTIFICATIONS:
            self._answers.tell(frame, message, method, out)
        else:
            self._tell_of_task(TaskNotification(frame, message, now), now, out)

    def _tell_of_task(self, held: TaskNotification, now: float, out: OutputBuilder) -> None:
        try:
            done = self._answers.pass_on_notice(held, now, out)
        except PinwardenError as err:
            self._journal.refused(err.code, "What the server tells of a task cannot be judged.", held.method, "", out)
            return
        if not done:
            self._held.hold(held, out)

    def _listen(self, now: float, out: OutputBuilder) -> None:
        """See that somebody hears when a list changes."""
        if not self._opening.is_refused:
            self._listening.open_if_due(now, self._client_hears, out)

    def _client_hears(self, wanted: Iterable[str]) -> bool:
        """Whether the client has a subscription open to all of these notices."""
        # A copy: the fast path opens and ends calls without our lock.
        listening = (
            each for each in tuple(self._open.values()) if type(each) is ForwardedRequest and each.method == LISTEN
        )
        return any(set(wanted) <= set(each.use.split()) for each in listening)

    def _answered(self, number: Any) -> ForwardedRequest | None:
        asked = self._open.pop(number, None) if is_id(number) else None
        if self._cancelled and asked is not None:
            self._cancelled.discard(number)
        return ForwardedRequest(number, CALL, asked) if isinstance(asked, str) else asked

    def _answer(self, held: ServerAnswer, now: float, out: OutputBuilder) -> None:
        if self._overdue.dropped(held.number):
            return  # the client got an error in place of it
        try:
            done = self._answers.pass_on(held, now, out)
        except PinwardenError as err:
            call = self._journal.call_id(held.number)
            self._journal.refused(
                err.code, f"The server's answer cannot be judged: {err.message}", held.method, call, out
            )
            text = (
                "pinwarden: the server's answer is refused: it cannot be judged, as readers may differ on what it says"
            )
            data = {
                "pinwarden": {"code": err.code, "call": call}
            }  # what the message says may be the server's own words
            out.to_client.append(error_response(held.number, INTERNAL_ERROR, text, data))
            return
        if not done:
            held.tries += 1
            self._held.hold(held, out)
        elif held.method in ("initialize", "server/discover"):
            self._views.opened(self._opening.facts)
            self._retry(now, out)
            if held.method == "server/discover":
                self._first_use(now, out)

    def _batch(self, message: list[Any], now: float, out: OutputBuilder) -> None:
        """Several messages at once, in a revision that has no such thing: none counts, and who waits is told."""
        for value in message:
            number = value.get("id") if type(value) is dict and "method" not in value else None
            if self._views.is_own(number):
                self._own_answer(b"", None, str(number), now, out)
            elif (asked := self._answered(number)) is not None:
                self._answer(ServerAnswer(b"", None, asked, now), now, out)

    def _unreadable(self, frame: bytes, problem: PinwardenError, now: float) -> SessionOutput:
        """A frame that is no strict JSON: an answer may still be taken apart, noise goes nowhere."""
        from pinwarden.gateway.ambiguity import answered_id, is_noise

        if is_noise(frame):
            return NO_OUTPUT
        out = OutputBuilder()
        with self._lock:
            self.guard.look(now)
            number = answered_id(frame, self._json)
            if self._views.is_own(number):
                self._own_answer(frame, None, str(number), now, out)
                return out.step()
            asked = self._answered(number)
            if asked is None:
                self._journal.refused(problem.code, "The server sent text that is not strict JSON.", "", "", out)
            else:
                self._answer(ServerAnswer(frame, None, asked, now), now, out)
        return out.step()

    def _retry(self, now: float, out: OutputBuilder) -> None:
        """Something that was waited for is known: decide again about everything that is held, in its order."""
        if self._views.server is not None and self._opening.facts is None:
            with suppress(PinwardenError):  # what was approved cannot be read: who uses the server meets that again
                self._opening.learn(self._views.server, out)
        for held in self._held.take():
            if isinstance(held, ClientRequest):
                self._forward(held, now, out)
            elif isinstance(held, ServerAnswer):
                self._answer(held, now, out)
            else:
                self._tell_of_task(held, now, out)

    def _each(self, frame: bytes, message: Any, complaints: list[bytes] | None) -> list[tuple[bytes, Any]]:
        """The messages of a frame: one, or those of a batch where the revision has batches."""
        if type(message) is dict:
            return [(frame, message)]
        if type(message) is list and message and self._opening.version == BATCH_VERSION:
            parts = list(zip(array_elements(frame), message, strict=True))
            if all(type(value) is dict for _, value in parts):
                return parts
        if complaints is not None:
            complaints.append(error_response(None, INVALID_REQUEST, "pinwarden: not a message of this revision of MCP"))
        return []
