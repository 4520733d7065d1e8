"""Serving an ASGI application on a free port of loopback, which is told on standard output."""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn


def serve(app: Any) -> None:
    # Bound before it is told, so that a client may connect at once.
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"port {listener.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)).run(sockets=[listener])
