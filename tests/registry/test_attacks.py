"""Attacks by a publisher with a valid token, by unauthenticated clients, and by a man in the middle."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import uvicorn

from pinwarden.bundle.document import add_signature, encode_document
from pinwarden.core.digest import blob_cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey
from pinwarden.registry import registry_documents
from pinwarden.registry.access import authenticate
from pinwarden.registry.changes import add_attestation, apply_change
from pinwarden.registry.export import export_registry
from pinwarden.registry.http.app import RegistryApp
from pinwarden.registry.http.server import MAX_HEADER_BYTES, MAX_PIPELINED, build_bounded_protocol
from pinwarden.registry.official_api import ServerQuery, list_servers
from pinwarden.registry.registry import RegistryLimits
from pinwarden.registry.registry_documents import KEYS, POINT, YANK
from pinwarden.registry.store import pointer_log, publications, publishers
from pinwarden.system.processes import limit_connections
from tests.registry.world import ACME, MALLORY, World, attested, bundle, open_world


def refused(act: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(PinwardenError) as caught:
        act(*args, **kwargs)
    return caught.value.code


def channel(world: World, name: str = "stable") -> str | None:
    with world.registry.database.transaction() as transaction:
        row = publications.find_channel(transaction, "acme.notes", name)
    return row.version if row else None


# Signed requests


def sent(world: World, document: dict[str, Any]) -> bool:
    caller = authenticate(world.registry, world.token, "change")
    return apply_change(world.registry, caller, encode_document({"statement": document})).changed


@pytest.mark.parametrize(
    ("forged", "expected"),
    [
        (lambda given: {**given, "again": 1}, "DOCUMENT_INVALID"),
        (lambda given: {**given, "signatures": [{**given["signatures"][0], "again": 1}]}, "REQUEST_STALE"),
    ],
    ids=["beside what is signed", "in the signature"],
)
def test_attack_a_replayed_request_with_an_unsigned_member_is_refused(forged: Any, expected: str, world: World) -> None:
    """Replay by a change that the signature does not cover, and that made the request look like another one."""
    world.publish(bundle())
    world.publish(bundle(version="1.1.0", content=b"2\n"))
    request = {"tool": "acme.notes", "channel": "stable", "version": "1.0.0", "allow_older": True}
    seen = world.statement(POINT, request)
    assert sent(world, seen)
    assert sent(world, world.statement(POINT, {**request, "version": "1.1.0"}))
    assert refused(sent, world, forged(seen)) == expected
    assert channel(world) == "1.1.0"


def test_requests_that_differ_only_in_the_nonce_are_both_accepted(world: World) -> None:
    body = {"namespace": "acme"}
    first, other = (registry_documents.statement_from_json(world.statement(KEYS, body)) for _ in range(2))
    same = registry_documents.build_unsigned_statement("log", KEYS, body, world.clock(), "n")
    assert first.digest != other.digest
    assert registry_documents.statement_from_json(
        add_signature(same, registry_documents.STATEMENT_SIGNED_FIELDS, ACME)
    ).digest != (
        registry_documents.statement_from_json(
            add_signature(same, registry_documents.STATEMENT_SIGNED_FIELDS, MALLORY)
        ).digest
    )


def test_attack_a_flood_of_namespace_keys_is_refused(world: World) -> None:
    keys = [PrivateKey.from_seed(index.to_bytes(32, "big")).public_key.did for index in range(201)]
    added = [{"key_id": key, "role": "publisher"} for key in keys]
    assert refused(world.change, KEYS, namespace="acme", add=added) == "PUBLISH_LIMIT"
    assert refused(world.change, KEYS, namespace="acme", remove=keys) == "PUBLISH_LIMIT"
    with world.registry.database.transaction() as transaction:
        assert publishers.list_namespace_keys(transaction, "acme") == {ACME.public_key.did: "owner"}
    assert world.change(KEYS, namespace="acme", add=added[:199]).changed
    assert refused(world.change, KEYS, namespace="acme", add=added[199:]) == "PUBLISH_LIMIT"


def test_attack_an_oversized_attestation_by_another_publisher_is_refused(world: World, tmp_path: Path) -> None:
    """It would stop every install of another publisher's bundle, and make the registry read it each time."""
    made, token = bundle(), world.add_namespace("mallory", MALLORY)
    world.publish(made)
    grown = {**attested(made, MALLORY), "filling": ["x" * 60_000] * 20}
    caller = authenticate(world.registry, token, "attest")
    assert refused(add_attestation, world.registry, caller, encode_document(grown)) == "PUBLISH_LIMIT"
    grown_version = bundle(version="1.1.0")
    own = {**attested(grown_version, ACME), "filling": ["x" * 60_000] * 20}
    assert refused(world.publish, grown_version, attestations=[own]) == "PUBLISH_LIMIT"
    export_registry(world.registry, tmp_path / "export")
    assert max(path.stat().st_size for path in (tmp_path / "export" / "documents").iterdir()) < 64 * 1024


