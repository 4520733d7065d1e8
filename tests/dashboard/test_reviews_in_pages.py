"""Pending changes on pages: what they show, and that a decision is about exactly what was shown."""

from __future__ import annotations

import json
import re

import pytest

from tests.dashboard.world import Client, Dashboard, serving_dashboard
from tests.gateway.review_world import CHANGED, EVIL, READ, SEARCH, ReviewWorld, names

LIMITED = {**READ, "inputSchema": {"type": "object", "properties": {"limit": {"type": "integer", "maximum": 50}}}}


def test_nothing_pending_says_so_and_what_to_do(client: Client) -> None:
    text = client.page().text
    assert "Nothing is pending." in text
    assert "pinwarden enforce" in text
    assert "No decision was made yet." in text


def test_the_overview_and_the_queue_show_what_is_pending_the_worst_first(world: ReviewWorld, client: Client) -> None:
    world.serve(EVIL, READ)
    overview, queue = client.page().text, client.page("reviews/").text
    for text in (overview, queue):
        assert text.index("tool search") < text.index("tool read")
    assert "1 critical" in overview
    assert "1 review" in overview


def test_a_change_is_shown_with_words_severity_and_both_texts(world: ReviewWorld, client: Client) -> None:
    (name,) = world.serve({**SEARCH, "description": "Search the\u200b notes.", "inputSchema": LIMITED["inputSchema"]})
    page = client.page(f"reviews/{name}/")
    assert 'New optional parameter "limit" ("integer").' in page.text
    assert "The description was reworded." in page.text
    assert '<span class="hidden-character">U+200B' in page.html
    assert "contains characters that a model reads but a person does not see" in page.text
    assert f"An approval goes to {world.lock}" in page.text
    sides = client.page(f"reviews/{name}/?show=sides").html
    assert sides.count('<div class="sides"><div><p class="origin">Approved</p>') >= 1


def test_an_approval_is_recorded_with_the_name_of_the_person_who_signed_in(world: ReviewWorld, client: Client) -> None:
    (name,) = world.serve(CHANGED)
    (change,) = client.page(f"reviews/{name}/").values("change")
    answer = client.submit(
        "decide", {"change": change, "action": "approve", "why": "they added an archive", "by": "eve"}
    )
    assert (answer.status, answer.headers["location"]) == (303, f"{client.base}reviews/{name}/")
    assert names(world.approved()) == {"search": CHANGED["description"]}
    assert world.events() == [("approved", "search", "ana", "they added an archive")]
    shown = client.page(f"reviews/{name}/").text
    assert "1 change approved by ana." in shown
    assert "Undo this decision" in shown
    assert "1 change approved by ana." not in client.page(f"reviews/{name}/").text


def test_a_rejected_change_stays_blocked(world: ReviewWorld, client: Client) -> None:
    (name,) = world.serve(EVIL)
    before = world.files()
    (change,) = client.page(f"reviews/{name}/").values("change")
    assert client.submit("decide", {"change": change, "action": "reject", "why": "theft"}).status == 303
    assert world.serve(EVIL) == []
    assert world.files() == before
    assert world.events() == [("rejected", "search", "ana", "theft")]


def test_a_decision_is_undone_on_the_page_that_confirms_it(world: ReviewWorld, client: Client) -> None:
    world.serve(SEARCH)  # so that the approved definition can be restored
    (name,) = world.serve(CHANGED)
    (change,) = client.page(f"reviews/{name}/").values("change")
    assert client.submit("decide", {"change": change, "action": "approve"}).status == 303
    assert client.page(f"reviews/{name}/").values("name") == [name]
    assert client.submit("reopen", {"name": name, "why": "too quick"}).status == 303
    assert names(world.approved()) == {"search": SEARCH["description"]}
    assert world.waiting() == [name]
    assert [event[0::2] for event in world.events()] == [("approved", "ana"), ("held", "ana")]


def test_a_critical_change_is_approved_only_with_a_reason(world: ReviewWorld, client: Client) -> None:
    (name,) = world.serve(EVIL)
    (change,) = client.page(f"reviews/{name}/").values("change")
    answer = client.submit("decide", {"change": change, "action": "approve", "why": " "})
    assert answer.status == 422
    assert "approving it needs a reason" in answer.text
    assert world.waiting() == [name]
    assert client.submit("decide", {"change": change, "action": "approve", "why": "a test"}).status == 303
    assert names(world.approved()) == {"search": EVIL["description"]}


