"""The executor for work that judges or compares input: fair between clients, and bounded."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.system.fair_executor import FairExecutor, OverloadedError, check_items


def run(scene: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await scene()

    return asyncio.run(bounded())


def test_clients_take_turns_and_the_work_of_one_keeps_its_order() -> None:
    async def scene() -> list[str]:
        executor, free = FairExecutor(threads=1), threading.Event()
        done: list[str] = []
        first = executor.submit("alice", lambda: free.wait(60))
        names = ("alice 1", "alice 2", "alice 3", "bob 1", "bob 2", "carl 1")
        futures = [executor.submit(name.partition(" ")[0], partial(done.append, name)) for name in names]
        free.set()
        await asyncio.gather(first, *futures)
        return done

    assert run(scene) == ["bob 1", "carl 1", "alice 1", "bob 2", "alice 2", "alice 3"]


def test_attack_a_client_with_much_work_uses_one_thread_and_another_client_does_not_wait_for_it() -> None:
    async def scene() -> None:
        executor, free = FairExecutor(threads=2), threading.Event()
        slow = [executor.submit("alice", lambda: free.wait(60)) for _ in range(5)]
        assert await executor.submit("bob", lambda: "done") == "done"
        assert not any(future.done() for future in slow)
        free.set()
        assert await asyncio.gather(*slow) == [True] * 5

    run(scene)


def test_attack_a_client_that_submits_without_end_hits_its_limit_and_others_do_not() -> None:
    async def scene() -> None:
        executor, free = FairExecutor(max_queued=3, max_queued_in_total=5), threading.Event()
        accepted = [executor.submit("alice", lambda: free.wait(60)) for _ in range(4)]  # one runs, three wait
        with pytest.raises(OverloadedError, match="the limit is 3") as caught:
            executor.submit("alice", lambda: None)
        assert (caught.value.code, caught.value.data) == ("OVERLOADED", {"reason": "queue"})
        assert caught.value.retry_after == 1
        accepted.append(executor.submit("alice", lambda: True, required=True))
        accepted += [executor.submit("bob", lambda: free.wait(60)) for _ in range(2)]
        with pytest.raises(
            OverloadedError, match="all clients together have too many queued requests; the limit is 5"
        ) as caught:
            executor.submit("carl", lambda: None)
        assert caught.value.data == {}
        free.set()
        await asyncio.gather(*accepted)
        assert await executor.submit("alice", lambda: 1) == 1

    run(scene)


def test_reserved_places_count_until_they_are_released() -> None:
    async def scene() -> None:
        executor = FairExecutor(max_queued=2)
        executor.reserve("alice")
        executor.reserve("alice")
        with pytest.raises(OverloadedError):
            executor.reserve("alice")
        executor.reserve("bob")
        executor.release("alice", 2)
        executor.reserve("alice")

    run(scene)


def test_work_that_waited_too_long_is_not_run() -> None:
    async def scene() -> None:
        executor, free, done = FairExecutor(max_queue_seconds=0), threading.Event(), []
        first = executor.submit("alice", lambda: free.wait(60), required=True)
        late = executor.submit("alice", lambda: done.append("late"))
        owed = executor.submit("alice", lambda: done.append("owed"), required=True)
        free.set()
        await asyncio.gather(first, owed)
        with pytest.raises(OverloadedError, match="queued for more than 0 seconds"):
            await late
        assert done == ["owed"]

    run(scene)


def test_what_the_work_raises_reaches_its_caller_and_the_next_work_is_done() -> None:
    async def scene() -> None:
        executor = FairExecutor(threads=1)
        failing, next_one = executor.submit("alice", lambda: 1 // 0), executor.submit("alice", lambda: 7)
        with pytest.raises(ZeroDivisionError):
            await failing
        assert await next_one == 7
        assert not executor.is_busy("alice")

    run(scene)


def test_a_caller_that_stops_waiting_and_a_shutdown_cancel_what_has_not_begun() -> None:
    async def scene() -> list[str]:
        executor, free, done = FairExecutor(threads=1), threading.Event(), []
        first = executor.submit("alice", lambda: free.wait(60))
        executor.submit("alice", lambda: done.append("given up")).cancel()
        kept = executor.submit("alice", lambda: done.append("kept"))
        free.set()
        await asyncio.gather(first, kept)
        free.clear()
        begun = threading.Barrier(2, timeout=60)
        last = executor.submit("alice", lambda: (begun.wait(), free.wait(60)))
        begun.wait()
        waiting = executor.submit("alice", lambda: done.append("never"))
        executor.shutdown()
        free.set()
        await last
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return done

    assert run(scene) == ["kept"]


def test_while_work_runs_the_event_loop_does_not_wait_five_milliseconds_for_each_step() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    try:
        run(lambda: FairExecutor().submit("alice", lambda: None))
        assert sys.getswitchinterval() < 0.001
    finally:
        sys.setswitchinterval(before)


def test_too_many_items_are_refused_with_the_limit() -> None:
    check_items(5, 5, "tools")
    with pytest.raises(PinwardenError, match="6 tools are too many; the limit is 5") as caught:
        check_items(6, 5, "tools")
    assert caught.value.code == "INPUT_LIMIT"