def test_attack_an_oversized_description_is_refused(tmp_path: Path) -> None:
    made = bundle()
    most = len(made.descriptor["tool"]["description"])
    for limit, expected in ((most - 1, "PUBLISH_LIMIT"), (most, None)):
        world = open_world(tmp_path / str(limit), limits=RegistryLimits(description_chars=limit))
        assert (refused(world.publish, made) if expected else world.publish(made).yanked) == expected
        world.registry.close()


def test_text_that_postgresql_cannot_store_is_refused_on_every_database(anywhere: World) -> None:
    anywhere.publish(bundle())
    assert refused(anywhere.change, YANK, tool="acme.notes", version="1.0.0", reason="a\0b") == "DOCUMENT_INVALID"
    assert channel(anywhere) == "1.0.0"


def test_attack_a_request_for_all_versions_gets_one_page(anywhere: World) -> None:
    """However many versions a tool has, a page holds as many as were asked for, and all pages hold all of them."""
    published = [anywhere.publish(bundle(name=f"acme.{name}", version=f"1.0.{n}")) for name in "ab" for n in range(4)]
    seen: list[tuple[str, bool]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = list_servers(anywhere.registry, ServerQuery(limit=3, cursor=cursor), "https://x/")
        assert len(page["servers"]) <= 3
        seen += [
            (row["server"]["name"] + row["server"]["version"], next(iter(row["_meta"].values()))["isLatest"])
            for row in page["servers"]
        ]
        cursor = page["metadata"].get("nextCursor")
    assert seen == [(f"acme/{version.tool[-1]}{version.version}", version.version == "1.0.3") for version in published]
    anywhere.change(YANK, tool="acme.a", version="1.0.3")
    latest = list_servers(anywhere.registry, ServerQuery(limit=1, latest_only=True), "https://x/")
    assert [row["server"]["version"] for row in latest["servers"]] == ["1.0.2"]
    rest = list_servers(
        anywhere.registry, ServerQuery(limit=1, latest_only=True, cursor=latest["metadata"]["nextCursor"]), "https://x/"
    )
    assert [row["server"]["name"] for row in rest["servers"]] == ["acme/b"]
    assert "nextCursor" not in rest["metadata"]


# Connections


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A registry on a socket in this process, with bounds that a test can wait for."""

    address: tuple[str, int]
    world: World

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}/"

    def line(self, begun: bytes) -> socket.socket:
        made = socket.create_connection(self.address, 60)
        made.sendall(begun)
        return made

    def status(self, path: str, **more: Any) -> int:
        try:
            with urlopen(Request(self.url + path, **more), timeout=60) as response:
                return int(response.status)
        except HTTPError as err:
            with err:
                return err.code
        except (URLError, ConnectionError):
            return 0


@contextmanager
def serving(folder: Path, **bounds: float) -> Iterator[Served]:
    world = open_world(folder)
    limits = {"head_seconds": 60, "limit": 40, **bounds}
    assert all(hasattr(build_bounded_protocol(), name) for name in limits)
    protocol = type("Bounded", (build_bounded_protocol(),), limits)
    listening = socket.create_server(("127.0.0.1", 0), backlog=200)
    server = uvicorn.Server(
        uvicorn.Config(
            RegistryApp(world.registry),
            http=protocol,
            lifespan="off",
            ws="none",
            log_level="critical",
            timeout_keep_alive=1,
        )
    )
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield Served(address=listening.getsockname(), world=world)
    finally:
        server.should_exit = True
        thread.join(60)
        world.registry.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as made:
        yield made


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For idle connections; on a busy machine, real requests may take longer."""
    with serving(tmp_path_factory.mktemp("impatient"), head_seconds=0.2) as made:
        yield made


def is_let_go(line: socket.socket) -> bool:
    """Whether the other side ends the connection, whatever it says before."""
    try:
        while line.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET / HTTP/1.1\r\nhost:",
        b"\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\nx",
    ],
    ids=["silence", "half a head", "an empty line", "an answer and an empty line", "an unwanted body"],
)
def test_attack_an_idle_connection_is_closed(begun: bytes, impatient: Served) -> None:
    with impatient.line(begun) as line:
        assert is_let_go(line)


