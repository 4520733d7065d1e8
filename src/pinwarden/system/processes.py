"""Processes: end one with everything it started, inspect others, and raise the file limit.

`ProcessTree` ends a server and its descendants. The ``*_pids`` functions read ``/proc`` and return little or nothing on
systems other than Linux. `bounded_task.py` runs a program to its end.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from types import ModuleType

from pinwarden.system.write_guard import is_write_guard

_MAX_DESCENDANTS = 1000
_GUARD_SECONDS = 20.0
"""How long a write guard may take to search the writable folders and rename what its server created."""
_running: set[ProcessTree] = set()
"""Trees that have not ended yet."""


class ProcessTree:
    """A started process and its descendants. The process leads its own group and session."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._is_guard = is_write_guard(process.args)
        self._descendants: dict[int, int] = {}
        self._lock = Lock()
        self._has_ended = False
        _running.add(self)

    def watch(self) -> None:
        """Record the current descendants, to find those that leave the process group later.

        Linux only. A descendant that detaches completely (double fork) is not found; the sandbox ends those too.
        """
        if not hasattr(os, "pidfd_open"):
            return
        pending = [self._process.pid]
        with self._lock:
            while pending and len(self._descendants) < _MAX_DESCENDANTS:
                for child in find_child_pids(pending.pop()):
                    if child not in self._descendants:
                        with suppress(OSError):
                            self._descendants[child] = os.pidfd_open(child)  # stays valid if the pid is reused
                            pending.append(child)

    def end(self, grace: float, *, immediately: bool = False) -> None:
        """Wait for the process to exit, then send SIGTERM, then SIGKILL, each time with its descendants."""
        try:
            if not immediately and not self._wait_for_exit(grace):
                self.watch()
                self._signal_group(signal.SIGTERM)
                self._wait_for_exit(grace)
        finally:
            self.watch()
            if self._is_guard:
                self._signal_group(signal.SIGTERM)
                self._wait_for_exit(_GUARD_SECONDS)
            self._signal_group(getattr(signal, "SIGKILL", signal.SIGTERM))
            self._kill_descendants()
            self._process.wait()
            self._has_ended = True
            _running.discard(self)

    def kill(self) -> None:
        """Kill everything now. Safe from any thread; the owner still calls ``end``.

        A write guard gets SIGTERM: it ends the sandbox and renames what the server created. With SIGKILL it could not,
        and a server can provoke its own end.
        """
        self.watch()
        self._signal_group(signal.SIGTERM if self._is_guard else getattr(signal, "SIGKILL", signal.SIGTERM))

    def _wait_for_exit(self, seconds: float) -> bool:
        if self._process.poll() is not None:
            return True
        with suppress(OSError), _open_pidfd(self._process.pid) as handle:
            # Waits without polling; the standard library polls.
            ending = select.poll()
            ending.register(handle, select.POLLIN)
            ending.poll(seconds * 1000)
            seconds = 0
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return True
        return False

    def _signal_group(self, signal_number: signal.Signals) -> None:
        if self._has_ended:
            return  # the pid may belong to another process now
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(
                    self._process.pid, signal_number
                )  # the group keeps the leader's pid, also after the leader ended
            else:
                self._process.kill()

    def _kill_descendants(self) -> None:
        with self._lock:
            for handle in self._descendants.values():
                with suppress(OSError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                os.close(handle)
            self._descendants.clear()


def kill_all_trees() -> None:
    """Kill all running trees, before this process exits."""
    for tree in tuple(_running):
        tree.kill()


@contextmanager
def _open_pidfd(pid: int) -> Iterator[int]:
    if not hasattr(os, "pidfd_open"):
        raise OSError("pidfd is not supported")
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


_MAX_ANCESTORS = 200
_MAX_PROC_BYTES = 1 << 20  # about the system's own limit for an environment or a command line


def find_child_pids(pid: int) -> list[int]:
    """Return the running children of a process."""
    pids: list[int] = []
    with suppress(OSError, ValueError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            pids += [int(word) for word in children.read_text().split()]
    return pids


def iter_ancestor_pids(pid: int) -> Iterator[int]:
    """Yield the ancestors of a process, without pid 1."""
    for _ in range(_MAX_ANCESTORS):
        pid = _read_parent_pid(pid)
        if pid <= 1:
            return
        yield pid


def read_process_identity(pid: int) -> str:
    """Return the pid and start time of a process, which identify it even if the pid is reused."""
    fields = _read_stat_fields(pid)
    return f"{pid} {fields[19]}" if len(fields) > 19 else f"{pid}"


def read_proc_strings(pid: int, what: str) -> list[bytes]:
    """Return the strings in ``cmdline`` or ``environ`` of a process; empty if it is gone or belongs to another user."""
    try:
        with Path(f"/proc/{pid}/{what}").open("rb") as stream:
            return stream.read(_MAX_PROC_BYTES).split(b"\0")
    except OSError:
        return []


def _read_stat_fields(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _read_parent_pid(pid: int) -> int:
    fields = _read_stat_fields(pid)
    if fields:
        return int(fields[1])
    return os.getppid() if pid == os.getpid() else 0


_MAX_CONNECTIONS = 4096
_OPEN_FILE_TARGET = 16_384
"""Enough for all connections and processes of a gateway. A higher limit would only hide a leak longer."""


def _import_resource() -> ModuleType | None:
    """Return the ``resource`` module, or None where it does not exist."""
    try:
        import resource
    except ImportError:
        return None
    return resource


def limit_connections(wanted: int = _MAX_CONNECTIONS) -> int:
    """Return ``wanted``, but at most half of the files that this process may open."""
    resource = _import_resource()
    if resource is None:
        return wanted
    allowed: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if allowed == resource.RLIM_INFINITY else min(wanted, allowed // 2)


class OpenFileLimit:
    """Raises the limit of open files for this process, but not for programs it starts."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def raise_limit(self) -> None:
        """Raise the soft limit towards the hard limit. Systems set it low for programs that cannot handle more."""
        resource = _import_resource()
        if resource is None:
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _OPEN_FILE_TARGET if hard == resource.RLIM_INFINITY else min(_OPEN_FILE_TARGET, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                self._before = soft, hard

    def restore_for(self, process: int) -> None:
        """Give a started program the original limit, because it may not handle more."""
        resource = _import_resource()
        if resource is not None and self._before is not None and hasattr(resource, "prlimit"):
            with suppress(OSError, ValueError):
                resource.prlimit(process, resource.RLIMIT_NOFILE, self._before)


OPEN_FILE_LIMIT = OpenFileLimit()
