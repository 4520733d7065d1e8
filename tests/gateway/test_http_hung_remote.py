"""A remote server that accepts a call and never responds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pinwarden.gateway.http.http_limits import HttpLimits
from tests.gateway.http_gateway import RawClient, UpstreamServer, gateway, guard
from tests.gateway.session_harness import DELETE, SEARCH, approved_surface
from tests.servers.turning_http import turning_http
from tests.support.waiting import poll

STATE = {"tools": [SEARCH, DELETE]}


def test_a_hanging_call_to_a_remote_times_out_and_other_calls_to_it_are_answered() -> None:
    limits = HttpLimits(reload_seconds=0.05)
    with (
        turning_http({"states": [{**STATE, "deaf": ["tools/call"]}]}) as world,
        gateway(
            {"notes": UpstreamServer(guard("notes", approved_surface(STATE)), url=world.url)}, limits=limits
        ) as running,
        RawClient(running, "notes") as raw,
        ThreadPoolExecutor() as threads,
    ):
        assert raw.request("tools/list")["result"]["tools"] == [SEARCH, DELETE]
        waiting = threads.submit(raw.request, "tools/call", {"name": "search_notes", "arguments": {}}, 7)
        poll(lambda: world.calls("search_notes") == 1)
        assert not waiting.done()
        running.advance_clock(limits.response_seconds + 1)
        answer = waiting.result(60)
        assert (answer["id"], answer["error"]["code"]) == (7, -32000)
        assert "did not respond in time" in answer["error"]["message"]
        durations = running.manager.upstreams["notes"].recorder.durations["read_only"]
        assert (sum(durations.counts), durations.failures) == (1, 1)
        assert durations.seconds > limits.response_seconds
        with RawClient(running, "notes") as other:
            assert other.request("tools/list")["result"]["tools"] == [SEARCH, DELETE]
