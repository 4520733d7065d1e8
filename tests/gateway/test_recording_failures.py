"""When the audit log is unavailable, the session forwards nothing and keeps no state of the refused messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.session.output import SessionOutput
from tests.gateway.session_harness import DELETE, SEARCH, SessionHarness

AWAY = PinwardenError("AUDIT_UNAVAILABLE", "the database is away")
HONEST: dict[str, Any] = {"tools": [SEARCH, DELETE]}


class RecordingFails(SessionHarness):
    """A session whose audit events cannot be recorded while ``away`` is true."""

    away = False

    def deliver(self, step: SessionOutput) -> None:
        if self.away and step.events and not step.durable:
            step = self.session.replace_unrecorded(step, AWAY)
            assert step.events == ()
        pending = [step]
        while pending:
            output = pending.pop(0)
            self.events += output.events
            self.to_client += output.to_client
            self.to_server += output.to_server
            for frame in output.to_server:
                for answer in self.server.answers(frame.decode()):
                    answered = self.session.on_server_message(answer.encode(), self.now)
                    if self.away and answered.events and not answered.durable:
                        answered = self.session.replace_unrecorded(answered, AWAY)
                    pending.append(answered)


def code_of(answer: dict[str, Any]) -> str:
    return str(answer["error"]["data"]["pinwarden"]["code"])


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
def test_a_call_that_cannot_be_recorded_is_not_forwarded_and_not_pending(era: str) -> None:
    harness = RecordingFails(HONEST, era=era)
    harness.open()
    assert harness.call_tool("search_notes")["result"]
    harness.away = True
    for _ in range(3):
        assert code_of(harness.call_tool("search_notes")) == "AUDIT_UNAVAILABLE"
    assert len(harness.calls_received("search_notes")) == 1
    assert harness.session.is_idle
    harness.away = False
    harness.client_sends(
        {"jsonrpc": "2.0", "id": harness._last, "method": "tools/call", "params": {"name": "search_notes"}}
    )
    assert len(harness.calls_received("search_notes")) == 2  # the id can be reused


def test_a_call_that_waits_for_a_list_fails_if_the_list_request_cannot_be_recorded() -> None:
    harness = RecordingFails(HONEST, era="2026-07-28")
    harness.away = True
    assert code_of(harness.call_tool("search_notes")) == "AUDIT_UNAVAILABLE"
    assert not harness.session.waits_for_list
    assert harness.session.is_idle
    assert not any(str(message.get("id")).startswith("pinwarden/") for message in harness.client_messages())
    harness.away = False
    assert harness.call_tool("search_notes")["result"]


def test_events_during_a_recording_failure_are_recorded_later() -> None:
    harness = RecordingFails(HONEST)
    harness.away = True
    assert code_of(harness.open()) == "AUDIT_UNAVAILABLE"
    assert code_of(harness.request("tools/list")) == "AUDIT_UNAVAILABLE"
    assert [fact.kind for fact in harness.events] == []
    harness.away = False
    harness.now += 1
    assert harness.call_tool("delete_note")["result"]
    observed = {(fact.item_kind, fact.item) for fact in harness.events if fact.kind == "observed"}
    assert {("tool", "search_notes"), ("tool", "delete_note"), ("server", "serverInfo")} <= observed


def test_first_use_trusts_nothing_while_recording_fails() -> None:
    harness = RecordingFails(HONEST, first_use=True, era="2026-07-28")
    harness.away = True
    harness.call_tool("search_notes")
    harness.away = False
    assert harness.call_tool("search_notes")["result"]
    assert harness.approvals.surface is not None
    assert [item.key for item in harness.approvals.surface.items["tools"]] == ["search_notes", "delete_note"]


def test_an_unrecordable_server_request_is_answered_to_the_server_and_not_to_the_client() -> None:
    """The server chooses the id of its request, and the client may have an open request with the same id."""
    harness = SessionHarness({**HONEST, "deaf": ["tools/call"]})
    harness.open()
    harness.call_tool("search_notes")
    request_id = harness._last
    step = harness.session.on_server_message(
        json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "roots/list"}).encode(), harness.now
    )
    instead = harness.session.replace_unrecorded(step, AWAY)
    assert instead.to_client == ()
    assert [code_of(json.loads(frame)) for frame in instead.to_server] == ["AUDIT_UNAVAILABLE"]
    assert harness.session._open_requests.keys() == {request_id}
