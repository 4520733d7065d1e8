"""Unapproved items are blocked over HTTP, for processes and remote servers, in both protocol eras."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.gateway.store.tokens import hash_token
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY, GatewayPolicy
from pinwarden.surface.surface import Surface
from tests.conformance.sequences import Play, perform, play_of, sequences_by_wire
from tests.gateway.http_gateway import (
    OTHER_TOKEN,
    TOKEN,
    EventStream,
    InMemoryRecorder,
    RawClient,
    RunningGateway,
    UpstreamServer,
    gateway,
    guard,
    messages,
    stateless_request,
)
from tests.gateway.session_harness import DELETE, POISONED, SEARCH, approved_surface, policy, refusal_code
from tests.servers import turning
from tests.servers.led_http import Exchange, Led, led_http
from tests.servers.turning_http import TurningWorld, turning_http
from tests.support.waiting import poll

HONEST: dict[str, Any] = {"tools": [SEARCH, DELETE]}
TURNED: dict[str, Any] = {"tools": [POISONED, DELETE]}
SHUT_OUT = "the token was revoked"
NOTICE = ["notifications/tools/list_changed"]
FAST = policy(**{"relist-calls": 1})


class Scene:
    """A client in one era, a gateway, and a server that changes its surface."""

    def __init__(
        self,
        raw: RawClient,
        turn: Callable[[], None],
        recorder: InMemoryRecorder,
        gateway: RunningGateway,
        *,
        stateless: bool,
    ) -> None:
        self.raw = raw
        self.turn = turn
        self.kept = recorder
        self.gateway = gateway
        self._ask = raw.request if stateless else raw.session_request
        self._last = 0

    def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        self._last += 1
        return self._ask(method, params, self._last)

    def names(self) -> list[str]:
        names: list[str] = []
        cursor: dict[str, Any] = {}
        while True:
            result = self.ask("tools/list", cursor)["result"]
            names += [tool["name"] for tool in result["tools"]]
            if "nextCursor" not in result:
                return names
            cursor = {"cursor": result["nextCursor"]}

    def call(self, name: str) -> Any:
        return self.ask("tools/call", {"name": name, "arguments": {"query": "x"}})


@contextmanager
def scene(
    wire: str, script: dict[str, Any], surface: Surface, tmp_path: Path, rules: GatewayPolicy = DEFAULT_GATEWAY_POLICY
) -> Iterator[Scene]:
    """``stdio`` uses a process with the handshake; ``json``, ``events`` and ``sessions`` use remote servers."""
    recorder = InMemoryRecorder()
    judge = guard("notes", surface, rules)
    if wire == "stdio":
        path = tmp_path / "script.json"
        path.write_text(json.dumps(script))
        command = [sys.executable, str(Path(turning.__file__)), f"@{path}"]
        with (
            gateway({"notes": UpstreamServer(judge, command=command)}, recorder) as running,
            RawClient(running, "notes") as raw,
        ):
            raw.initialize()
            body = json.dumps({"jsonrpc": "2.0", "method": turning.TURN}).encode()
            yield Scene(raw, lambda: raw.send(body) and None, recorder, running, stateless=False)
        return
    with (
        turning_http({"version": "2025-11-25", **script}, wire) as world,
        gateway({"notes": UpstreamServer(judge, url=world.url)}, recorder) as running,
        RawClient(running, "notes") as raw,
    ):
        if wire == "sessions":
            raw.initialize()
            poll(lambda: bool(world.streams))
        yield Scene(raw, world.turn, recorder, running, stateless=wire != "sessions")


WIRES = ["stdio", "json", "events", "sessions"]


class Stage:
    """Plays a sequence over HTTP, with a process or a remote server."""

    def __init__(self, wire: str, play: Play, folder: Path, *, stack: ExitStack) -> None:
        self.kept = InMemoryRecorder()
        self._stack = stack
        self._place = folder / "place"
        self._raw: RawClient | None = None
        self._world: TurningWorld | None = None
        self._stateless = wire in ("json", "events")
        self._streams = wire == "sessions"
        self._last = 0
        judge = guard("notes", play.approved, FAST)
        if wire == "stdio":
            path = folder / "script.json"
            path.write_text(json.dumps({**play.script, "place": str(self._place)}))
            behind = UpstreamServer(judge, command=[sys.executable, str(Path(turning.__file__)), f"@{path}"])
        else:
            self._world = stack.enter_context(turning_http(play.script, wire))
            behind = UpstreamServer(judge, url=self._world.url)
        self._gateway = stack.enter_context(gateway({"notes": behind}, self.kept))

    def open(self, place: int) -> dict[str, Any]:
        self._place.write_text(str(place))
        if self._world is not None and place:
            self._world.turn()
        if self._raw is None or not self._stateless:
            self._raw = self._stack.enter_context(RawClient(self._gateway, "notes"))
        if self._stateless:
            return self.ask("server/discover", {})
        before = 0 if self._world is None else len(self._world.streams)
        answer: dict[str, Any] = self._raw.initialize()
        if self._world is not None and "result" in answer:
            poll(lambda: len(self._world.streams) > before)  # type: ignore[union-attr]
        return answer

    def turn(self) -> None:
        if self._world is not None:
            self._world.turn()
        elif self._raw is not None:
            self._raw.send(json.dumps({"jsonrpc": "2.0", "method": turning.TURN}).encode())

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert self._raw is not None
        self._last += 1
        ask = self._raw.request if self._stateless else self._raw.session_request
        answer: dict[str, Any] = ask(method, params, self._last)
        return answer


@pytest.mark.parametrize(("case", "wire"), sequences_by_wire(WIRES))
def test_a_drift_sequence_is_blocked_over_http_exactly_as_expected(
    case: dict[str, Any], wire: str, tmp_path: Path
) -> None:
    play = play_of(case)
    with ExitStack() as stack:
        stage = Stage(wire, play, tmp_path, stack=stack)
        blocked = perform(case, play, stage)
        facts = [fact for fact in stage.kept.events if fact.kind == "blocked"]
    assert {(fact.item_kind, fact.item) for fact in facts} == blocked


@pytest.mark.parametrize("wire", WIRES)
def test_attack_a_rug_pull_is_hidden_in_lists_and_refused_in_calls(wire: str, tmp_path: Path) -> None:
    script = {"states": [HONEST, {**TURNED, "announce": NOTICE if wire == "sessions" else []}]}
    with scene(wire, script, approved_surface(HONEST), tmp_path, FAST) as at:
        assert at.names() == ["search_notes", "delete_note"]
        assert "result" in at.call("search_notes")
        at.turn()
        poll(lambda: "error" in at.call("search_notes"))
        assert at.names() == ["delete_note"]
        answer = at.call("search_notes")
        assert refusal_code(answer) == "new_exfiltration"
        assert "pinwarden approve" in answer["error"]["message"]
        assert "result" in at.call("delete_note")
    calls = [fact for fact in at.kept.events if fact.kind == "blocked" and fact.method == "tools/call"]
    assert {fact.client for fact in calls} == {"tester"}
    assert answer["error"]["data"]["pinwarden"]["call"] in {fact.call for fact in calls}


def test_a_call_without_a_list_is_judged_before_it_reaches_the_server() -> None:
    script = {"states": [TURNED]}
    with (
        turning_http(script) as world,
        gateway({"notes": UpstreamServer(guard("notes", approved_surface(HONEST)), url=world.url)}) as running,
        RawClient(running, "notes") as raw,
    ):
        answer = raw.request("tools/call", {"name": "search_notes", "arguments": {}})
        assert refusal_code(answer) == "new_exfiltration"
        assert world.calls("search_notes") == 0


def test_a_clients_policy_applies_only_to_that_client() -> None:
    rules = policy(rules=[{"client": "other", "enforcement": "audit"}])
    with (
        turning_http({"states": [TURNED]}) as world,
        gateway({"notes": UpstreamServer(guard("notes", approved_surface(HONEST), rules), url=world.url)}) as running,
        RawClient(running, "notes") as strict,
        RawClient(running, "notes", OTHER_TOKEN) as watched,
    ):
        call = {"name": "search_notes", "arguments": {}}
        assert refusal_code(strict.request("tools/call", call)) == "new_exfiltration"
        assert "result" in watched.request("tools/call", call)
        assert world.calls("search_notes") == 1


def test_an_approval_takes_effect_without_a_restart() -> None:
    judge = guard("notes", approved_surface(HONEST))
    with (
        turning_http({"states": [TURNED]}) as world,
        gateway({"notes": UpstreamServer(judge, url=world.url)}) as running,
        RawClient(running, "notes") as raw,
    ):
        call = {"name": "search_notes", "arguments": {}}
        assert "error" in raw.request("tools/call", call)
        judge._source.approve(approved_surface(TURNED))  # type: ignore[attr-defined]
        poll(lambda: "result" in raw.request("tools/call", call))


# Headers and bodies


def _lied(header: str, value: str) -> Callable[[dict[str, str]], dict[str, str]]:
    return lambda headers: {**headers, header: value}


@pytest.mark.parametrize(
    "lie",
    [
        _lied("Mcp-Name", "delete_note"),
        _lied("Mcp-Name", "=?base64?ZGVsZXRlX25vdGU=?="),
        _lied("Mcp-Name", "=?base64?!?="),
        _lied("Mcp-Method", "tools/list"),
        _lied("Mcp-Protocol-Version", "2025-11-25"),
        lambda headers: {name: value for name, value in headers.items() if name != "Mcp-Name"},
        lambda headers: {name: value for name, value in headers.items() if name != "Mcp-Method"},
        lambda headers: {name: value for name, value in headers.items() if name != "Mcp-Protocol-Version"},
    ],
)
def test_headers_that_contradict_the_body_are_refused(
    lie: Callable[[dict[str, str]], dict[str, str]], world: TurningWorld, here: RunningGateway
) -> None:
    body, headers = stateless_request("tools/call", {"name": "search_notes", "arguments": {}})
    before = len(world.bodies)
    with RawClient(here, "notes") as raw:
        status, names, answer = raw.send(body, lie(headers))
    assert (status, messages(names, answer)[0]["error"]["code"]) == (400, -32020)
    assert len(world.bodies) == before, "nothing reached the server"


def test_an_encoded_name_in_a_header_is_decoded_before_the_comparison(
    world: TurningWorld, here: RunningGateway
) -> None:
    body, headers = stateless_request("tools/call", {"name": "snö", "arguments": {}})
    with RawClient(here, "notes") as raw:
        status, _, answer = raw.send(body, {**headers, "Mcp-Name": "=?base64?c27Dtg==?="})
    assert status == 400  # a refusal has the error code of an invalid parameter
    assert json.loads(answer)["error"]["data"]["pinwarden"]["name"] == "snö"
    assert world.calls("snö") == 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}', -32700),
        (b'{"jsonrpc":"2.0","id":1', -32700),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}', -32700),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
    ],
)
def test_attack_an_ambiguous_message_is_not_forwarded_over_http(
    body: bytes, code: int, world: TurningWorld, here: RunningGateway
) -> None:
    before = len(world.bodies)
    with RawClient(here, "notes") as raw:
        status, names, answer = raw.send(body)
    assert (status, messages(names, answer)[0]["error"]["code"]) == (400, code)
    assert len(world.bodies) == before


def test_the_server_gets_headers_that_match_the_body_and_never_the_clients_token(
    world: TurningWorld, here: RunningGateway
) -> None:
    body, headers = stateless_request("tools/call", {"name": "search_notes", "arguments": {"query": "x"}})
    with RawClient(here, "notes") as raw:
        raw.send(body, {**headers, "Mcp-Param-Query": "x", "X-Forwarded-For": "1.2.3.4", "Cookie": "a=b"})
    head = next(head for head, sent in zip(world.heads, world.bodies, strict=True) if sent == body)
    assert {name: head.get(name) for name in ("mcp-method", "mcp-name", "mcp-protocol-version")} == {
        "mcp-method": "tools/call",
        "mcp-name": "search_notes",
        "mcp-protocol-version": "2026-07-28",
    }
    assert not {"authorization", "cookie", "x-forwarded-for", "origin"} & head.keys()
    assert "mcp-param-query" not in head, "the tool does not declare this header"


DECLARING = {
    "name": "go",
    "description": "Goes.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "dry": {"type": "boolean", "x-mcp-header": "Dry"},
            "to": {"type": "object", "properties": {"count": {"type": "integer", "x-mcp-header": "Count"}}},
        },
    },
}
ARGUMENTS = {"region": "eu", "dry": True, "to": {"count": 7}}


@pytest.fixture(params=["far", ""])
def declaring(request: pytest.FixtureRequest) -> Iterator[tuple[Led, RawClient, str]]:
    """Return a server whose tool declares argument headers, a client of the gateway, and the tool's name there."""
    with (
        led_http(tools=[DECLARING]) as led,
        gateway({"far": UpstreamServer(guard("far", led.surface), url=led.url)}) as running,
        RawClient(running, request.param) as raw,
    ):
        yield led, raw, "go" if request.param else "far__go"


