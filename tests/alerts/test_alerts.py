"""Alerts reach people: what is in them, how often they are sent, and what happens when they do not arrive."""

from __future__ import annotations

import base64
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pinwarden.alerts.alert import AlertItem, build_alert, render_slack, render_teams
from pinwarden.alerts.config import parse_alert_settings
from pinwarden.alerts.outbox import RETRY_SECONDS, Outbox, load_alert_schema
from pinwarden.alerts.sender import AlertSender
from pinwarden.alerts.sources import AlertSource, AuditFaults, PendingReviews, RefusedPublishes
from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.audit.event import EVENTS_LOST, AuditEvent
from pinwarden.gateway.state import GatewayState
from pinwarden.registry.access import add_namespace, add_token, authenticate, record_refusal
from pinwarden.registry.registry import RegistrySettings, open_registry
from pinwarden.system.database import Database, open_database
from tests.alerts.receiver import Receiver, mail_server, receiving
from tests.docs.schemas import problems
from tests.gateway.review_world import CHANGED, EVIL, READ, SEARCH, ReviewWorld
from tests.gateway.test_gateway_command import POISONED, TOOLS, Project, running
from tests.servers.authority import Authority
from tests.servers.turning_http import turning_http
from tests.support.postgres import postgres
from tests.support.waiting import poll

SECRET = "a-secret-of-32-characters-length"
LATER = 2_000_000_000


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


Open = Callable[[str], Database]


@pytest.fixture
def open_alerts() -> Iterator[Open]:
    """Opens the tables of alerts of a database; all are closed after the test."""
    with ExitStack() as stack:

        def opened(url: str) -> Database:
            return stack.enter_context(closing(open_database(url, load_alert_schema())))

        yield opened


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> ReviewWorld:
    made = ReviewWorld(tmp_path, monkeypatch, capfd)
    made.lock_server(SEARCH, READ)
    return made


