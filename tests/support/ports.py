"""Ports for programs that want to be told one, and cannot take any that is free and say which."""

from __future__ import annotations

import socket


def reserved_port() -> int:
    """A port of loopback that the system gives to nobody else for a minute, but to who asks for it by its number.

    A port that was merely free a moment ago may be another program's by the time the server has started. The end that
    hangs up first keeps its port until late packets are gone (TIME_WAIT), and a server may listen on it meanwhile.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            listener.accept()[0].close()
            assert client.recv(1) == b""
    return port