def called(at: tuple[Led, RawClient, str], request_id: int, arguments: Any, headers: dict[str, str]) -> tuple[int, Any]:
    _, raw, name = at
    body, own = stateless_request("tools/call", {"name": name, "arguments": arguments}, request_id)
    status, names, text = raw.send(body, {**own, **headers})
    return status, messages(names, text)[-1].get("error", {}).get("code")


def test_argument_headers_that_match_the_arguments_are_forwarded(
    declaring: tuple[Led, RawClient, str],
) -> None:
    given = {"Mcp-Param-Region": "eu", "Mcp-Param-DRY": "true", "Mcp-Param-Count": "7", "Mcp-Param-Other": "x"}
    got = {"mcp-param-region": "eu", "mcp-param-dry": "true", "mcp-param-count": "7"}
    for request_id in (1, 2):
        assert called(declaring, request_id, ARGUMENTS, given) == (200, None)
        heads = declaring[0].got[-1].heads
        assert {name: value for name, value in heads.items() if name.startswith("mcp-param-")} == got
    unusual = {"Mcp-Param-Region": "=?base64?w7w=?="}
    assert called(declaring, 3, {"region": "\u00fc"}, unusual) == (200, None)


@pytest.mark.parametrize(
    ("headers", "arguments"),
    [
        ({"Mcp-Param-Region": "us"}, ARGUMENTS),
        ({"mcp-param-region": "EU"}, ARGUMENTS),
        ({"Mcp-Param-Dry": "false"}, ARGUMENTS),
        ({"Mcp-Param-Dry": "1"}, ARGUMENTS),
        ({"Mcp-Param-Count": "07"}, ARGUMENTS),
        ({"Mcp-Param-Region": "=?base64?dXM=?="}, ARGUMENTS),
        ({"Mcp-Param-Region": "eu"}, {}),
        ({"Mcp-Param-Count": "7"}, {"to": 7}),
        ({"Mcp-Param-Region": "null"}, {"region": None}),
    ],
)
def test_attack_an_argument_header_that_contradicts_the_argument_is_refused(
    declaring: tuple[Led, RawClient, str], headers: dict[str, str], arguments: Any
) -> None:
    """Attack: a proxy allows the call because of the header, and the server uses the argument."""
    for request_id in (1, 2):  # before and after the tool is known
        assert called(declaring, request_id, arguments, headers) == (400, -32020)
    assert "tools/call" not in declaring[0].methods
    assert called(declaring, 3, ARGUMENTS, {}) == (200, None)


