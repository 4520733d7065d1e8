"""Ending a process together with everything it started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from pinwarden.system.process_facts import children_of
from pinwarden.system.write_guard import is_write_guard

_MAX_DESCENDANTS = 1000
_SWEEP_SECONDS = 20.0
"""How long a write guard may take to rename what its server created; it looks through the writable folders."""
_running: set[ProcessTree] = set()
"""Those that did not end yet."""


class ProcessTree:
    """A started process and its descendants. The process leads its own group and session."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._is_guard = is_write_guard(process.args)
        self._strays: dict[int, int] = {}
        self._lock = Lock()
        self._gone = False
        _running.add(self)

    def watch(self) -> None:
        """Remember descendants as they are now, for those that leave the group of their parent.

        Linux only. A descendant that detaches itself completely (a double fork) is not found; the sandbox ends
        those too.
        """
        if not hasattr(os, "pidfd_open"):
            return
        pending = [self._process.pid]
        with self._lock:
            while pending and len(self._strays) < _MAX_DESCENDANTS:
                for child in children_of(pending.pop()):
                    if child not in self._strays:
                        with suppress(OSError):
                            self._strays[child] = os.pidfd_open(child)  # still this process if its number is reused
                            pending.append(child)

    def end(self, grace: float, *, at_once: bool = False) -> None:
        """Wait for the process to end by itself, then ask it to, then make it; nothing of it stays."""
        try:
            if not at_once and not self._ended(grace):
                self.watch()
                self._signal_group(signal.SIGTERM)
                self._ended(grace)
        finally:
            self.watch()
            if self._is_guard:
                self._signal_group(signal.SIGTERM)
                self._ended(_SWEEP_SECONDS)
            self._signal_group(getattr(signal, "SIGKILL", signal.SIGTERM))
            self._kill_strays()
            self._process.wait()
            self._gone = True
            _running.discard(self)

    def kill(self) -> None:
        """End everything now. Safe from any thread; the owner still calls ``end``.

        A write guard ends the whole sandbox on SIGTERM, and then renames what the server created. SIGKILL would keep
        it from that, and a server can provoke its own end.
        """
        self.watch()
        self._signal_group(signal.SIGTERM if self._is_guard else getattr(signal, "SIGKILL", signal.SIGTERM))

    def _ended(self, seconds: float) -> bool:
        if self._process.poll() is not None:
            return True
        with suppress(OSError), _handle_of(self._process.pid) as handle:
            # Waits without polling; without such a handle, the standard library looks again and again.
            ending = select.poll()
            ending.register(handle, select.POLLIN)
            ending.poll(seconds * 1000)
            seconds = 0
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return True
        return False

    def _signal_group(self, number: signal.Signals) -> None:
        if self._gone:
            return  # by now its number may belong to somebody else
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, number)  # the leader's number is the group's, also after it ended
            else:
                self._process.kill()

    def _kill_strays(self) -> None:
        with self._lock:
            for handle in self._strays.values():
                with suppress(OSError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                os.close(handle)
            self._strays.clear()


def kill_all_trees() -> None:
    """End everything that was started and has not ended, when this process is about to end itself."""
    for tree in tuple(_running):
        tree.kill()


@contextmanager
def _handle_of(number: int) -> Iterator[int]:
    if not hasattr(os, "pidfd_open"):
        raise OSError("no handles of processes here")
    handle = os.pidfd_open(number)
    try:
        yield handle
    finally:
        os.close(handle)
