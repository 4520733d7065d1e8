"""Rules of the policy about calls: who may call which tool, and how often. In a session, over HTTP and over stdio."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.call_budgets import MAX_BUDGETS, CallBudget, CallBudgets
from pinwarden.gateway.gates.verdict import ALLOW
from pinwarden.gateway.guard import Guard, SessionClient
from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.lock.call_rules import CallFacts, CallLimit, decide_call
from pinwarden.lock.gateway_policy import tighten
from tests.cli.run import pinwarden_in
from tests.gateway.http_gateway import (
    OTHER_TOKEN,
    TOKEN,
    FixedApprovals,
    InMemoryRecorder,
    RawClient,
    UpstreamServer,
    gateway,
    stateless_request,
)
from tests.gateway.session_harness import (
    DELETE,
    POISONED,
    SEARCH,
    SessionHarness,
    approved_surface,
    policy,
    refusal_code,
)
from tests.servers import turning
from tests.servers.turning_http import turning_http

HONEST: dict[str, Any] = {"tools": [SEARCH, DELETE]}


def session(*states: dict[str, Any], teams: tuple[str, ...] = (), **table: Any) -> SessionHarness:
    harness = SessionHarness(*(states or (HONEST,)), rules=policy(**table), client=SessionClient(teams=teams))
    harness.open()
    return harness


# Who may call what


@pytest.mark.parametrize(
    ("rule", "denied"),
    [
        ({"item": "delete_*"}, ["delete_note"]),
        ({"client": "test-*"}, ["search_notes", "delete_note"]),
        ({"client": "other"}, []),
        ({"server": "notes", "item": "search_notes"}, ["search_notes"]),
        ({"server": "other"}, []),
        ({"read-only": False}, ["delete_note"]),
        ({"read-only": True}, ["search_notes"]),
        ({"destructive": True}, ["delete_note"]),
        ({"destructive": False}, ["search_notes"]),
        ({"open-world": True}, ["search_notes"]),
        ({"open-world": False}, ["delete_note"]),
        ({"open-world": False, "read-only": True}, []),
        ({"team": "plat*", "destructive": True}, ["delete_note"]),
        ({"team": "security"}, []),
    ],
)
def test_a_rule_denies_tools_by_server_name_client_team_and_hints(rule: dict[str, Any], denied: list[str]) -> None:
    closed = {**DELETE, "annotations": {**DELETE["annotations"], "openWorldHint": False}}
    harness = session({"tools": [SEARCH, closed]}, teams=("sales", "platform"), rules=[{**rule, "access": "deny"}])
    assert harness.list_names() == [name for name in ("search_notes", "delete_note") if name not in denied]
    for name in ("search_notes", "delete_note"):
        answer = harness.call_tool(name)
        if name in denied:
            assert refusal_code(answer) == "rule_denied"
            assert "policy.gateway.rules[0]" in answer["error"]["message"]
            assert "pinwarden policy explain --server notes --tool" in answer["error"]["message"]
        else:
            assert answer["result"]
        assert bool(harness.calls_received(name)) == (name not in denied)


def test_the_first_matching_rule_that_decides_on_access_counts() -> None:
    rules = [
        {"item": "search_*", "rate": "100/minute"},
        {"item": "search_*", "team": "platform", "access": "allow"},
        {"access": "deny", "read-only": True},
    ]
    assert session(teams=("platform",), rules=rules).list_names() == ["search_notes", "delete_note"]
    assert session(rules=rules).list_names() == ["delete_note"]


def test_everything_can_be_denied_except_what_a_rule_allows() -> None:
    harness = session(access="deny", rules=[{"item": "search_notes", "access": "allow"}])
    assert harness.list_names() == ["search_notes"]


def test_a_rule_approves_nothing() -> None:
    harness = SessionHarness(
        {"tools": [POISONED, DELETE]}, lock=approved_surface(HONEST), rules=policy(rules=[{"access": "allow"}])
    )
    harness.open()
    assert refusal_code(harness.call_tool("search_notes")) == "new_exfiltration"


def test_a_denied_tool_is_not_pending_review() -> None:
    harness = session(rules=[{"access": "deny"}])
    harness.list_names()
    assert {verdict.action for verdict in harness.sightings} == {ALLOW}
    assert harness.event_kinds("delete_note") == ["blocked"]


def test_attack_a_server_that_calls_a_tool_harmless_does_not_escape_a_rule() -> None:
    """Attack: after approval the tool claims to be read-only, and the policy only records changes."""
    harmless = {**DELETE, "annotations": {"readOnlyHint": True}}
    rules = policy(enforcement="audit", rules=[{"destructive": True, "access": "deny"}])
    harness = SessionHarness({"tools": [SEARCH, harmless]}, lock=approved_surface(HONEST), rules=rules)
    harness.open()
    assert harness.list_names() == ["search_notes"]
    assert refusal_code(harness.call_tool("delete_note")) == "rule_denied"


def test_attack_an_unlisted_tool_does_not_escape_a_rule() -> None:
    harness = session(unknown="allow_degraded", rules=[{"item": "hidden*", "access": "deny"}])
    assert refusal_code(harness.call_tool("hidden_tool")) == "rule_denied"
    assert harness.call_tool("other_tool")
    assert harness.calls_received("other_tool")


# How often


def test_a_rate_refills_evenly_and_a_refused_call_does_not_count() -> None:
    harness = session({"tools": [SEARCH, DELETE]}, rules=[{"item": "search_notes", "rate": "3/minute"}])
    for _ in range(3):
        assert harness.call_tool("search_notes")["result"]
    for _ in range(5):
        answer = harness.call_tool("search_notes")
        assert refusal_code(answer) == "rate_limited"
    assert (
        "3 calls of this tool per minute (policy.gateway.rules[0]). Try again in 20 seconds"
        in answer["error"]["message"]
    )
    assert harness.call_tool("delete_note")["result"], "each tool has its own limit"
    harness.now += 20
    assert harness.call_tool("search_notes")["result"]
    assert refusal_code(harness.call_tool("search_notes")) == "rate_limited"
    assert len(harness.calls_received("search_notes")) == 4
    assert harness.event_kinds("search_notes").count("blocked") == 6


def test_a_daily_budget_starts_anew_a_day_after_the_first_call() -> None:
    budget = CallBudget([CallLimit(count=2, seconds=86_400, rule="r")])
    assert [budget.take(now) for now in (0.0, 80_000.0)] == ["", ""]
    assert "2 calls of this tool per day (r). Try again in 400 seconds." in budget.take(86_000.0)
    assert [bool(budget.take(now)) for now in (86_400.0, 86_401.0, 86_402.0)] == [False, False, True]


def test_both_limits_apply_and_the_one_that_is_left_is_not_used_up() -> None:
    limits = [CallLimit(count=1, seconds=60, rule="rate"), CallLimit(count=3, seconds=86_400, rule="daily")]
    budget = CallBudget(limits)
    refused = [budget.take(float(now)) for now in range(0, 60, 10)]
    assert [bool(reason) for reason in refused] == [False, *[True] * 5]
    assert [bool(budget.take(float(now))) for now in (60, 120, 180)] == [False, False, True]
    assert "(daily)" in budget.take(240.0)


def test_attack_many_clients_cannot_exhaust_the_memory_of_the_counts() -> None:
    budgets = CallBudgets("notes")
    limits = [CallLimit(count=1, seconds=60, rule="r")]
    for number in range(MAX_BUDGETS + 10):
        budgets.get_or_create(f"client-{number}", (), "tool", limits)
    assert len(budgets._budgets) == MAX_BUDGETS


def test_a_changed_policy_counts_anew() -> None:
    harness = session(rules=[{"rate": "1/hour"}])
    assert harness.call_tool("search_notes")["result"]
    assert refusal_code(harness.call_tool("search_notes")) == "rate_limited"
    harness.guard.set_policy(policy(rules=[{"rate": "unlimited"}], rate="1/hour"))
    for _ in range(3):
        assert harness.call_tool("search_notes")["result"]


def test_over_http_all_sessions_of_a_client_share_a_limit_also_on_the_cached_route() -> None:
    clients = {
        TOKEN: GatewayClient(name="one", token="a"),
        "pwt_second": GatewayClient(name="one", token="b"),
        OTHER_TOKEN: GatewayClient(name="two", token="c", teams=("platform",)),
    }
    rules = policy(rules=[{"team": "platform", "rate": "unlimited"}, {"item": "search_notes", "daily": 20}])
    recorder = InMemoryRecorder()
    with turning_http({"states": [HONEST]}) as world:
        approvals = FixedApprovals("notes", approved_surface(HONEST))
        servers = {"notes": UpstreamServer(Guard("notes", approvals, rules), url=world.url)}
        with gateway(servers, recorder, clients=clients) as running:
            call = stateless_request("tools/call", {"name": "search_notes", "arguments": {"query": "x"}})
            outcomes: list[bool] = []
            with RawClient(running, "notes", TOKEN) as first, RawClient(running, "notes", "pwt_second") as second:
                for raw in (first, second):
                    outcomes += ["result" in json.loads(raw.send(*call)[2]) for _ in range(13)]
            assert running.endpoint.routes, "the calls took the cached route"
            assert outcomes == [True] * 20 + [False] * 6
            assert sum(b'"tools/call"' in body for body in world.bodies) == 20
            with RawClient(running, "notes", OTHER_TOKEN) as raw:
                assert "result" in json.loads(raw.send(*call)[2]), "another client has its own limit"
    assert sum(event.code == "rate_limited" for event in recorder.events) == 6


def test_over_stdio_a_rule_denies_and_a_rate_limits(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"states": [HONEST]}))
    (tmp_path / "pinwarden.toml").write_text(
        '[[policy.gateway.rules]]\nitem = "search_notes"\nrate = "5/hour"\n'
        '[[policy.gateway.rules]]\ndestructive = true\naccess = "deny"\n'
    )
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "desk", "version": "1"}}
    messages: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
    ]
    for number, name in enumerate(["search_notes"] * 8 + ["delete_note"], 2):
        params = {"name": name, "arguments": {"query": "x"}}
        messages.append({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
    environment = {**os.environ, "HOME": str(tmp_path), "PINWARDEN_STATE": str(tmp_path / "state")}
    command = ("run", "--project", ".", "--name", "notes", "--", sys.executable, turning.__file__, f"@{script}")
    stdin = "".join(f"{json.dumps(message)}\n" for message in messages).encode()
    done = pinwarden_in(environment, *command, cwd=tmp_path, stdin=stdin)
    answers = {message["id"]: message for message in map(json.loads, done.out.splitlines()) if "id" in message}
    assert [tool["name"] for tool in answers[1]["result"]["tools"]] == ["search_notes"]
    codes = ["" if "result" in answers[number] else refusal_code(answers[number]) for number in range(2, 11)]
    assert codes == [""] * 5 + ["rate_limited"] * 3 + ["rule_denied"]


# The policy


@pytest.mark.parametrize(
    "rule",
    [
        {"access": "maybe"},
        {"rate": "60"},
        {"rate": "0/minute"},
        {"rate": "5/day"},
        {"rate": 5},
        {"daily": 0},
        {"daily": "5"},
        {"daily": True},
        {"access": "deny", "read-only": "yes"},
        {"access": "deny", "open-world": "no"},
        {"enforcement": "warn", "open-world": True},
        {"access": "deny", "team": ""},
        {"access": "deny", "team": "a********b*"},
        {"enforcement": "warn", "team": "platform"},
        {"enforcement": "warn", "access": "deny", "destructive": True},
        {"team": "platform"},
    ],
)
def test_a_rule_that_would_not_do_what_it_says_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(PinwardenError) as caught:
        policy(rules=[rule])
    assert caught.value.code == "POLICY_INVALID"


def test_a_second_policy_can_only_deny_more_and_limit_more() -> None:
    strict, loose = policy(rules=[{"access": "deny", "item": "a"}]), policy(access="allow", rate="5/minute")
    for tightened in (tighten(strict, loose), tighten(loose, strict)):
        denied = decide_call(tightened, CallFacts(server="s", tool="a", client="c"))
        other = decide_call(tightened, CallFacts(server="s", tool="b", client="c"))
        assert (denied.allowed, other.allowed) == (False, True)
        assert [limit.count for limit in other.limits] == [5]


def test_explain_names_the_rule_that_decides(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"states": [HONEST]}))
    command = {"command": sys.executable, "args": [turning.__file__, f"@{script}"]}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"notes": command}}))
    environment = {**os.environ, "HOME": str(tmp_path / "home")}
    done = pinwarden_in(environment, "init", "--scope", "project", "--allow-execute", cwd=tmp_path)
    assert done.code == 0, done.err
    (tmp_path / "pinwarden.toml").write_text(
        '[policy.gateway]\ndaily = 500\n[[policy.gateway.rules]]\nteam = "platform"\naccess = "allow"\n'
        '[[policy.gateway.rules]]\ndestructive = true\naccess = "deny"\nrate = "2/minute"\n'
    )

    def explain(*words: str) -> Any:
        done = pinwarden_in(environment, "policy", "explain", *words, "--format", "json", cwd=tmp_path)
        assert done.code == 0, done
        (decision,) = json.loads(done.out)["decisions"]
        return decision

    denied = explain("--client", "alice@desk", "--tool", "delete_note")
    assert denied == {
        "server": "notes",
        "approved": True,
        "read_only": False,
        "destructive": True,
        "open_world": True,
        "allowed": False,
        "rule": "policy.gateway.rules[1]",
        "limits": [
            {"calls": 2, "per": "minute", "rule": "policy.gateway.rules[1]"},
            {"calls": 500, "per": "day", "rule": "policy.gateway"},
        ],
    }
    allowed = explain("--client", "alice@desk", "--tool", "delete_note", "--team", "platform")
    assert (allowed["allowed"], allowed["rule"]) == (True, "policy.gateway.rules[0]")
    read = explain("--tool", "search_notes")
    assert (read["allowed"], read["rule"], len(read["limits"])) == (True, None, 1)
    unknown = explain("--tool", "nothing", "--server", "notes")
    assert (unknown["approved"], unknown["allowed"]) == (False, False)
    done = pinwarden_in(environment, "policy", "explain", "--tool", "nothing", cwd=tmp_path)
    assert (done.code, "[SERVER_NOT_LOCKED]" in done.err) == (1, True)
    done = pinwarden_in(environment, "policy", "explain", "--tool", "delete_note", cwd=tmp_path)
    assert "denied" in done.out
    assert "policy.gateway.rules[1]" in done.out