# Access


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer pwt_wrong"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Authorization": ""}, 401),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1@evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
def test_requests_without_a_token_or_from_a_foreign_origin_are_rejected(
    headers: dict[str, str], status: int, world: TurningWorld, here: RunningGateway
) -> None:
    body, own = stateless_request("tools/list")
    before = len(world.bodies)
    with RawClient(here, "notes") as raw:
        assert raw.send(body, {**own, **headers})[0] == status
    assert len(world.bodies) == before


def test_a_client_sees_only_the_servers_of_its_token(world: TurningWorld) -> None:
    clients = {TOKEN: GatewayClient(name="all"), OTHER_TOKEN: GatewayClient(name="few", servers=("other",))}
    servers = {
        name: UpstreamServer(guard(name, approved_surface(HONEST)), url=world.url) for name in ("notes", "other")
    }
    with gateway(servers, clients=clients) as running:
        with RawClient(running, "notes", OTHER_TOKEN) as raw:
            assert raw.send(*stateless_request("tools/list"))[0] == 404
        with RawClient(running, "other", OTHER_TOKEN) as raw:
            assert raw.send(*stateless_request("tools/list"))[0] == 200
        with RawClient(running, "", OTHER_TOKEN) as raw:
            names = [tool["name"] for tool in raw.request("tools/list")["result"]["tools"]]
            assert names == ["other__search_notes", "other__delete_note"]
            answer = raw.request("tools/call", {"name": "notes__search_notes", "arguments": {}})
            assert answer["error"]["code"] == -32602


