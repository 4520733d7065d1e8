"""Reviews with real processes: a server behind ``pinwarden run`` changes, is blocked, approved and served again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest

from pinwarden.gateway.audit.chain import read_lines
from pinwarden.gateway.audit.event import parse_entry
from pinwarden.gateway.state import GatewayState
from tests.cli.run import pinwarden
from tests.gateway.review_world import CHANGED, SEARCH, ReviewWorld
from tests.servers.turning import TURN
from tests.support.audit import verify
from tests.support.postgres import Cluster

TURNING = Path(__file__).parents[1] / "servers" / "turning.py"
NOTICE = "notifications/tools/list_changed"
STATES = [{"tools": [SEARCH]}, {"tools": [CHANGED], "announce": [NOTICE]}]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[ReviewWorld]:
    made = ReviewWorld(tmp_path, monkeypatch, capfd)
    yield made
    made.state.close()


class Client:
    """A client on the standard streams of a gateway."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._last = 0

    def tell(self, method: str) -> None:
        self._send({"jsonrpc": "2.0", "method": method})

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._last += 1
        self._send({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params})
        return self._until(lambda message: message.get("id") == self._last and "method" not in message)

    def turn(self) -> None:
        """Let the server change, and wait until it said so: what was on its way before that cannot be known."""
        self.tell(TURN)
        self._until(lambda message: message.get("method") == NOTICE)

    def open(self) -> None:
        self.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "c", "version": "1"})
        self.tell("notifications/initialized")

    def call(self) -> dict[str, Any]:
        return self.ask("tools/call", name="search", arguments={})

    def _until(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            message: dict[str, Any] = json.loads(line)
            if fits(message):
                return message
        raise AssertionError("the gateway ended")

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()


@contextmanager
def gateway(states: list[Any], *options: str) -> Iterator[Client]:
    command = [sys.executable, "-I", "-S", str(TURNING), json.dumps({"states": states})]
    with subprocess.Popen(
        [sys.executable, "-m", "pinwarden", "run", "--project", ".", "--name", "notes", *options, "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"},
    ) as process:
        try:
            client = Client(process)
            client.open()
            yield client
        finally:
            process.kill()


def eventually(holds: Callable[[], bool]) -> None:
    end = monotonic() + 60
    while not holds():
        assert monotonic() < end
        Event().wait(0.02)


def test_a_pending_change_is_served_once_a_person_and_not_the_agent_approves_it(
    world: ReviewWorld, tmp_path: Path
) -> None:
    with gateway(STATES) as client:
        assert "result" in client.call()
        client.turn()
        refusal = client.call()
        assert "result" not in refusal
        eventually(lambda: world.waiting() != [])
        (name,) = world.waiting()
        # Whatever the client starts is below it, as this test is the client here.
        for elsewhere in (world.folder, tmp_path / "elsewhere"):  # the agent may set any variable
            from_agent = pinwarden("review", "approve", name, env={"PINWARDEN_STATE": str(elsewhere)})
            assert (from_agent.code, "[REVIEW_FROM_SERVER]" in from_agent.err) == (1, True)
        assert "result" not in client.call()
        assert world.run("review", "approve", name).code == 0
        eventually(lambda: "result" in client.call())
        listed = client.ask("tools/list")["result"]["tools"]
        assert [tool["description"] for tool in listed] == [CHANGED["description"]]
    kinds = [kind for kind, item, *_ in world.events() if item == "search"]
    assert kinds.index("blocked") < kinds.index("approved") < len(kinds) - 1 - kinds[::-1].index("called")
    assert world.run("audit", "verify").code == 0


def test_the_pending_change_is_the_served_one_when_a_server_returns_to_an_earlier_one(
    world: ReviewWorld,
) -> None:
    """Attack: show another change for review than the one that is served, by going back to it."""
    texts = ("first", "second", "third", "second", "first", "third")
    states = [{"tools": [{**SEARCH, "description": text}], "announce": [NOTICE]} for text in texts]

    def shown() -> list[str]:
        return [json.loads(review.definition)["description"] for review in world.state.reviews.select()]

    with gateway(states) as client:
        assert "result" in client.call()
        for served in texts[1:]:
            client.turn()
            assert ("result" in client.call()) == (served == "first")
            eventually(lambda served=served: shown() == ([] if served == "first" else [served]))  # type: ignore[misc]
    seen = {
        json.loads(sighting.definition).get("description"): sighting.sessions
        for sighting in world.state.observed_definitions.list_all()
    }
    assert [seen[text] for text in ("first", "second", "third")] == [1, 1, 1]


@pytest.mark.parametrize("mode", ["refuse", "spool"])
def test_while_postgresql_is_stopped_a_gateway_refuses_or_spools_and_loses_nothing(
    mode: str, world: ReviewWorld, cluster: Cluster
) -> None:
    url = cluster.new_database()
    passed = refused = 0

    def call() -> bool:
        nonlocal passed, refused
        answer = client.call()
        passed, refused = passed + ("result" in answer), refused + ("error" in answer)
        return "result" in answer

    with gateway(STATES, "--audit", url, "--when-away", mode) as client:
        assert call()
        cluster.stop()
        try:
            if mode == "refuse":
                eventually(lambda: not call())
                assert not call()
            else:
                assert all(call() for _ in range(30))
        finally:
            cluster.start()
        eventually(call)
        client.turn()
        assert not call()
        client.process.kill()
    with GatewayState(world.folder, url) as state:
        facts = [parse_entry(line).event for _, line in read_lines(state.audit_database)]
        assert verify(state.audit_database).breaks == ()
    used = [fact.kind for fact in facts if fact.method == "tools/call"]
    assert used.count("called") == passed
    assert used[-1] == "blocked"


def test_nothing_passes_and_nothing_hangs_before_the_log_is_reachable(world: ReviewWorld, tmp_path: Path) -> None:
    world.lock_server(SEARCH)
    away = tmp_path / "away"
    away.write_text("a file where a folder should be")
    states = [{"tools": [SEARCH], "server": {"serverInfo": {"name": "scripted", "version": "1"}}}]
    with gateway(states, "--audit", str(away / "audit.sqlite"), "--when-away", "refuse") as client:
        answers = [client.call() for _ in range(3)]
        assert [answer["error"]["data"]["pinwarden"]["code"] for answer in answers] == ["AUDIT_UNAVAILABLE"] * 3
        away.unlink()
        eventually(lambda: "result" in client.call())
        assert client.ask("tools/list")["result"]["tools"] == [SEARCH]


@pytest.mark.parametrize("round_", range(3))
def test_a_killed_gateway_has_recorded_everything_that_its_client_saw(world: ReviewWorld, round_: int) -> None:
    answers: list[dict[str, Any]] = []
    with gateway(STATES) as client:
        answers += [client.call() for _ in range(5 + 10 * round_)]
        client.turn()
        answers += [client.call() for _ in range(3)]
        client.process.kill()
    refused = [answer["error"]["data"]["pinwarden"] for answer in answers if "error" in answer]
    with world.state as state:
        facts = [parse_entry(line).event for _, line in read_lines(state.audit_database)]
    used = [fact for fact in facts if fact.method == "tools/call"]
    assert [fact.kind for fact in used] == ["called"] * (5 + 10 * round_) + ["blocked"] * 3
    assert len(refused) == 3
    assert world.run("audit", "verify").code == 0
