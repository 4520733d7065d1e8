"""Limits of calls that several gateways count together: in a real PostgreSQL, with its failures."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pinwarden.gateway.call_budgets import CallBudget, CallBudgets
from pinwarden.gateway.shared_budgets import BudgetTable, SharedBudgets
from pinwarden.gateway.state import GatewayState
from pinwarden.lock.call_rules import DAY, CallLimit
from pinwarden.system.database import Database, load_schema, open_database
from tests.gateway.test_shared_database import Fleet, two_hosts
from tests.support.postgres import Cluster
from tests.support.waiting import poll


class Gateways:
    """Budgets of several gateways with one table and one clock. They report when the test says so."""

    def __init__(self, url: str, number: int) -> None:
        self.now = 1000.0
        self.log: list[str] = []
        self.databases: list[Database] = []
        self.shared = [self._open(url) for _ in range(number)]
        self.budgets = [CallBudgets("notes") for _ in range(number)]
        for budgets, shared in zip(self.budgets, self.shared, strict=True):
            budgets.reporter = shared

    def _open(self, url: str) -> SharedBudgets:
        database = open_database(url, load_schema("call_budgets"))
        self.databases.append(database)
        clocks: dict[str, Callable[[], float]] = {
            "clock": lambda: self.now + 1.8e9,
            "call_clock": lambda: self.now,
        }
        return SharedBudgets(lambda: BudgetTable(database), self.log.append, **clocks)

    def budget(self, gateway: int, *limits: CallLimit, client: str = "one") -> CallBudget:
        return self.budgets[gateway].get_or_create(client, (), "search", limits)

    def report(self) -> None:
        for shared in self.shared:
            shared.report()
        for shared in self.shared:  # what the others reported after it
            shared.report()


Opener = Callable[[int], Gateways]


@pytest.fixture
def gateways(cluster: Cluster) -> Iterator[Callable[[int], Gateways]]:
    """Opens so many gateways with one new database."""
    opened: list[Gateways] = []

    def open_gateways(number: int) -> Gateways:
        opened.append(Gateways(cluster.new_database(), number))
        return opened[-1]

    yield open_gateways
    for each in opened:
        for database in each.databases:
            database.close()


def take(budget: CallBudget, now: float, times: int) -> int:
    """How many of so many calls are allowed."""
    return sum(not budget.take(now) for _ in range(times))


MINUTE = CallLimit(count=60, seconds=60, rule="rate")
DAILY = CallLimit(count=100, seconds=DAY, rule="daily")


def test_calls_of_one_gateway_count_at_the_others_and_each_client_has_its_own(gateways: Opener) -> None:
    two = gateways(2)
    assert take(two.budget(0, DAILY), two.now, 70) == 70
    two.report()
    assert take(two.budget(1, DAILY), two.now, 1) == 1
    two.report()
    assert take(two.budget(1, DAILY), two.now, 100) == 29
    assert take(two.budget(1, DAILY, client="two"), two.now, 200) == 100
    two.budgets[1].clear()  # as after a restart
    two.budget(1, DAILY)
    two.report()
    assert take(two.budget(1, DAILY), two.now, 1) == 0
    two.now += DAY + 1
    assert take(two.budget(1, DAILY), two.now, 200) == 100


def test_what_was_allowed_too_much_between_two_reports_is_subtracted_afterwards(gateways: Opener) -> None:
    """The stated bound: each other gateway may allow what it is asked between two reports, and it is paid back."""
    two = gateways(2)
    first, second = two.budget(0, MINUTE), two.budget(1, MINUTE)
    assert take(first, two.now, 100) + take(second, two.now, 100) == 120
    two.report()
    two.now += 60.0  # one minute pays for the second gateway
    assert (take(first, two.now, 5), take(second, two.now, 5)) == (0, 0)
    two.now += 10.0
    assert take(first, two.now, 20) == 10
    take(second, two.now, 1)  # after a pause, the first call makes the gateway ask at once
    two.report()
    assert take(second, two.now, 20) == 0


@pytest.mark.parametrize("limit", [MINUTE, DAILY])
def test_over_time_several_gateways_allow_what_one_would(gateways: Opener, limit: CallLimit) -> None:
    three = gateways(3)
    chance = random.Random(7)
    start, allowed = three.now, 0
    for _ in range(400):
        three.now += chance.uniform(0.0, 2.0)
        budget = three.budget(chance.randrange(3), limit)
        allowed += take(budget, three.now, chance.randrange(8))
        three.report()
    refilled = (three.now - start) if limit is MINUTE else 0.0
    full = limit.count + refilled
    assert full - 3 - 8 <= allowed <= full + 3 * 8


def test_a_single_gateway_counts_with_the_table_as_without_it(gateways: Opener) -> None:
    one = gateways(1)
    alone = CallBudget([MINUTE, DAILY])
    chance = random.Random(3)
    for _ in range(300):
        one.now += chance.uniform(0.0, 3.0)
        times = chance.randrange(6)
        assert abs(take(one.budget(0, MINUTE, DAILY), one.now, times) - take(alone, one.now, times)) <= 1
        if chance.random() < 0.7:
            one.report()


def test_with_the_database_away_each_gateway_enforces_the_whole_limit_and_reports_it_later(
    cluster: Cluster, gateways: Opener
) -> None:
    two = gateways(2)
    take(two.budget(0, MINUTE), two.now, 1)
    two.report()
    cluster.stop()
    try:
        allowed = take(two.budget(0, MINUTE), two.now, 100)
        for _ in range(5):
            two.now += 60.0
            allowed += take(two.budget(0, MINUTE), two.now, 100)
            two.shared[0].report()
        assert (allowed, len(two.log)) == (59 + 5 * 60, 1)
        assert "DATABASE_UNAVAILABLE" in two.log[0]
    finally:
        cluster.start()
    two.report()
    two.now += 30.0
    take(two.budget(1, MINUTE), two.now, 1)
    two.report()
    assert take(two.budget(1, MINUTE), two.now, 100) == 29, "a long failure is not paid back for minutes"


def test_a_full_table_is_cleaned_and_a_strange_name_is_counted(gateways: Opener) -> None:
    one = gateways(1)
    take(one.budget(0, DAILY, client="\ud800\0"), one.now, 1)
    one.report()
    (database,) = one.databases
    assert database.row("SELECT COUNT(*) FROM call_budget") == (1,)
    one.now += 3 * DAY
    take(one.budget(0, DAILY), one.now, 1)
    one.report()
    assert database.row("SELECT COUNT(*) FROM call_budget") == (1,)


def test_with_sqlite_a_gateway_counts_alone(tmp_path: Path) -> None:
    assert GatewayState(tmp_path).open_shared_budgets(print) is None


def test_two_gateways_on_two_hosts_share_a_daily_budget(tmp_path: Path, cluster: Cluster) -> None:
    fleet = Fleet(tmp_path, cluster.new_database())
    for project in (fleet.first, fleet.second):
        (project.root / "pinwarden.toml").write_text('[[policy.gateway.rules]]\nitem = "read_note"\ndaily = 20\n')

    def call(at: Any, tool: str) -> str:
        _, answer = at.ask("notes", fleet.token, "tools/call", name=tool, arguments={})
        return str(answer["error"]["data"]["pinwarden"]["code"]) if "error" in answer else ""

    with two_hosts(fleet) as (first, second):
        assert [call(first, "read_note") for _ in range(20)] == [""] * 20
        assert call(first, "read_note") == "rate_limited"
        outcomes: list[str] = []

        def is_refused() -> bool:
            outcomes.append(call(second, "read_note"))
            return outcomes[-1] == "rate_limited"

        poll(is_refused)
        assert len(outcomes) <= 10, "one report takes a few milliseconds"
        assert call(second, "search_notes") == ""
    facts = [fact for fact in fleet.facts() if fact["kind"] == "called" and fact.get("item") == "read_note"]
    assert 20 <= len(facts) <= 30, json.dumps(facts[-1])