def test_a_session_belongs_to_the_client_that_opened_it(tmp_path: Path) -> None:
    with scene("stdio", {"states": [HONEST]}, approved_surface(HONEST), tmp_path) as at:
        with RawClient(at.gateway, "notes", OTHER_TOKEN) as thief:
            thief.session = at.raw.session
            for method in ("GET", "DELETE"):
                assert thief.send(b"", method=method)[0] == 404
            thief.session_request("tools/list")
            assert thief.status == 404
        assert at.names() == ["search_notes", "delete_note"], "and it is still there"


def test_a_deleted_session_is_gone_and_its_process_ends(tmp_path: Path) -> None:
    with scene("stdio", {"states": [HONEST]}, approved_surface(HONEST), tmp_path) as at:
        assert at.raw.send(b"", method="DELETE")[0] == 200
        at.raw.session_request("tools/list")
        assert at.raw.status == 404
        poll(lambda: at.gateway.call_on_loop(lambda: at.gateway.manager.open_counts) == (0, 0))


@pytest.fixture(scope="module")
def world() -> Iterator[TurningWorld]:
    with turning_http({"states": [HONEST]}) as made:
        yield made


@pytest.fixture(scope="module")
def here(world: TurningWorld) -> Iterator[RunningGateway]:
    with gateway({"notes": UpstreamServer(guard("notes", approved_surface(HONEST)), url=world.url)}) as running:
        yield running


