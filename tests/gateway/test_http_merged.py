"""One endpoint for all servers: names that cannot collide, requests that reach the server they name, in both eras."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinwarden.gateway.http.names import LONGEST_NAME, merged_name, slugs_of, split_name, split_uri
from tests.gateway.desk import DELETE, POISONED, SEARCH, approved, refused
from tests.gateway.http_world import Behind, Gateway, Raw, gateway, guard, modern
from tests.servers import talking, turning
from tests.servers.turning_http import TurningWorld, turning_http

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
def here(remote: TurningWorld, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A remote of the newest revision, a process of the handshake era with the same names, and a talking one."""
    folder = tmp_path_factory.mktemp("merged")
    old = folder / "old.json"
    old.write_text(json.dumps({"states": [STATE], "eras": ["initialize"]}))
    servers = {
        "remote": Behind(guard("remote", approved(STATE)), url=remote.url),
        "local": Behind(
            guard("local", approved(STATE)), command=[sys.executable, str(Path(turning.__file__)), f"@{old}"]
        ),
        "talking": Behind(
            guard("talking"), command=[sys.executable, str(Path(talking.__file__)), str(folder / "record")]
        ),
        "gone": Behind(guard("gone"), command=[sys.executable, "-c", "raise SystemExit(1)"]),
    }
    with gateway(servers) as made:
        yield made


@pytest.fixture(params=["newest", "handshake"])
def ask(request: pytest.FixtureRequest, here: Gateway) -> Iterator[Any]:
    """A client of either era."""
    with Raw(here) as raw:
        if request.param == "newest":
            yield raw.ask
        else:
            about = raw.initialize()["result"]
            assert about["serverInfo"]["name"] == "pinwarden"
            yield raw.say


def test_every_name_begins_with_its_server_and_equal_names_do_not_collide(ask: Any) -> None:
    names = [tool["name"] for tool in ask("tools/list")["result"]["tools"]]
    own = [name for name in names if not name.startswith("talking__")]
    assert own == ["local__search_notes", "local__delete_note", "remote__search_notes", "remote__delete_note"]
    assert "talking__echo" in names
    assert len(set(names)) == len(names)
    prompts = [prompt["name"] for prompt in ask("prompts/list", number=2)["result"]["prompts"]]
    assert prompts == ["local__greet", "remote__greet", "talking__p"]
    resources = [each["uri"] for each in ask("resources/list", number=3)["result"]["resources"]]
    assert resources == ["local+note://today", "remote+note://today", "talking+note://one"]
    templates = ask("resources/templates/list", number=4)["result"]["resourceTemplates"]
    assert [each["uriTemplate"] for each in templates] == ["local+note://{day}", "remote+note://{day}"]


def test_only_the_name_of_an_item_is_changed(ask: Any) -> None:
    tools = {tool.pop("name"): tool for tool in ask("tools/list")["result"]["tools"]}
    expected = {name: value for name, value in SEARCH.items() if name != "name"}
    assert tools["remote__search_notes"] == tools["local__search_notes"] == expected


def test_a_call_reaches_the_server_that_it_names_under_its_own_name(ask: Any, remote: TurningWorld) -> None:
    before = remote.calls("delete_note")
    assert "result" in ask("tools/call", {"name": "remote__delete_note", "arguments": {"id": "1"}})
    assert remote.calls("delete_note") == before + 1
    place = max(at for at, body in enumerate(remote.bodies) if b"tools/call" in body)
    assert remote.heads[place]["mcp-name"] == "delete_note"
    assert "result" in ask("tools/call", {"name": "local__delete_note", "arguments": {"id": "1"}}, 2)
    assert remote.calls("delete_note") == before + 1
    text = ask("tools/call", {"name": "talking__echo", "arguments": {"a": 1}}, 3)["result"]["content"][0]["text"]
    assert json.loads(text) == {"a": 1}


def test_resources_and_completions_are_routed_too(ask: Any) -> None:
    assert ask("resources/read", {"uri": "talking+note://one"})["result"]["contents"][0]["uri"] == "note://one"
    reference = {"ref": {"type": "ref/prompt", "name": "talking__p"}, "argument": {"name": "a", "value": "v"}}
    assert ask("completion/complete", reference, 2)["result"]["completion"]["values"] == ["v!"]


@pytest.mark.parametrize(
    ("name", "code"),
    [("search_notes", -32602), ("nobody__search_notes", -32602), ("gone__x", -32000), ("__", -32602), ("", -32602)],
)
def test_a_name_of_no_server_is_refused(ask: Any, name: str, code: int) -> None:
    assert ask("tools/call", {"name": name, "arguments": {}})["error"]["code"] == code


def test_what_is_not_served_here_is_said_so(ask: Any) -> None:
    assert ask("tasks/list")["error"]["code"] == -32601


def test_progress_of_a_server_reaches_the_client(here: Gateway) -> None:
    from tests.gateway.http_world import messages

    params = {"name": "talking__steps", "arguments": {"count": 2}, "_meta": {"progressToken": "t"}}
    with Raw(here) as raw:
        _, headers, body = raw.send(*modern("tools/call", params))
    assert [each.get("method", "answer") for each in messages(headers, body)] == ["notifications/progress"] * 2 + [
        "answer"
    ]


def test_instructions_and_capabilities_are_the_sum_of_what_was_approved(here: Gateway) -> None:
    with Raw(here) as raw:
        about = raw.ask("server/discover")["result"]
    assert about["instructions"] == "local: Search before you write.\n\nremote: Search before you write."
    assert set(about["capabilities"]) == {"tools", "prompts", "resources", "completions", "logging"}
    assert (about["ttlMs"], about["cacheScope"]) == (0, "private")


def test_what_is_withheld_on_a_servers_own_address_is_withheld_here() -> None:
    servers = {"bad": Behind(guard("bad", approved(STATE)), url="")}
    with turning_http({"states": [{**STATE, "tools": [POISONED, DELETE]}]}) as world:
        servers["bad"].url = world.url
        with gateway(servers) as made, Raw(made) as raw:
            names = [tool["name"] for tool in raw.ask("tools/list")["result"]["tools"]]
            assert names == ["bad__delete_note"]
            answer = raw.ask("tools/call", {"name": "bad__search_notes", "arguments": {}}, 2)
            assert refused(answer) == "new_exfiltration"
            assert world.calls("search_notes") == 0


def test_a_name_that_gets_too_long_is_shortened_and_still_works() -> None:
    with (
        turning_http({"states": [LONG]}) as world,
        gateway({"long": Behind(guard("long", approved(LONG)), url=world.url)}) as made,
        Raw(made) as raw,
    ):
        (name,) = [tool["name"] for tool in raw.ask("tools/list")["result"]["tools"]]
        assert len(name) == LONGEST_NAME
        assert "result" in raw.ask("tools/call", {"name": name, "arguments": {}}, 2)
        assert world.calls("n" * 127) == 1


def test_servers_whose_names_look_alike_get_different_names() -> None:
    names = ["a b", "a-b", "A-b", "io.github.acme/notes", "9lives", "a__b", "", "x" * 99, "x" * 98 + "y"]
    slugs = slugs_of(names)
    assert len({slug.lower() for slug in slugs.values()}) == len(names)
    for slug in slugs.values():
        assert "__" not in slug
        assert "+" not in slug
        assert split_name(merged_name(slug, "_tool__x")) == (slug, "_tool__x")
        assert split_uri(f"{slug}+note://a+b") == (slug, "note://a+b")
    assert slugs_of(["notes"]) == {"notes": "notes"}
