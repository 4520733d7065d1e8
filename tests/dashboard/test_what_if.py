"""Another policy on recorded calls: what a real gateway recorded, in the command, the page and the API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinwarden.dashboard import operation_pages
from tests.dashboard.world import Client, serving_dashboard
from tests.docs.schemas import problems
from tests.gateway.review_world import EVIL, READ, SEARCH, ReviewWorld
from tests.gateway.test_review_through_run import NOTICE, eventually, gateway

LIMITED = '[[policy.gateway.rules]]\nitem = "search"\ndaily = 2\n'
DENIED = '[policy.gateway]\naccess = "deny"\n[[policy.gateway.rules]]\nitem = "read"\naccess = "allow"\n'
AUDITED = '[policy.gateway]\nenforcement = "audit"\n'


@pytest.fixture
def recorded(unlocked: ReviewWorld) -> ReviewWorld:
    """Three calls of an approved tool, and two of what it became."""
    states = [{"tools": [SEARCH, READ]}, {"tools": [EVIL, READ], "announce": [NOTICE]}]
    with gateway(states) as session:
        session.open()
        outcomes = ["result" in session.call() for _ in range(3)]
        session.turn()
        outcomes += ["result" in session.call() for _ in range(2)]
        observed = unlocked.state.observed_definitions
        eventually(lambda: any(sighting.action == "block" for sighting in observed.list_all()))
    assert outcomes == [True, True, True, False, False]
    return unlocked


@pytest.fixture
def client(recorded: ReviewWorld) -> Iterator[Client]:
    with serving_dashboard(recorded.state, role="viewer") as dashboard:
        yield dashboard.client()


def test_the_command_counts_what_a_policy_would_have_refused_and_stores_nothing(
    recorded: ReviewWorld, tmp_path: Path
) -> None:
    def ask(policy: str) -> dict[str, tuple[int, str, int, str, int]]:
        (tmp_path / "proposed.toml").write_text(policy)
        report = recorded.json("policy", "what-if", str(tmp_path / "proposed.toml"))
        assert problems("policy-what-if", report) == [], report
        return {
            each["item"]: (
                each["calls"],
                *(each["before"]["action"], each["before"]["refused"]),
                *(each["after"]["action"], each["after"]["refused"]),
            )
            for each in report["differences"]
        }

    events = recorded.events()
    assert ask('[policy.gateway]\nunknown = "block"\n') == {}
    assert ask(AUDITED) == {"search": (5, "block", 5, "audit", 0)}
    assert ask(AUDITED + LIMITED) == {"search": (5, "block", 5, "audit", 3)}
    assert ask(DENIED) == {}, "the changed tool is blocked already, and the other one was allowed"
    assert ask(DENIED.replace('"read"', '"other"')) == {"read": (0, "allow", 0, "block", 0)}
    assert (recorded.events(), (recorded.root / "pinwarden.toml").exists()) == (events, False)
    done = recorded.run("policy", "what-if", str(tmp_path / "proposed.toml"))
    assert (done.code, "1 verdict would change; 0 of 5 recorded calls" in done.out) == (0, True)


@pytest.mark.parametrize(("policy", "code"), [("", "POLICY_INVALID"), ("[policy.gateway]\nx = 1\n", "POLICY_INVALID")])
def test_a_policy_that_would_not_load_is_refused(recorded: ReviewWorld, tmp_path: Path, policy: str, code: str) -> None:
    (tmp_path / "proposed.toml").write_text(policy)
    assert f"[{code}]" in recorded.run("policy", "what-if", str(tmp_path / "proposed.toml")).err
    assert recorded.run("policy", "what-if", str(tmp_path / "proposed.toml"), "--days", "0").code == 2


def test_the_page_and_the_api_say_the_same_also_to_a_viewer(recorded: ReviewWorld, client: Client) -> None:
    assert "Try another policy" in client.page("policy/").text
    assert "Nothing is stored" in client.page("policy/what-if/").text
    assert "></textarea>" in client.page("policy/what-if/").html
    page = client.submit("policy/what-if/", {"policy": AUDITED + LIMITED, "days": "7"})
    assert page.status == 200
    assert "1 verdict would change; 0 of 5 recorded calls would be refused that are allowed now" in page.text
    assert "tool search" in page.text
    assert "3 of 5 refused" in page.text
    assert "daily = 2\n</textarea>" in page.html
    assert "policy.gateway.rules[0]" in page.text
    wrong = client.submit("policy/what-if/", {"policy": "<script>", "days": "7"})
    assert (
        wrong.status,
        "the policy cannot be applied" in wrong.text,
        "<script>" in wrong.html.partition("<textarea")[2],
    ) == (
        200,
        True,
        False,
    )
    assert client.post(f"{client.base}policy/what-if/", {"policy": AUDITED, "days": "7"}).status == 403
    token = json.loads(client.page("api/session").body)["csrf_token"]
    body = json.dumps({"policy": AUDITED + LIMITED}).encode()
    headers = {"content-type": "application/json", "origin": f"http://{client.host}", "x-csrf-token": token}
    answer = json.loads(client.send("POST", f"{client.base}api/what-if", body, headers).body)
    (difference,) = answer["differences"]
    assert (difference["item"], difference["after"]["refused"]) == ("search", 3)
    assert recorded.waiting() != []


def test_attack_a_viewer_cannot_keep_the_dashboard_busy_with_policies(
    recorded: ReviewWorld, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = {"policy": AUDITED, "days": "7"}
    with operation_pages._comparing:  # as while another viewer tries one
        assert "another policy is being tried" in client.submit("policy/what-if/", form).text
    assert "1 verdict would change" in client.submit("policy/what-if/", form).text
    monkeypatch.setattr(operation_pages, "_TRY_SECONDS", 0.0)
    assert "takes more than" in client.submit("policy/what-if/", form).text
    monkeypatch.undo()
    assert "1 verdict would change" in client.submit("policy/what-if/", form).text, "the turn was given back"
