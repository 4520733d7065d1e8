"""A cached route decides like the general path: a cached head is never trusted for another body."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden.gateway.audit.chain import load_audit_schema, read_entries
from pinwarden.gateway.audit.log import AuditLimits, AuditLog
from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.gateway.recorder import Recorder
from pinwarden.gateway.session.splice import replace_id, replace_value
from pinwarden.gateway.store.tokens import hash_token
from pinwarden.system.database import open_database
from tests.gateway.http_gateway import (
    OTHER_TOKEN,
    InMemoryRecorder,
    RawClient,
    RunningGateway,
    UpstreamServer,
    gateway,
    guard,
    rpc,
    stateless_request,
)
from tests.gateway.session_harness import DELETE, SEARCH, approved_surface
from tests.servers import talking
from tests.servers.turning_http import TurningWorld, turning_http

STATE: dict[str, Any] = {"tools": [SEARCH, DELETE, {**SEARCH, "name": "search_notez"}]}
APPROVED = approved_surface({"tools": [SEARCH, DELETE]})


class Scene:
    """A gateway with a remote server, and a count of requests that took the general path."""

    def __init__(self, world: TurningWorld, gateway: RunningGateway, recorder: InMemoryRecorder) -> None:
        self.world = world
        self.gateway = gateway
        self.kept = recorder
        self.general = 0
        answer = gateway.endpoint.handle_request

        def counted(*given: Any) -> None:
            self.general += 1
            answer(*given)

        gateway.endpoint.handle_request = counted  # type: ignore[method-assign,assignment]


@pytest.fixture
def at() -> Iterator[Scene]:
    recorder = InMemoryRecorder()
    with (
        turning_http({"states": [STATE]}) as world,
        gateway({"notes": UpstreamServer(guard("notes", APPROVED), url=world.url)}, recorder) as running,
    ):
        yield Scene(world, running, recorder)


CALL, HEADERS = stateless_request("tools/call", {"name": "search_notes", "arguments": {"query": "x"}})


def known(raw: RawClient) -> None:
    """Send the head until it is cached; the first request detects the server's protocol era."""
    for _ in range(2):
        assert raw.send(CALL, HEADERS)[0] == 200


def test_a_call_with_a_cached_head_takes_the_fast_path_and_is_recorded(at: Scene) -> None:
    with RawClient(at.gateway, "notes") as raw:
        known(raw)
        assert at.general == 2
        before = at.kept.events[-1]
        status, headers, body = raw.send(CALL.replace(b'"query": "x"', b'"query": "y"'), HEADERS)
    assert (status, headers["content-type"], at.general) == (200, "application/json", 2)
    assert body == at.world.sent[-1]
    assert at.world.bodies[-1] == CALL.replace(b'"query": "x"', b'"query": "y"')
    fact = at.kept.events[-1]
    assert (fact.kind, fact.item, fact.client) == ("called", "search_notes", "tester")
    assert fact is not before
    assert at.gateway.endpoint.requests == 3
    assert at.gateway.manager.upstreams["notes"].requests == 3


@pytest.mark.parametrize(
    "body",
    [
        CALL.replace(b'"id": 1', b'"id": "call-1"'),
        CALL.replace(b'"_meta": {', b'"_meta": {"progressToken": "t1", '),
        CALL.replace(b'"id": 1', b'"id": "call-1"').replace(b'"_meta": {', b'"_meta": {"progressToken": 7, '),
        orjson.dumps(orjson.loads(CALL)),
    ],
    ids=["string id", "progress token", "both", "compact"],
)
def test_a_call_in_any_json_formatting_takes_the_fast_path(at: Scene, body: bytes) -> None:
    with RawClient(at.gateway, "notes") as raw:
        known(raw)
        raw.send(body, HEADERS)  # another length is another head
        general = at.general
        for _ in range(3):
            status, headers, answer = raw.send(body, HEADERS)
            assert (status, headers["content-type"]) == (200, "application/json")
            assert orjson.loads(answer)["id"] == orjson.loads(body)["id"]
            assert at.world.bodies[-1] == body
    assert at.general == general
    assert [fact.call.partition("/")[2] for fact in at.kept.events[-3:]] == [str(orjson.loads(body)["id"])] * 3


