"""Connections until they are secured. They count as any other, and can be closed for another one.

A loop that secures connections by itself tells nobody of those that never finish, so that is not left to it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinwarden.gateway.http.connection import Connections

_AGAIN_SECONDS = 0.1  # after a connection that could not be taken, as when no more files can be opened


class Handshake:
    """A client that has not said yet what it wants."""

    def __init__(self, taken: socket.socket) -> None:
        self._taken = taken

    def abort(self) -> None:
        """End now: the loop, which has the socket, finds it closed."""
        with suppress(OSError):
            self._taken.shutdown(socket.SHUT_RDWR)


class SecureServer:
    """Listens, and hands on the connections that are secured."""

    def __init__(self, connections: Connections, tls: ssl.SSLContext, sockets: list[socket.socket]) -> None:
        self.sockets = sockets
        self._connections = connections
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._shaking: set[asyncio.Task[None]] = set()
        self._accepting = [self._listen(each) for each in sockets]

    def close(self) -> None:
        """Take no more. What is being secured goes on."""
        for task in self._accepting:
            task.cancel()

    def _listen(self, listener: socket.socket) -> asyncio.Task[None]:
        task = self._loop.create_task(self._accept(listener))
        # Not before the task has ended: until then the loop waits for this descriptor.
        task.add_done_callback(lambda _: listener.close())
        return task

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                taken, _ = await self._loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            shake = Handshake(taken)
            if self._connections.enter(shake):
                task = self._loop.create_task(self._shake(shake, taken))
                self._shaking.add(task)
                task.add_done_callback(self._shaking.discard)
            else:
                self._connections.refused += 1
                taken.close()  # without a secret there is nothing that it could be told
            await asyncio.sleep(0)  # whoever connects again and again is not the only one

    async def _shake(self, shake: Handshake, taken: socket.socket) -> None:
        connection = self._connections()
        connection.shake = shake
        try:
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                lambda: connection, taken, ssl=self._tls, ssl_handshake_timeout=self._connections.limits.head_seconds
            )
        except OSError:  # it hung up, took too long, or speaks something else
            taken.close()
        finally:
            self._connections.leave(shake)


async def secure_server(
    connections: Connections, tls: ssl.SSLContext, host: str, port: int, backlog: int
) -> SecureServer:
    """Listen at every address of a host, as the loop does where nothing is secured."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            made = socket.create_server(address, family=family, backlog=backlog)
            made.setblocking(False)
            sockets.append(made)
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return SecureServer(connections, tls, sockets)