@pytest.mark.parametrize("address", ["notes", ""])
@pytest.mark.parametrize("method", [5, None, {}, [], True])
def test_a_method_that_is_not_a_string_is_refused_in_both_eras(here: RunningGateway, method: Any, address: str) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 3, "method": method}).encode()
    with RawClient(here, address) as raw:
        for headers in ({}, {"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": ""}):
            status, _, text = raw.send(body, headers)
            answer = json.loads(text)
            assert (status, answer["id"], answer["error"]["code"]) == (400, 3, -32600)


@pytest.mark.parametrize("address", ["old", ""])
def test_attack_a_session_ends_when_its_token_is_revoked(address: str) -> None:
    """Attack: a client opens a stream before its token is revoked, and keeps listening."""
    mine, others = GatewayClient(name="tester", token="a"), GatewayClient(name="tester", token="b")
    with led_http(newest=False) as led:
        servers = {"old": UpstreamServer(guard("old", led.surface), url=led.url)}
        with (
            gateway(servers, clients={TOKEN: mine, OTHER_TOKEN: others}) as running,
            RawClient(running, address) as raw,
            RawClient(running, address, OTHER_TOKEN) as second,
        ):
            raw.initialize()
            second.initialize()
            with EventStream(running, raw.session, address) as stream:
                running.call_on_loop(lambda: running.endpoint.access.set_clients({hash_token(OTHER_TOKEN): others}))
                assert stream.next() is None, "the stream ended"
            assert raw.send(b"{}")[0] == 401
            assert "result" in second.session_request("tools/list"), "another token of the same client still works"
            second.session = raw.session
            second.session_request("tools/list")
            assert second.status == 404


def test_attack_a_subscription_ends_when_its_token_is_revoked() -> None:
    """Attack: the same with the newest revision, where a subscription is a request."""

    def lead(exchange: Exchange) -> bool:
        if exchange.method == "subscriptions/listen":
            exchange.begin()
        return exchange.method == "subscriptions/listen"

    with led_http(capabilities={"tools": {"listChanged": True}}) as led:
        led.lead = lead
        ended: list[Any] = []
        with gateway({"far": UpstreamServer(guard("far", led.surface), url=led.url)}) as running:
            body, headers = stateless_request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, 77)

            def listen() -> None:
                with EventStream(running, "", "far", body=body, headers=headers) as stream:
                    ended.append(stream.next())

            thread = threading.Thread(target=listen)
            thread.start()
            poll(lambda: "subscriptions/listen" in led.methods)
            running.call_on_loop(lambda: running.endpoint.access.set_clients({}))
            thread.join(60)
            assert ended == [{"jsonrpc": "2.0", "id": 77, "error": {"code": -32000, "message": SHUT_OUT}}]