@pytest.mark.parametrize("begun", [b"GET /", b"GET / HTTP/1.1\r\nx: ", b"GET / HTTP/1.1\r\nx: y\r\n"])
def test_attack_an_endless_request_head_is_cut_off(begun: bytes, served: Served) -> None:
    more = b"x: " + b"y" * MAX_HEADER_BYTES + b"\r\n" if begun.endswith(b"\n") else b"x" * MAX_HEADER_BYTES
    with served.line(begun) as line, pytest.raises(ConnectionError):
        line.sendall(more * 2000)  # more than any buffer between the two holds


def test_attack_a_flood_of_pipelined_requests_is_cut_off(served: Served) -> None:
    few = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    with served.line(few * MAX_PIPELINED) as line:
        got = b""
        while got.count(b"HTTP/1.1 200") < MAX_PIPELINED:
            got += (more := line.recv(65536))
            assert more, "it was cut off with no more than is taken"
    with served.line(few * 50 * MAX_PIPELINED) as line:
        got = b""
        try:
            while more := line.recv(65536):
                got += more
        except ConnectionError:
            pass
    assert got.count(b"HTTP/1.1 200") <= MAX_PIPELINED


def test_attack_a_flood_of_connections_leaves_file_descriptors_for_the_registry(served: Served) -> None:
    assert limit_connections() * 2 <= max(os.sysconf("SC_OPEN_MAX"), 8192)
    with ExitStack() as stack:
        lines = [stack.enter_context(served.line(b"")) for _ in range(60)]
        assert is_let_go(lines[-1])
    end = monotonic() + 60
    while served.status("health") != 200:  # as long as it has not seen that they are gone
        assert monotonic() < end


def test_attack_a_slow_publisher_does_not_delay_other_publishers(served: Served) -> None:
    """As many uploads are begun and not finished as there are places for writers, by one namespace."""
    begun = "PUT /api/blobs/x HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: 999\r\n\r\nbegun"
    other = served.world.add_namespace("other", MALLORY)
    data = b"sent meanwhile"
    upload = {"method": "PUT", "data": data, "headers": {"authorization": f"Bearer {other}"}}
    with ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(served.line(begun.format(served.world.token).encode()))
        assert served.status(f"api/blobs/{blob_cid(data)}", **upload) == 200


def test_attack_a_locked_database_does_not_delay_reads_or_unknown_tokens(served: Served) -> None:
    """While the database is locked, unknown tokens are refused at once, and known ones wait in their own pool."""
    request = "POST /api/change HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: 2\r\n\r\n{{}}"
    unauthenticated = {"method": "POST", "data": b"{}", "headers": {"authorization": "Bearer unknown"}}
    with ExitStack() as stack, served.world.registry.database.transaction(exclusive=pointer_log.WRITE_LOCK):
        assert served.status("api/change", **unauthenticated) == 401
        for _ in range(20):
            stack.enter_context(served.line(request.format(served.world.token).encode()))
        assert [served.status("registry.json") for _ in range(5)] == [200] * 5


@pytest.mark.parametrize(
    "path",
    [
        "api/search?q=a%00",
        "api/compare/a%00/1/2",
        "v0.1/servers?cursor=%00",
        f"v0.1/servers/{quote('a/b')}%00/versions",
    ],
)
def test_a_nul_byte_in_a_request_is_a_client_error(path: str, served: Served) -> None:
    assert served.status(path) == 422
