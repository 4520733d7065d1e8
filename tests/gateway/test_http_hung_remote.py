"""A remote server that takes a call and says nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pinwarden.gateway.http.http_limits import HttpLimits
from tests.gateway.desk import DELETE, SEARCH, approved
from tests.gateway.http_world import Behind, Raw, gateway, guard
from tests.servers.turning_http import turning_http
from tests.support.waiting import poll

STATE = {"tools": [SEARCH, DELETE]}


def test_a_remote_that_hangs_is_given_up_on_and_what_others_ask_of_it_is_answered_as_ever() -> None:
    limits = HttpLimits(reload_seconds=0.05)
    with (
        turning_http({"states": [{**STATE, "deaf": ["tools/call"]}]}) as world,
        gateway({"notes": Behind(guard("notes", approved(STATE)), url=world.url)}, limits=limits) as made,
        Raw(made, "notes") as raw,
        ThreadPoolExecutor() as threads,
    ):
        assert raw.ask("tools/list")["result"]["tools"] == [SEARCH, DELETE]
        waiting = threads.submit(raw.ask, "tools/call", {"name": "search_notes", "arguments": {}}, 7)
        poll(lambda: world.calls("search_notes") == 1)
        assert not waiting.done()
        made.later(limits.answer_seconds + 1)
        answer = waiting.result(60)
        assert (answer["id"], answer["error"]["code"]) == (7, -32000)
        assert "did not answer in time" in answer["error"]["message"]
        with Raw(made, "notes") as other:
            assert other.ask("tools/list")["result"]["tools"] == [SEARCH, DELETE]
