"""A server of the older SDK, which knows the handshake alone: ``python old_sdk_server.py PORT CALLS``.

Every call is a line in the file CALLS, so that a test can tell how often one was executed.
"""

from __future__ import annotations

import os
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import uvicorn


def post(letter: str) -> str:
    """Post a letter."""
    with Path(sys.argv[2]).open("a") as calls:
        calls.write(f"{letter}\n")
    return f"posted {letter} by {os.getpid()}"


def greet(name: str) -> str:
    """Greet a person."""
    return f"Hello {name}"


def today() -> str:
    """Today's note."""
    return "nothing"


if __name__ == "__main__":
    sdk: Any = import_module("mcp.server.fastmcp")  # of another environment than that of the tests
    server = sdk.FastMCP("old-sample", instructions="Send letters only.", log_level="ERROR")
    server.tool()(post)
    server.prompt()(greet)
    server.resource("note://today")(today)
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    config = uvicorn.Config(server.streamable_http_app(), log_level="error", timeout_graceful_shutdown=0)
    uvicorn.Server(config).run(sockets=[listener])