def write_config(world: ReviewWorld, receiver: Receiver, **more: Any) -> str:
    rows = {"name": "security", "kind": "webhook", "url": f"{receiver.url}/hooks/T0/secret-path", "secret": SECRET}
    lines = ["group-seconds = 0", "[[destination]]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in (rows | more).items()]
    (world.root / "alerts.toml").write_text("\n".join(lines))
    return "alerts.toml"


def send(world: ReviewWorld, receiver: Receiver, **more: Any) -> str:
    outcome = world.run("alerts", "run", "--once", "--config", write_config(world, receiver, **more))
    assert outcome.code == 0, outcome.err
    return outcome.err


class Clock:
    def __init__(self) -> None:
        self.now = float(LATER)

    def __call__(self) -> float:
        return self.now


def make_sender(world: ReviewWorld, receiver: Receiver, clock: Clock, log: list[str], open_alerts: Open) -> AlertSender:
    row = {"name": "hook", "kind": "webhook", "url": f"{receiver.url}/secret-path", "secret": SECRET}
    database = open_alerts(world.state.url)
    sources: list[AlertSource] = [PendingReviews(world.state), AuditFaults(world.state)]
    parsed = parse_alert_settings({"destination": [row]}, {})
    return AlertSender(parsed, Outbox(database), sources, log.append, clock=clock)


def test_a_rug_pull_reaches_a_webhook_once_with_a_valid_signature(world: ReviewWorld, receiver: Receiver) -> None:
    (review,) = world.serve(EVIL, READ)
    send(world, receiver)
    send(world, receiver)
    (post,) = receiver.posts
    headers = post.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + post.body
    expected = base64.b64encode(hmac.new(SECRET.encode(), signed, sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert post.json["type"] == "pinwarden.critical"
    data = post.json["data"]
    assert data["title"] == "notes: 1 change pending review, of which some may be an attack"
    assert data["items"] == [
        {
            "name": "tool search",
            "level": "critical",
            "reason": "The text now asks the model to hide something from the user.",
            "review": review,
        }
    ]


def test_an_upgrade_of_twenty_tools_is_one_alert(world: ReviewWorld, receiver: Receiver) -> None:
    world.serve(SEARCH, READ, *({**READ, "name": f"read_{number}"} for number in range(20)))
    send(world, receiver)
    (post,) = receiver.posts
    assert (post.json["type"], post.json["data"]["count"]) == ("pinwarden.review", 20)
    assert len(post.json["data"]["items"]) == 10


def test_changes_wait_for_others_of_the_same_server(world: ReviewWorld, receiver: Receiver, open_alerts: Open) -> None:
    clock, log = Clock(), list[str]()
    world.serve(CHANGED, READ)
    opened = world.state.reviews.select()[0].opened
    assert opened == "2026-07-20T12:00:00.000Z"
    clock.now = 1784548800 + 29
    sender = make_sender(world, receiver, clock, log, open_alerts)
    sender.run_once()
    assert receiver.posts == []
    clock.now += 1
    sender.run_once()
    assert len(receiver.posts) == 1


def test_attack_a_server_that_changes_all_the_time_does_not_flood_people(
    world: ReviewWorld, receiver: Receiver, open_alerts: Open
) -> None:
    clock, log = Clock(), list[str]()
    sender = make_sender(world, receiver, clock, log, open_alerts)
    for number in range(50):
        world.serve({**SEARCH, "description": f"Search the notes, version {number}."}, READ)
        sender.run_once()
        clock.now += 10
    assert len(receiver.posts) == 1
    clock.now += 600
    sender.run_once()
    assert len(receiver.posts) == 2


def test_an_alert_that_does_not_arrive_is_tried_again_and_then_listed(
    world: ReviewWorld, receiver: Receiver, open_alerts: Open
) -> None:
    clock, log = Clock(), list[str]()
    receiver.status = 503
    world.serve(CHANGED, READ)
    sender = make_sender(world, receiver, clock, log, open_alerts)
    sender.run_once()
    for pause in RETRY_SECONDS:
        clock.now += pause - 1
        sender.run_once()
        posts = len(receiver.posts)
        clock.now += 1
        sender.run_once()
        assert len(receiver.posts) == posts + 1
    assert len({post.headers["webhook-id"] for post in receiver.posts}) == 1
    clock.now += 10**6
    sender.run_once()
    assert len(receiver.posts) == 1 + len(RETRY_SECONDS)
    report = world.json("alerts", "list")
    assert problems("alerts-list", report) == []
    (listed,) = report["alerts"]
    assert (listed["state"], listed["problem"]) == ("failed", "127.0.0.1 responded with status 503")
    receiver.status = 200
    assert world.json("alerts", "retry")["retried"] == 1
    sender.run_once()
    assert world.json("alerts", "list")["alerts"] == []


def test_a_test_alert_goes_to_every_destination(world: ReviewWorld, receiver: Receiver) -> None:
    outcome = world.run("alerts", "test", "--config", write_config(world, receiver))
    assert (outcome.code, outcome.out) == (0, "1 destination got a test alert\n")
    assert receiver.posts[0].json["data"]["items"][0]["reason"] == "This is a test. Nothing needs a decision."
    assert problems("alerts-test", world.json("alerts", "test", "--config", "alerts.toml")) == []


def test_attack_the_address_of_a_webhook_is_in_no_log_and_no_table(world: ReviewWorld, receiver: Receiver) -> None:
    receiver.status = 500
    world.serve(CHANGED, READ)
    log = send(world, receiver)
    log += send(world, receiver, name="closed", url="http://127.0.0.1:1/hooks/secret-path")
    outcome = world.run("alerts", "test", "--config", "alerts.toml")
    assert outcome.code == 3
    assert "[ALERT_UNDELIVERED]" in outcome.err
    stored = b"".join(path.read_bytes() for path in world.folder.rglob("*") if path.is_file())
    for place in (log, outcome.out, outcome.err, stored.decode("utf-8", "replace")):
        assert "secret-path" not in place
        assert SECRET not in place


def test_a_process_that_dies_during_a_delivery_leaves_it_to_another(
    world: ReviewWorld, receiver: Receiver, open_alerts: Open
) -> None:
    clock, log = Clock(), list[str]()
    world.serve(CHANGED, READ)
    receiver.status = 500
    make_sender(world, receiver, clock, log, open_alerts).run_once()
    database = open_alerts(world.state.url)
    clock.now += RETRY_SECONDS[0]
    assert Outbox(database).claim(["hook"], int(clock.now)) is not None  # and then the process is killed
    other = make_sender(world, receiver, clock, log, open_alerts)
    receiver.status = 200
    other.run_once()
    assert len(receiver.posts) == 1
    clock.now += 120
    other.run_once()
    assert len(receiver.posts) == 2


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_several_senders_with_one_database_send_each_alert_once(
    kind: str, tmp_path: Path, receiver: Receiver, open_alerts: Open
) -> None:
    if kind == "sqlite":
        _send_from_four(open_alerts(str(tmp_path / "alerts.sqlite")), receiver)
        return
    with postgres() as cluster:
        _send_from_four(open_alerts(cluster.new_database()), receiver)


def _send_from_four(database: Database, receiver: Receiver) -> None:
    row = {"name": "hook", "kind": "webhook", "url": receiver.url, "secret": SECRET}
    settings = parse_alert_settings({"group-seconds": 0, "destination": [row]}, {})
    first = Outbox(database)
    for number in range(20):
        alert = build_alert("review", f"server-{number}", [AlertItem(name="tool a", level="review", reason="x")], "y")
        assert first.add("reviews", [str(number)], alert, ["hook"], 1)
        assert not first.add("reviews", [str(number)], alert, ["hook"], 1)
    problems: list[str] = []
    senders = [AlertSender(settings, Outbox(database), [], problems.append) for _ in range(4)]
    threads = [threading.Thread(target=sender.run_once) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    subjects = [post.json["data"]["subject"] for post in receiver.posts]
    assert sorted(subjects) == sorted(f"server-{number}" for number in range(20))
    assert problems == []


def test_attack_text_of_a_server_is_no_mention_link_or_markup() -> None:
    evil = "<!channel> <https://evil.example|click> @everyone **bold** [x](https://evil.example)\u202etxt\n\nTo: all"
    alert = build_alert("review", evil, [AlertItem(name=evil, level="review", reason=evil)], "pinwarden review")
    slack = render_slack(alert)
    assert "<!channel>" not in slack["text"]
    assert {block["text"]["type"] for block in slack["blocks"]} == {"plain_text"}
    (attachment,) = render_teams(alert)["attachments"]
    runs = [run for block in attachment["content"]["body"] for run in block["inlines"]]
    assert {run["type"] for run in runs} == {"TextRun"}
    for text in [slack["text"], *(block["text"]["text"] for block in slack["blocks"]), *(run["text"] for run in runs)]:
        assert "\n" not in text
        assert "\u202e" not in text


@pytest.mark.parametrize("kind", ["slack", "teams"])
def test_slack_and_teams_get_the_title_the_changes_and_the_command(
    kind: str, world: ReviewWorld, receiver: Receiver, open_alerts: Open
) -> None:
    world.serve(EVIL, READ)
    row = {"name": "chat", "kind": kind, "url": "${HOOK}", "topics": ["critical"]}
    settings = parse_alert_settings({"group-seconds": 0, "destination": [row]}, {"HOOK": f"{receiver.url}/services"})
    database = open_alerts(world.state.url)
    AlertSender(settings, Outbox(database), [PendingReviews(world.state)], print).run_once()
    text = receiver.posts[0].body.decode()
    for part in ("of which some may be an attack", "tool search: The text now asks", "Next: pinwarden review"):
        assert part in text


def test_a_destination_gets_only_the_topics_that_it_wants(world: ReviewWorld, receiver: Receiver) -> None:
    world.serve(CHANGED, READ)
    send(world, receiver, topics=["critical", "audit"])
    assert receiver.posts == []


def test_mail_is_sent_with_starttls_and_a_login(
    world: ReviewWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_alerts: Open
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    world.serve({**SEARCH, "name": "se\r\nBcc: all@example.org"}, READ)
    with mail_server(authority.server("127.0.0.1")) as mailbox:
        row = {
            "name": "mail",
            "kind": "email",
            "server": f"127.0.0.1:{mailbox.port}",
            "username": "pinwarden",
            "password": "${MAIL_PASSWORD}",
            "from": "pinwarden@example.org",
            "to": ["security@example.org", "ops@example.org"],
        }
        log = list[str]()
        for password in ("wrong", "right"):
            settings = parse_alert_settings({"group-seconds": 0, "destination": [row]}, {"MAIL_PASSWORD": password})
            database = open_alerts(world.state.url)
            sender = AlertSender(settings, Outbox(database), [PendingReviews(world.state)], log.append)
            sender.run_once()
            assert len(mailbox.messages) == (password == "right")
            _make_due(database)
    (refused,) = log
    assert refused.startswith("alerts: mail was not reached and is tried again later: 127.0.0.1: SMTP")
    assert "wrong" not in refused
    assert set(mailbox.logins) == {("pinwarden", "wrong"), ("pinwarden", "right")}
    recipients, message = mailbox.messages[0]
    assert recipients == ["security@example.org", "ops@example.org"]
    assert message["Subject"].split()[:2] == ["Pinwarden:", "notes:"]
    assert message["Bcc"] is None
    assert "Next: pinwarden review" in message.get_payload()


def _make_due(database: Database) -> None:
    with database.transaction() as transaction:
        transaction.run("UPDATE alert SET due = 0")


def test_a_damaged_journal_is_an_alert(world: ReviewWorld, receiver: Receiver, open_alerts: Open) -> None:
    clock, log = Clock(), list[str]()
    sender = make_sender(world, receiver, clock, log, open_alerts)
    sender.run_once()
    with world.state.open_audit_log(gateway="host-1") as audit:
        audit.record(AuditEvent(kind=EVENTS_LOST, reason="the journal is damaged"))
    sender.run_once()
    sender.run_once()
    (post,) = receiver.posts
    assert post.json["type"] == "pinwarden.audit"
    assert post.json["data"]["items"][0]["reason"] == "the journal is damaged"


def test_a_database_that_is_away_is_an_alert_of_its_own(tmp_path: Path, receiver: Receiver, open_alerts: Open) -> None:
    clock, log = Clock(), list[str]()
    row = {"name": "hook", "kind": "webhook", "url": receiver.url, "secret": SECRET}
    settings = parse_alert_settings({"group-seconds": 0, "destination": [row]}, {})
    with postgres() as cluster:
        url = cluster.new_database()
        state = GatewayState(tmp_path, url)
        outbox = Outbox(open_alerts(url))
        sender = AlertSender(settings, outbox, [PendingReviews(state)], log.append, clock=clock)
        sender.run_once()
        cluster.stop()
        for _ in range(4):
            sender.run_once()
            clock.now += 20
        (post,) = receiver.posts
        assert post.json["data"]["title"] == "gateway database: 1 fault of the audit log"
        cluster.start()
        sender.run_once()  # finds that its connection was lost
        sender.run_once()
        assert log[-1] == "alerts: the database is available again"
        state.close()


def test_a_refused_publish_is_an_alert(tmp_path: Path, receiver: Receiver, open_alerts: Open) -> None:
    clock, log = Clock(), list[str]()
    row = {"name": "hook", "kind": "webhook", "url": receiver.url, "secret": SECRET}
    settings = parse_alert_settings({"group-seconds": 0, "destination": [row]}, {})
    registry = open_registry(RegistrySettings(folder=tmp_path), None)
    outbox = Outbox(open_alerts(str(tmp_path / "registry.sqlite")))
    sender = AlertSender(settings, outbox, [RefusedPublishes(registry)], log.append, clock=clock)
    sender.run_once()
    add_namespace(registry, "acme", registry.identity.key.did)
    caller = authenticate(registry, add_token(registry, "acme", "ci", 1).facts["token"], "publish")
    record_refusal(registry, caller, "publish", "acme.notes", PinwardenError("VERSION_EXISTS", "it exists"))
    clock.now = registry.now_ms() / 1000 + 1
    sender.run_once()
    (post,) = receiver.posts
    assert post.json["data"]["title"] == "acme: 1 request of publishers refused"
    assert post.json["data"]["items"][0]["reason"] == "publish: VERSION_EXISTS"
    sender.run_once()
    assert len(receiver.posts) == 1
    registry.close()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"kind": "pager"}, "kind"),
        ({"kind": "webhook", "url": "https://a.example/x", "secret": "short"}, "secret is shorter"),
        ({"kind": "webhook", "url": "http://a.example/x", "secret": SECRET}, "url does not begin with https://"),
        ({"kind": "slack", "url": "ftp://a.example"}, "url is not an http or https address"),
        ({"kind": "slack", "url": "https://a.example", "secret": SECRET}, "secret is not a known key"),
        ({"kind": "slack", "url": "https://a.example", "topics": ["all"]}, "topics has 'all'"),
        ({"kind": "email", "server": "mail.example", "tls": "none", "from": "a@b", "to": ["c@d"]}, "tls is none"),
        ({"kind": "email", "server": "mail.example", "from": "a@b", "to": []}, "to is empty"),
        ({"kind": "email", "server": "mail.example", "from": "a@b", "to": ["c@d\r\nBcc: e@f"]}, "to has"),
        ({"kind": "email", "server": "mail.example:x", "from": "a@b", "to": ["c@d"]}, "server is not HOST"),
    ],
)
def test_a_mistake_in_the_file_is_named(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(PinwardenError) as refused:
        parse_alert_settings({"destination": [{"name": "one", **row}]}, {})
    assert refused.value.code == "ALERTS_INVALID"
    assert problem in refused.value.message


def test_a_variable_that_is_not_set_is_an_error() -> None:
    row = {"name": "one", "kind": "slack", "url": "${SLACK_HOOK}"}
    with pytest.raises(PinwardenError, match="SLACK_HOOK is not set"):
        parse_alert_settings({"destination": [row]}, {})


def test_a_rug_pull_through_a_running_gateway_reaches_the_webhook(tmp_path: Path, receiver: Receiver) -> None:
    project = Project(tmp_path)
    config = ["group-seconds = 0", "[[destination]]", 'name = "hook"', 'kind = "webhook"', 'secret = "${HOOK_SECRET}"']
    (tmp_path / "alerts.toml").write_text("\n".join([*config, f'url = "{receiver.url}/hook"']))
    project.environment["HOOK_SECRET"] = SECRET
    with turning_http({"states": [{"tools": TOOLS}, {"tools": POISONED}]}) as served:
        project.lock({"notes": {"type": "http", "url": served.url}})
        served.turn()
        with running(project, "--alerts", "alerts.toml") as gateway:
            assert gateway.names("notes", gateway.token) == []
            poll(lambda: bool(receiver.posts))
    assert receiver.posts[0].json["data"]["title"] == "notes: 1 change pending review, of which some may be an attack"
