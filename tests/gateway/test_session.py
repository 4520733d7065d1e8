"""A session between a client and a server: which messages are forwarded, deferred and refused."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from pinwarden.core.digest import tool_digest
from pinwarden.gateway.guard import SessionClient, SessionLimits
from tests.gateway.session_harness import (
    DELETE,
    POISONED,
    SEARCH,
    SessionHarness,
    approved_surface,
    policy,
    refusal_code,
)
from tests.servers.turning import MEMBERS

HONEST: dict[str, Any] = {"tools": [SEARCH, DELETE]}
CHANGED = "notifications/tools/list_changed"
ERAS = ("2025-11-25", "2026-07-28")
URL = {"mode": "url", "url": "https://pay.example.com/x", "message": "Pay", "elicitationId": "1"}


def ask_client(harness: SessionHarness, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Send a server request; return the immediate response to the server, if there is one."""
    before = len(harness.to_server)
    harness.server_sends({"jsonrpc": "2.0", "id": "s1", "method": method, "params": params})
    sent = [json.loads(frame) for frame in harness.to_server[before:]]
    return sent[0] if sent else {}


@pytest.mark.parametrize(("name", "where"), [("no_such_tool", "audit tail"), (SEARCH["name"], "approve notes")])
def test_a_refusal_names_the_command_that_shows_the_review(name: str, where: str) -> None:
    harness = SessionHarness({"tools": [POISONED]}, lock=approved_surface(HONEST))
    harness.open()
    message = harness.call_tool(name)["error"]["message"]
    assert message.startswith(f"Pinwarden blocked tool '{name}' of server 'notes': ")
    assert message.endswith(f" To review it, a person can run in a terminal: pinwarden {where}")


# Forwarded


@pytest.mark.parametrize("era", ERAS)
def test_all_messages_of_an_unchanged_server_are_forwarded_byte_for_byte(era: str) -> None:
    harness = SessionHarness({**HONEST, "prompts": [{"name": "p"}]}, era=era)
    harness.open()
    for method, params in (("tools/list", {}), ("prompts/list", {}), ("tools/call", {"name": "search_notes"})):
        harness.request(method, params)
    from_client = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 2}}
    spaced = json.dumps(from_client, indent=1).replace("\n", " ").encode()
    harness.client_sends(spaced)
    assert harness.to_server[-1] == spaced
    from_server = (
        '{ "jsonrpc" : "2.0", "method":"notifications/message", "params":{"data":"\\u00e9é","n":1.0e2}}'.encode()
    )
    harness.server_sends(from_server)
    assert harness.to_client[-1] == from_server
    requests = [
        message for message in harness.server.received if not str(message.get("id", "")).startswith("pinwarden/")
    ]
    again = SessionHarness({**HONEST, "prompts": [{"name": "p"}]})
    plain = [again.server.answers(json.dumps(message)) for message in requests]
    expected = [answer.encode() for answers in plain for answer in answers]
    assert [frame for frame in harness.to_client if frame != from_server] == expected


def test_only_blocked_items_are_removed_from_a_list() -> None:
    odd = '{ "description": "caf\\u00e9",  "name" :"odd", "inputSchema": {"minimum": 1.0e0} }'
    harness = SessionHarness(
        {"tools": [odd, POISONED, DELETE]}, lock=approved_surface({"tools": [json.loads(odd), SEARCH, DELETE]})
    )
    harness.open()
    harness.request("tools/list")
    listed = next(frame for frame in harness.to_client if b'"tools":[' in frame)
    assert listed == b'{"jsonrpc":"2.0","id":2,"result":{"tools":[' + f"{odd},{json.dumps(DELETE)}".encode() + b"]}}"


def test_cache_hints_are_limited_to_the_relist_interval() -> None:
    harness = SessionHarness({**HONEST, "hints": {"ttlMs": 86_400_000, "cacheScope": "public"}}, era="2026-07-28")
    harness.open()
    result = harness.request("tools/list")["result"]
    assert (result["ttlMs"], result["cacheScope"]) == (30_000, "private")


# Deferred


def test_a_call_after_a_list_changed_notification_waits_for_the_new_list() -> None:
    """Attack: list_changed race."""
    harness = SessionHarness(
        HONEST, {"tools": [POISONED, DELETE], "deaf": ["tools/list"], "announce": [CHANGED]}, {**HONEST}
    )
    harness.open()
    harness.list_names()
    harness.switch_server_state()
    assert harness.call_tool("delete_note") == {}
    request_id = harness._last
    assert harness.calls_received("delete_note") == []
    own = next(m for m in reversed(harness.server.received) if m.get("method") == "tools/list")
    tools = json.dumps([POISONED, DELETE])
    harness.server_sends(f'{{"jsonrpc":"2.0","id":{json.dumps(own["id"])},"result":{{"tools":{tools}}}}}'.encode())
    assert "result" in harness.response_to(request_id)
    assert refusal_code(harness.call_tool("search_notes")) == "new_exfiltration"


