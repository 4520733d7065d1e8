"""The gateway between a client's standard streams and a server that it starts: a line is a message.

Two threads read, one from each side, and write what the session lets through to the other side: nothing is nearer to
what a pipe costs. Whatever goes back to the side that it came from (a refusal, a list request of our own) is written by
a thread of that side's own, so that neither reader ever waits for the side that it reads from. So is what the clock
brings, so that time passes even while both sides wait.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.outlet import Outlet
from pinwarden.gateway.stdio_loops import StdioLoops

if TYPE_CHECKING:
    from pinwarden.gateway.event import Fact
    from pinwarden.gateway.recorder import Recorder
    from pinwarden.gateway.session import Session
    from pinwarden.gateway.step import Step
    from pinwarden.system.processes import ProcessTree

_TICK_SECONDS = 1.0
_PREPARE_SECONDS = 0.2
_LAST_WORDS_SECONDS = 2.0  # how long what a server started may go on to write where it wrote
_BOTH = ("client", "server")


class Relay:
    """One client, one server process, one session."""

    def __init__(
        self, session: Session, recorder: Recorder, process: subprocess.Popen[bytes], say: Callable[[str], None]
    ) -> None:
        from pinwarden.system.processes import ProcessTree

        if process.stdin is None or process.stdout is None:
            raise PinwardenError("PROGRAM_UNKNOWN", "the server has no standard streams")
        self._session = session
        self._recorder = recorder
        self._process = process
        self._tree: ProcessTree = ProcessTree(process)
        self._say = say
        self._stdout = process.stdout.fileno()
        most = session.guard.limits.max_unwritten
        unread = "{} does not read what it is sent"
        full = partial(self._stop, unread.format("the server"))
        self._to_server = Outlet(os.dup(process.stdin.fileno()), most, full, self._not_taken)
        process.stdin.close()
        self._to_client = Outlet(os.dup(1), most, partial(self._stop, unread.format("the client")))
        self._loops = StdioLoops(session, recorder.log, self._to_server, self._to_client)
        self.ending = ""
        """Why the server was ended, if it did not end by itself."""
        self._deaf = False
        self._ended = Event()
        self._settled = Event()
        self._client_gone = False
        self._ticking = False
        self._grace = 5.0

    def run(self) -> int:
        """Relay until the server ends, which it does when the client goes. Returns the server's exit code."""
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._told_to_end)
        for work in (self._from_server, self._from_client, self._keep_time):
            Thread(target=work, name=work.__name__, daemon=True).start()
        try:
            self._ended.wait()
        finally:
            self._ended.set()
            self._send(self._session.server_gone(monotonic()), later_to=_BOTH)
            self._tree.end(self._grace if self._process.poll() is None else 0)
            self._to_client.finished(self._session.guard.limits.list_seconds)
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def _from_client(self) -> None:
        try:
            with suppress(OSError):
                self._loops.from_client(0, partial(self._send, later_to=("client",)))
        except PinwardenError as err:
            self._say(f"the client's connection is closed: {err.message}")
        finally:
            self._client_gone = True
            self.ending = self.ending or "the client left"
            self._close_if_settled()
            if not self._settled.wait(self._session.guard.limits.list_seconds):
                self._to_server.close_later()
            if not self._ended.wait(self._grace):
                self._tree.end(self._grace)

    def _close_if_client_gone(self) -> None:
        if self._client_gone:
            self._close_if_settled()

    def _close_if_settled(self) -> None:
        """Tell the server that the client is gone, once it has everything that the client sent.

        What is held no longer may not be written yet: whoever is at it comes here when it is.
        """
        if not self._session.holds and not self._loops.answering and not self._ticking:
            self._to_server.close_later()
            self._settled.set()

    def _from_server(self) -> None:
        try:
            with suppress(OSError):
                send = partial(self._send, later_to=("server",))
                self._loops.from_server(self._stdout, send, self._close_if_client_gone)
        except PinwardenError as err:
            self._stop(err.message)
        finally:
            self._ended.set()

    def _stop(self, why: str) -> None:
        """End the server now. Who reads from it meets its end, and everybody who waits is told."""
        if why != self.ending:
            self.ending = why
            self._say(f"the server is stopped: {why}")
            self._tree.kill()

    def _not_taken(self, frames: Sequence[bytes]) -> None:
        """The server closed its input. It may still answer what it has, so its output is read as ever."""
        if not self._deaf and self._process.poll() is None:
            self._deaf = True
            self._say("the server takes no more messages")
        self._send(self._session.not_taken(frames), later_to=_BOTH)

    def _send(self, step: Step, later_to: Sequence[str]) -> None:
        """Record, then write. What cannot be recorded does not pass."""
        to_client, to_server = step.to_client, step.to_server
        if step.facts or step.sightings:
            try:
                if step.durable:
                    self._tell(step.facts)
                self._recorder.record(step)
            except PinwardenError as err:
                self._say(f"nothing passes that cannot be recorded: {err.message}")
                instead = self._session.take_back(step, err)
                to_client, to_server = instead.to_client, instead.to_server
        if to_server:
            if "server" in later_to:
                self._to_server.write_later(to_server)
            else:
                self._to_server.write(to_server)
        if to_client:
            if "client" in later_to:
                self._to_client.write_later(to_client)
            else:
                self._to_client.write(to_client)

    def _tell(self, facts: Sequence[Fact]) -> None:
        """Say on standard error what a person should know."""
        from pinwarden.core.visible import show_invisible

        for fact in facts:
            if fact.kind == "trusted":
                self._say(f"{fact.reason} From now on, changes are withheld until you review them: pinwarden review")
            elif fact.kind == "blocked":
                what = show_invisible(
                    f"{fact.item_kind} {fact.item[:120]!r}" if fact.item else fact.method or "a message"
                )
                self._say(f"blocked {what}: {fact.reason} ({fact.code})")

    def _keep_time(self) -> None:
        if not self._ended.wait(_PREPARE_SECONDS):
            self._loops.prepare()
            gc.freeze()  # what is there now stays, so nobody has to look through it again
        while not self._ended.wait(_TICK_SECONDS):
            self._ticking = True
            self._send(self._session.tick(monotonic()), later_to=_BOTH)
            self._ticking = False
            self._close_if_client_gone()
            if self._process.poll() is not None:
                self._see_to_the_end()

    def _see_to_the_end(self) -> None:
        """The server ended. Something that it started may hold its output open, and then nobody else would notice."""
        if not self._ended.wait(_LAST_WORDS_SECONDS):
            self._tree.kill()  # what it wrote before is still read
            if not self._ended.wait(_LAST_WORDS_SECONDS) and self._all_is_read():
                self._ended.set()  # whoever holds it left the group, too

    def _all_is_read(self) -> bool:
        at_work = self._loops.answering or self._to_client.lock.locked()
        return not at_work and not select.select((self._stdout,), (), (), 0)[0]

    def _told_to_end(self, *_: object) -> None:
        """Pass the wish on, and see that it is followed; the reader of the server meets its end."""
        self.ending = self.ending or "the gateway was told to end"
        with suppress(OSError, AttributeError):
            os.killpg(self._process.pid, signal.SIGTERM)
        Thread(target=self._tree.end, args=(self._grace,), name="ending", daemon=True).start()
