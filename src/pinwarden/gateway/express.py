"""The loops of the stdio gateway: a plain call and its answer go through here, and nothing else is done about them.

On one core everything that is done between reading and writing is time that the client waits, and code that was not run
for some microseconds is slow to run again. So each loop does what a call needs in as few steps as there are:

1. Read. A line that is short is read strictly by orjson: a text that orjson writes exactly as it came is one complete
   line (no raw line end can stand in it), has no repeated member (it would be missing), no number that two readers
   could take for different ones (it would be written otherwise), and no lone surrogate (orjson takes none). Its length
   bounds its depth. Anything else is read by `strict_json`.
2. Ask `PlainCalls`. Whatever is not plain goes to the session, in its place among the others.
3. Record, then write. A call whose record cannot be written goes nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.plain import ARGUMENTS, CALL, COMPLETE, CONTENT, PARAMS, RESULT
from pinwarden.gateway.resource_links import LINKED

if TYPE_CHECKING:
    from pinwarden.documents.gateway_event import Fact
    from pinwarden.gateway.outlet import Outlet
    from pinwarden.gateway.session import Session
    from pinwarden.gateway.step import Step
    from pinwarden.store.audit import AuditLog

SHORT = 2 * strict_json.JITER_DEPTH
"""Bytes of a line that is read here: a value in so few is no deeper than the strict reader allows."""
_LITTLE = SHORT - 1  # bytes to read while short lines come one by one: so few that Python has room for them at hand
_CHUNK = 1 << 16  # while more is on its way at once
_LINE_END = 1024  # orjson.OPT_APPEND_NEWLINE


class Express:
    """What both loops know."""

    def __init__(self, session: Session, log: AuditLog | None, to_server: Outlet, to_client: Outlet) -> None:
        self._session = session
        self._plain = session.plain
        self._log = log
        self._to_server = to_server
        self._to_client = to_client
        self._json = session.guard.limits.json
        self._max_frame = session.guard.limits.max_frame
        self._loads: Any = None
        self._dumps: Any = None
        self.answering = False
        """Whether something of the server's is looked at, so that what waited for it may be about to be written."""

    def prepare(self) -> None:
        """Load the fast reader. It takes longer to load than a server may take to start, so it comes after that."""
        if self._log is None:
            return
        from orjson import dumps, loads

        self._dumps, self._loads = dumps, loads

    def from_client(self, descriptor: int, send: Callable[[Step], None]) -> None:
        """Relay what the client says until it ends; ``send`` takes what is not plain."""
        lines, plain, guard = Lines(self._max_frame), self._plain, self._plain.guard
        open_requests, most = plain.open, plain.most
        note: Any = None if self._log is None else self._log.note
        outlet, read, write, size = self._to_server, os.read, os.write, _CHUNK
        lock, out = outlet.lock, outlet.descriptor
        loads, dumps, quick = self._loads, self._dumps, False
        while chunk := read(descriptor, size):
            if quick:
                try:
                    message = loads(chunk)
                    # What `PlainCalls.form` does, step by step.
                    if (
                        dumps(message, None, _LINE_END) == chunk
                        and message["method"] == CALL
                        and len(message) == 4
                        and "jsonrpc" in message
                        and plain.stamp == guard.stamp
                        and monotonic() < plain.until
                        and plain.left > 0
                    ):
                        number, params = message["id"], message["params"]
                        name = params["name"]
                        form = plain.forms[name]
                        if (
                            type(number) is int
                            and number not in open_requests
                            and len(open_requests) < most
                            and ((len(params) == 2 and ARGUMENTS in params) or params.keys() <= PARAMS)
                        ):
                            note(form, number)
                            plain.left -= 1
                            open_requests[number] = name
                            with lock:
                                if outlet.closed:
                                    raise BrokenPipeError
                                if (written := write(out, chunk)) != len(chunk):
                                    outlet.finish(chunk, written)
                            continue
                except (ValueError, KeyError, TypeError, AttributeError):
                    pass  # several lines, part of one, no JSON, or no call of a tool
                except PinwardenError:
                    pass  # the long way finds the log closed, too, and says so
                except OSError:
                    outlet.closed = True
                    outlet.unsent((chunk,))
                    continue
            frames = lines.add(chunk)
            self._calls(frames, send)
            loads, dumps = self._loads, self._dumps
            quick = loads is not None and len(frames) == 1 and len(chunk) < SHORT and lines.empty
            size = _LITTLE if quick else _CHUNK
        if not lines.empty and self._read(last := lines.rest()) is not None:
            self._calls((last,), send)  # complete but for its line end

    def from_server(self, descriptor: int, send: Callable[[Step], None], settled: Callable[[], None]) -> None:
        """Relay what the server says until it ends; ``settled`` is called whenever something was not plain."""
        lines, plain, guard = Lines(self._max_frame), self._plain, self._plain.guard
        open_requests = plain.open
        outlet, read, write, size = self._to_client, os.read, os.write, _CHUNK
        lock, out = outlet.lock, outlet.descriptor
        loads, dumps, quick = self._loads, self._dumps, False
        while chunk := read(descriptor, size):
            if quick:
                try:
                    message = loads(chunk)
                    if dumps(message, None, _LINE_END) == chunk:
                        # What `PlainCalls.answers` does, step by step.
                        number, result = message["id"], message["result"]
                        if (
                            type(number) is int
                            and type(open_requests[number]) is str
                            and type(result) is dict
                            and (
                                (len(result) == 1 and CONTENT in result)
                                or (result.keys() <= RESULT and result.get("resultType", COMPLETE) == COMPLETE)
                            )
                            and len(message) == 3
                            and "jsonrpc" in message
                            and plain.stamp == guard.stamp
                            and plain.relays
                            and LINKED not in chunk
                        ):
                            del open_requests[number]
                            with lock:
                                if not outlet.closed and (written := write(out, chunk)) != len(chunk):
                                    outlet.finish(chunk, written)
                            continue
                except (ValueError, KeyError, TypeError):
                    pass
                except OSError:
                    outlet.closed = True  # who reads from the client meets its end
                    continue
            frames = lines.add(chunk)
            self.answering = True
            self._answers(frames, send)
            self.answering = False
            settled()
            loads, dumps = self._loads, self._dumps
            quick = loads is not None and len(frames) == 1 and len(chunk) < SHORT and lines.empty
            size = _LITTLE if quick else _CHUNK

    def _calls(self, frames: Sequence[bytes], send: Callable[[Step], None]) -> None:
        """Several lines at once: one record and one write for all that are plain between two that are not."""
        now = monotonic()
        passed: list[bytes] = []
        notes: list[tuple[Fact, int]] = []
        for frame in frames:
            message = self._read(frame)
            form = None if self._log is None else self._plain.form(message, now)
            if form is not None:
                passed.append(frame)
                notes.append((form, message["id"]))
                continue
            self._pass_on(passed, notes, send)
            passed, notes = [], []
            send(self._session.client_frame(frame, now, message))
        self._pass_on(passed, notes, send)

    def _pass_on(
        self, passed: Sequence[bytes], notes: Sequence[tuple[Fact, int]], send: Callable[[Step], None]
    ) -> None:
        if not passed or self._log is None:
            return
        try:
            self._log.note_all(notes)
        except PinwardenError:
            for frame, (_, number) in zip(passed, notes, strict=True):
                self._plain.take_back(number)
                send(self._session.client_frame(frame, monotonic()))
            return
        self._to_server.write(passed)

    def _answers(self, frames: Sequence[bytes], send: Callable[[Step], None]) -> None:
        now = monotonic()
        passed: list[bytes] = []
        for frame in frames:
            message = self._read(frame)
            if self._plain.answers(frame, message):
                passed.append(frame)
                continue
            if passed:
                self._to_client.write(passed)
                passed = []
            send(self._session.server_frame(frame, now, message))
        if passed:
            self._to_client.write(passed)

    def _read(self, frame: bytes) -> Any:
        """The value of a line; None if it is not strict JSON, which the session meets again and answers."""
        if self._loads is not None and len(frame) < SHORT:
            try:
                message = self._loads(frame)
                if self._dumps(message) == frame:
                    return message
            except ValueError:
                return None
        try:
            return strict_json.parse(frame, self._json)
        except PinwardenError:
            return None


class Lines:
    """Cuts bytes into lines; empty ones are none."""

    def __init__(self, most: int) -> None:
        self.empty = True
        """Whether no line is begun."""
        self._most = most
        self._begun = bytearray()  # and no list of parts: tiny ones would take forty times what is in them

    def add(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete now."""
        *ended, rest = chunk.split(b"\n")
        if ended and self._begun:
            self._begun += ended[0]
            ended[0] = bytes(self._begun)
            self._begun = bytearray()
        if rest:
            self._begun += rest
            if len(self._begun) > self._most:
                raise PinwardenError("PROBE_LIMIT", f"a message has more than {self._most} bytes")
        self.empty = not self._begun
        return [line for line in ended if line and not line.isspace()]

    def rest(self) -> bytes:
        """The line that is begun, when no end of it will come."""
        return bytes(self._begun)
