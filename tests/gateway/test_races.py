"""Where another thread, or another message, comes between two steps of the gateway: nothing is lost or let through."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.guard import Guard
from pinwarden.surface.surface import TOOL
from tests.gateway.session_harness import DELETE, SEARCH, SessionHarness, approved_surface, refusal_code

STATE: dict[str, Any] = {"tools": [SEARCH, DELETE]}


@pytest.fixture
def harness() -> SessionHarness:
    made = SessionHarness(STATE)
    made.open()
    return made


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, harness: SessionHarness, name: str, happens: Callable[[], object]
) -> None:
    """Let something happen once, just when the guard has done something, as a thread of another session can."""
    does = getattr(harness.guard, name)

    def interrupted(*given: Any) -> Any:
        monkeypatch.setattr(harness.guard, name, does)
        done = does(*given)
        happens()
        return done

    monkeypatch.setattr(harness.guard, name, interrupted)


def test_attack_a_tool_whose_approval_is_removed_while_its_list_is_judged_is_refused(
    harness: SessionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken_back() -> None:
        harness.approvals.approve(approved_surface({"tools": [DELETE]}))
        harness.guard.look(harness.now + 1)

    meanwhile(monkeypatch, harness, "judge_list", taken_back)
    harness.call_tool("search_notes")
    harness.now += 2
    assert refusal_code(harness.call_tool("search_notes")) == "item_added"


def test_attack_a_list_changed_notification_during_fast_path_setup_is_not_missed(
    harness: SessionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.call_tool("search_notes")
    meanwhile(monkeypatch, harness, "notices", lambda: harness.guard.changed(TOOL, harness.now))
    harness.notify("notifications/roots/list_changed")
    message = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "search_notes"}}
    assert harness.session.fast_path.admit(message, harness.now) is None


def told(harness: SessionHarness) -> int:
    """Let the server tell something; how much of that the client got so far."""
    harness.server_sends(
        {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
    )
    return sum(each.get("method") == "notifications/message" for each in harness.client_messages())


@pytest.mark.parametrize("when", ["the failure is noted", "the server is judged"])
def test_attack_nothing_is_forwarded_once_the_approvals_cannot_be_read(
    harness: SessionHarness, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def lost() -> None:
        harness.approvals.failure = PinwardenError("LOCK_INVALID", "it was damaged")
        harness.guard.look(harness.now + 1)

    harness.approvals.approve(approved_surface(STATE))
    harness.now += 2
    harness.guard.look(harness.now)
    if when == "the failure is noted":
        meanwhile(monkeypatch, harness, "_turn", lambda: told(harness))
        lost()
    else:
        reads = vars(Guard)["approved"]

        def read(guard: Guard) -> Any:
            monkeypatch.setattr(Guard, "approved", reads)
            found = guard.approved
            lost()
            return found

        monkeypatch.setattr(Guard, "approved", property(read))
    assert (told(harness), told(harness)) == (0, 0)


def test_a_call_that_a_server_did_not_read_before_it_ended_gets_one_response(harness: SessionHarness) -> None:
    """One thread finds that the server ended while another one is about to write a call to it."""
    harness.call_tool("search_notes")
    call = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "search_notes"}}
    sent = harness.session.client_frame(json.dumps(call).encode(), harness.now)
    assert len(sent.to_server) == 1
    told = [*harness.session.server_gone(harness.now).to_client, *harness.session.not_taken(sent.to_server).to_client]
    assert [json.loads(each)["id"] for each in told] == [77]