@pytest.mark.parametrize(
    ("old", "new", "status", "code"),
    [
        (b'"name": "search_notes"', b'"name": "search_notez"', 400, -32020),
        (b'"method": "tools/call"', b'"method": "tools/kall"', 400, -32020),
        (b'"2026-07-28"', b'"2026-07-29"', 400, -32020),
        (b'{"query": "x"}', b'{"q":1,"q":2} ', 400, -32700),
        (b'"id": 1', b'"id":[]', 400, -32600),
    ],
    ids=["another tool", "another method", "another revision", "two meanings", "no id"],
)
def test_attack_a_cached_head_before_another_body_of_the_same_length_bypasses_no_check(
    at: Scene, old: bytes, new: bytes, status: int, code: int
) -> None:
    body = CALL.replace(old, new)
    assert (len(body), body != CALL) == (len(CALL), True)
    with RawClient(at.gateway, "notes") as raw:
        known(raw)
        before = len(at.world.bodies)
        got, _, answer = raw.send(body, HEADERS)
        assert (got, json.loads(answer)["error"]["code"]) == (status, code)
        assert len(at.world.bodies) == before, "nothing reached the server"
        known(raw)


def test_attack_an_unapproved_tool_behind_a_cached_head_is_refused(at: Scene) -> None:
    body, headers = stateless_request("tools/call", {"name": "search_notez", "arguments": {}})
    with RawClient(at.gateway, "notes") as raw:
        known(raw)
        for _ in range(3):
            status, _, answer = raw.send(body, headers)
            assert (status, json.loads(answer)["error"]["code"]) == (400, -32602)
    assert at.world.calls("search_notez") == 0
    assert sum(fact.kind == "blocked" and fact.method == "tools/call" for fact in at.kept.events) == 3


def test_attack_a_revoked_token_is_rejected_despite_a_cached_head(at: Scene) -> None:
    with RawClient(at.gateway, "notes") as raw:
        known(raw)
        known(raw)
        calls = at.world.calls("search_notes")
        others = {hash_token(OTHER_TOKEN): GatewayClient(name="other")}
        at.gateway.call_on_loop(lambda: at.gateway.endpoint.access.set_clients(others))
        assert raw.send(CALL, HEADERS)[0] == 401
    assert at.world.calls("search_notes") == calls


def test_a_server_removed_from_the_lock_is_not_reached_through_a_cached_head(at: Scene) -> None:
    with RawClient(at.gateway, "notes") as raw:
        known(raw)
        calls = at.world.calls("search_notes")
        at.gateway.call_on_loop(lambda: at.gateway.manager.replace_upstreams({}))
        assert raw.send(CALL, HEADERS)[0] == 503
    assert at.world.calls("search_notes") == calls


def test_a_call_that_cannot_be_recorded_is_refused_on_the_fast_path(at: Scene) -> None:
    from pinwarden.core.errors import PinwardenError

    def refuse(_: Any) -> None:
        raise PinwardenError("AUDIT_UNAVAILABLE", "no room")

    with RawClient(at.gateway, "notes") as raw:
        known(raw)
        at.kept.record = refuse  # type: ignore[method-assign,assignment]
        before = at.world.calls("search_notes")
        answer = json.loads(raw.send(CALL, HEADERS)[2])
        assert answer["error"]["data"] == {"pinwarden": {"code": "AUDIT_UNAVAILABLE"}}
        assert (at.general, at.world.calls("search_notes")) == (2, before)


@pytest.mark.parametrize("wire", ["json", "stdio"])
def test_programs_of_one_client_that_use_the_same_id_at_once_get_their_own_responses(wire: str, tmp_path: Path) -> None:
    if wire == "json":
        with turning_http({"states": [STATE]}) as world:
            _ask_at_once(UpstreamServer(guard("notes", APPROVED), url=world.url), "search_notes")
    else:
        command = [sys.executable, str(Path(talking.__file__)), str(tmp_path / "record")]
        _ask_at_once(UpstreamServer(guard("notes"), command=command), "echo")