def test_a_deferred_call_that_is_cancelled_is_not_forwarded() -> None:
    harness = SessionHarness({**HONEST, "deaf": ["tools/list"]})
    harness.open()
    harness.call_tool("search_notes")
    harness.notify("notifications/cancelled", {"requestId": harness._last})
    harness.tick(21)
    assert harness.calls_received("search_notes") == []
    assert harness.response_to(harness._last) == {}
    assert not harness.session.waits_for_list


def test_a_call_to_a_server_that_never_lists_is_refused() -> None:
    harness = SessionHarness({**HONEST, "deaf": ["tools/list"]})
    harness.open()
    harness.call_tool("search_notes")
    harness.tick(21)
    assert refusal_code(harness.response_to(harness._last)) == "list_failed"
    assert harness.calls_received("search_notes") == []


def test_attack_an_endless_list_is_abandoned() -> None:
    harness = SessionHarness(
        {"answers": {"tools/list": '{"tools":[],"nextCursor":"again"}'}}, lock=approved_surface(HONEST)
    )
    harness.open()
    assert refusal_code(harness.call_tool("search_notes")) == "list_failed"


def test_lists_are_refreshed_before_they_expire_and_only_while_the_client_is_active() -> None:
    harness = SessionHarness(HONEST)
    harness.open()
    harness.call_tool("search_notes")
    listed = len([m for m in harness.server.received if m.get("method") == "tools/list"])
    harness.call_tool("search_notes")
    harness.tick(26)
    assert len([m for m in harness.server.received if m.get("method") == "tools/list"]) == listed + 1
    harness.tick(26)
    assert len([m for m in harness.server.received if m.get("method") == "tools/list"]) == listed + 1


def test_a_change_that_the_gateway_detects_is_announced_to_the_client() -> None:
    harness = SessionHarness(HONEST, {"tools": [POISONED, DELETE]})
    harness.open()
    harness.list_names()
    harness.call_tool("search_notes")
    harness.switch_server_state()
    harness.tick(26)
    assert harness.client_messages()[-1]["method"] == CHANGED
    assert harness.list_names() == ["delete_note"]


def test_attack_a_different_list_for_the_client_than_for_the_probe_is_blocked() -> None:
    """Attack: the server lists other tools for the client than for the probe that wrote the lock."""
    harness = SessionHarness({"tools": [POISONED, DELETE]}, lock=approved_surface(HONEST))
    harness.open()
    assert harness.list_names() == ["delete_note"]


def test_attack_an_item_that_is_only_in_the_clients_page_is_hidden() -> None:
    """Attack: the list for the gateway is as approved, the client's page is not."""
    harness = SessionHarness({**HONEST, "page": 1, "deaf": ["tools/list"]})
    harness.open()
    harness.request("tools/list")
    request_id = harness._last
    page = json.dumps([{**SEARCH, "name": "extra"}])
    harness.server_sends(f'{{"jsonrpc":"2.0","id":{request_id},"result":{{"tools":{page},"nextCursor":"1"}}}}'.encode())
    for _ in range(5):
        own = [m["id"] for m in harness.server.received if str(m.get("id")).startswith("pinwarden/")][-1]
        honest = json.dumps([SEARCH, DELETE])
        harness.server_sends(f'{{"jsonrpc":"2.0","id":{json.dumps(own)},"result":{{"tools":{honest}}}}}'.encode())
    assert harness.response_to(request_id)["result"]["tools"] == []
    assert [fact.code for fact in harness.events if fact.item == "extra"] == ["list_unstable"]


# Approval


def test_an_approval_takes_effect_without_a_restart() -> None:
    harness = SessionHarness({"tools": [POISONED, DELETE]}, lock=approved_surface(HONEST))
    harness.open()
    assert "error" in harness.call_tool("search_notes")
    harness.approvals.approve(approved_surface({"tools": [POISONED, DELETE]}))
    harness.now += 1
    assert harness.call_tool("search_notes")["result"]


