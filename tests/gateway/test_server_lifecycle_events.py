"""The log records when a server started, why it ended, and which reviews became pending."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pinwarden.core.digest import tool_digest
from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.audit.chain import read_entries
from pinwarden.gateway.audit.event import HELD, STARTED, STOPPED, AuditEvent
from pinwarden.gateway.baselines import Baseline
from pinwarden.gateway.gates.verdict import BLOCK, Verdict
from pinwarden.gateway.recorder import Recorder
from pinwarden.gateway.session.output import SessionOutput
from pinwarden.gateway.state import GatewayState
from tests.cli.run import pinwarden
from tests.gateway.http_gateway import InMemoryRecorder
from tests.gateway.session_harness import POISONED, SEARCH
from tests.gateway.test_http_relaying import scene
from tests.gateway.test_run_stdio import OPENING, PLAYER, talk
from tests.gateway.test_stdio_streams import running
from tests.support.waiting import poll


def logged(folder: Path, *kinds: str) -> list[AuditEvent]:
    with GatewayState(folder / "state") as state:
        return [entry.event for entry in read_entries(state.audit_database) if entry.event.kind in kinds]


def test_the_log_records_a_servers_start_and_its_end_when_the_client_disconnects(tmp_path: Path) -> None:
    words = ("run", "--name", "notes", "--", sys.executable, "-c", PLAYER)
    done = pinwarden(*words, stdin=talk(*OPENING), cwd=tmp_path, env={"PINWARDEN_STATE": str(tmp_path / "state")})
    assert done.code == 7
    started, stopped = logged(tmp_path, STARTED, STOPPED)
    assert (started.kind, started.server, started.reason) == (STARTED, "notes", "")
    assert (stopped.kind, stopped.server, stopped.client) == (STOPPED, "notes", "t")
    assert stopped.reason == "the client disconnected (exit code 7)"
    assert started.session == stopped.session != ""


def test_the_log_records_that_a_server_exited_by_itself(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        assert "error" in client.ask("leave")
        assert client.process.wait(60) == 4
    assert [fact.reason for fact in logged(tmp_path, STOPPED)] == ["the server ended (exit code 4)"]


def test_over_http_every_session_records_its_start_and_its_end_with_a_reason(tmp_path: Path) -> None:
    recorder = InMemoryRecorder()
    with scene(tmp_path, recorder=recorder) as running, running.client() as raw:
        raw.initialize()
        assert "error" in raw.session_request("tools/call", {"name": "die"}, 3)
        poll(lambda: any(fact.kind == STOPPED for fact in recorder.events))
        events = [fact for fact in recorder.events if fact.kind in (STARTED, STOPPED)]
        assert [(fact.kind, fact.server, fact.reason) for fact in events] == [
            (STARTED, "talking", ""),
            (STOPPED, "talking", "the server ended"),
        ]
        assert len({fact.session for fact in events}) == 1


def refused(value: dict[str, Any]) -> Verdict:
    return Verdict(
        entity="tool",
        key=value["name"],
        value=value,
        digest=tool_digest(value),
        action=BLOCK,
        level="breaking",
        code="description_changed",
        reason="Another text.",
    )


def test_a_pending_review_is_logged_once_with_its_id(tmp_path: Path) -> None:
    said: list[str] = []
    with GatewayState(tmp_path / "state") as state:
        with state.open_audit_log() as log:
            recorder = Recorder(
                log, lambda: state.open_sighting_recorder("notes", Baseline.parse("lock:here")), said.append
            )
            for value in (POISONED, POISONED, {**SEARCH, "description": "Other."}):
                recorder.record(SessionOutput(sightings=(refused(value),)))
            recorder.close()
        waiting = [review.name for review in state.reviews.select(("pending", "superseded"))]
    pending = logged(tmp_path, HELD)
    assert said == []
    assert sorted(fact.call for fact in pending) == sorted(waiting)
    assert [(fact.server, fact.item, fact.observed, fact.code) for fact in pending] == [
        ("notes", "search_notes", str(tool_digest(value)), "description_changed")
        for value in (POISONED, {**SEARCH, "description": "Other."})
    ]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(PinwardenError("DATABASE_UNAVAILABLE", "it is locked"), "it is locked"), (ValueError("?"), "ValueError")],
)
def test_definitions_are_stored_again_after_a_storage_failure(tmp_path: Path, failure: Exception, reason: str) -> None:
    said: list[str] = []
    failures = [failure]
    with GatewayState(tmp_path / "state") as state:

        def opened() -> Any:
            if failures:
                raise failures.pop()
            return state.open_sighting_recorder("notes", Baseline.parse("lock:here"))

        recorder = Recorder(None, opened, said.append)
        recorder.record(SessionOutput(sightings=(refused(POISONED),)))
        recorder.record(SessionOutput(sightings=(refused({**POISONED, "name": "other"}),)))
        recorder.close()
        assert [review.item for review in state.reviews.select()] == ["other"]
    assert said == [f"definitions could not be stored for review: {reason}"]


def test_a_closed_state_closes_all_its_databases_and_can_be_reopened(tmp_path: Path) -> None:
    state = GatewayState(tmp_path / "state")
    opened: list[Any] = [state.tokens._database, state.reviews._database, state.audit_database]
    assert [database.rows("SELECT 1") for database in opened] == [[(1,)]] * 3
    state.close()
    assert [database._connections for database in opened] == [[]] * 3
    assert state.tokens.list_all() == []
    state.close()