def _ask_at_once(behind: UpstreamServer, tool: str) -> None:
    wrong: list[Any] = []

    def one(running: RunningGateway, mine: int) -> None:
        with RawClient(running, "notes") as raw:
            for turn in range(15):
                text = f"{mine:03}-{turn:03}"
                answer = raw.request("tools/call", {"name": tool, "arguments": {"query": text}}, 1)
                if answer.get("id") != 1 or text not in json.dumps(answer.get("result")):
                    wrong.append((text, answer))

    with gateway({"notes": behind}) as running:
        with RawClient(running, "notes") as raw:
            raw.request("tools/list")
        threads = [threading.Thread(target=one, args=(running, mine)) for mine in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_sessions_fast_path_ends_with_the_session(at: Scene) -> None:
    body = json.dumps(rpc("tools/call", {"name": "search_notes", "arguments": {"query": "x"}}, 5)).encode()
    with RawClient(at.gateway, "notes") as raw:
        raw.initialize()
        assert raw.send(body)[0] == 200
        general = at.general
        assert raw.send(body)[0] == 200
        assert at.general == general
        with RawClient(at.gateway, "notes") as second:
            second.session = raw.session
            assert second.send(b"", method="DELETE")[0] == 200
        assert raw.send(body)[0] == 404
        with RawClient(at.gateway, "notes", OTHER_TOKEN) as other:
            other.session = raw.session
            assert other.send(body)[0] == 404, "the stream is not shared with another client"


def test_a_notification_of_the_same_length_does_not_take_the_fast_path(at: Scene) -> None:
    note = b'{"jsonrpc": "2.0", "method": "notifications/x", "params": {}}'
    with RawClient(at.gateway, "notes") as raw:
        known(raw)
        general = at.general
        assert raw.send(note.ljust(len(CALL)), {**HEADERS})[0] in (202, 400)
        assert at.general == general + 1
        known(raw)


NUMBERS = st.integers(-(1 << 53), 1 << 53)
TEXTS = st.text(alphabet='ab"\\{}:,id 1', max_size=12)


@given(
    request_id=NUMBERS,
    instead=NUMBERS,
    before=st.dictionaries(TEXTS.filter(lambda name: name != "id"), TEXTS, max_size=3),
    after=st.dictionaries(TEXTS.filter(lambda name: name != "id"), TEXTS, max_size=3),
    compact=st.booleans(),
)
def test_rewriting_an_id_in_place_changes_the_id_of_the_message(
    request_id: int, instead: int, before: dict[str, str], after: dict[str, str], compact: bool
) -> None:
    rest = {name: value for name, value in after.items() if name not in before}
    message = {"jsonrpc": "2.0", **before, "id": request_id, **rest}
    data = json.dumps(message, separators=(",", ":") if compact else None).encode()
    rewritten = replace_id(data, request_id, instead)
    assert rewritten is None or rewritten == replace_value(data, ("id",), orjson.dumps(instead))
    if not before or not rest:
        assert rewritten is not None, "at either end of the message"


def test_rewriting_an_id_leaves_ids_in_strings_and_nested_objects_unchanged() -> None:
    for data in (
        b'{"a":"\\"id\\":1}","id":2,"b":3}',
        b'{"id" :1,"a":2}',
        b'{"a":{"id":1}}',
        b'{"a":{"id":1},"b":2,"id":1 }',
        b'{"a":1,"x\\"id":1}',
    ):
        assert replace_id(data, 1, 9) is None, data
    assert replace_id(b'{"a":{"id":1},"id":1}', 1, 9) == b'{"a":{"id":1},"id":9}'


def test_every_fast_path_call_is_in_the_audit_log(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.db", tmp_path, gateway="test", limits=AuditLimits(commit_seconds=60.0))
    recorder = Recorder(log, None, lambda _: None)
    with (
        turning_http({"states": [STATE]}) as world,
        gateway(
            {"notes": UpstreamServer(guard("notes", APPROVED), url=world.url)}, recorder, note=log.record_call
        ) as running,
        RawClient(running, "notes") as raw,
    ):
        for request_id in range(1, 8):
            assert "result" in raw.request(
                "tools/call", {"name": "search_notes", "arguments": {"query": "x"}}, request_id
            )
        assert running.call_on_loop(lambda: running.manager.upstreams["notes"].recorder.kinds["called"]) == 7
    log.close()
    with closing(open_database(tmp_path / "audit.db", load_audit_schema())) as database:
        facts = [entry.event for entry in read_entries(database)]
    called = [fact for fact in facts if fact.kind == "called"]
    assert [fact.call.rpartition("/")[2] for fact in called] == [str(request_id) for request_id in range(1, 8)]
    assert {(fact.item, fact.client, fact.server) for fact in called} == {("search_notes", "tester", "notes")}
