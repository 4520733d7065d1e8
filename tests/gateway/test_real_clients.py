"""Real clients and real servers with the gateway between them, over HTTP and stdio, in both eras.

Each client sees through the gateway what the official SDK sees without it, and its calls are answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.http_world import TOKEN, Behind, Gateway, gateway, guard
from tests.needs import missing, needs

ROOT = Path(__file__).parent.parent.parent
MODULES = ROOT / "tests/npm/node_modules/@modelcontextprotocol"
INSPECTOR = ROOT / "tests/inspector/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
OLD_PYTHON = ROOT / ".venv-old-client/bin/python"
SERVERS = Path(__file__).parent.parent / "servers"

pytestmark = needs("node", install="sudo apt-get install nodejs npm")


class Real:
    """A published server, and one call that says who answered."""

    def __init__(self, command: list[str], tool: str, arguments: dict[str, Any], says: str, *, modern: bool) -> None:
        self.command = command
        self.tool = tool
        self.arguments = arguments
        self.says = says
        self.modern = modern


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Real]:
    if not MODULES.exists():
        missing("tests/npm/node_modules", "tools/npm-packages.sh")
    folder = tmp_path_factory.mktemp("files")
    (folder / "hello.txt").write_text("hello from a file")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    node = "node"
    return {
        "everything": Real(
            [node, str(MODULES / "server-everything/dist/index.js"), "stdio"],
            "echo",
            {"message": "hi"},
            "Echo: hi",
            modern=False,
        ),
        "filesystem": Real(
            [node, str(MODULES / "server-filesystem/dist/index.js"), str(folder)],
            "read_text_file",
            {"path": str(folder / "hello.txt")},
            "hello from a file",
            modern=False,
        ),
        "git": Real(
            [str(Path(sys.executable).parent / "mcp-server-git"), "--repository", str(folder)],
            "git_status",
            {"repo_path": str(folder)},
            "hello.txt",
            modern=True,
        ),
        "fastmcp": Real(
            [sys.executable, str(SERVERS / "fastmcp_server.py"), "stdio"], "add", {"a": 40}, "42", modern=True
        ),
    }


@pytest.fixture(scope="module")
def here(servers: dict[str, Real]) -> Iterator[Gateway]:
    behind = {name: Behind(guard(name), command=real.command) for name, real in servers.items()}
    with gateway(behind) as made:
        yield made


@pytest.fixture(scope="module")
def direct(servers: dict[str, Real]) -> dict[str, list[str]]:
    """What the newer SDK sees without a gateway."""

    async def all_of_them() -> dict[str, list[str]]:
        from tests.servers.fastmcp_server import server  # our own needs no process to say what it has

        others = {name: real for name, real in servers.items() if name != "fastmcp"}
        found = await asyncio.gather(*(_sdk_over_stdio(real, real.command, "legacy") for real in others.values()))
        seen = {name: tools for name, (tools, _, _) in zip(others, found, strict=True)}
        return {**seen, "fastmcp": sorted(tool.name for tool in await server.list_tools())}

    return asyncio.run(all_of_them())


Seen = tuple[list[str], str, str]


async def _sdk_over_stdio(real: Real, command: list[str], mode: Any) -> Seen:
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters

    environment = {name: os.environ[name] for name in ("PATH", "HOME", "PINWARDEN_STATE") if name in os.environ}
    target = StdioServerParameters(command=command[0], args=command[1:], env=environment)
    async with Client(target, mode=mode) as client:
        return await _sdk_seen(client, real)


async def _sdk_over_http(real: Real, url: str, mode: Any) -> Seen:
    import httpx2
    from mcp.client import Client
    from mcp.client.streamable_http import streamable_http_client

    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)
    async with http, Client(streamable_http_client(url, http_client=http), mode=mode) as client:
        return await _sdk_seen(client, real)


async def _sdk_seen(client: Any, real: Real) -> Seen:
    tools = await client.list_tools()
    called = await client.call_tool(real.tool, real.arguments)
    return sorted(tool.name for tool in tools.tools), called.content[0].text, client.protocol_version


async def _fastmcp_over_http(real: Real, url: str, mode: Any) -> Seen:
    from fastmcp import Client
    from fastmcp.client.transports import StreamableHttpTransport

    transport = StreamableHttpTransport(url, headers={"Authorization": f"Bearer {TOKEN}"})
    async with Client(transport, mode=mode) as client:
        tools = await client.list_tools()
        called = await client.call_tool(real.tool, real.arguments)
        return sorted(tool.name for tool in tools), called.content[0].text, ""


def _all(see: Callable[..., Coroutine[Any, Any, Seen]], servers: dict[str, Real], *rest: Any) -> dict[str, Seen]:
    async def run() -> dict[str, Seen]:
        return {
            name: await see(real, *(each(name) if callable(each) else each for each in rest))
            for name, real in servers.items()
        }

    return asyncio.run(run())


def _check(found: dict[str, Seen], servers: dict[str, Real], direct: dict[str, list[str]], mode: str) -> None:
    assert {name: tools for name, (tools, _, _) in found.items()} == {name: direct[name] for name in found}
    for name, (_, text, version) in found.items():
        assert servers[name].says in text
        if version:
            assert (version == "2026-07-28") == (mode == "auto" and servers[name].modern), name


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_official_sdk_over_http(
    servers: dict[str, Real], here: Gateway, direct: dict[str, list[str]], mode: str
) -> None:
    # A server that has only the handshake is asked by it in either mode, so one of the two is enough for each.
    left_out = "everything" if mode == "auto" else "filesystem"
    some = {name: real for name, real in servers.items() if name != left_out}
    _check(_all(_sdk_over_http, some, here.url, mode), servers, direct, mode)


@pytest.mark.parametrize(("mode", "server"), [("auto", "git"), ("legacy", "everything")])
def test_the_official_sdk_over_stdio(
    servers: dict[str, Real], direct: dict[str, list[str]], mode: str, server: str, tmp_path: Path
) -> None:
    state = f"PINWARDEN_STATE={tmp_path / 'state'}"

    def through(name: str) -> list[str]:
        return ["env", state, sys.executable, "-m", "pinwarden", "run", "--name", name, "--", *servers[name].command]

    _check(_all(_sdk_over_stdio, {server: servers[server]}, through, mode), servers, direct, mode)


@pytest.mark.parametrize(("mode", "server"), [("auto", "fastmcp"), ("legacy", "filesystem")])
def test_the_client_of_fastmcp_over_http(
    servers: dict[str, Real], here: Gateway, direct: dict[str, list[str]], mode: str, server: str
) -> None:
    _check(_all(_fastmcp_over_http, {server: servers[server]}, here.url, mode), servers, direct, mode)


def test_the_older_sdk_over_http_and_stdio(
    servers: dict[str, Real], here: Gateway, direct: dict[str, list[str]], tmp_path: Path
) -> None:
    if not OLD_PYTHON.exists():
        missing(str(OLD_PYTHON), "make .venv-old-client/.ready")
    git, everything = servers["git"], servers["everything"]
    targets: list[Any] = [["http", here.url("git"), TOKEN, git.tool, git.arguments]]
    state = tmp_path / "state"
    run = ["env", f"PINWARDEN_STATE={state}", sys.executable, "-m", "pinwarden", "run", "--name", "everything", "--"]
    targets.append(["stdio", [*run, *everything.command], everything.tool, everything.arguments])
    done = subprocess.run(
        [str(OLD_PYTHON), str(Path(__file__).with_name("old_client.py")), json.dumps(targets)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name, seen in zip(("git", "everything"), json.loads(done.stdout), strict=True):
        assert (seen["tools"], seen["version"]) == (direct[name], "2025-11-25")
        assert servers[name].says in seen["text"]


def test_the_command_line_of_mcp_inspector_over_http(
    servers: dict[str, Real], here: Gateway, direct: dict[str, list[str]], tmp_path: Path
) -> None:
    if not INSPECTOR.exists():
        missing(str(INSPECTOR), "tools/npm-packages.sh")

    def inspect(name: str, *words: str) -> Any:
        target = [here.url(name), "--transport", "http", "--header", f"Authorization: Bearer {TOKEN}"]
        done = subprocess.run(
            ["node", str(INSPECTOR), "--cli", *target, *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "HOME": str(tmp_path)},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    # Inspector says that it has roots, and server-everything has a tool for clients that do.
    listed = inspect("everything", "--method", "tools/list")["tools"]
    assert {tool["name"] for tool in listed} - {"get-roots-list"} == set(direct["everything"])
    files = servers["filesystem"]
    arguments = [f"{key}={value}" for key, value in files.arguments.items()]
    called = inspect("filesystem", "--method", "tools/call", "--tool-name", files.tool, "--tool-arg", *arguments)
    assert files.says in called["content"][0]["text"]
