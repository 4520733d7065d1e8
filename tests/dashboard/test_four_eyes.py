"""Four eyes: a critical change needs two different people who signed in at a real OpenID provider."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.dashboard.provider_login import CALLBACK, ProviderLogin
from pinwarden.gateway.store.reviews import ReviewDecision
from pinwarden.identity.code_flow import LoginFlow
from pinwarden.identity.issuer import Issuer
from tests.dashboard.test_provider_login import SETTINGS, Known, finish, log_in
from tests.dashboard.world import Answer, Client, Dashboard, serving_dashboard
from tests.gateway.review_world import CHANGED, EVIL, READ, SEARCH, ReviewWorld, names
from tests.support.oidc_provider import USERS, needs_node, oidc_provider
from tests.support.ports import reserved_port

pytestmark = [needs_node]
ALICE, CAROL = "Alice Example <alice@example.com>", "Carol Example <carol@example.com>"
UNCHANGED = {"search": SEARCH["description"]}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    port = reserved_port()
    users = copy.deepcopy(USERS)  # a test changes the groups of a person
    uri = f"http://127.0.0.1:{port}/{CALLBACK}"
    with oidc_provider(tmp_path_factory.mktemp("provider"), redirect_uris=[uri], users=users) as provider:
        yield Known(provider, port)


@pytest.fixture
def dashboard(world: ReviewWorld, known: Known) -> Iterator[Dashboard]:
    demand(world)
    flow = LoginFlow(Issuer(known.provider.issuer), SETTINGS)
    login = ProviderLogin(flow, f"http://127.0.0.1:{known.port}/{CALLBACK}")
    with serving_dashboard(world.state, login=login, port=known.port) as served:
        yield served


def demand(world: ReviewWorld, mode: str = "critical") -> None:
    (world.root / "pinwarden.toml").write_text(f'[policy.gateway]\nfour-eyes = "{mode}"\n')


def person(dashboard: Dashboard, known: Known, user: str) -> Client:
    client = Client(dashboard.url)
    assert finish(client, log_in(client, known, user)) == 200
    return client


def approve(client: Client, name: str, why: str = "an exercise") -> Answer:
    """Approve with a form as the page has it, even if the page offers none."""
    change = client.page(f"reviews/{name}/").values("change")[0]
    return client.submit("decide", {"change": change, "action": "approve", "why": why})


def test_two_people_approve_and_pages_commands_api_and_log_agree(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    (name,) = world.serve(EVIL)
    alice, carol = person(dashboard, known, "alice"), person(dashboard, known, "carol")
    assert "demands the approvals of two people" in alice.page(f"reviews/{name}/").text
    assert json.loads(alice.page(f"api/reviews/{name}").body)["needs_two_people"] is True
    assert approve(alice, name, "a red team").status == 303
    assert (names(world.approved()), world.waiting()) == (UNCHANGED, [name])
    assert "1 of 2 approvals, by Alice" in alice.page(f"reviews/{name}/").text
    for path in ("", "reviews/", f"reviews/{name}/"):
        assert "1 of 2 approvals" in carol.page(path).text
        assert ALICE in carol.page(path).text
    first = {"by": ALICE, "why": "a red team"}
    for answer in (
        json.loads(carol.page("api/reviews").body)["reviews"][0],
        json.loads(carol.page(f"api/reviews/{name}").body)["review"],
        world.json("review", "list")["reviews"][0],
        world.json("review", "show", name)["review"],
    ):
        assert {member: answer["first_approval"][member] for member in first} == first
        assert answer["state"] == "pending"
    assert f"pending, 1 of 2 approvals (by {ALICE})" in " ".join(world.run("review", "list").out.split())
    assert f"approved by {ALICE}: a red team" in " ".join(world.run("review", "show", name).out.split())

    assert approve(carol, name, "known").status == 303
    assert (names(world.approved()), world.waiting()) == ({"search": EVIL["description"]}, [])
    assert f"by {ALICE} and {CAROL}" in carol.page("reviews/?view=decided").text
    assert world.events() == [
        ("first_approved", "search", ALICE, "a red team"),
        ("approved", "search", f"{ALICE} and {CAROL}", "a red team; known"),
    ]
    assert world.state.reviews.list_first_approvals() == {}


def test_attack_one_person_with_two_sessions_or_two_roles_is_one_person(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    (name,) = world.serve(EVIL)
    assert approve(person(dashboard, known, "alice"), name).status == 303
    again = person(dashboard, known, "alice")
    page = again.page(f"reviews/{name}/")
    assert "Another person has to approve it too." in page.text
    assert 'value="approve"' not in page.html
    refused = approve(again, name)
    assert (refused.status, "FOUR_EYES" in refused.text) == (403, True)
    known.provider.settings["users"]["alice"]["groups"] = ["security"]
    known.provider.restart()
    try:
        admin = person(dashboard, known, "alice")
        assert "admin" in admin.page().text
        assert approve(admin, name).status == 403
    finally:
        known.provider.settings["users"]["alice"]["groups"] = ["reviewers", "platform"]
        known.provider.restart()
    assert (names(world.approved()), world.waiting()) == (UNCHANGED, [name])
    assert [event[0] for event in world.events()] == ["first_approved"]


def test_attack_typed_names_and_codes_are_not_people(world: ReviewWorld) -> None:
    demand(world)
    (name,) = world.serve(EVIL)
    before = world.files()
    for by in ("ana", "bob"):
        outcome = world.run("review", "approve", name, "--by", by, "--why", "sure")
        assert (outcome.code, "[FOUR_EYES]" in outcome.err) == (1, True)
        assert "pinwarden dashboard --sign-in provider" in outcome.err
    with serving_dashboard(world.state) as dashboard:
        client = dashboard.client()
        page = client.page(f"reviews/{name}/")
        assert "you did not sign in there" in page.text
        assert 'value="approve"' not in page.html
        assert approve(client, name).status == 403
    assert (world.files(), world.waiting(), world.events()) == (before, [name], [])


def test_attack_one_person_cannot_approve_an_earlier_critical_definition_with_an_undo(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    demand(world, "never")
    for tool in (EVIL, CHANGED):  # a mistake, and its correction
        (name,) = world.serve(tool)
        assert world.run("review", "approve", name, "--why", "an exercise", "--approve-warnings").code == 0
    demand(world)
    assert person(dashboard, known, "alice").submit("reopen", {"name": name, "why": "an exercise"}).status == 303
    assert names(world.approved()) == {}, "blocked in both versions"
    demand(world, "never")


def test_attack_two_approvals_on_two_hosts_at_once_do_not_count_twice(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    """Hosts share the database, and no lock: what each of them read may be outdated when it writes."""
    (name,) = world.serve(EVIL)
    assert approve(person(dashboard, known, "alice"), name).status == 303
    review, first = world.state.reviews.get(name), world.state.reviews.list_first_approvals()[name]
    with pytest.raises(PinwardenError, match="changed in the meantime"):
        world.state.reviews.record_first_approval(review, replace(first, identity="another person"))
    second = ReviewDecision(state="approved", by="both", why="", now="2026", first=first)
    with pytest.raises(PinwardenError, match="changed in the meantime"):
        world.state.reviews.decide([review], replace(second, first=replace(first, identity="another person")))
    world.state.reviews.decide([review], replace(second, state="rejected", first=None))
    with pytest.raises(PinwardenError, match="no longer pending"):
        world.state.reviews.decide([review], second)
    assert names(world.approved()) == UNCHANGED


def test_a_rejection_takes_one_person_and_ends_the_first_approval(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    (name,) = world.serve(EVIL)
    alice, carol = person(dashboard, known, "alice"), person(dashboard, known, "carol")
    assert approve(alice, name).status == 303
    assert world.run("review", "reject", name, "--by", "ana", "--why", "theft").code == 0
    assert world.run("review", "reopen", name).code == 0
    assert approve(carol, name).status == 303
    assert (names(world.approved()), world.waiting()) == (UNCHANGED, [name]), "hers is the first one again"
    assert approve(alice, name).status == 303
    assert names(world.approved()) == {"search": EVIL["description"]}


def test_a_change_that_needs_two_people_is_not_approved_together_with_others(
    world: ReviewWorld, known: Known, dashboard: Dashboard
) -> None:
    demand(world, "always")
    world.serve(CHANGED, READ)
    client = person(dashboard, known, "alice")
    pairs = [client.page(f"reviews/{name}/").values("change")[0] for name in world.waiting()]
    assert client.submit("decide", {"change": pairs, "action": "approve"}).status == 422
    assert len(world.waiting()) == 2
    outcome = world.run("review", "approve", *world.waiting())
    assert (outcome.code, "[FOUR_EYES]" in outcome.err) == (1, True)


def test_only_critical_changes_need_two_people(world: ReviewWorld) -> None:
    demand(world)
    (name,) = world.serve(CHANGED)
    assert world.run("review", "approve", name).code == 0
    assert names(world.approved()) == {"search": CHANGED["description"]}


def test_an_invalid_policy_approves_nothing_and_that_of_the_lock_counts_in_every_folder(
    world: ReviewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = world.serve(EVIL)
    before = world.files()
    demand(world, "sometimes")
    assert "[POLICY_INVALID]" in world.run("review", "approve", name, "--why", "sure").err
    with serving_dashboard(world.state) as dashboard:
        assert "The policy cannot be read" in dashboard.client().page(f"reviews/{name}/").text
    demand(world)
    elsewhere = world.root.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert "[FOUR_EYES]" in world.run("review", "approve", name, "--why", "sure").err
    assert (world.files(), world.waiting(), world.events()) == (before, [name], [])
