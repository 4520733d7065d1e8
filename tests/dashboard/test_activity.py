"""Charts of the last days, and who uses a tool: counted from the log that a real gateway wrote."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from pinwarden.dashboard.activity import DAYS, Activity
from pinwarden.gateway.audit.event import BLOCKED, CALLED, HELD, AuditEvent
from tests.dashboard.test_what_if import recorded  # noqa: F401
from tests.dashboard.world import serving_dashboard
from tests.gateway.review_world import ReviewWorld
from tests.support.waiting import poll


@pytest.fixture
def activity() -> Iterator[Activity]:
    made = Activity()
    yield made
    made.close()


def test_the_overview_charts_what_was_refused_and_the_review_says_who_uses_it(
    recorded: ReviewWorld,  # noqa: F811
) -> None:
    with serving_dashboard(recorded.state) as dashboard:
        client = dashboard.client()
        poll(lambda: "Refused calls: 2" in client.page().text)
        page = client.page()
        assert "Changes put up for review: 1" in page.text
        charts = re.findall(r'<svg class="chart.*?</svg>', page.html, re.DOTALL)
        assert [len(re.findall("<rect", chart)) for chart in charts] == [1, 1]
        assert ": 2</title>" in charts[0]
        numbers = re.findall(r'<td class="number">(\d+)</td>', page.html)
        assert numbers[:3] == ["3", "2", "1"]
        (name,) = recorded.waiting()
        review = client.page(f"reviews/{name}/").text
        assert "Clients that used this item in the last seven days" in review
        assert " c 3 2 " in review


def test_later_events_are_added_and_old_ones_do_not_count(world: ReviewWorld, activity: Activity) -> None:
    def record(kind: str, times: int, call: str = "x") -> None:
        event = AuditEvent(kind=kind, server="notes", client="desk", call=call, item_kind="tool", item="search")
        with world.state.open_audit_log() as log:
            log.record_durably(*[event] * times)

    def sums() -> tuple[int, int, int] | None:
        counts = activity.read(world.state)
        if counts is None:
            return None
        assert len(counts.buckets) == DAYS * 4
        assert len(counts.list_days()) in (DAYS, DAYS + 1)
        days = counts.list_days()
        return sum(day.calls for day in days), sum(day.refused for day in days), sum(day.changes for day in days)

    record(CALLED, 3)
    record(BLOCKED, 2)
    record(BLOCKED, 5, call="")  # taken out of a list
    record(HELD, 1)
    poll(lambda: sums() == (3, 2, 1))
    record(CALLED, 4)
    poll(lambda: sums() == (7, 2, 1))
    (use,) = activity.list_uses("notes", "tool", "search")
    assert (use.client, use.calls, use.refused) == ("desk", 7, 2)
    later = Activity(lambda: time.time() + 8 * 86_400)
    try:
        counts = later.read(world.state)
        assert counts is not None
        assert sum(bucket.calls + bucket.refused + bucket.changes for bucket in counts.buckets) == 0
    finally:
        later.close()
