"""What cannot be recorded does not happen, and leaves nothing behind in the session."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.session_audit import SessionOutput
from tests.gateway.desk import DELETE, SEARCH, Desk

AWAY = PinwardenError("AUDIT_UNAVAILABLE", "the database is away")
HONEST: dict[str, Any] = {"tools": [SEARCH, DELETE]}


class Away(Desk):
    """A conversation whose facts can at times not be recorded."""

    away = False

    def settle(self, step: SessionOutput) -> None:
        if self.away and step.facts and not step.durable:
            step = self.session.take_back(step, AWAY)
            assert step.facts == ()
        pending = [step]
        while pending:
            each = pending.pop(0)
            self.facts += each.facts
            self.to_client += each.to_client
            self.to_server += each.to_server
            for frame in each.to_server:
                for answer in self.server.answers(frame.decode()):
                    found = self.session.server_frame(answer.encode(), self.now)
                    if self.away and found.facts and not found.durable:
                        found = self.session.take_back(found, AWAY)
                    pending.append(found)


def code_of(answer: dict[str, Any]) -> str:
    return str(answer["error"]["data"]["pinwarden"]["code"])


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
def test_a_call_that_cannot_be_recorded_reaches_nobody_and_is_not_open(era: str) -> None:
    desk = Away(HONEST, era=era)
    desk.open()
    assert desk.call("search_notes")["result"]
    desk.away = True
    for _ in range(3):
        assert code_of(desk.call("search_notes")) == "AUDIT_UNAVAILABLE"
    assert len(desk.served("search_notes")) == 1
    assert desk.session.idle
    desk.away = False
    desk.send({"jsonrpc": "2.0", "id": desk._last, "method": "tools/call", "params": {"name": "search_notes"}})
    assert len(desk.served("search_notes")) == 2  # its id is free


def test_a_call_that_waits_for_a_list_is_answered_when_that_cannot_be_asked_for() -> None:
    desk = Away(HONEST, era="2026-07-28")
    desk.away = True
    assert code_of(desk.call("search_notes")) == "AUDIT_UNAVAILABLE"
    assert not desk.session.holds
    assert desk.session.idle
    assert not any(str(each.get("id")).startswith("pinwarden/") for each in desk.got())
    desk.away = False
    assert desk.call("search_notes")["result"]


def test_what_was_seen_while_nothing_could_be_recorded_is_told_later() -> None:
    desk = Away(HONEST)
    desk.away = True
    assert code_of(desk.open()) == "AUDIT_UNAVAILABLE"
    assert code_of(desk.ask("tools/list")) == "AUDIT_UNAVAILABLE"
    assert [fact.kind for fact in desk.facts] == []
    desk.away = False
    desk.now += 1
    assert desk.call("delete_note")["result"]
    told = {(fact.item_kind, fact.item) for fact in desk.facts if fact.kind == "observed"}
    assert {("tool", "search_notes"), ("tool", "delete_note"), ("server", "serverInfo")} <= told


def test_first_use_trusts_nothing_that_it_could_not_ask_for() -> None:
    desk = Away(HONEST, first_use=True, era="2026-07-28")
    desk.away = True
    desk.call("search_notes")
    desk.away = False
    assert desk.call("search_notes")["result"]
    assert desk.measure.surface is not None
    assert [item.key for item in desk.measure.surface.items["tools"]] == ["search_notes", "delete_note"]


def test_a_question_of_the_server_that_cannot_be_recorded_is_answered_to_the_server_and_not_to_the_client() -> None:
    """A question of the server has an id of the server's; the client may have asked something under the same."""
    desk = Desk({**HONEST, "deaf": ["tools/call"]})
    desk.open()
    desk.call("search_notes")
    number = desk._last
    step = desk.session.server_frame(
        json.dumps({"jsonrpc": "2.0", "id": number, "method": "roots/list"}).encode(), desk.now
    )
    instead = desk.session.take_back(step, AWAY)
    assert instead.to_client == ()
    assert [code_of(json.loads(frame)) for frame in instead.to_server] == ["AUDIT_UNAVAILABLE"]
    assert desk.session._open.keys() == {number}