def test_first_use_trusts_the_first_lists_and_nothing_later() -> None:
    lists = {**HONEST, "prompts": [{"name": "p"}]}
    harness = SessionHarness(lists, {**HONEST, "prompts": [{"name": "p"}, {"name": "q"}]}, first_use=True)
    harness.open()
    assert harness.request("prompts/get", {"name": "p"})["result"]
    assert harness.approvals.surface is not None
    assert sorted(harness.approvals.surface.items) == ["prompts", "tools"]
    harness.switch_server_state()
    harness.now += 31
    assert refusal_code(harness.request("prompts/get", {"name": "q"})) == "item_added"
    assert [fact.kind for fact in harness.events].count("trusted") == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("failing", "expected_code"),
    [(("resources/templates/list",), ""), (tuple(MEMBERS), "list_failed")],
    ids=["last", "all"],
)
def test_first_use_completes_even_if_the_last_list_fails(
    era: str, failing: tuple[str, ...], expected_code: str
) -> None:
    """No other message comes that could release the call."""
    answers = {method: f'{{"{MEMBERS[method]}":7}}' for method in failing}
    state = {**HONEST, "prompts": [], "resources": [], "resourceTemplates": [], "answers": answers}
    harness = SessionHarness(state, first_use=True, era=era)
    harness.open()
    answer = harness.call_tool("search_notes")
    assert refusal_code(answer) == expected_code if expected_code else "result" in answer
    assert [fact.kind for fact in harness.events].count("trusted") == 1
    assert harness.session.is_idle


@pytest.mark.parametrize("era", ERAS)
def test_first_use_waits_for_a_server_that_is_too_slow_to_list_anything(era: str) -> None:
    slow = {**HONEST, "deaf": ["tools/list", "prompts/list", "resources/list", "resources/templates/list"]}
    harness = SessionHarness(slow, HONEST, first_use=True, era=era)
    harness.open()
    assert harness.call_tool("search_notes") == {}
    call = harness._last
    for _ in range(21):
        harness.tick(1)
    assert harness.approvals.surface is None
    harness.switch_server_state()
    for _ in range(10):
        harness.tick(1)
    assert "result" in harness.response_to(call)
    assert harness.list_names() == ["search_notes", "delete_note"]
    assert [fact.kind for fact in harness.events].count("trusted") == 1


@pytest.mark.parametrize("accepts_handshake", [True, False])
def test_a_late_response_to_discover_does_not_end_the_handshake_that_replaced_it(accepts_handshake: bool) -> None:
    """The official client waits ten seconds for a server that starts slowly, then sends ``initialize`` too.

    The server refuses lists in between. Approving them as empty would block the whole server.
    """
    harness = SessionHarness({**HONEST, "deaf": ["server/discover", "initialize"]}, first_use=True)
    described = {"serverInfo": {"name": "notes", "version": "1"}, "capabilities": {"tools": {}}}
    discovered = {**described, "supportedVersions": ["2026-07-28"], "resultType": "complete"}
    harness.stateless = True
    assert harness.open() == {}
    discover = harness._last
    harness.stateless = False
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test-client"}}
    assert harness.request("initialize", about) == {}
    initialize, sent = harness._last, len(harness.to_server)
    harness.server_sends({"jsonrpc": "2.0", "id": discover, "result": discovered})
    assert (harness.to_server[sent:], harness.approvals.surface) == ([], None)
    if accepts_handshake:
        result = {**described, "protocolVersion": "2025-11-25"}
        harness.server_sends({"jsonrpc": "2.0", "id": initialize, "result": result})
        harness.notify("notifications/initialized")
    else:
        harness.server_sends({"jsonrpc": "2.0", "id": initialize, "error": {"code": -32022, "message": "no"}})
        harness.stateless = True
        assert harness.request("server/discover") == {}
        harness.server_sends({"jsonrpc": "2.0", "id": harness._last, "result": discovered})
    assert harness.list_names() == ["search_notes", "delete_note"]


def test_first_use_does_not_trust_duplicate_or_unreadable_items() -> None:
    odd = '{"name":"odd","name":"odd","inputSchema":{}}'
    twins = [{"name": "Delete_Note", "inputSchema": {}}, DELETE]
    harness = SessionHarness({"tools": [SEARCH, *twins, odd, {"name": "b"}, {"name": "b"}]}, first_use=True)
    harness.open()
    assert harness.list_names() == ["search_notes"]


def test_a_rejected_first_use_blocks_everything() -> None:
    from pinwarden.core.errors import PinwardenError

    harness = SessionHarness(HONEST, first_use=True)

    def refuse(_: object) -> Any:
        raise PinwardenError("SERVER_NOT_LOCKED", "no")

    harness.approvals.trust = refuse  # type: ignore[assignment,method-assign]
    harness.open()
    assert refusal_code(harness.call_tool("search_notes")) == "SERVER_NOT_LOCKED"


