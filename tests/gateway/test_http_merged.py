"""The merged endpoint: names do not collide, and requests reach the server they name, in both protocol eras."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.merged import MAX_NAME, assign_slugs, build_merged_name, split_name, split_uri
from tests.gateway.http_gateway import (
    TOKEN,
    EventStream,
    RawClient,
    RunningGateway,
    UpstreamServer,
    gateway,
    guard,
    rpc,
    stateless_request,
)
from tests.gateway.session_harness import DELETE, POISONED, SEARCH, approved_surface, refusal_code
from tests.servers import talking, turning
from tests.servers.led_http import Exchange, led_http
from tests.servers.turning_http import TurningWorld, turning_http
from tests.support.waiting import poll

STATE: dict[str, Any] = {
    "tools": [SEARCH, DELETE],
    "prompts": [{"name": "greet"}],
    "resources": [{"name": "today", "uri": "note://today"}],
    "resourceTemplates": [{"name": "of day", "uriTemplate": "note://{day}"}],
    "server": {"instructions": "Search before you write."},
}
LONG: dict[str, Any] = {"tools": [{**SEARCH, "name": "n" * 127}]}


@pytest.fixture(scope="module")
def remote() -> Iterator[TurningWorld]:
    with turning_http({"states": [STATE, {**STATE, "tools": [POISONED, DELETE]}]}) as world:
        yield world


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded messages of the talking server."""
    return tmp_path_factory.mktemp("merged") / "record"


@pytest.fixture(scope="module")
def here(remote: TurningWorld, record: Path) -> Iterator[RunningGateway]:
    """A stateless remote, a handshake process with the same names, and a talking process."""
    old = record.with_name("old.json")
    old.write_text(json.dumps({"states": [STATE], "eras": ["initialize"]}))
    servers = {
        "remote": UpstreamServer(guard("remote", approved_surface(STATE)), url=remote.url),
        "local": UpstreamServer(
            guard("local", approved_surface(STATE)), command=[sys.executable, str(Path(turning.__file__)), f"@{old}"]
        ),
        "talking": UpstreamServer(guard("talking"), command=[sys.executable, str(Path(talking.__file__)), str(record)]),
        "gone": UpstreamServer(guard("gone"), command=[sys.executable, "-c", "raise SystemExit(1)"]),
    }
    with gateway(servers) as running:
        yield running


@pytest.fixture(params=["newest", "handshake"])
def ask(request: pytest.FixtureRequest, here: RunningGateway) -> Iterator[Any]:
    """A client of either era."""
    with RawClient(here) as raw:
        if request.param == "newest":
            yield raw.request
        else:
            about = raw.initialize()["result"]
            assert about["serverInfo"]["name"] == "pinwarden"
            yield raw.session_request


def test_every_merged_name_starts_with_its_server_and_equal_names_do_not_collide(ask: Any) -> None:
    names = [tool["name"] for tool in ask("tools/list")["result"]["tools"]]
    own = [name for name in names if not name.startswith("talking__")]
    assert own == ["local__search_notes", "local__delete_note", "remote__search_notes", "remote__delete_note"]
    assert "talking__echo" in names
    assert len(set(names)) == len(names)
    prompts = [prompt["name"] for prompt in ask("prompts/list", request_id=2)["result"]["prompts"]]
    assert prompts == ["local__greet", "remote__greet", "talking__p"]
    resources = [resource["uri"] for resource in ask("resources/list", request_id=3)["result"]["resources"]]
    assert resources == ["local+note://today", "remote+note://today", "talking+note://one"]
    templates = ask("resources/templates/list", request_id=4)["result"]["resourceTemplates"]
    assert [template["uriTemplate"] for template in templates] == ["local+note://{day}", "remote+note://{day}"]


def test_merging_changes_only_the_name_of_an_item(ask: Any) -> None:
    tools = {tool.pop("name"): tool for tool in ask("tools/list")["result"]["tools"]}
    expected = {name: value for name, value in SEARCH.items() if name != "name"}
    assert tools["remote__search_notes"] == tools["local__search_notes"] == expected


def test_a_merged_call_reaches_its_server_under_the_original_name(ask: Any, remote: TurningWorld) -> None:
    before = remote.calls("delete_note")
    assert "result" in ask("tools/call", {"name": "remote__delete_note", "arguments": {"id": "1"}})
    assert remote.calls("delete_note") == before + 1
    place = max(at for at, body in enumerate(remote.bodies) if b"tools/call" in body)
    assert remote.heads[place]["mcp-name"] == "delete_note"
    assert "result" in ask("tools/call", {"name": "local__delete_note", "arguments": {"id": "1"}}, 2)
    assert remote.calls("delete_note") == before + 1
    text = ask("tools/call", {"name": "talking__echo", "arguments": {"a": 1}}, 3)["result"]["content"][0]["text"]
    assert json.loads(text) == {"a": 1}