def test_attack_a_change_that_replaced_the_shown_one_is_not_approved(world: ReviewWorld, client: Client) -> None:
    """Bait and switch: a harmless change is shown, another one is served before the click."""
    (shown,) = world.serve(CHANGED)
    (change,) = client.page(f"reviews/{shown}/").values("change")
    before = world.files()
    (newer,) = world.serve(EVIL)
    answer = client.submit("decide", {"change": change, "action": "approve", "why": "looks fine"})
    assert answer.status == 409
    assert "REVIEW_STALE" in answer.text
    assert f"reviews/{newer}/" in answer.html
    assert world.files() == before
    assert world.events() == []


def test_attack_a_definition_put_under_the_shown_name_is_not_approved(world: ReviewWorld, client: Client) -> None:
    (name,) = world.serve(CHANGED)
    (change,) = client.page(f"reviews/{name}/").values("change")
    before = world.files()
    with world.state.reviews._database.transaction() as transaction:
        transaction.run("UPDATE review SET reason = 'nothing to see'")
    answer = client.submit("decide", {"change": change, "action": "approve", "why": "looks fine"})
    assert (answer.status, "changed after this page was rendered" in answer.text) == (409, True)
    assert "looks fine" in answer.html  # the reason is not lost
    assert world.files() == before
    assert client.submit("decide", {"change": answer.values("change"), "action": "approve"}).status == 303


def test_a_double_click_changes_nothing_the_second_time(world: ReviewWorld, client: Client) -> None:
    (name,) = world.serve(CHANGED)
    fields = {"change": client.page(f"reviews/{name}/").values("change"), "action": "approve"}
    assert client.submit("decide", fields).status == 303
    after = world.files()
    assert client.submit("decide", fields).status == 409
    assert world.files() == after
    assert len(world.events()) == 1


def test_changes_of_a_server_are_approved_together_or_none_is(world: ReviewWorld, client: Client) -> None:
    world.serve(CHANGED, READ)
    link = re.findall(r'href="([^"]*selected/\?server=[0-9a-f]{16})"', client.page("reviews/").html)[0]
    page = client.page(link.removeprefix("../"))
    changes = page.values("change")
    assert len(changes) == 2
    assert "New tool" in page.text
    before = world.files()
    stale = [changes[0], f"{changes[1].partition(':')[0]}:{'0' * 64}"]
    assert client.submit("decide", {"change": stale, "action": "approve"}).status == 409
    assert world.files() == before
    assert client.submit("decide", {"change": changes, "action": "approve"}).status == 303
    assert set(names(world.approved())) == {"search", "read"}


def test_selected_changes_are_shown_before_the_decision(world: ReviewWorld, client: Client) -> None:
    first, second = world.serve(CHANGED, READ)
    page = client.submit("reviews/selected/", {"change": [first]})
    assert page.status == 200
    assert [pair.partition(":")[0] for pair in page.values("change")] == [first]
    assert client.submit("decide", {"change": page.values("change"), "action": "reject"}).status == 303
    assert world.waiting() == [second]


def test_a_critical_change_is_not_approved_together_with_others(world: ReviewWorld, client: Client) -> None:
    world.serve(EVIL, READ)
    page = client.submit("reviews/selected/", {"change": world.waiting()})
    assert "A critical change is approved alone" in page.text
    assert 'value="approve"' not in page.html
    before = world.files()
    answer = client.submit("decide", {"change": page.values("change"), "action": "approve", "why": "all fine"})
    assert answer.status == 422
    assert world.files() == before


def test_an_undigestable_change_can_only_be_rejected(world: ReviewWorld, client: Client) -> None:
    (name,) = world.serve(SEARCH, {"title": "no name"})
    page = client.page(f"reviews/{name}/")
    assert "only rejected" in page.text
    assert 'value="approve"' not in page.html
    (change,) = page.values("change")
    assert client.submit("decide", {"change": change, "action": "approve", "why": "x"}).status == 422
    assert client.submit("decide", {"change": change, "action": "reject"}).status == 303


