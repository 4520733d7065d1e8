"""Long messages of clients are read beside everything else, one at a time, and one client after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

Then = Callable[["asyncio.Future[Any]"], None]


class Reading:
    """One thread: while a message is read, Python does nothing else, so a second one would only make others wait."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reading")
        self._lines: dict[str, deque[tuple[Callable[[], Any], Then]]] = {}
        """By client. The first is next, and goes to the end then."""
        self.busy = False
        """Whether somebody's message is being read, or is to be."""

    def do(self, client: str, work: Callable[[], Any], then: Then) -> None:
        """Do something for a client when it is its turn, and go on with what comes out of it."""
        self._lines.setdefault(client, deque()).append((work, then))
        if not self.busy:
            self._next()

    def _next(self) -> None:
        client = next(iter(self._lines))
        line = self._lines.pop(client)
        work, then = line.popleft()
        if line:
            self._lines[client] = line
        self.busy = True
        doing = asyncio.get_running_loop().run_in_executor(self._thread, work)
        doing.add_done_callback(partial(self._done, then))

    def _done(self, then: Then, done: asyncio.Future[Any]) -> None:
        self.busy = False
        if self._lines:
            self._next()
        then(done)
