"""Published servers and clients, to be connected through the gateway.

Every server runs behind a tap (`tests.servers.tap`) that records its messages, so that tests do not depend on what a
client shows.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gateway.http_gateway import TOKEN
from tests.servers import tap
from tests.support.needs import missing

ROOT = Path(__file__).parent.parent.parent
MODULES = ROOT / "tests/npm/node_modules/@modelcontextprotocol"
INSPECTOR = ROOT / "tests/inspector/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
OLD_PYTHON = ROOT / ".venv-old-client/bin/python"
SERVERS = Path(__file__).parent.parent / "servers"
META_VERSION = "io.modelcontextprotocol/protocolVersion"
HOSTS = ("login.example.com", "modelcontextprotocol.io")
"""Hosts of the URLs to which the servers send the user."""
OWN = "pinwarden/"
"""Prefix of the ids of the gateway's own requests."""


class PublishedServer:
    """A published server, and one call whose result identifies it."""

    def __init__(self, name: str, command: list[str], tool: str, arguments: dict[str, Any], says: str) -> None:
        self.name = name
        self.bare = command
        self.tool = tool
        self.arguments = arguments
        self.says = says
        self.modern = name in ("git", "fastmcp")
        """Whether it supports the revision without a handshake."""
        self.record = Path()

    def tapped(self, record: Path) -> PublishedServer:
        """Record the server's messages under this path."""
        self.record = record
        return self

    @property
    def command(self) -> list[str]:
        return tapped(self.record, self.bare)

    def mark(self) -> tuple[int, int]:
        """Return the current end of both recordings."""
        return size(self.record, "up"), size(self.record, "down")

    def received(self, since: int = 0) -> list[Any]:
        """Return the messages that the server received."""
        return [json.loads(line) for line in lines(self.record, "up", since)]

    def sent(self, since: int = 0) -> list[Any]:
        """Return the messages that the server sent."""
        return [json.loads(line) for line in lines(self.record, "down", since)]


def tapped(record: Path, command: list[str]) -> list[str]:
    """Return a command line that runs a command behind a tap."""
    return [sys.executable, str(Path(tap.__file__)), str(record), *command]


def size(record: Path, way: str) -> int:
    """Return the size of a tap's recording, without an unfinished message."""
    return len(_whole(Path(f"{record}.{way}"), 0))


def lines(record: Path, way: str, since: int = 0) -> list[bytes]:
    """Return the messages that a tap recorded."""
    return _whole(Path(f"{record}.{way}"), since).splitlines()


