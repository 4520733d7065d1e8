"""A registry on a socket."""

from __future__ import annotations

import signal
import socket

import uvicorn

from pinwarden.core.errors import PinwardenError
from pinwarden.registry.http.app import RegistryApp
from pinwarden.registry.http.connections import MOST_HEAD, bounded_protocol
from pinwarden.registry.registry import Registry

_BACKLOG = 1024
_KEEP_ALIVE_SECONDS = 15


def listening_socket(host: str, port: int) -> tuple[socket.socket, str]:
    """A socket that listens, and its address. It is there before anything is said about it."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.create_server(found[4][:2], family=found[0], backlog=_BACKLOG)
    except (OSError, OverflowError) as err:
        raise PinwardenError("USAGE", f"{host[:80]!a} port {port} cannot be listened on: {err}") from err
    shown = f"[{host}]" if ":" in host else host
    return made, f"http://{shown}:{made.getsockname()[1]}/"


def serve(registry: Registry, listening: socket.socket) -> None:
    """Answer until the process is asked to end; requests that are being answered are finished first."""
    config = uvicorn.Config(
        RegistryApp(registry),
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=20,
        http=bounded_protocol(),
        h11_max_incomplete_event_size=MOST_HEAD,
    )
    # uvicorn raises the signal that ended it once more, for the handler that was there before: with the usual one the
    # process would be gone before the registry is closed.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda _number, _frame: None)
    uvicorn.Server(config).run(sockets=[listening])
