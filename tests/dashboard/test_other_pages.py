"""Servers, tools, clients, the audit log and the policy: what the pages say, and what they let people do."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, urlencode

from pinwarden.dashboard.sources import identify_server
from pinwarden.gateway.audit.event import BLOCKED, CALLED, AuditEvent
from pinwarden.gateway.baselines import FIRST_USE
from pinwarden.lock.gateway_policy import KEYS
from tests.dashboard.world import Client, serving_dashboard
from tests.gateway.review_world import CHANGED, READ, SEARCH, ReviewWorld, listing
from tests.support.waiting import poll


def test_a_server_has_what_is_blocked_apart_from_what_is_available(world: ReviewWorld, client: Client) -> None:
    world.serve(SEARCH, READ)
    servers = client.page("servers/").text
    assert re.search(r"notes 1 1 3 pinned: n/a, approved: no", servers), servers
    page = client.page(f"servers/{identify_server('notes')}/").text
    assert page.index("Blocked (1)") < page.rindex("tool read") < page.index("Available (2)")
    assert "Pending review (1)" in page
    assert client.page(f"servers/{'0' * 16}/").status == 404


def test_a_server_that_serves_the_approved_tool_again_has_nothing_blocked(world: ReviewWorld, client: Client) -> None:
    world.serve(CHANGED)
    assert "Nothing is blocked." not in client.page("servers/?show=blocked").text
    with world.state.observed_definitions._database.transaction() as transaction:
        transaction.run("UPDATE sighting SET last_seen = '2000-01-01T00:00:00.000Z'")
    world.serve(SEARCH)
    assert "Nothing is blocked." in client.page("servers/?show=blocked").text


def test_tools_are_found_across_servers_by_name_and_description(world: ReviewWorld, client: Client) -> None:
    world.serve(SEARCH, READ)
    world.state.open_sighting_recorder("mail", FIRST_USE)
    assert "tool search" not in client.page("tools/?q=nothing+like+it").text
    assert "No tool that a gateway observed has all words" in client.page("tools/?q=nothing+like+it").text
    assert "read notes blocked" in client.page("tools/?q=READ+note").text
    assert "search notes approved" in client.page("tools/?q=sear").text
    assert "No tool" in client.page("tools/?q=se%25ch").text  # no wildcard
    assert client.page(f"tools/?q={'x' * 201}").status == 422


def test_an_admin_revokes_a_token_and_a_reviewer_cannot(world: ReviewWorld, client: Client) -> None:
    assert world.run("gateway", "token", "add", "laptop").code == 0
    (token,) = world.state.tokens.list_all()
    page = client.page("clients/")
    assert token.digest not in page.html
    with serving_dashboard(world.state, role="reviewer") as served:
        reviewer = served.client()
        assert "only for the role admin" in reviewer.page("clients/").text
        assert reviewer.submit("revoke-token", {"id": token.id}).status == 403
    assert world.state.tokens.list_valid() == [token]
    assert client.submit("revoke-token", {"id": token.id}).status == 303
    assert world.state.tokens.list_valid() == []
    assert "1 token revoked" in client.page("clients/").text
    assert client.submit("revoke-token", {"id": "none"}).status == 422


def record(world: ReviewWorld, *events: AuditEvent) -> None:
    with world.state.open_audit_log() as log:
        log.record_durably(*events)


def test_the_log_is_filtered_paged_and_exported(world: ReviewWorld, client: Client) -> None:
    record(world, *(AuditEvent(kind=CALLED, server="notes", item=f"tool-{number}") for number in range(120)))
    record(world, AuditEvent(kind=BLOCKED, server="mail", item="send", arguments=b'{"password":"hunter2"}'))
    newest = client.page("audit/")
    assert "send" in newest.text
    assert "tool-119" in newest.text
    assert "tool-20 " not in newest.text
    assert "hunter2" not in newest.html
    older = client.page("audit/?before=23").text
    assert "tool-20 " in older
    assert "tool-119" not in older
    filtered = client.page("audit/?kind=blocked&server=mail").text
    assert "send" in filtered
    assert "tool-" not in filtered
    assert "No event matches" in client.page("audit/?kind=blocked&server=notes").text
    assert [client.page(f"audit/?{query}").status for query in ("kind=x", "before=x", "before=0")] == [422] * 3
    export = client.page("audit/export")
    assert export.headers["content-disposition"] == 'attachment; filename="audit.jsonl"'
    assert [json.loads(line)["number"] for line in export.body.splitlines()] == list(range(1, 123))


def test_the_log_is_filtered_by_client_and_the_links_keep_the_filter(world: ReviewWorld, client: Client) -> None:
    laptop = "Ada's laptop & <b>desk</b>"
    record(
        world,
        *(AuditEvent(kind=CALLED, server="notes", client="ci", item=f"robot-{number}") for number in range(110)),
        *(AuditEvent(kind=CALLED, server="notes", client=laptop, item=f"tool-{number}") for number in range(110)),
    )
    query = urlencode({"kind": "", "server": "notes", "client": laptop})
    page = client.page(f"audit/?{query}")
    assert "tool-109" in page.text
    assert "tool-10 " in page.text
    assert "robot-" not in page.text
    older = re.search(r'<a rel="next" href="\?([^"]*)"', page.html)
    assert older is not None
    assert parse_qs(unescape(older[1])) == {"server": ["notes"], "client": [laptop], "before": ["122"]}
    rest = client.page(f"audit/?{unescape(older[1])}")
    assert "tool-9 " in rest.text
    assert "robot-" not in rest.text
    newest = re.search(r'<a href="\?([^"]*)">Newest events', rest.html)
    assert newest is not None
    assert unescape(newest[1]) == query
    entries = json.loads(client.page("api/audit?client=ci").body)["entries"]
    assert {entry["fact"]["item"][:5] for entry in entries} == {"robot"}
    assert "No event matches" in client.page("audit/?client=c").text


def test_the_chain_is_verified_and_a_change_is_found(world: ReviewWorld, client: Client) -> None:
    record(world, AuditEvent(kind=CALLED, server="notes", item="a"), AuditEvent(kind=CALLED, server="notes", item="b"))
    assert "Not verified since" in client.page("audit/").text
    assert client.submit("check-log", {}).status == 303
    poll(lambda: "complete and unchanged" in client.page("audit/").text)
    with world.state.audit_database.transaction() as transaction:
        transaction.run("""UPDATE audit_entry SET entry = REPLACE(entry, '"item":"a"', '"item":"c"')""")
    assert client.submit("check-log", {}).status == 303
    poll(lambda: "broken_link" in client.page("audit/").text)


def test_the_policy_shows_what_applies_and_an_invalid_one_is_unknown(world: ReviewWorld, client: Client) -> None:
    policy = Path(world.root) / "pinwarden.toml"
    assert "enforcement block the default" in client.page("policy/").text
    policy.write_text(
        '[policy.gateway]\nenforcement = "warn"\n[[policy.gateway.rules]]\nserver = "mail"\nunknown = "warn"\n'
    )
    text = client.page("policy/").text
    assert "enforcement warn the policy" in text
    assert "Server mail" in text
    policy.write_text(
        '[policy.gateway]\nrate = "60/minute"\nurl-hosts = ["a.example", "b.example"]\n'
        '[policy.gateway.results]\nmax-bytes = 5\n[[policy.gateway.rules]]\nserver = "mail"\ndaily = 7\n'
    )
    text = client.page("policy/").text
    shown = ("rate 60/minute the policy", "daily unlimited the default", "max-bytes 5 the policy", "daily : 7")
    assert [part for part in (*shown, "url-hosts a.example, b.example the policy") if part not in text] == []
    assert [key.name for key in KEYS if f" {key.name} " not in f" {text} "] == []
    policy.write_text("[policy.gateway]\nenforcement = 3\n")
    text = client.page("policy/").text
    assert "Unknown." in text
    assert "POLICY_INVALID" in text


def test_what_a_gateway_observed_of_unlocked_servers_is_there_too(world: ReviewWorld, client: Client) -> None:
    world.serve_unlocked(listing(SEARCH), {**READ, "name": "other"})
    assert "other notes blocked" in client.page("tools/?q=other").text
