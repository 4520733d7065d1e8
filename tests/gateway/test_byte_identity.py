"""With an unchanged server, all messages of a session pass the gateway byte for byte.

The official client uses all of MCP with published servers of both protocol eras (`tests.gateway.client_scenarios`).
Taps on both sides of the gateway record the traffic; the recordings must be equal except for the documented rewrites.
Scenarios with 50 MB in which the client itself is too slow are part of ``make soak``. The official client is imported
when it is used: that takes a second, in every worker that collects tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import combinations, count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pinwarden.lock.gateway_policy import GatewayPolicy
from tests.gateway import merged_rewrites
from tests.gateway.http_gateway import TOKEN, RawClient, UpstreamServer, gateway, guard
from tests.gateway.http_tap import http_tap
from tests.gateway.published_servers import CLIENTS, HOSTS, MODULES, SERVERS, lines, published_servers, tapped
from tests.gateway.rewrites import (
    UNCHANGED,
    Expected,
    SharedIds,
    Side,
    difference,
    difference_in_order,
    difference_of_streams,
    documented,
)
from tests.gateway.session_harness import policy
from tests.gateway.test_drift_sequences_stdio import gateway as gateway_on_stdio
from tests.support.needs import missing, needs
from tests.support.ports import reserved_port

pytestmark = [
    needs("node", install="sudo apt-get install nodejs npm"),
    # Logging, roots and sampling are deprecated but still part of the protocol.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

FIFTY_MEGABYTES = 50_000_000
OWN = frozenset({"own-requests"})
POLICY: GatewayPolicy = policy(**{"url-hosts": list(HOSTS)})
T = TypeVar("T")
Judge = Callable[[Side, Side], str]
"""Compares the two sides; describes a difference, or returns an empty string."""


class Case:
    """A server, the client's scenario, and the rewrites that it causes."""

    def __init__(self, server: str, size: int, rewrites: frozenset[str]) -> None:
        self.server = server
        self.size = size
        self.rewrites = rewrites
        self.mode = "legacy" if server == "everything" else "auto"

    def command(self, transport: str = "stdio", folder: str = "") -> list[str]:
        if not MODULES.exists():
            missing("tests/npm/node_modules", "tools/npm-packages.sh")
        if self.server == "git":
            subprocess.run(["git", "init", "-q", folder], check=True)
            for name in ("name", "email"):
                subprocess.run(["git", "-C", folder, "config", f"user.{name}", "t"], check=True)
            return [str(Path(sys.executable).parent / "mcp-server-git"), "--repository", folder]
        if self.server == "fastmcp":
            return [sys.executable, str(SERVERS / "fastmcp_server.py"), transport]
        if self.server == "full":
            return [sys.executable, str(SERVERS / "full_server.py"), transport]
        return ["node", str(MODULES / f"server-{self.server}/dist/index.js"), folder or transport]

    async def visit(self, place: Any, settled: Callable[[], T], folder: Path = Path()) -> T:
        """Run the scenario, wait until all messages have arrived, and return both sides."""
        from tests.gateway.client_scenarios import SCENARIOS, RecordingUser

        user = RecordingUser(folder)
        async with user.client(place, self.mode) as client:
            await SCENARIOS[self.server](client, user, self.size)
            return await asyncio.to_thread(settled)


def case(server: str, size: int, rewrites: frozenset[str] = OWN) -> Any:
    marks = () if size < FIFTY_MEGABYTES else pytest.mark.soak
    return pytest.param(Case(server, size, rewrites), id=f"{server}-{size}", marks=marks)


def settle(look: Callable[[], tuple[T, Side]], judge: Callable[[T, Side], str]) -> tuple[T, Side]:
    """Wait until no message is in flight and the sides agree.

    Returns the sides as they are then; messages that a server sends after its client disconnected are not included.
    """
    end = time.monotonic() + 60
    while said := judge(*(sides := look())):
        assert time.monotonic() < end, said
        time.sleep(0.05)
    return sides


def assert_same(judge: Judge, server: Side, client: Side) -> None:
    """Assert that the sides agree, and that changing one byte of any message would be detected."""
    assert judge(server, client) == ""
    for index, frame in enumerate(client.up):
        up = [*client.up[:index], _other(frame), *client.up[index + 1 :]]
        assert judge(server, Side(up, client.down)), frame[:100]
    for place, stream in enumerate(client.down):
        for index, frame in enumerate(stream):
            changed = [*stream[:index], _other(frame), *stream[index + 1 :]]
            down = [*client.down[:place], changed, *client.down[place + 1 :]]
            assert judge(server, Side(client.up, down)), frame[:100]


