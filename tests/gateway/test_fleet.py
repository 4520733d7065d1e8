"""Machines that follow the company's gateway over HTTPS with a device token, and machines that lie to it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinwarden.cli.main import main
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.typed_json import JsonObject
from pinwarden.gateway import fleet_client, fleet_service
from pinwarden.gateway.audit.report import verify_log
from pinwarden.gateway.fleet_client import (
    FleetFollower,
    FleetSettings,
    get_fleet_folder,
    join,
    read_settings,
    synchronize,
)
from pinwarden.gateway.fleet_service import FORMAT, MAX_REQUEST, FleetService
from pinwarden.gateway.gated_server import GatedServer, RunOptions
from pinwarden.gateway.state import GatewayState
from pinwarden.gateway.store.devices import DeviceServer
from pinwarden.gateway.store.reviews import PENDING
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY
from pinwarden.project.project import Project as LockedProject
from pinwarden.project.server_start import ServerCommand
from tests.cli.run import Outcome
from tests.docs.schemas import problems
from tests.gateway.test_gateway_command import Project, Running, running
from tests.gateway.test_review_through_run import Client
from tests.servers import turning
from tests.servers.authority import Authority
from tests.support.audit import verify
from tests.support.waiting import poll

SEARCH = {"name": "search", "description": "Search.", "inputSchema": {"type": "object"}}
BETTER = {**SEARCH, "description": "Search the notes and the archive."}
READ = {"name": "read", "description": "Read a note.", "inputSchema": {"type": "object"}}
NEW = {"name": "count", "description": "Count the notes.", "inputSchema": {"type": "object"}}
LOOSE = '[policy]\nversion = 1\n[policy.gateway]\nunknown = "allow_degraded"\n'
STRICT = '[policy]\nversion = 1\n[policy.gateway]\nunknown = "block"\nmax-rounds = 3\n'


class Company:
    """The company's gateway with TLS, and machines that have the same locked server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        script, self.place = folder / "script.json", folder / "place"
        states = [{"tools": [SEARCH, READ]}, {"tools": [BETTER, READ, NEW]}]
        script.write_text(json.dumps({"states": states, "place": str(self.place)}))
        self.place.write_text("0")
        (folder / "company").mkdir()
        self.project = Project(folder / "company")
        self.project.lock({"notes": {"command": sys.executable, "args": [str(Path(turning.__file__)), f"@{script}"]}})
        (self.project.root / "pinwarden.toml").write_text(STRICT)
        self._authority = Authority(folder)
        self._authority.server("127.0.0.1")
        assert self.project("gateway", "token", "add", "team").code == 0

    @contextmanager
    def serving(self, port: int = 0) -> Iterator[Running]:
        certificate = str(self._folder / "server-127.0.0.1.pem")
        with running(self.project, "--tls-cert", certificate, "--listen", f"127.0.0.1:{port}") as at:
            yield at

    def machine(self, name: str, group: str = "engineering") -> Project:
        shutil.copytree(self.project.root, self._folder / name, ignore=shutil.ignore_patterns("state", "stderr-*"))
        machine = Project(self._folder / name)
        (machine.root / "pinwarden.toml").write_text(LOOSE)
        machine.environment["PINWARDEN_DEVICE_TOKEN"] = self.token(name, group)
        return machine

    def token(self, name: str, group: str = "engineering") -> str:
        done = self.project("fleet", "device", "add", name, "--group", group)
        assert done.code == 0, done.err
        return done.out.strip()

    def join(self, machine: Project, at: Running, *options: str) -> Outcome:
        ca = ("--ca-file", str(self._authority.file))
        return machine("fleet", "join", f"https://127.0.0.1:{at.port}", *ca, *options)

    def status(self) -> Any:
        return json.loads(self.project("fleet", "status", "--json").out)

    def facts(self, gateway: str) -> list[dict[str, Any]]:
        """The events of a machine in the company's verified audit log."""
        done = self.project("audit", "verify")
        assert done.code == 0, done.err
        entries = [json.loads(line) for line in self.project("audit", "export").out.splitlines()]
        return [entry["fact"] for entry in entries if entry["gateway"] == gateway]