def _whole(path: Path, since: int) -> bytes:
    """Read a recording without a last message that is still being written."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(since)
        data = file.read()
    return data[: data.rfind(b"\n") + 1]


def published_servers(folder: Path) -> dict[str, PublishedServer]:
    """Return the four servers, with a folder that they may read."""
    if not MODULES.exists():
        missing("tests/npm/node_modules", "tools/npm-packages.sh")
    files = folder / "files"
    files.mkdir()
    (files / "hello.txt").write_text("hello from a file")
    subprocess.run(["git", "init", "-q", str(files)], check=True)
    git = str(Path(sys.executable).parent / "mcp-server-git")
    everything = ["node", str(MODULES / "server-everything/dist/index.js"), "stdio"]
    filesystem = ["node", str(MODULES / "server-filesystem/dist/index.js"), str(files)]
    own = [sys.executable, str(SERVERS / "fastmcp_server.py"), "stdio"]
    servers = (
        PublishedServer("everything", everything, "echo", {"message": "hi"}, "Echo: hi"),
        PublishedServer(
            "filesystem", filesystem, "read_text_file", {"path": str(files / "hello.txt")}, "hello from a file"
        ),
        PublishedServer("git", [git, "--repository", str(files)], "git_status", {"repo_path": str(files)}, "hello.txt"),
        PublishedServer("fastmcp", own, "add", {"a": 40}, "42"),
    )
    return {server.name: server.tapped(folder / server.name) for server in servers}


# Clients. Each lists the tools of a server and calls one; a target is a URL or a command.

Target = str | list[str]
Seen = tuple[list[str], str]
See = Callable[[PublishedServer, Target, str, Path], Seen]


def by_sdk(real: PublishedServer, target: Target, mode: str, home: Path) -> Seen:
    """The official SDK 2.x."""

    async def see() -> Seen:
        import httpx2
        from mcp.client import Client
        from mcp.client.stdio import StdioServerParameters
        from mcp.client.streamable_http import streamable_http_client

        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
            if isinstance(target, str):
                place: Any = streamable_http_client(target, http_client=http)
            else:
                place = StdioServerParameters(command=target[0], args=target[1:], env=_environment(home))
            async with Client(place, mode=mode) as client:
                tools = await client.list_tools()
                called = await client.call_tool(real.tool, real.arguments)
                return sorted(tool.name for tool in tools.tools), called.content[0].text  # type: ignore[union-attr]

    return asyncio.run(see())


def by_fastmcp(real: PublishedServer, target: Target, mode: str, home: Path) -> Seen:
    """The client of fastmcp 4.x."""

    async def see() -> Seen:
        from fastmcp import Client
        from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

        transport: Any
        if isinstance(target, str):
            transport = StreamableHttpTransport(target, headers={"Authorization": f"Bearer {TOKEN}"})
        else:
            transport = StdioTransport(target[0], target[1:], env=_environment(home), keep_alive=False)
        async with Client(transport, mode=mode) as client:
            tools = await client.list_tools()
            called = await client.call_tool(real.tool, real.arguments)
            return sorted(tool.name for tool in tools), called.content[0].text

    return asyncio.run(see())


def by_old_sdk(real: PublishedServer, target: Target, mode: str, home: Path) -> Seen:
    """The official SDK 1.x, which supports only the handshake."""
    if not OLD_PYTHON.exists():
        missing(str(OLD_PYTHON), "make .venv-old-client/.ready")
    place = ["http", target, TOKEN] if isinstance(target, str) else ["stdio", target]
    words = [str(OLD_PYTHON), str(Path(__file__).with_name("old_client.py"))]
    [seen] = _said_by([*words, json.dumps([[*place, real.tool, real.arguments]])], home)
    assert (mode, seen["version"]) == ("legacy", "2025-11-25")
    return seen["tools"], seen["text"]


def by_inspector(real: PublishedServer, target: Target, mode: str, home: Path) -> Seen:
    """The command line of MCP Inspector."""
    if not INSPECTOR.exists():
        missing(str(INSPECTOR), "tools/npm-packages.sh")
    era = ["--protocol-era", mode]
    if isinstance(target, str):
        place = [target, "--transport", "http", "--header", f"Authorization: Bearer {TOKEN}", *era]
    else:
        config = home / "servers.json"
        server = {"command": target[0], "args": target[1:], "env": _environment(home)}
        config.write_text(json.dumps({"mcpServers": {real.name: server}}))
        place = ["--config", str(config), "--server", real.name, *era]
    inspect = ["node", str(INSPECTOR), "--cli", *place, "--method"]
    listed = _said_by([*inspect, "tools/list"], home)["tools"]
    arguments = ["--tool-args-json", json.dumps(real.arguments)]
    called = _said_by([*inspect, "tools/call", "--tool-name", real.tool, *arguments], home)
    return sorted(tool["name"] for tool in listed), called["content"][0]["text"]


CLIENTS: dict[str, See] = {"sdk2": by_sdk, "sdk1": by_old_sdk, "fastmcp": by_fastmcp, "inspector": by_inspector}


def _environment(home: Path) -> dict[str, str]:
    """Return the environment of a gateway that a client starts, with a state folder of its own."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "PINWARDEN_STATE": str(home / "state")}


def _said_by(command: list[str], home: Path) -> Any:
    environment = {**os.environ, **_environment(home)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