# The server's identity


def test_a_server_with_a_changed_name_is_refused_entirely() -> None:
    harness = SessionHarness(
        {**HONEST, "server": {"serverInfo": {"name": "evil", "version": "1"}}}, lock=approved_surface(HONEST)
    )
    assert refusal_code(harness.open()) == "identity_changed"
    assert refusal_code(harness.call_tool("search_notes")) == "identity_changed"
    assert harness.calls_received("search_notes") == []


def test_an_unapproved_capability_is_removed_and_its_methods_are_refused() -> None:
    more: dict[str, Any] = {"capabilities": {"tools": {}, "completions": {}}}
    harness = SessionHarness({**HONEST, "server": more}, lock=approved_surface(HONEST))
    assert harness.open()["result"]["capabilities"] == {"tools": {}}
    ref = {"ref": {"type": "ref/prompt", "name": "p"}}
    assert refusal_code(harness.request("completion/complete", ref)) == "capability_added"
    assert harness.call_tool("search_notes")["result"]


def test_without_a_handshake_the_gateway_discovers_the_server_before_the_first_call() -> None:
    evil = {"serverInfo": {"name": "evil", "version": "1"}}
    harness = SessionHarness({**HONEST, "server": evil}, lock=approved_surface(HONEST), era="2026-07-28")
    assert refusal_code(harness.call_tool("search_notes")) == "identity_changed"
    assert harness.calls_received("search_notes") == []


@pytest.mark.parametrize("method", ["tools/list", "prompts/list", "logging/setLevel", "acme/anything"])
def test_without_a_handshake_a_server_with_a_changed_name_is_refused_entirely(method: str) -> None:
    lists = {**HONEST, "prompts": [{"name": "greet"}]}
    other = {"serverInfo": {"name": "another-server", "version": "1"}}
    harness = SessionHarness({**lists, "server": other}, lock=approved_surface(lists), era="2026-07-28")
    assert refusal_code(harness.request(method, {"level": "debug"})) == "identity_changed"
    assert [message["method"] for message in harness.server.received] == ["server/discover"]


def test_an_approval_applies_in_both_protocol_eras() -> None:
    server = {"instructions": "Search first."}
    for era in ERAS:
        harness = SessionHarness({**HONEST, "server": server}, era=era)
        assert harness.open()["result"]["instructions"] == "Search first."
        assert harness.call_tool("search_notes")["result"]
        assert not [fact for fact in harness.events if fact.kind == "blocked"]


def test_a_changed_published_digest_alone_is_reported_and_blocked() -> None:
    """SEP-1766: the definition is unchanged, but the server states that the code behind it changed."""
    pinned = {**SEARCH, "digest": "sha256:" + "a" * 64}
    harness = SessionHarness(
        {"tools": [{**SEARCH, "digest": "sha256:" + "b" * 64}]}, lock=approved_surface({"tools": [pinned]})
    )
    harness.open()
    assert refusal_code(harness.call_tool("search_notes")) == "published_digest_changed"
    same = SessionHarness({"tools": [pinned]})
    same.open()
    assert same.call_tool("search_notes")["result"]


# Server requests


def test_sampling_elicitation_and_roots_are_allowed_unless_the_policy_denies_them() -> None:
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "sampling": ("sampling/createMessage", {"messages": [], "maxTokens": 1}),
        "elicitation": ("elicitation/create", {"message": "Name?", "requestedSchema": {"type": "object"}}),
        "roots": ("roots/list", {}),
    }
    for word, (method, params) in requests.items():
        free, bound = SessionHarness(HONEST), SessionHarness(HONEST, rules=policy(**{word: "deny"}))
        for harness in (free, bound):
            harness.open()
        assert ask_client(free, method, params) == {}
        assert free.client_messages()[-1]["method"] == method
        free.client_sends({"jsonrpc": "2.0", "id": "s1", "result": {}})
        assert json.loads(free.to_server[-1]) == {"jsonrpc": "2.0", "id": "s1", "result": {}}
        assert ask_client(bound, method, params)["error"]["data"]["pinwarden"]["code"] == f"{word}_denied"
        assert "method" not in bound.client_messages()[-1]
        assert bound.events[-1].code == f"{word}_denied"


