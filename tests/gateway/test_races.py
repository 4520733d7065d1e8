"""Another thread or message between two steps of the gateway: nothing is lost or wrongly forwarded."""

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
    opened = SessionHarness(STATE)
    opened.open()
    return opened


def after(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, happens: Callable[[], object]) -> None:
    """Let something happen once, right after a method returns, as a thread of another session can."""
    method = getattr(owner, name)

    def interrupted(*given: Any) -> Any:
        monkeypatch.setattr(owner, name, method)
        result = method(*given)
        happens()
        return result

    monkeypatch.setattr(owner, name, interrupted)


def test_attack_a_tool_whose_approval_is_removed_while_its_list_is_judged_is_refused(
    harness: SessionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken_back() -> None:
        harness.approvals.approve(approved_surface({"tools": [DELETE]}))
        harness.guard.refresh(harness.now + 1)

    after(monkeypatch, harness.guard, "check_list", taken_back)
    harness.call_tool("search_notes")
    harness.now += 2
    assert refusal_code(harness.call_tool("search_notes")) == "item_added"


def test_attack_a_list_changed_notification_during_fast_path_setup_is_not_missed(
    harness: SessionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.call_tool("search_notes")
    lists, guard = harness.session._lists, harness.guard
    after(monkeypatch, lists, "_is_outdated", lambda: guard.on_list_changed(TOOL, harness.now))
    harness.notify("notifications/roots/list_changed")
    message = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "search_notes"}}
    assert harness.session.fast_path.admit(message, harness.now) is None


def notifications_received(harness: SessionHarness) -> int:
    """Let the server send a notification; return how many the client received so far."""
    harness.server_sends(
        {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
    )
    return sum(message.get("method") == "notifications/message" for message in harness.client_messages())


@pytest.mark.parametrize("when", ["the failure is noted", "the server is judged"])
def test_attack_nothing_is_forwarded_once_the_approvals_cannot_be_read(
    harness: SessionHarness, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def lost() -> None:
        harness.approvals.failure = PinwardenError("LOCK_INVALID", "it was damaged")
        harness.guard.refresh(harness.now + 1)

    harness.approvals.approve(approved_surface(STATE))
    harness.now += 2
    harness.guard.refresh(harness.now)
    if when == "the failure is noted":
        after(monkeypatch, harness.guard, "_begin_epoch", lambda: notifications_received(harness))
        lost()
    else:
        reads = vars(Guard)["approved"]

        def read(guard: Guard) -> Any:
            monkeypatch.setattr(Guard, "approved", reads)
            approved = guard.approved
            lost()
            return approved

        monkeypatch.setattr(Guard, "approved", property(read))
    assert (notifications_received(harness), notifications_received(harness)) == (0, 0)


def test_a_call_that_a_server_did_not_read_before_it_ended_gets_one_response(harness: SessionHarness) -> None:
    """One thread notices that the server ended while another is about to write a call to it."""
    harness.call_tool("search_notes")
    call = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "search_notes"}}
    sent = harness.session.on_client_message(json.dumps(call).encode(), harness.now)
    assert len(sent.to_server) == 1
    frames = [
        *harness.session.on_server_closed().to_client,
        *harness.session.on_not_delivered(sent.to_server).to_client,
    ]
    assert [json.loads(frame)["id"] for frame in frames] == [77]