@pytest.fixture
def company(tmp_path: Path) -> Company:
    return Company(tmp_path)


@contextmanager
def run(machine: Project) -> Iterator[Client]:
    """A client with the locked server behind ``pinwarden run``."""
    with (machine.root / "run.err").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "pinwarden", "run", "notes"],
            cwd=machine.root,
            env={**os.environ, **machine.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    with process:
        client = Client(process)
        client.open()
        yield client
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def names(client: Client) -> list[str]:
    answer = client.ask("tools/list")
    if "error" in answer:
        return [answer["error"]["data"]["pinwarden"]["code"]]
    return [tool["name"] for tool in answer["result"]["tools"]]


def test_a_machine_takes_policy_and_approvals_and_gives_servers_sightings_and_events(company: Company) -> None:
    machine = company.machine("ada")
    company.place.write_text("1")
    with run(machine) as client:
        assert names(client) == ["read", "count"], "by its own policy, which lets unknown tools through"
    before = len(company.facts("device ada"))
    assert "[FLEET_NOT_JOINED]" in machine("fleet", "sync").err
    with company.serving() as at:
        good = machine.environment["PINWARDEN_DEVICE_TOKEN"]
        machine.environment["PINWARDEN_DEVICE_TOKEN"] = f"{good}x"
        refused = company.join(machine, at)
        assert (refused.code, "[FLEET_REFUSED]" in refused.err) == (1, True)
        machine.environment["PINWARDEN_DEVICE_TOKEN"] = good
        joined = company.join(machine, at, "--json")
        assert (joined.code, problems("fleet-join", json.loads(joined.out))) == (0, [])
        assert (company.status()["devices"][0]["name"], company.status()["devices"][0]["servers"]) == ("ada", [])
        with run(machine) as client:
            assert names(client) == ["read"], "the company's policy is stricter"
            assert "result" in client.ask("tools/call", name="read", arguments={})
            poll(lambda: company.status()["devices"][0]["servers"] != [])
            poll(lambda: len(json.loads(machine("review", "list", "--json").out)["reviews"]) == 2)
            assert machine("fleet", "sync").code == 0
            (row,) = company.status()["devices"][0]["servers"]
            assert (row["server"], row["pending_reviews"], row["drift"]) == ("notes", 2, False)
            assert row["surface"].startswith("sha256:")
            with GatewayState(Path(company.project.environment["PINWARDEN_STATE"])) as state:
                (device,) = state.devices.list_all()
                seen = {(row.item, row.action) for row in state.devices.list_sightings(device.id)}
            assert {("search", "block"), ("read", "allow"), ("count", "block")} <= seen
        approve_at_company(company, at)
        assert machine("fleet", "sync").code == 0
        with run(machine) as client:
            poll(lambda: names(client) == ["search", "read"])
    called = [fact["item"] for fact in company.facts("device ada") if fact["kind"] == "called"]
    assert before == 0
    assert called == ["read"]


def _trusting(company: Company) -> Any:
    import ssl

    return ssl.create_default_context(cafile=str(company._authority.file))


def approve_at_company(company: Company, at: Running) -> None:
    """Let a client use the company's gateway, which then has the same change to review, and approve it."""
    token = company.project("gateway", "token", "add", "reviewer").out.split()[0]
    poll(lambda: at.ask("notes", token, tls=_trusting(company))[0] == 200)

    def pending() -> list[Any]:
        listed: list[Any] = json.loads(company.project("review", "list", "--json").out)["reviews"]
        return [review for review in listed if review["item"] == "search" and review["state"] == PENDING]

    poll(lambda: pending() != [])
    done = company.project("review", "approve", pending()[0]["name"], "--why", "an archive")
    assert done.code == 0, done.err


def test_offline_the_last_policy_applies_events_wait_and_arrive_once_and_fail_closed_blocks(company: Company) -> None:
    machine = company.machine("ada")
    company.place.write_text("1")
    with company.serving() as at:
        port = at.port
        assert company.join(machine, at, "--fail-closed").code == 0
    with run(machine) as client:
        assert names(client) == ["read"]
        for _ in range(3):
            assert "result" in client.ask("tools/call", name="read", arguments={})
        poll(lambda: "the last known policy applies" in (machine.root / "run.err").read_text())
        assert machine("fleet", "sync").code == 3
        contact = get_fleet_folder(Path(machine.environment["PINWARDEN_STATE"])) / "contact.json"
        os.utime(contact, (1_000_000_000, 1_000_000_000))
        poll(lambda: names(client) == ["FLEET_UNAVAILABLE"])
        refused = client.ask("tools/call", name="read", arguments={})
        assert refused["error"]["data"]["pinwarden"]["code"] == "FLEET_UNAVAILABLE"
        with company.serving(port):
            poll(lambda: contact.stat().st_mtime > 1_000_000_001)  # the gateway synchronizes by itself
            poll(lambda: names(client) == ["read"])
    with company.serving(port):
        poll(lambda: machine("fleet", "sync").code == 0)
        report = json.loads(machine("fleet", "sync", "--json").out)
        assert (report["events"], problems("fleet-sync", report)) == (0, [])
    kinds = [
        (fact["kind"], fact.get("item")) for fact in company.facts("device ada") if fact.get("method") == "tools/call"
    ]
    assert kinds == [("called", "read")] * 3 + [("blocked", None)]
    assert machine("fleet", "leave").code == 0
    with run(machine) as client:
        assert names(client) == ["read", "count"]


# In this process: an exchange without a network, and what a hostile machine sends


class Exchange:
    """The company's service and a machine's state, joined without a network."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = GatewayState(folder / "company")
        root = folder / "project"
        root.mkdir()
        self.project = LockedProject(root=root, lock=root / "mcp-lock.json", home=root)
        self.service = FleetService(self.state, lambda: self.project)
        self.machine = GatewayState(folder / "machine")
        _, self.token = self.state.devices.invite("ada", "all", "2026-11-01T00:00:00Z")
        self.settings = FleetSettings(url="https://company.example", token=self.token, installation="one")
        self.reports: list[Any] = []
        self.lost_responses = 0

        def post(settings: FleetSettings, body: bytes, _: Any) -> Any:
            self.reports.append(json.loads(body))
            status, answer = self.service.answer(settings.token, body)
            if self.lost_responses:
                self.lost_responses -= 1
                raise PinwardenError("FLEET_UNAVAILABLE", "the response was lost")
            assert status == 200, answer
            return JsonObject(json.loads(answer), "", fleet_client._invalid_response)

        monkeypatch.setattr(fleet_client, "_post", post)

    def record(self, count: int, reason: str = "") -> None:
        """Record events in the machine's audit log."""
        from pinwarden.gateway.audit.event import CALLED, AuditEvent

        with self.machine.open_audit_log() as log:
            for number in range(count):
                log.record(AuditEvent(kind=CALLED, server="notes", item=f"tool{number}", reason=reason))

    def received(self) -> list[str]:
        """What arrived, as the item or the code of each event, in the verified chain."""
        database = self.state.chain_database
        verify(database)
        from pinwarden.gateway.audit.chain import read_entries

        entries = [entry for entry in read_entries(database) if entry.gateway == "device ada"]
        return [entry.event.item or entry.event.code for entry in entries]

    def report(self, **members: Any) -> tuple[int, Any]:
        whole = {"format": FORMAT, "installation": "one", "host": "h", "program": "1", "policy": "", "first_event": 1}
        body = json.dumps({**whole, "events": [], "sightings": [], **members}).encode()
        status, answer = self.service.answer(self.token, body)
        return status, json.loads(answer)


@pytest.fixture
def exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exchange]:
    made = Exchange(tmp_path, monkeypatch)
    yield made
    made.service.close()
    made.state.close()
    made.machine.close()