def test_resources_and_completions_are_routed_to_their_server(ask: Any) -> None:
    assert ask("resources/read", {"uri": "talking+note://one"})["result"]["contents"][0]["uri"] == "note://one"
    reference = {"ref": {"type": "ref/prompt", "name": "talking__p"}, "argument": {"name": "a", "value": "v"}}
    assert ask("completion/complete", reference, 2)["result"]["completion"]["values"] == ["v!"]


@pytest.mark.parametrize(
    ("name", "code"),
    [("search_notes", -32602), ("nobody__search_notes", -32602), ("gone__x", -32000), ("__", -32602), ("", -32602)],
)
def test_a_name_without_a_known_server_is_refused(ask: Any, name: str, code: int) -> None:
    assert ask("tools/call", {"name": name, "arguments": {}})["error"]["code"] == code


def test_an_unsupported_method_gets_method_not_found(ask: Any) -> None:
    assert ask("tasks/list")["error"]["code"] == -32601


def test_progress_reaches_the_client_through_the_merged_endpoint(here: RunningGateway) -> None:
    from tests.gateway.http_gateway import messages

    params = {"name": "talking__steps", "arguments": {"count": 2}, "_meta": {"progressToken": "t"}}
    with RawClient(here) as raw:
        _, headers, body = raw.send(*stateless_request("tools/call", params))
    assert [message.get("method", "answer") for message in messages(headers, body)] == [
        "notifications/progress"
    ] * 2 + ["answer"]


def test_merged_instructions_and_capabilities_combine_the_approved_ones(here: RunningGateway) -> None:
    with RawClient(here) as raw:
        about = raw.request("server/discover")["result"]
    assert about["instructions"] == "local: Search before you write.\n\nremote: Search before you write."
    assert set(about["capabilities"]) == {"tools", "prompts", "resources", "completions", "logging"}
    assert (about["ttlMs"], about["cacheScope"]) == (0, "private")


def test_items_blocked_at_a_servers_endpoint_are_blocked_at_the_merged_one() -> None:
    servers = {"bad": UpstreamServer(guard("bad", approved_surface(STATE)), url="")}
    with turning_http({"states": [{**STATE, "tools": [POISONED, DELETE]}]}) as world:
        servers["bad"].url = world.url
        with gateway(servers) as running, RawClient(running) as raw:
            names = [tool["name"] for tool in raw.request("tools/list")["result"]["tools"]]
            assert names == ["bad__delete_note"]
            answer = raw.request("tools/call", {"name": "bad__search_notes", "arguments": {}}, 2)
            assert refusal_code(answer) == "new_exfiltration"
            assert world.calls("search_notes") == 0


def test_a_name_that_gets_too_long_is_shortened_and_still_works() -> None:
    with (
        turning_http({"states": [LONG]}) as world,
        gateway({"long": UpstreamServer(guard("long", approved_surface(LONG)), url=world.url)}) as running,
        RawClient(running) as raw,
    ):
        (name,) = [tool["name"] for tool in raw.request("tools/list")["result"]["tools"]]
        assert len(name) == MAX_NAME
        assert "result" in raw.request("tools/call", {"name": name, "arguments": {}}, 2)
        assert world.calls("n" * 127) == 1


def test_attack_a_tool_named_like_anothers_shortened_name_gets_a_different_name() -> None:
    """Attack: a call of one tool reaches the other."""
    long = "n" * 140
    short = split_name(build_merged_name("far", long))[1]
    tools = [{**SEARCH, "name": name} for name in (long, short)]
    with (
        led_http(tools=tools) as led,
        gateway({"far": UpstreamServer(guard("far", led.surface), url=led.url)}) as running,
    ):
        with RawClient(running) as raw:
            names = [tool["name"] for tool in raw.request("tools/list")["result"]["tools"]]
            assert len(set(names)) == 2
            assert {len(name) for name in names} == {MAX_NAME}
            for request_id, name in enumerate(names, 2):
                raw.request("tools/call", {"name": name, "arguments": {}}, request_id)
        calls = [message.message["params"]["name"] for message in led.got if message.method == "tools/call"]
        assert calls == [long, short]


def test_an_empty_method_gets_a_readable_error(ask: Any) -> None:
    error = ask("")["error"]
    assert error["message"] == "a method without a name is supported only at a server's own address"


@pytest.fixture
def hanging() -> Iterator[tuple[RunningGateway, threading.Event]]:
    """Two servers; one does not list until the test allows it."""
    listing = threading.Event()

    def lead(exchange: Exchange) -> bool:
        if exchange.method == "tools/list":
            listing.wait(60)
        return False

    with led_http("bad", newest=False) as bad, led_http("good", newest=False) as good:
        bad.lead = lead
        servers = {
            server.name: UpstreamServer(guard(server.name, server.surface), url=server.url) for server in (bad, good)
        }
        with gateway(servers, limits=HttpLimits(reload_seconds=0.05, merged_list_seconds=0.5)) as running:
            try:
                yield running, listing
            finally:
                listing.set()


