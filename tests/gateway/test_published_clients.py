"""Published clients and servers through the gateway, over HTTP and stdio, in both protocol eras.

Four clients, four servers, both transports, and both eras where the client can choose. The client's list and call
result must match the server's messages. Here every client uses every server over HTTP, and every client and every
server are used over stdio; the other combinations are part of ``make soak``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.http_gateway import RunningGateway, UpstreamServer, gateway, guard
from tests.gateway.published_servers import CLIENTS, META_VERSION, OWN, PublishedServer, published_servers
from tests.support.needs import needs

pytestmark = needs("node", install="sudo apt-get install nodejs npm")

MODES = {
    "sdk2": ("auto", "legacy"),
    "sdk1": ("legacy",),
    "fastmcp": ("auto", "legacy"),
    "inspector": ("auto", "legacy"),
}
SERVERS = ("everything", "filesystem", "git", "fastmcp")
OFTEN = {
    # Every client with every server over HTTP. A handshake-only server gets a handshake in either mode.
    *(("sdk2", "auto", server, "http") for server in SERVERS),
    *(("sdk1", "legacy", server, "http") for server in SERVERS),
    *(("fastmcp", "auto", server, "http") for server in ("filesystem", "git", "fastmcp")),
    ("fastmcp", "legacy", "everything", "http"),
    *(("inspector", "auto", server, "http") for server in ("everything", "git", "fastmcp")),
    ("inspector", "legacy", "filesystem", "http"),
    # Every client and every server over stdio.
    ("sdk2", "auto", "git", "stdio"),
    ("sdk1", "legacy", "everything", "stdio"),
    ("fastmcp", "auto", "fastmcp", "stdio"),
    ("inspector", "legacy", "filesystem", "stdio"),
}
ALL = [
    (client, mode, server, way)
    for client, modes in MODES.items()
    for mode in modes
    for server in SERVERS
    for way in ("http", "stdio")
]


CELLS = [pytest.param(cell, id="-".join(cell), marks=() if cell in OFTEN else pytest.mark.soak) for cell in ALL]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PublishedServer]:
    return published_servers(tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="module")
def here(servers: dict[str, PublishedServer]) -> Iterator[RunningGateway]:
    behind = {place(client, name): real for name, real in servers.items() for client in CLIENTS}
    with gateway({name: UpstreamServer(guard(name), command=real.command) for name, real in behind.items()}) as running:
        yield running


def place(client: str, server: str) -> str:
    """Return the target for a client; one server lists more tools for capable clients, each approved separately."""
    return f"everything-{client}" if server == "everything" else server


@pytest.mark.parametrize("cell", CELLS)
def test_a_published_client_lists_and_calls_through_the_gateway(
    servers: dict[str, PublishedServer], here: RunningGateway, tmp_path: Path, cell: tuple[str, str, str, str]
) -> None:
    client, mode, server, way = cell
    real = servers[server]
    up, down = real.mark()
    run = [sys.executable, "-m", "pinwarden", "run", "--project", ".", "--name", server, "--", *real.command]
    tools, text = CLIENTS[client](real, here.url(place(client, server)) if way == "http" else run, mode, tmp_path)
    listed = [
        sorted(tool["name"] for tool in message["result"]["tools"])
        for message in real.sent(down)
        if "tools" in message.get("result", {}) and not str(message["id"]).startswith(OWN)
    ]
    calls = [message for message in real.received(up) if message.get("method") == "tools/call"]
    assert listed
    assert all(tools == tool for tool in listed)
    assert [call["params"]["name"] for call in calls] == [real.tool]
    assert real.says in text
    assert (META_VERSION in calls[0]["params"].get("_meta", {})) == (mode == "auto" and real.modern)


def test_every_client_is_tested_with_every_server_in_every_suite() -> None:
    assert set(ALL) >= OFTEN
    assert {(client, server) for client, _, server, way in OFTEN if way == "http"} == {
        (client, server) for client in CLIENTS for server in SERVERS
    }