def test_a_lock_that_is_gone_makes_the_comparison_unknown_and_nothing_else(world: ReviewWorld, client: Client) -> None:
    (name,) = world.serve(CHANGED)
    world.lock.unlink()
    page = client.page(f"reviews/{name}/")
    assert page.status == 200
    assert "Unknown." in page.text
    assert "LOCK_MISSING" in page.text
    assert 'value="approve"' not in page.html
    assert client.page().status == 200


@pytest.mark.parametrize(
    "path", ["reviews/?level=harmless", "reviews/?page=x", "reviews/?view=all", "reviews/selected/"]
)
def test_a_filter_that_does_not_exist_is_an_error_with_a_hint(client: Client, path: str) -> None:
    answer = client.page(path)
    assert answer.status == 422
    assert "Error code: USAGE" in answer.text


def test_an_unknown_page_and_an_unknown_change_are_not_found(client: Client) -> None:
    assert (client.page("nothing/").status, "PAGE_NOT_FOUND" in client.page("nothing/").text) == (404, True)
    assert client.page(f"reviews/{'0' * 32}/").status == 404


def test_a_viewer_sees_changes_and_cannot_decide(world: ReviewWorld) -> None:
    (name,) = world.serve(CHANGED)
    with serving_dashboard(world.state, role="viewer", name="vic") as served:
        client = served.client()
        page = client.page(f"reviews/{name}/")
        assert "your role is viewer" in page.text
        assert page.values("change") == []
        before = world.files()
        for path, fields in (("decide", {"change": f"{name}:x", "action": "approve"}), ("reopen", {"name": name})):
            answer = client.submit(path, fields)
            assert (answer.status, "DASHBOARD_FORBIDDEN" in answer.text) == (403, True)
        assert world.files() == before
        assert world.waiting() == [name]


def test_a_code_is_valid_for_one_sign_in(dashboard: Dashboard) -> None:
    code = dashboard.codes[-1]
    assert Client(dashboard.url).sign_in(code).status == 303
    answer = Client(dashboard.url).sign_in(code)
    assert (answer.status, "SIGN_IN_FAILED" in answer.text) == (403, True)
    assert len(dashboard.codes) == 2
    assert Client(dashboard.url).sign_in(f" {dashboard.codes[-1].lower()} ").status == 303


def test_people_ask_and_comment_and_nothing_is_decided(world: ReviewWorld) -> None:
    """Attack: markup in a comment; a comment on what does not exist, without text, or too long."""
    (name,) = world.serve(EVIL)
    before = world.files()
    with serving_dashboard(world.state, role="viewer", name="vic") as dashboard:
        viewer = dashboard.client()
        ask = {"review": name, "kind": "question", "content": "Is <script>this</script> meant?"}
        assert viewer.submit("comment", ask).status == 303
        page = viewer.page(f"reviews/{name}/")
        assert "question vic" in page.text
        assert "Is &lt;script&gt;this&lt;/script&gt; meant?" in page.html
        for path in ("", "reviews/"):
            assert "question by vic" in viewer.page(path).text
        (comment,) = json.loads(viewer.page(f"api/reviews/{name}").body)["comments"]
        assert (comment["kind"], comment["by"], comment["content"]) == ("question", "vic", ask["content"])
        for wrong in ({"content": " "}, {"content": "x" * 2001}, {"kind": "approve"}):
            assert viewer.submit("comment", {**ask, **wrong}).status == 422
        assert viewer.submit("comment", {**ask, "review": "0" * 32}).status == 404
        assert viewer.post(f"{viewer.base}comment", ask).status == 403
        assert viewer.submit("comment", {**ask, "kind": "comment", "content": "No."}).status == 303
        assert "question by vic" not in viewer.page("reviews/").text, "it was answered"
    assert (world.files(), world.waiting(), world.events()) == (before, [name], [])


def test_attack_a_viewer_cannot_use_up_the_comments_of_a_change(world: ReviewWorld) -> None:
    (name,) = world.serve(EVIL)
    form = {"review": name, "kind": "comment", "content": "x"}
    with serving_dashboard(world.state, role="viewer", name="vic") as dashboard:
        viewer = dashboard.client()
        statuses = [viewer.submit("comment", form).status for _ in range(26)]
        assert (set(statuses[:25]), statuses[25]) == ({303}, 413)
    with serving_dashboard(world.state, role="reviewer", name="ana") as dashboard:
        assert dashboard.client().submit("comment", form).status == 303
