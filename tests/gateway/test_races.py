"""Where another thread, or another message, comes between two steps of the gateway: nothing is lost or let through."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.guard import Guard
from pinwarden.surface.surface import TOOL
from tests.gateway.desk import DELETE, SEARCH, Desk, approved, refused

STATE: dict[str, Any] = {"tools": [SEARCH, DELETE]}


@pytest.fixture
def desk() -> Desk:
    made = Desk(STATE)
    made.open()
    return made


def meanwhile(monkeypatch: pytest.MonkeyPatch, desk: Desk, name: str, happens: Callable[[], object]) -> None:
    """Let something happen once, just when the guard has done something, as a thread of another session can."""
    does = getattr(desk.guard, name)

    def interrupted(*given: Any) -> Any:
        monkeypatch.setattr(desk.guard, name, does)
        done = does(*given)
        happens()
        return done

    monkeypatch.setattr(desk.guard, name, interrupted)


def test_attack_what_is_approved_no_more_while_a_list_is_judged_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken_back() -> None:
        desk.measure.approve(approved({"tools": [DELETE]}))
        desk.guard.look(desk.now + 1)

    meanwhile(monkeypatch, desk, "judge_list", taken_back)
    desk.call("search_notes")
    desk.now += 2
    assert refused(desk.call("search_notes")) == "item_added"


def test_attack_a_notice_that_comes_while_the_short_way_is_learned_is_not_overlooked(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.call("search_notes")
    meanwhile(monkeypatch, desk, "notices", lambda: desk.guard.changed(TOOL, desk.now))
    desk.tell("notifications/roots/list_changed")
    message = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "search_notes"}}
    assert desk.session.fast_path.admit(message, desk.now) is None


def told(desk: Desk) -> int:
    """Let the server tell something; how much of that the client got so far."""
    desk.say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}})
    return sum(each.get("method") == "notifications/message" for each in desk.got())


@pytest.mark.parametrize("when", ["the failure is noted", "the server is judged"])
def test_attack_nothing_passes_from_when_what_was_approved_cannot_be_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def lost() -> None:
        desk.measure.failure = PinwardenError("LOCK_INVALID", "it was damaged")
        desk.guard.look(desk.now + 1)

    desk.measure.approve(approved(STATE))
    desk.now += 2
    desk.guard.look(desk.now)
    if when == "the failure is noted":
        meanwhile(monkeypatch, desk, "_turn", lambda: told(desk))
        lost()
    else:
        reads = vars(Guard)["approved"]

        def read(guard: Guard) -> Any:
            monkeypatch.setattr(Guard, "approved", reads)
            found = guard.approved
            lost()
            return found

        monkeypatch.setattr(Guard, "approved", property(read))
    assert (told(desk), told(desk)) == (0, 0)


def test_a_call_that_a_server_did_not_take_before_it_ended_is_answered_once(desk: Desk) -> None:
    """One thread finds that the server ended while another one is about to write a call to it."""
    desk.call("search_notes")
    call = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "search_notes"}}
    sent = desk.session.client_frame(json.dumps(call).encode(), desk.now)
    assert len(sent.to_server) == 1
    told = [*desk.session.server_gone(desk.now).to_client, *desk.session.not_taken(sent.to_server).to_client]
    assert [json.loads(each)["id"] for each in told] == [77]