def _other(frame: bytes) -> bytes:
    place = len(frame) // 2
    return frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]


# Over stdio


@pytest.mark.parametrize(
    "case",
    [
        case("everything", 500_000),
        case("filesystem", 500_000),
        case("full", 500_000, OWN | {"cache-hints"}),
        case("git", 100_000),
        case("fastmcp", 100_000),
        case("filesystem", FIFTY_MEGABYTES),
        case("full", FIFTY_MEGABYTES, OWN | {"cache-hints"}),
    ],
)
def test_stdio_relays_the_same_bytes_in_the_same_order(tmp_path: Path, case: Case) -> None:
    from mcp.client.stdio import StdioServerParameters

    hosts = ", ".join(f'"{host}"' for host in HOSTS)
    (tmp_path / "pinwarden.toml").write_text(f"[policy.gateway]\nurl-hosts = [{hosts}]\n")
    folder = str(tmp_path) if case.server in ("filesystem", "git") else ""
    server = tapped(tmp_path / "server", case.command(folder=folder))
    run = [sys.executable, "-m", "pinwarden", "run", "--project", ".", "--name", case.server, "--", *server]
    command, *words = tapped(tmp_path / "client", run)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PINWARDEN_STATE": str(tmp_path / "state")}
    place = StdioServerParameters(command=command, args=words, env=environment, cwd=tmp_path)

    def look() -> tuple[Side, Side]:
        sides = [Side(lines(tmp_path / name, "up"), [lines(tmp_path / name, "down")]) for name in ("server", "client")]
        return sides[0], sides[1]

    visit = case.visit(place, lambda: settle(look, _judge_over_stdio), tmp_path)
    server_side, client_side = asyncio.run(visit)
    assert Expected.of(server_side).rewrites == case.rewrites
    assert_same(_judge_over_stdio, server_side, client_side)


def _judge_over_stdio(server: Side, client: Side) -> str:
    expected = Expected.of(server)
    up = difference_in_order(expected.up, client.up, expected.waiting)
    return up or difference_in_order(expected.down[0], client.down[0], expected.waiting)


@pytest.mark.parametrize("way", ["stdio", "http"])
@pytest.mark.parametrize(
    ("client", "mode", "server"),
    [("sdk1", "legacy", "git"), ("fastmcp", "auto", "fastmcp"), ("inspector", "legacy", "filesystem")],
)
def test_other_clients_and_their_servers_exchange_the_same_bytes(
    client: str, mode: str, server: str, way: str, tmp_path: Path
) -> None:
    real = published_servers(tmp_path)[server]
    record = tmp_path / "client"

    def server_side() -> Side:
        return Side(lines(real.record, "up"), [lines(real.record, "down")])

    if way == "stdio":
        judge = _but_for_unheard(_judge_over_stdio)
        run = [sys.executable, "-m", "pinwarden", "run", "--project", ".", "--name", server, "--", *real.command]
        CLIENTS[client](real, tapped(record, run), mode, tmp_path)
        sides = settle(lambda: (server_side(), Side(lines(record, "up"), [lines(record, "down")])), judge)
    else:
        judge = _but_for_unheard(_judge_over_http)
        with (
            gateway({server: UpstreamServer(guard(server), command=real.command)}) as running,
            http_tap(running.port) as tap,
        ):
            CLIENTS[client](real, f"http://127.0.0.1:{tap.port}/mcp/{server}", mode, tmp_path)
            sides = settle(lambda: (server_side(), Side(*tap.messages())), judge)
    assert any(b'"tools/call"' in frame for frame in sides[1].up)
    assert_same(judge, *sides)


def _but_for_unheard(judge: Judge) -> Judge:
    """Ignore unanswered server requests: these clients disconnect early, so such requests may not have reached them."""

    def judged(server: Side, client: Side) -> str:
        said = judge(server, client)
        return "" if said and any(not judge(item, client) for item in _without_unheard(server, client)) else said

    return judged


def _without_unheard(server: Side, client: Side) -> Iterator[Side]:
    """Return the server's side without undelivered requests, if as many were not answered."""
    [down] = server.down
    heard = Counter(frame for stream in client.down for frame in stream)
    answered = Counter(json.dumps(entry["id"]) for entry in map(json.loads, server.up) if "method" not in entry)
    for frame in set(down):
        message = json.loads(frame)
        places = [index for index, other in enumerate(down) if other == frame]
        missing = len(places) - heard[frame]
        if message.keys() >= {"method", "id"} and 0 < missing <= len(places) - answered[json.dumps(message["id"])]:
            for gone in combinations(places, missing):
                yield Side(server.up, [[other for index, other in enumerate(down) if index not in gone]])


