"""Notices what other processes commit to a PostgreSQL database, with LISTEN and NOTIFY.

A writer names the topic of its change with `Transaction.notify`. A reader compares the mark of a topic with the mark
that it saw before its last query: if it is the same, nothing has changed, and the reader need not query.

A notification can get lost without a sign: the network may drop the connection, and a connection pooler may not support
LISTEN. So the feed also notifies itself, and has marks only while its own notifications arrive. Without a mark, readers
query as often as they would without a feed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from math import inf
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from pinwarden.system.transactions import CHANNEL

if TYPE_CHECKING:
    import psycopg

BEAT_SECONDS = 0.5
"""Seconds between the feed's own notifications."""
LIVE_SECONDS = 1.25
"""How long one of its own notifications proves that the feed works. A change takes effect within two seconds, of which
readers need half a second for their next query."""
RETRY_SECONDS = 0.5

REREAD_SECONDS = 10.0
"""How often marks change anyway, because programs that do not notify may write to the database, such as a restore."""

Mark = tuple[int, int, int]
"""The number of connections so far, of notifications about a topic, and of `REREAD_SECONDS`."""


class ChangeFeed:
    """The changes of one database, as `Transaction.notify` names them. Marks may be read from any thread."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect
        self._own_channel = f"{CHANNEL}_{os.urandom(8).hex()}"
        self._counts: dict[str, int] = {}
        """The number of notifications, for each topic that a reader asked for."""
        self._connections = 0
        self._confirmed = -inf
        """When the feed last received a notification of its own."""
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="changes", daemon=True)

    def start(self) -> None:
        """Start the thread. Marks are available as soon as the feed has proved that it works."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        self._thread.join(2 * BEAT_SECONDS)

    def read_mark(self, topic: str) -> Mark | None:
        """Return a value that differs after every change; None if the feed does not work now.

        Read the mark before the query whose result it stands for. After a new connection all marks differ, because
        changes may have been missed.
        """
        if monotonic() - self._confirmed > LIVE_SECONDS:
            return None
        return self._connections, self._counts.setdefault(topic, 0), int(monotonic() // REREAD_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            with suppress(Exception):  # whatever fails: without marks, readers query by themselves
                self._listen()
            self._confirmed = -inf
            self._stopped.wait(RETRY_SECONDS)

    def _listen(self) -> None:
        with self._connect() as connection:
            connection.execute(f'LISTEN "{CHANNEL}"'.encode())
            connection.execute(f'LISTEN "{self._own_channel}"'.encode())
            self._connections += 1
            while not self._stopped.is_set():
                sent = monotonic()
                connection.execute("SELECT pg_notify(%s, '')", (self._own_channel,))
                for notification in connection.notifies(timeout=BEAT_SECONDS):
                    if notification.channel == self._own_channel:
                        self._confirmed = sent
                    elif notification.payload in self._counts:
                        self._counts[notification.payload] += 1
