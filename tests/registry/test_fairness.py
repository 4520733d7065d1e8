"""Comparisons that strangers ask for: they hold up no reader, each pair is compared once, and what waits is bounded."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path
from threading import Event
from typing import Any
from urllib.request import Request

import pytest
from starlette.requests import Request as HttpRequest

from pinwarden.core.record import replace as with_changes
from pinwarden.registry.http.app import RegistryApp
from pinwarden.registry.http.comparisons import identify_client
from tests.registry.replica import Replica, replicas
from tests.registry.test_serving import ask
from tests.registry.world import World, bundle, compare_versions, open_world
from tests.support.needs import needs

TOOLS = 200
VERSIONS = ("1.0.0", "1.0.1", "1.0.2", "1.0.3", "1.0.4")
PROGRAM = """
import json, sys
tools = [
    {"name": f"tool_{n}", "description": f"Search number {n} of release SALT.", "inputSchema": {"type": "object"}}
    for n in range(COUNT)
]
about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "n", "version": "1"}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"initialize": about, "tools/list": {"tools": tools}}.get(asked["method"])
    body = {"result": answer} if answer else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **body}), flush=True)
"""

pytestmark = needs("bwrap", install="apt-get install bubblewrap")


def publish(world: World, version: str, count: int) -> None:
    program = PROGRAM.replace("SALT", version).replace("COUNT", str(count)).encode()
    published = world.publish(bundle(version=version, content=program))
    assert published.surface_cid is not None


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Replica]]:
    folder = tmp_path_factory.mktemp("fairness") / "registry"
    with replicas(1, folder) as (replica,):
        world = open_world(folder, key=None, probing="required")
        for version in VERSIONS:
            publish(world, version, TOOLS)
        yield world, replica
        world.registry.close()


def get(replica: Replica, path: str) -> tuple[int, dict[str, str], bytes]:
    return ask(Request(replica.url + path))


def test_attack_many_comparisons_do_not_delay_reads_and_each_pair_is_compared_once(
    served: tuple[World, Replica],
) -> None:
    world, replica = served
    pairs = list(permutations(VERSIONS, 2))[:16]
    waits: list[float] = []
    with ThreadPoolExecutor(16) as strangers:
        begun = time.perf_counter()
        requests = [strangers.submit(get, replica, f"api/compare/acme.notes/{old}/{new}") for old, new in pairs]
        while not all(future.done() for future in requests):
            before = time.perf_counter()
            assert get(replica, "api/search?q=notes")[0] == 200
            waits.append(time.perf_counter() - before)
        took = time.perf_counter() - begun
    answers = [future.result() for future in requests]
    assert {status for status, _, _ in answers} <= {200, 429}, "a slow machine answers the last ones with 429"
    assert len(waits) > 16
    assert statistics.quantiles(waits, n=20)[-1] < took / 10
    kept = [(pair, body) for pair, (status, _, body) in zip(pairs, answers, strict=True) if status == 200]
    (old, new), body = kept[0]
    assert json.loads(body) == compare_versions(world.registry, "acme.notes", old, new)
    begun = time.perf_counter()
    assert [get(replica, f"api/compare/acme.notes/{old}/{new}")[2] for (old, new), _ in kept] == [
        parts for _, parts in kept
    ]
    assert time.perf_counter() - begun < took / 3, "a pair is compared once"


def asked_from(app: RegistryApp, host: str, path: str) -> Awaitable[tuple[int, dict[bytes, bytes], Any]]:
    """The answer of the application to a client at an address."""

    async def answer() -> tuple[int, dict[bytes, bytes], Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        await app({**scope, "headers": [], "client": (host, 1), "root_path": ""}, receive, send)
        return sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"])

    return answer()


def test_attack_a_client_with_too_many_comparisons_is_refused_and_others_are_served(world: World) -> None:
    for version in VERSIONS[:2]:
        world.publish(bundle(version=version, content=version.encode()))
    path = "/api/compare/acme.notes/1.0.0/1.0.1"

    async def scene() -> None:
        app, free = RegistryApp(world.registry), Event()
        executor = app._comparisons._executor
        blocked = [executor.submit("10.0.0.1", lambda: free.wait(60)) for _ in range(17)]
        status, headers, body = await asked_from(app, "10.0.0.1", path)
        assert (status, headers[b"retry-after"], body["error"]["code"]) == (429, b"1", "OVERLOADED")
        assert "the limit is 16" in body["error"]["message"]
        status, _, body = await asked_from(app, "10.0.0.2", path)
        assert (status, body["files"]["changed"]) == (200, ["main.py"])
        assert (await asked_from(app, "10.0.0.1", path))[0] == 200, "it is known by now"
        free.set()
        await asyncio.gather(*blocked)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("first", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_addresses_of_one_ipv6_network_count_as_one_client(first: str, other: str, *, same: bool) -> None:
    clients = [identify_client(HttpRequest({"type": "http", "client": (host, 1)})) for host in (first, other)]
    assert (clients[0] == clients[1]) is same


def test_comparing_a_surface_above_the_item_limit_is_refused_and_the_refusal_is_cached(tmp_path: Path) -> None:
    world = open_world(tmp_path / "registry", probing="required")
    publish(world, "1.0.0", 3)
    publish(world, "1.0.1", 4)
    small = with_changes(world.registry, limits=with_changes(world.registry.limits, compared_items=3))

    async def scene() -> None:
        app = RegistryApp(small)
        for _ in range(2):
            status, _, body = await asked_from(app, "10.0.0.1", "/api/compare/acme.notes/1.0.0/1.0.1")
            assert (status, body["error"]["code"]) == (422, "INPUT_LIMIT")
            assert body["error"]["message"] == "4 items in one surface are too many; the limit is 3"
            app._comparisons._executor.shutdown()  # no new work: the second response is cached

    asyncio.run(scene())
    assert compare_versions(world.registry, "acme.notes", "1.0.0", "1.0.1")["drift"]["changes"]
    world.registry.close()