def test_the_comparison_ignores_only_unanswered_server_requests_of_a_disconnected_client() -> None:
    request, answers = b'{"method":"roots/list","id":0}', b'{"result":{"roots":[]},"id":0}'
    notification = b'{"method":"notifications/message"}'
    judge = _but_for_unheard(_judge_over_stdio)
    assert judge(Side([], [[request, notification]]), Side([], [[notification]])) == ""
    assert judge(Side([answers], [[request, notification, request]]), Side([answers], [[request, notification]])) == ""
    assert judge(Side([answers], [[request, notification, request]]), Side([answers], [[notification]]))
    assert judge(Side([answers], [[request, notification]]), Side([answers], [[notification]]))
    assert judge(Side([], [[request, notification]]), Side([], [[request]]))
    assert judge(Side([], [[notification]]), Side([], [[request, notification]]))
    assert judge(Side([], [[request, notification]]), Side([], [[_other(request), notification]]))


def test_stdio_relays_a_result_of_fifty_megabytes_unchanged(tmp_path: Path) -> None:
    """A minimal client, because the official one takes a minute for such a result."""
    file = tmp_path / "large.png"
    file.write_bytes(bytes(range(256)) * (FIFTY_MEGABYTES * 3 // 8 // 256 + 1))
    files = Case("filesystem", FIFTY_MEGABYTES, frozenset())
    server = tapped(tmp_path / "server", files.command(folder=str(tmp_path)))
    with gateway_on_stdio(tmp_path, *server) as (client, _):
        client.ask("tools/call", {"name": "read_media_file", "arguments": {"path": str(file)}})
    got, sent = client.lines[-1].rstrip(b"\n"), lines(tmp_path / "server", "down")[-1]
    assert len(got) > FIFTY_MEGABYTES
    assert difference([sent], [got]) == ""


# Over HTTP


def test_http_relays_tasks_byte_for_byte() -> None:
    from tests.gateway.client_scenarios import use_tasks

    case = Case("everything", 0, OWN)
    with _served(case) as port, http_tap(port) as far:
        behind = UpstreamServer(guard("real", policy=POLICY), url=f"http://127.0.0.1:{far.port}/mcp")
        with gateway({"real": behind}) as running, http_tap(running.port) as near:
            running.port = near.port
            with RawClient(running, "real") as raw, RawClient(running, "real") as listener:
                raw.initialize()
                stream = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/event-stream"}
                listener._connection.request("GET", "/mcp/real", headers={**stream, "Mcp-Session-Id": raw.session})
                assert listener._connection.getresponse().status == 200
                numbers = count(1)
                use_tasks(lambda method, params: raw.session_request(method, params, next(numbers)))

                def look() -> tuple[Side, Side]:
                    return Side(*far.messages()), Side(*near.messages())

                server, client = settle(look, _judge_over_http)
    assert Expected.of(server).rewrites == case.rewrites
    assert_same(_judge_over_http, server, client)


@pytest.mark.parametrize(
    "case",
    [
        case("everything", 500_000),
        pytest.param(Case("full", FIFTY_MEGABYTES, UNCHANGED), id=f"full-{FIFTY_MEGABYTES}"),
    ],
)
def test_http_relays_the_same_bytes_to_and_from_a_process(tmp_path: Path, case: Case) -> None:
    record = tmp_path / "server"
    behind = UpstreamServer(guard("real", policy=POLICY), command=tapped(record, case.command()))
    with gateway({"real": behind}) as running, http_tap(running.port) as tap:
        shared: set[str] = set()

        def look() -> tuple[Side, Side]:
            server = Side(lines(record, "up"), [lines(record, "down")])
            client = Side(*tap.messages())
            ids = SharedIds(server, client.up)
            shared.update(ids.rewrites)
            return ids.side, client

        _scenario_over_http(tap.port, case, look, hanging_up=case.mode == "auto")
    assert shared == ({"shared-ids"} if case.server == "full" else set())  # the other one needs a handshake


@pytest.mark.parametrize(
    "case",
    [
        case("everything", 80_000),
        case("full", 500_000, OWN | {"cache-hints"}),
        case("full", FIFTY_MEGABYTES, OWN | {"cache-hints"}),
    ],
)
def test_http_relays_the_same_bytes_to_and_from_a_remote_server(case: Case) -> None:
    with _served(case) as port, http_tap(port) as far:
        behind = UpstreamServer(guard("real", policy=POLICY), url=f"http://127.0.0.1:{far.port}/mcp")
        with gateway({"real": behind}) as running, http_tap(running.port) as near:

            def look() -> tuple[Side, Side]:
                return Side(*far.messages()), Side(*near.messages())

            _scenario_over_http(near.port, case, look, hanging_up=False)


def _judge_over_http(server: Side, client: Side, *, hanging_up: bool = False) -> str:
    expected = Expected.of(server, hanging_up=hanging_up)
    up = difference_of_streams([expected.up], [[frame] for frame in client.up], set())
    return up or difference_of_streams(expected.down, client.down, expected.waiting)


def _scenario_over_http(port: int, case: Case, look: Callable[[], tuple[Side, Side]], *, hanging_up: bool) -> None:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    judge = partial(_judge_over_http, hanging_up=hanging_up)

    async def go() -> tuple[Side, Side]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            place = streamable_http_client(f"http://127.0.0.1:{port}/mcp/real", http_client=http)
            return await case.visit(place, lambda: settle(look, judge))

    server, client = asyncio.run(go())
    assert Expected.of(server, hanging_up=hanging_up).rewrites == case.rewrites
    assert_same(judge, server, client)


# At the merged endpoint


MERGED = frozenset({"own-requests", "shared-ids", "merged-names", "merged-lists", "merged-opening", "merged-eras"})


@pytest.mark.parametrize(
    ("mode", "rewrites"),
    [("legacy", MERGED | {"merged-questions"}), ("auto", MERGED | {"hang-up"})],
    ids=["handshake", "newest"],
)
def test_the_merged_endpoint_rewrites_only_what_is_documented(
    tmp_path: Path, mode: str, rewrites: frozenset[str]
) -> None:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from tests.gateway.client_scenarios import RecordingUser, use_merged_servers

    names = ("everything", "full")
    servers = {
        name: UpstreamServer(guard(name, policy=POLICY), command=tapped(tmp_path / name, Case(name, 0, OWN).command()))
        for name in names
    }

    def look() -> tuple[dict[str, Side], Side]:
        sides = {name: Side(lines(tmp_path / name, "up"), [lines(tmp_path / name, "down")]) for name in names}
        return sides, Side(*tap.messages())

    async def go() -> tuple[dict[str, Side], Side]:
        user = RecordingUser()
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
            place = streamable_http_client(f"http://127.0.0.1:{tap.port}/mcp", http_client=http)
            async with user.client(place, mode) as client:
                await use_merged_servers(client, user, 20_000, handshake=mode == "legacy")
                return await asyncio.to_thread(lambda: settle(look, merged_rewrites.judge))

    with gateway(servers) as running, http_tap(running.port) as tap:
        sides, client = asyncio.run(go())
    expected = merged_rewrites.Expected(sides, client)
    assert (
        expected.rewrites - {"merged-unheard"} == rewrites
    )  # a server may send a request before the client opens its stream
    assert set(documented()) >= expected.rewrites
    _assert_same_at_all(sides, client)


def _assert_same_at_all(sides: dict[str, Side], client: Side) -> None:
    """Assert that the sides are as expected, and that changing one byte of a relayed message would be detected."""
    assert merged_rewrites.judge(sides, client) == ""
    expected = merged_rewrites.Expected(sides, client)
    for index, frame in enumerate(client.up):
        if json.loads(frame).get("method") not in merged_rewrites.ANSWERED:
            up = [*client.up[:index], _other(frame), *client.up[index + 1 :]]
            assert merged_rewrites.judge(sides, Side(up, client.down)), frame[:100]
    for place, stream in enumerate(client.down):
        for index, frame in enumerate(stream):
            changed = [*stream[:index], _other(frame), *stream[index + 1 :]]
            down = [*client.down[:place], changed, *client.down[place + 1 :]]
            assert merged_rewrites.judge_down(expected, Side(client.up, down)), frame[:100]


@contextmanager
def _served(case: Case) -> Iterator[int]:
    """Run the server on a loopback port."""
    environment = {**os.environ}
    if case.server == "everything":
        environment["PORT"] = str(reserved_port())
    command = case.command("streamableHttp" if case.server == "everything" else "http")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        line = next(text for text in process.stdout if "port" in text)
        try:
            yield int(line.split()[-1])
        finally:
            process.kill()


def test_the_reference_page_documents_every_rewrite_these_tests_allow() -> None:
    names = documented()
    assert len(names) == len(set(names))
    assert set(names) > UNCHANGED | MERGED