@pytest.mark.parametrize(
    ("url", "passes"),
    [
        ("https://pay.example.com/x", True),
        ("https://PAY.EXAMPLE.COM./x", True),
        ("http://pay.example.com/x", False),
        ("https://pay.example.com@evil.example/", False),
        ("https://evil.example/?pay.example.com", False),
        ("https://evil.example\\@pay.example.com/", False),
        ("javascript:alert(1)", False),
        ("https://pay.example.com.evil.example/", False),
        (17, False),
    ],
)
def test_elicitation_urls_are_limited_to_allowed_hosts(url: Any, passes: bool) -> None:
    harness = SessionHarness(HONEST, rules=policy(**{"url-hosts": ["pay.example.com"]}))
    harness.open()
    answer = ask_client(harness, "elicitation/create", {**URL, "url": url})
    assert (answer == {}) == passes
    assert passes or answer["error"]["data"]["pinwarden"]["code"] == "url_host_denied"


def test_without_url_hosts_no_elicitation_url_is_allowed() -> None:
    harness = SessionHarness(HONEST)
    harness.open()
    assert ask_client(harness, "elicitation/create", URL)["error"]


def test_an_undefined_server_request_is_not_forwarded() -> None:
    harness = SessionHarness(HONEST)
    harness.open()
    assert ask_client(harness, "client/execute", {})["error"]["data"]["pinwarden"]["code"] == "request_unknown"


def test_requests_in_an_input_required_result_follow_the_request_policy() -> None:
    """Attack: elicitation in a result, which a gateway that checks only requests misses."""
    wants = {"resultType": "input_required", "inputRequests": {"a": {"method": "elicitation/create", "params": URL}}}
    state = {**HONEST, "answers": {"tools/call": json.dumps(wants)}}
    harness = SessionHarness(state, era="2026-07-28")
    assert refusal_code(harness.call_tool("search_notes")) == "url_host_denied"
    free = SessionHarness(state, era="2026-07-28", rules=policy(**{"url-hosts": ["*.example.com"], "max-rounds": 2}))
    assert [free.call_tool("search_notes").get("result") for _ in range(2)] == [wants, wants]
    assert refusal_code(free.call_tool("search_notes")) == "too_many_rounds"


def test_elicitation_urls_in_an_error_follow_the_request_policy() -> None:
    """Attack: the URL is in an error (-32042), which a gateway that checks only requests misses."""
    error = {"code": -32042, "message": "Pay first", "data": {"elicitations": [URL]}}
    for rules, passes in ((policy(**{"max-rounds": 1}), False), (policy(**{"url-hosts": ["pay.example.com"]}), True)):
        harness = SessionHarness({**HONEST, "deaf": ["tools/call"]}, rules=rules)
        harness.open()
        harness.call_tool("search_notes")
        harness.server_sends({"jsonrpc": "2.0", "id": harness._last, "error": error})
        answer = harness.response_to(harness._last)
        assert (answer["error"] == error) == passes
        assert passes or refusal_code(answer) == "url_host_denied"


def test_attack_repeated_requests_for_input_are_refused_after_the_limit() -> None:
    harness = SessionHarness(HONEST, rules=policy(**{"max-rounds": 3}))
    harness.open()
    for request_id in range(4):
        harness.server_sends({"jsonrpc": "2.0", "id": request_id, "method": "sampling/createMessage", "params": {}})
    assert json.loads(harness.to_server[-1])["error"]["data"]["pinwarden"]["code"] == "too_many_rounds"


# Results


def test_results_are_checked_only_if_the_policy_says_so() -> None:
    text = '{"content":[{"type":"text","text":"a\\u001b[2Jb\\u200b\\udb40\\udc41c 👩‍💻"}]}'
    state = {**HONEST, "answers": {"tools/call": text}}
    results = {}
    for word in ("relay", "flag", "strip"):
        harness = SessionHarness(state, rules=policy(results={"hidden-characters": word}))
        harness.open()
        results[word] = harness.call_tool("search_notes")["result"]
    assert results["relay"] == json.loads(text)
    assert results["flag"]["content"] == json.loads(text)["content"]
    assert results["flag"]["_meta"]["pinwarden/warnings"][0]["code"] == "hidden_characters"
    assert results["strip"]["content"] == [{"type": "text", "text": "abc 👩‍💻"}]


def test_a_result_above_the_policys_size_limit_is_refused() -> None:
    harness = SessionHarness(HONEST, rules=policy(results={"max-bytes": 50}))
    harness.open()
    assert refusal_code(harness.call_tool("search_notes")) == "result_too_large"