def test_events_arrive_once_and_in_order_although_responses_get_lost(exchange: Exchange) -> None:
    exchange.record(3)
    join(exchange.machine, exchange.settings, {})
    exchange.record(600)
    for _ in range(3):
        exchange.lost_responses = 1
        with pytest.raises(PinwardenError):
            synchronize(exchange.machine, exchange.settings, {})
    while True:
        try:
            synchronize(exchange.machine, exchange.settings, {})
            break
        except PinwardenError:
            continue
    assert exchange.received() == [f"tool{number}" for number in range(600)]
    assert max(len(json.dumps(report)) for report in exchange.reports) < MAX_REQUEST


def test_more_events_than_the_spool_holds_are_dropped_and_counted(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    join(exchange.machine, exchange.settings, {})
    monkeypatch.setattr(fleet_client, "MAX_SPOOLED", 5)
    exchange.record(12)
    exchange.lost_responses = 2
    for _ in range(2):
        with pytest.raises(PinwardenError):
            synchronize(exchange.machine, exchange.settings, {})
    synchronize(exchange.machine, exchange.settings, {})
    assert exchange.received() == ["events_dropped", *(f"tool{number}" for number in range(7, 12))]


def test_an_event_that_does_not_fit_is_shortened_and_those_after_it_arrive(exchange: Exchange) -> None:
    join(exchange.machine, exchange.settings, {})
    exchange.record(1, reason="x" * 100)
    exchange.record(1)
    fleet_client_limit = fleet_client._MAX_ROW
    fleet_client._MAX_ROW = 150
    try:
        synchronize(exchange.machine, exchange.settings, {})
    finally:
        fleet_client._MAX_ROW = fleet_client_limit
    assert exchange.received() == ["event_too_long", "tool0"]


def test_attack_a_damaged_policy_or_approval_of_the_company_changes_nothing(exchange: Exchange) -> None:
    (exchange.project.root / "pinwarden.toml").write_text(STRICT)
    join(exchange.machine, exchange.settings, {})
    folder = get_fleet_folder(exchange.machine.folder)
    before = (folder / "policy.toml").read_bytes()
    good = {"format": FORMAT, "device": "ada", "group": "all", "policy": STRICT, "approvals": []}
    bad: dict[str, Any]
    for bad in ({"policy": "not toml ["}, {"approvals": [{}]}, {"approvals": 1}):
        response = JsonObject({**good, **bad}, "", fleet_client._invalid_response)
        with pytest.raises(PinwardenError):
            fleet_client._store_response(folder, response)
    assert (folder / "policy.toml").read_bytes() == before


def test_a_machine_that_joined_keeps_its_token_private_to_its_user(exchange: Exchange) -> None:
    join(exchange.machine, exchange.settings, {})
    folder = get_fleet_folder(exchange.machine.folder)
    assert read_settings(folder) == exchange.settings
    assert {path.stat().st_mode & 0o077 for path in (folder, folder / "settings.json")} == {0}
    assert exchange.token not in repr(read_settings(folder))


def event(**members: Any) -> Any:
    return {"at": 1, "event": {"kind": "called", "server": "notes", **members}}


def sighting(**members: Any) -> Any:
    row = {"server": "notes", "entity": "tool", "item": "search", "definition": "{}", "action": "allow"}
    digest = str(Digest.of_bytes(b"{}"))
    return {**row, "digest": digest, "first_seen": "2026", "last_seen": "2026", **members}


@pytest.mark.parametrize(
    "members",
    [
        {"format": "other"},
        {"first_event": 0},
        {"host": "x" * 401},
        {"host": "a\0b"},
        {"events": [event(kind="unknown")]},
        {"events": [event(extra="x")]},
        {"events": [{**event(), "at": -1}]},
        {"sightings": [sighting(definition='{"a":1}')]},
        {"sightings": [sighting(definition="a\0", digest="")]},
        {"servers": [{}] * 101},
        {"servers": [{"server": "notes"}]},
        {"events": 5},
    ],
)
def test_attack_a_malformed_report_is_refused_and_none_of_it_is_stored_in_the_log(
    members: Any, exchange: Exchange
) -> None:
    status, answer = exchange.report(**members)
    assert (status, answer["error"]["code"] in ("FLEET_REPORT_INVALID", "AUDIT_INVALID")) == (400, True)
    assert exchange.received() == []


def test_attack_a_report_with_a_wrong_a_revoked_or_a_copied_token_is_refused(exchange: Exchange) -> None:
    assert exchange.report()[0] == 200
    body = json.dumps({"format": FORMAT}).encode()
    wrong = exchange.token[:-1] + ("A" if exchange.token[-1] != "A" else "B")
    for token in ("", wrong, exchange.token.removeprefix("pwd_")):
        assert exchange.service.answer(token, body)[0] == 401
    status, answer = exchange.report(installation="two")
    assert (status, answer["error"]["code"]) == (409, "DEVICE_TOKEN_USED")
    exchange.state.devices.revoke("ada", "2026-11-02T00:00:00Z")
    assert exchange.report()[0] == 401


def test_attack_a_machine_cannot_continue_the_log_of_another_source(exchange: Exchange) -> None:
    with exchange.state.open_audit_log() as log:
        from pinwarden.gateway.audit.event import STARTED, AuditEvent

        log.record(AuditEvent(kind=STARTED, server="notes"))
    _, other = exchange.state.devices.invite("eve", "all", "2026-11-01T00:00:00Z")
    exchange.report(events=[event(item="mine")])
    exchange.token = other
    exchange.report(events=[event(item="hers"), event(item="hers")])
    verify(exchange.state.chain_database)
    assert exchange.received() == ["mine"]


def test_attack_a_machine_cannot_make_the_companys_log_unverifiable_with_a_gap(exchange: Exchange) -> None:
    assert exchange.report(events=[event(item="first")])[0] == 200
    for first in (3, 1000, 1 << 52):
        status, answer = exchange.report(first_event=first, events=[event(item="later")])
        assert (status, answer["error"]["code"]) == (400, "AUDIT_INVALID")
    assert exchange.report(first_event=2, events=[event(item="second")])[0] == 200
    verified = verify_log(exchange.state, ())
    assert (exchange.received(), verified.rows) == (["first", "second"], ())


def test_a_restored_company_gets_further_events_and_the_number_of_those_that_it_lost(exchange: Exchange) -> None:
    join(exchange.machine, exchange.settings, {})
    exchange.record(2)
    synchronize(exchange.machine, exchange.settings, {})
    with exchange.state.chain_database.transaction() as transaction:  # as a backup from before has it
        transaction.run("DELETE FROM audit_entry WHERE nth = 2")
    exchange.record(1)
    synchronize(exchange.machine, exchange.settings, {})
    assert exchange.received() == ["tool0", "events_dropped", "tool0"]
    assert verify_log(exchange.state, ()).rows == ()
    synchronize(exchange.machine, exchange.settings, {})
    assert len(exchange.received()) == 3


def test_attack_a_machine_that_floods_is_slowed_and_its_sightings_are_limited(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinwarden.gateway.store.devices._MAX_SIGHTINGS", 3)
    monkeypatch.setattr(fleet_service, "MAX_REQUESTS", 4)
    for number in range(4):
        status, _ = exchange.report(sightings=[sighting(item=f"{number}a"), sighting(item=f"{number}b")])
        assert status == 200
    assert exchange.report()[0] == 429
    monkeypatch.setattr(fleet_service, "MAX_REQUESTS", 100)
    monkeypatch.setattr(fleet_service, "MAX_EVENT_BYTES", 2000)
    statuses = [exchange.report(first_event=turn, events=[event(item="x" * 500)])[0] for turn in range(1, 5)]
    assert (statuses, len(exchange.received())) == ([200, 200, 429, 429], 2)
    assert exchange.report(servers=[])[0] == 200, "policy and approvals still arrive"
    (device,) = exchange.state.devices.list_all()
    assert len(exchange.state.devices.list_sightings(device.id)) == 3


def test_attack_what_a_machine_says_about_itself_cannot_control_a_terminal(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\u202e\r\n0 machines"
    names = ("place", "server", "client", "version", "surface", "started", "runs")
    assert (
        exchange.report(host=hostile, program=hostile, servers=[{**dict.fromkeys(names, hostile), "waiting": 1}])[0]
        == 200
    )
    monkeypatch.setenv("PINWARDEN_STATE", str(exchange.state.folder))
    assert main(["fleet", "status"]) == 0
    out = capsys.readouterr().out
    assert "owned" in out
    assert not set(out) & set("\x1b\x07\r\u202e")
    assert not any(line.startswith("0 machines") for line in out.splitlines())


def server(version: str, surface: str = "s") -> DeviceServer:
    return DeviceServer(
        place="/p", server="notes", client="claude", version=version, surface=surface, waiting=0, started="2026"
    )


def test_drift_is_what_differs_from_most_machines_of_a_group(exchange: Exchange) -> None:
    from pinwarden.gateway.fleet_status import build_fleet_report

    devices = exchange.state.devices
    versions = {"bob": ("a", "1"), "cyd": ("a", "1"), "dan": ("a", "2"), "eve": ("b", "3")}
    for name, (group, version) in versions.items():
        device, _ = devices.invite(name, group, "2026-11-01T00:00:00Z")
        devices.replace_servers(device, [server(version)])
    report = build_fleet_report(devices)
    assert report.exit_code == 1
    assert report.facts["drift"] == [
        {"group": "a", "server": "notes", "version": "1", "surface": "s", "devices": ["dan"]}
    ]
    assert [(row["name"], row["last_seen"]) for row in report.facts["devices"]] == [
        (name, None) for name in ("ada", "bob", "cyd", "dan", "eve")
    ]
    assert build_fleet_report(devices, "b").exit_code == 0
    devices.revoke("dan", "2026-11-02T00:00:00Z")
    assert build_fleet_report(devices).facts["drift"] == []


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (("/usr/bin/npx", "-y", "@acme/notes@1.0.0", "/home/ada/notes"), "pkg:npm/%40acme/notes@1.0.0"),
        (("uvx", "notes==2.0", "--token", "hunter2"), "pkg:pypi/notes@2.0"),
        (("/home/ada/bin/notes",), ""),
    ],
)
def test_a_machine_reports_the_package_of_a_server_and_no_path_or_argument(
    words: tuple[str, ...], runs: str, exchange: Exchange
) -> None:
    command = ServerCommand(words=words, environment={})
    policy, options = DEFAULT_GATEWAY_POLICY, RunOptions()
    gated = GatedServer(server="notes", command=command, has_approved_surface=False, policy=policy, options=options)
    join(exchange.machine, exchange.settings, {})
    follower = FleetFollower(exchange.machine, exchange.settings, {})
    follower._register(fleet_client._describe_server(exchange.project, gated))
    synchronize(exchange.machine, exchange.settings, {})
    ((_, row),) = exchange.state.devices.list_servers()
    assert (row.server, row.runs) == ("notes", runs)
    assert "ada" not in json.dumps(exchange.reports)


def test_a_revoked_name_can_be_given_to_a_new_machine_and_a_used_one_cannot(exchange: Exchange) -> None:
    devices = exchange.state.devices
    with pytest.raises(PinwardenError) as caught:
        devices.invite("ada", "all", "")
    assert caught.value.code == "USAGE"
    exchange.report(servers=[], sightings=[sighting()])
    devices.revoke("ada", "2026-11-02T00:00:00Z")
    with pytest.raises(PinwardenError) as caught:
        devices.revoke("ada", "2026-11-02T00:00:00Z")
    assert caught.value.code == "DEVICE_UNKNOWN"
    device, _ = devices.invite("ada", "all", "2026-11-03T00:00:00Z")
    assert (devices.list_sightings(device.id), device.seen) == ([], 0)