def test_attack_a_server_that_never_lists_does_not_block_the_other_servers(
    hanging: tuple[RunningGateway, threading.Event],
) -> None:
    """Attack: all merged lists wait for this server."""
    running, listing = hanging
    with RawClient(running) as raw:
        raw.initialize()
        with EventStream(running, raw.session) as stream:
            poll(lambda: _tools(raw) == ["good__go"])
            assert "result" in raw.session_request("tools/call", {"name": "good__go", "arguments": {}}, 3)
            listing.set()
            assert stream.next()["method"] == "notifications/tools/list_changed"
            poll(lambda: _tools(raw) == ["bad__go", "good__go"])


def _tools(raw: RawClient) -> list[str]:
    return [tool["name"] for tool in raw.session_request("tools/list")["result"]["tools"]]


def test_servers_with_similar_names_get_different_slugs() -> None:
    names = ["a b", "a-b", "A-b", "io.github.acme/notes", "9lives", "a__b", "", "x" * 99, "x" * 98 + "y"]
    slugs = assign_slugs(names)
    assert len({slug.lower() for slug in slugs.values()}) == len(names)
    for slug in slugs.values():
        assert "__" not in slug
        assert "+" not in slug
        assert split_name(build_merged_name(slug, "_tool__x")) == (slug, "_tool__x")
        assert split_uri(f"{slug}+note://a+b") == (slug, "note://a+b")
    assert assign_slugs(["notes"]) == {"notes": "notes"}


def _begun(here: RunningGateway, record: Path, text: str) -> socket.socket:
    """Send an unanswered call under a common id, and wait until the server has it."""
    body, headers = stateless_request("tools/call", {"name": "talking__slow", "arguments": {"mark": text}}, 5)
    lines = {"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}", **headers, "Content-Type": "application/json"}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**lines, "Content-Length": str(len(body))}.items())
    connection = socket.create_connection((here.host, here.port), timeout=60)
    connection.sendall(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
    # With the end of the line, so that a partly written line does not match.
    poll(lambda: any(text.encode() in line for line in record.read_bytes().split(b"\n")[:-1] if line[:1] == b"<"))
    return connection


def test_disconnecting_cancels_only_the_connections_own_call(here: RunningGateway, record: Path) -> None:
    """Two programs of one client use the same id at once."""

    def received() -> list[bytes]:
        whole = [line for line in record.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        return [line[2:] for line in whole if line[:1] == b"<"]

    def sent_as(text: str) -> Any:
        return json.loads([line for line in received() if text.encode() in line][-1])["id"]

    def cancelled() -> list[Any]:
        lines = [json.loads(line) for line in received()]
        return [line["params"]["requestId"] for line in lines if line.get("method") == "notifications/cancelled"]

    with RawClient(here) as raw:
        raw.request("tools/list")
    before = len(cancelled()) if record.exists() else 0
    first, second = _begun(here, record, "mark-one"), _begun(here, record, "mark-two")
    assert sent_as("mark-one") != sent_as("mark-two")
    first.close()
    poll(lambda: sent_as("mark-one") in cancelled())
    assert sent_as("mark-two") not in cancelled()
    second.close()
    poll(lambda: sent_as("mark-two") in cancelled())
    assert len(cancelled()) == before + 2


def test_cancelling_a_call_in_a_merged_session_reaches_the_server(here: RunningGateway, record: Path) -> None:
    with RawClient(here) as raw, RawClient(here) as second:
        raw.initialize()
        second.session = raw.session
        before = len(record.read_bytes())
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 31}}

        def cancel() -> None:
            poll(lambda: b"mark-three" in record.read_bytes())
            assert second.send(json.dumps(note).encode())[0] == 202

        thread = threading.Thread(target=cancel)
        thread.start()
        call = rpc("tools/call", {"name": "talking__slow", "arguments": {"mark": "mark-three"}}, 31)
        assert raw.send(json.dumps(call).encode())[::2] == (200, b"")  # a cancelled request gets no response
        thread.join()
    poll(lambda: record.read_bytes()[before:].count(b"notifications/cancelled") == 1)


@pytest.mark.parametrize("method", ["resources/subscribe", "resources/unsubscribe"])
def test_unsupported_subscriptions_are_refused_with_the_endpoint_that_has_them(
    here: RunningGateway, method: str
) -> None:
    with RawClient(here) as raw:
        for request_id, uri in enumerate(("remote+note://today", "local+note://today")):
            error = raw.request(method, {"uri": uri}, request_id)["error"]
            assert error["code"] == -32601
            assert "at the server's own address" in error["message"]
        assert raw.request("subscriptions/listen", {"notifications": {}}, 9)["error"]["code"] == -32601
    with RawClient(here) as old:
        assert old.initialize()["result"]["capabilities"]["resources"]["subscribe"] is True
        assert old.session_request(method, {"uri": "remote+note://today"}, 2)["error"]["code"] == -32601
        assert old.session_request(method, {"uri": "local+note://today"}, 3).get("error") is None or method.endswith(
            "unsubscribe"
        )