# Ambiguous messages


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"search_notes","name":"evil"}}',
        b'{"jsonrpc":"2.0","id":9,"method":"ping","method":"tools/call","params":{"name":"search_notes"}}',
        b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"search_notes","x":1e999}}',
        b"not json",
        b"\xff\xfe",
        b"[]",
        b'"text"',
        b'[{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"search_notes"}}]',
    ],
)
def test_an_ambiguous_client_message_is_refused(text: bytes) -> None:
    """Attack: parser differential. The gateway parses one name, the server another."""
    harness = SessionHarness(HONEST)
    harness.open()
    sent = len(harness.to_server)
    harness.client_sends(text)
    assert harness.to_server[sent:] == []
    assert harness.client_messages()[-1]["error"]["code"] in (-32700, -32600)


def test_a_call_without_an_id_is_not_forwarded() -> None:
    """Attack: a call without an id expects no response, but a lenient server executes it."""
    harness = SessionHarness({"tools": [POISONED, DELETE]}, lock=approved_surface(HONEST))
    harness.open()
    sent, got = len(harness.to_server), len(harness.to_client)
    harness.notify("tools/call", {"name": "search_notes"})
    harness.server_sends({"jsonrpc": "2.0", "method": "elicitation/create", "params": URL})
    assert (harness.to_server[sent:], harness.to_client[got:]) == ([], [])
    assert [fact.code for fact in harness.events[-2:]] == ["request_without_id", "request_without_id"]


@pytest.mark.parametrize("method", [5, None, {}, [], True])
def test_a_request_whose_method_is_not_a_string_is_refused(method: Any) -> None:
    harness = SessionHarness(HONEST)
    harness.open()
    before = len(harness.to_server)
    harness.client_sends({"jsonrpc": "2.0", "id": 77, "method": method})
    assert harness.response_to(77)["error"]["code"] == -32600
    harness.client_sends({"jsonrpc": "2.0", "method": method})
    assert len(harness.to_server) == before


def test_an_ambiguous_response_is_replaced_by_an_error() -> None:
    harness = SessionHarness(
        {**HONEST, "answers": {"tools/call": '{"content":[],"content":[{"type":"text","text":"evil"}]}'}}
    )
    harness.open()
    assert refusal_code(harness.call_tool("search_notes")) == "JSON_CANONICALIZATION_ERROR"
    assert not any(b"evil" in frame for frame in harness.to_client)


