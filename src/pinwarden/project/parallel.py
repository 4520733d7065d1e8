"""The same work for several servers at once, so that their network waits overlap.

Results are handed over in the order of the servers, whichever finishes first, so that reports and locks do not depend
on the network.
"""

from __future__ import annotations

import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

if TYPE_CHECKING:
    from pinwarden.project.fetch_context import FetchContext

MAX_SERVERS = 10
"""How many servers are worked on at once. Each may run a package resolver, which needs about 100 MB."""
_ABORT_SECONDS = 0.2

Result = TypeVar("Result")


class RunningServer(Record):
    """A server that is being worked on."""

    name: str
    started: float
    """When the work began, on the monotonic clock."""


class ServerProgress(Record):
    """Which servers are being worked on, and how many are finished."""

    running: tuple[RunningServer, ...]
    """The one that started first comes first."""
    done: int
    total: int
    finished: tuple[str, float] | None = None
    """The server that has just been finished, and the seconds that it took."""


ProgressCallback = Callable[[ServerProgress], None]
"""Called from several threads, one at a time."""


def run_for_servers(
    names: Sequence[str],
    work: Callable[[int], Result],
    finish: Callable[[int, Result | PinwardenError], None],
    *,
    context: FetchContext,
    on_progress: ProgressCallback | None = None,
) -> None:
    """Call ``work(index)`` for every server on threads, and ``finish(index, result)`` on this thread, in order.

    ``finish`` gets the error if ``work`` raises a `PinwardenError`; the other servers are not affected. On Ctrl-C the
    network and the programs of unfinished servers are stopped, ``finish`` is called for the finished ones, and
    KeyboardInterrupt is raised. A call of ``finish`` that was interrupted is repeated.
    """
    if not names:
        return
    sysconfig.get_config_vars()  # its first call is not safe on threads: another thread sees half of the variables
    tracker: _Tracker[Result] = _Tracker(names, on_progress)
    pool = ThreadPoolExecutor(min(len(names), MAX_SERVERS), thread_name_prefix="server")
    futures = [pool.submit(tracker.run, index, work) for index in range(len(names))]
    next_index = 0
    try:
        for index, future in enumerate(futures):
            next_index = index
            finish(index, future.result())
            next_index = index + 1
    except BaseException as err:
        finished = [index for index in range(next_index, len(futures)) if index in tracker.results]
        _abort(futures, context)
        if isinstance(err, KeyboardInterrupt):
            for index in finished:
                finish(index, tracker.results[index])
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Tracker(Generic[Result]):
    """Runs the work of one server at a time per thread, and reports progress."""

    def __init__(self, names: Sequence[str], on_progress: ProgressCallback | None) -> None:
        self._names = names
        self._on_progress = on_progress
        self._lock = Lock()
        self._running: dict[int, RunningServer] = {}
        self._left = Counter(names)
        self.results: dict[int, Result | PinwardenError] = {}
        """By index, filled before the progress says that a server is finished, so that Ctrl-C loses no such server."""

    def run(self, index: int, work: Callable[[int], Result]) -> Result | PinwardenError:
        started = time.monotonic()
        with self._lock:
            self._running[index] = RunningServer(name=self._names[index], started=started)
            self._report(None)
        try:
            self.results[index] = work(index)
        except PinwardenError as err:
            self.results[index] = err
        finally:
            with self._lock:
                del self._running[index]
                self._left[self._names[index]] -= 1
                self._report((self._names[index], time.monotonic() - started))
        return self.results[index]

    def _report(self, finished: tuple[str, float] | None) -> None:
        if self._on_progress is not None:
            running = tuple(self._running.values())
            # A server that several clients have is several entries of the lock, and counts once.
            total = len(self._left)
            done = sum(left == 0 for left in self._left.values())
            self._on_progress(ServerProgress(running=running, done=done, total=total, finished=finished))


def _abort(futures: Sequence[Future[Result]], context: FetchContext) -> None:
    """Stop the network and the programs of all unfinished servers, and wait for their threads."""
    from pinwarden.system.processes import kill_all_trees

    context.fetcher.abort()
    for future in futures:
        future.cancel()
    while not all(future.done() for future in futures):
        kill_all_trees()  # repeatedly: a thread may have been about to start a program
        wait(futures, _ABORT_SECONDS)