def test_batches_are_split_in_the_revision_that_has_them() -> None:
    harness = SessionHarness({"tools": [POISONED, DELETE]}, lock=approved_surface(HONEST), era="2025-03-26")
    harness.open()
    calls = [
        {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": {"name": name}}
        for request_id, name in ((90, "search_notes"), (91, "delete_note"))
    ]
    harness.client_sends(calls)
    assert refusal_code(harness.response_to(90)) == "new_exfiltration"
    assert harness.response_to(91)["result"]


def test_attack_ids_cannot_impersonate_the_gateways_own_requests() -> None:
    """Attack: a client uses ids of the gateway, a server sends unmatched responses, an id is used twice."""
    harness = SessionHarness({**HONEST, "deaf": ["tools/call"]})
    harness.open()
    own = "pinwarden/test/1"
    harness.client_sends({"jsonrpc": "2.0", "id": own, "method": "tools/list"})
    assert harness.response_to(own)["error"]["code"] == -32600
    harness.call_tool("search_notes")
    harness.client_sends(
        {"jsonrpc": "2.0", "id": harness._last, "method": "tools/call", "params": {"name": "search_notes"}}
    )
    assert harness.response_to(harness._last)["error"]["code"] == -32600
    got = len(harness.to_client)
    harness.server_sends({"jsonrpc": "2.0", "id": 777, "result": {"content": [{"type": "text", "text": "unasked"}]}})
    harness.server_sends({"jsonrpc": "2.0", "id": own, "result": {"tools": [POISONED]}})
    harness.server_sends({"jsonrpc": "2.0", "id": True, "result": {}})
    assert harness.to_client[got:] == []
    assert harness.events[-1].code == "answer_unasked"


def test_a_cancelled_request_gets_no_response_when_the_server_ends() -> None:
    harness = SessionHarness({**HONEST, "deaf": ["tools/call"]})
    harness.open()
    for _ in range(2):
        assert harness.call_tool("search_notes") == {}
    cancelled, waited_for = harness._last - 1, harness._last
    harness.notify("notifications/cancelled", {"requestId": cancelled})
    harness.deliver(harness.session.on_server_closed())
    assert [message["id"] for message in harness.client_messages() if "error" in message] == [waited_for]
    assert harness.session.is_idle


def test_cancelled_unanswered_requests_do_not_count_toward_the_open_request_limit() -> None:
    harness = SessionHarness({**HONEST, "deaf": ["tools/call"]}, limits=SessionLimits(max_open=5))
    harness.open()
    for _ in range(12):
        assert harness.call_tool("search_notes") == {}
        harness.notify("notifications/cancelled", {"requestId": harness._last})
    assert len(harness.calls_received("search_notes")) == 12
    for _ in range(5):
        assert harness.call_tool("search_notes") == {}
    assert harness.call_tool("search_notes")["error"]["code"] == -32000


def test_when_the_server_ends_every_open_request_gets_an_error() -> None:
    harness = SessionHarness({**HONEST, "deaf": ["tools/call", "tools/list"]})
    harness.open()
    harness.call_tool("search_notes")
    request_id = harness._last
    harness.request("logging/setLevel", {"level": "info"})
    harness.deliver(harness.session.on_server_closed())
    assert harness.response_to(request_id)["error"]["code"] == -32000
    assert harness.session.is_idle


def test_rules_for_one_tool_or_client_override_the_general_policy() -> None:
    served = {**SEARCH, "description": "Searches the notes."}
    rules = policy(
        enforcement="block",
        rules=[{"item": "search_*", "client": "test-client", "enforcement": "warn"}],
    )
    harness = SessionHarness({"tools": [served, {**DELETE, "title": "x"}]}, lock=approved_surface(HONEST), rules=rules)
    harness.open()
    assert harness.list_names() == ["search_notes"]
    assert harness.event_kinds("search_notes") == ["warned"]
    assert tool_digest(served) != tool_digest(SEARCH)


def test_errors_are_checked_like_results() -> None:
    """Attack: the text for the model is in an error instead of a result."""
    text = "a\u001b[2Jb\u200bc"
    rules = policy(results={"hidden-characters": "strip", "max-bytes": 300})
    for words, passes in ((text, True), ("x" * 300, False)):
        harness = SessionHarness({**HONEST, "deaf": ["tools/call"]}, rules=rules)
        harness.open()
        harness.call_tool("search_notes")
        harness.server_sends({"jsonrpc": "2.0", "id": harness._last, "error": {"code": -32000, "message": words}})
        answer = harness.response_to(harness._last)
        if passes:
            assert answer["error"] == {"code": -32000, "message": "abc"}
            assert harness.events[-1].code == "hidden_characters"
        else:
            assert refusal_code(answer) == "result_too_large"


@pytest.mark.parametrize(
    "more", ['"resultType":"input_required"', '"inputRequests":{"a":{"method":"elicitation/create","params":{}}}']
)
@pytest.mark.parametrize("odd", ["", ',{"name":"b","name":"b"}'])
def test_a_list_that_requests_input_is_refused(more: str, odd: str) -> None:
    """Attack: elicitation in a list response, of which only the items are judged; also beside an unreadable item."""
    text = f'{{"tools":[{json.dumps(SEARCH)}{odd}],{more}}}'
    harness = SessionHarness(
        {**HONEST, "answers": {"tools/list": text}}, lock=approved_surface(HONEST), era="2026-07-28"
    )
    harness.open()
    assert refusal_code(harness.request("tools/list")) == "PROBE_FAILED"
    assert refusal_code(harness.call_tool("search_notes")) == "list_failed"
    assert not any(b"input" in frame for frame in harness.to_client)


def test_a_call_allowed_without_a_list_by_an_audit_policy_is_recorded_as_such() -> None:
    harness = SessionHarness(
        {"answers": {"tools/list": '{"tools":7}'}}, lock=approved_surface(HONEST), rules=policy(enforcement="audit")
    )
    harness.open()
    assert harness.call_tool("search_notes")["result"]
    assert [(fact.kind, fact.code) for fact in harness.events if fact.item == "search_notes"] == [
        ("allowed", "list_failed")
    ]


def test_attack_a_request_for_input_in_a_complete_result_is_judged() -> None:
    wants = {"resultType": "complete", "inputRequests": {"a": {"method": "elicitation/create", "params": URL}}}
    harness = SessionHarness({**HONEST, "answers": {"tools/call": json.dumps(wants)}}, era="2026-07-28")
    assert refusal_code(harness.call_tool("search_notes")) == "url_host_denied"


def test_a_response_with_a_method_is_not_a_response() -> None:
    harness = SessionHarness({**HONEST, "deaf": ["tools/call"]})
    harness.open()
    harness.call_tool("search_notes")
    harness.server_sends({"jsonrpc": "2.0", "id": harness._last, "method": None, "result": {"content": []}})
    assert refusal_code(harness.response_to(harness._last)) == "JSON_CANONICALIZATION_ERROR"


def test_notifications_and_server_requests_are_checked_like_results() -> None:
    """Attack: control characters in log messages, progress texts and elicitations."""
    text = "a\u001b[2Jb\u200bc"
    harness = SessionHarness(HONEST, rules=policy(results={"hidden-characters": "strip", "max-bytes": 500}))
    harness.open()
    harness.server_sends(
        {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": text}}
    )
    assert harness.client_messages()[-1]["params"]["data"] == "abc"
    ask_client(harness, "elicitation/create", {"message": text, "requestedSchema": {"type": "object"}})
    assert harness.client_messages()[-1]["params"]["message"] == "abc"
    assert [fact.code for fact in harness.events if fact.kind == "warned"] == ["hidden_characters"] * 2
    got = len(harness.to_client)
    harness.server_sends(
        {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 500}}
    )
    harness.server_sends({"jsonrpc": "2.0", "id": 9, "method": "roots/list", "params": {"x": "x" * 500}})
    assert harness.to_client[got:] == []
    assert [fact.code for fact in harness.events[-2:]] == ["result_too_large"] * 2
    harness.server_sends({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    assert harness.client_messages()[-1] == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


@pytest.mark.parametrize("name", ["Search_Notes", "ｓearch_notes", "SEARCH_NOTES"])
def test_a_blocked_uri_is_blocked_in_every_spelling_even_if_unknown_uris_are_allowed(name: str) -> None:
    """Attack: the server makes the model use another spelling, which it accepts for the same resource."""
    harness = SessionHarness(
        {"tools": [POISONED, DELETE]}, lock=approved_surface(HONEST), rules=policy(unknown="allow_degraded")
    )
    harness.open()
    assert refusal_code(harness.call_tool(name)) == "new_exfiltration"
    assert harness.call_tool("another")["result"]
    assert harness.calls_received(name) == []


def test_a_warning_is_added_to_any_existing_meta() -> None:
    for meta in ('"text"', "null", "[]", '{"pinwarden/warnings":[]}', '{"a":1}', "{}"):
        text = f'{{"content":[{{"type":"text","text":"a\\u200bb"}}],"_meta":{meta}}}'
        harness = SessionHarness(
            {**HONEST, "answers": {"tools/call": text}}, rules=policy(results={"hidden-characters": "flag"})
        )
        harness.open()
        warnings = harness.call_tool("search_notes")["result"]["_meta"]["pinwarden/warnings"]
        assert [warning["code"] for warning in warnings] == ["hidden_characters"], meta


class TestArguments:
    """The log records arguments only where the policy says so."""

    CALL: ClassVar[dict[str, Any]] = {"name": "search_notes", "arguments": {"query": "march", "token": "hunter2"}}

    def called(self, **table: Any) -> list[bytes | None]:
        harness = SessionHarness(HONEST, rules=policy(**table)) if table else SessionHarness(HONEST)
        harness.open()
        for _ in range(2):  # the second takes the fast path, if possible
            harness.request("tools/call", self.CALL)
        return [fact.arguments for fact in harness.events if fact.kind == "called"]

    def test_arguments_are_not_recorded_by_default(self) -> None:
        assert self.called() == [None, None]

    def test_with_record_every_calls_arguments_are_recorded_without_secrets(self) -> None:
        kept = b'{"query":"march","token":"<secret>"}'
        assert self.called(arguments="record") == [kept, kept]

    def test_a_rule_records_arguments_of_some_tools_only(self) -> None:
        assert self.called(rules=[{"item": "delete_*", "arguments": "record"}]) == [None, None]
        assert None not in self.called(rules=[{"item": "search_*", "arguments": "record"}])

    def test_arguments_of_a_refused_call_are_recorded(self) -> None:
        harness = SessionHarness(HONEST, rules=policy(arguments="record"))
        harness.open()
        harness.request("tools/call", {"name": "missing", "arguments": {"path": "/etc"}})
        assert [fact.arguments for fact in harness.events if fact.kind == "blocked"] == [b'{"path":"/etc"}']


def test_a_client_without_a_token_chooses_its_name_and_a_token_is_not_renamed() -> None:
    anonymous, holder = SessionClient(teams=("a",)), SessionClient(name="ada", has_token=True)
    assert holder.with_client_info({"name": "grace"}) is holder
    infos: list[Any] = [None, [], "grace", {}, {"name": 1}]
    for info in infos:
        assert anonymous.with_client_info(info) is anonymous
    named = anonymous.with_client_info({"name": "g" * 1000})
    assert (named.name, named.teams, named.audit_members()) == ("g" * 200, ("a",), {"client": "g" * 200})
    assert named.with_client_info({"name": "g" * 300}) is named
