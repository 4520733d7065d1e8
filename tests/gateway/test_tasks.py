"""Results that come later are held to the same rules as results that come at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pinwarden.lock.gateway_policy import DEFAULT_POLICY
from tests.gateway.desk import DELETE, POISONED, SEARCH, Desk, approved, policy, refused
from tests.gateway.http_world import OTHER, TOKEN, Behind, Kept, Raw, gateway, guard
from tests.servers.turning import Turning
from tests.servers.turning_http import turning_http

OLD, NEW = "2025-11-25", "2026-07-28"
TASK = "task-0123456789abcdef"
EXTENDED: dict[str, Any] = {"capabilities": {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}}
URL = {"mode": "url", "url": "https://pay.example.com/x", "message": "Pay", "elicitationId": "1"}
ASKS = {"a": {"method": "elicitation/create", "params": URL}}
TEXT = {"content": [{"type": "text", "text": "done"}]}
STARTED: dict[str, dict[str, Any]] = {
    OLD: {"task": {"taskId": TASK, "status": "working"}},
    NEW: {"resultType": "task", "taskId": TASK, "status": "working"},
}
FETCH = {OLD: "tasks/result", NEW: "tasks/get"}


def finished(era: str, result: Any = TEXT) -> dict[str, Any]:
    """The answer that brings the result of a task."""
    return result if era == OLD else {"resultType": "complete", "taskId": TASK, "status": "completed", "result": result}


def desk_of(era: str, fetched: Any, *more: dict[str, Any], **kinds: Any) -> Desk:
    """A conversation in which the tool was called, and its result comes later."""
    text = fetched if isinstance(fetched, str) else json.dumps(fetched)
    answers = {"tools/call": json.dumps(STARTED[era]), FETCH[era]: text, "tasks/update": "{}", "tasks/cancel": "{}"}
    server = {"capabilities": {"tools": {}, "tasks": {}}} if era == OLD else EXTENDED
    first = {"tools": [SEARCH, DELETE], "server": server, "answers": answers}
    desk = Desk(first, *({**first, **each} for each in more), era=era, **kinds)
    desk.open()
    assert "result" in desk.call("search_notes")
    return desk


def fetch(desk: Desk, era: str) -> dict[str, Any]:
    return desk.ask(FETCH[era], {"taskId": TASK})


def notice(desk: Desk, **params: Any) -> list[bytes]:
    """What reaches the client of a notification about the task."""
    got = len(desk.to_client)
    desk.say({"jsonrpc": "2.0", "method": "notifications/tasks", "params": {"taskId": TASK, **params}})
    return desk.to_client[got:]


@pytest.mark.parametrize("era", [OLD, NEW])
def test_a_result_that_is_fetched_later_passes_byte_for_byte(era: str) -> None:
    desk = desk_of(era, finished(era))
    assert fetch(desk, era)["result"] == finished(era)
    assert json.dumps(finished(era)).encode() in desk.to_client[-1]


@pytest.mark.parametrize("era", [OLD, NEW])
def test_the_tool_has_to_be_approved_still_when_its_result_is_fetched(era: str) -> None:
    """Attack: the tool turns while its task runs, and the result comes from what it became."""
    desk = desk_of(era, finished(era), {"tools": [POISONED, DELETE]})
    desk.turn()
    desk.now += 31
    assert refused(fetch(desk, era)) == "new_exfiltration"
    assert not any(m.get("method") == FETCH[era] for m in desk.server.received)
    assert "result" in desk.ask("tasks/cancel", {"taskId": TASK})


def test_going_on_with_a_task_needs_an_approved_tool_too() -> None:
    desk = desk_of(NEW, finished(NEW), {"tools": [POISONED, DELETE]})
    assert "result" in desk.ask("tasks/update", {"taskId": TASK, "inputResponses": {}})
    desk.turn()
    desk.now += 31
    assert refused(desk.ask("tasks/update", {"taskId": TASK, "inputResponses": {"a": {}}})) == "new_exfiltration"


@pytest.mark.parametrize(
    ("word", "passes"), [("block", False), ("warn", True), ("allow_degraded", True), (None, False)]
)
def test_a_task_whose_call_nobody_saw_is_decided_by_the_policy_for_the_unknown(word: str | None, passes: bool) -> None:
    """Attack: a task that a tool which is not approved began elsewhere is fetched here."""
    desk = desk_of(NEW, finished(NEW), **({} if word is None else {"rules": policy(unknown=word)}))
    answer = desk.ask("tasks/get", {"taskId": "another"})
    assert ("result" in answer) == passes
    assert passes or refused(answer) == "task_unknown"
    assert "another" not in json.dumps([[fact.item, fact.reason] for fact in desk.facts])  # who has it has the result


def test_a_task_is_known_to_every_session_of_the_server() -> None:
    from pinwarden.gateway.session import Session

    desk = desk_of(NEW, finished(NEW))
    desk.session = Session(desk.guard, name="another")
    assert fetch(desk, NEW)["result"] == finished(NEW)


def test_an_extension_that_nobody_approved_brings_no_results() -> None:
    lock = approved({"tools": [SEARCH, DELETE]})
    desk = desk_of(NEW, finished(NEW), lock=lock)
    assert refused(fetch(desk, NEW)) == "capability_added"


@pytest.mark.parametrize(
    "told",
    [
        {"status": "input_required", "inputRequests": ASKS},
        {"status": "working", "inputRequests": ASKS},
        {"status": "failed", "error": {"code": -32042, "message": "Pay", "data": {"elicitations": [URL]}}},
        {"status": "completed", "result": {"resultType": "input_required", "inputRequests": ASKS}},
    ],
)
def test_what_a_task_asks_for_is_held_against_the_policy_for_requests(told: dict[str, Any]) -> None:
    """Attack: elicitation in a task, which a gateway that looks at calls only does not see."""
    whole = {"resultType": "complete", "taskId": TASK, **told}
    desk = desk_of(NEW, whole)
    assert refused(fetch(desk, NEW)) == "url_host_denied"
    assert notice(desk, **told) == []
    assert desk.facts[-1].code == "url_host_denied"
    free = desk_of(NEW, whole, rules=policy(**{"url-hosts": ["*.example.com"]}))
    assert fetch(free, NEW)["result"] == whole
    assert len(notice(free, **told)) == 1


def test_what_a_call_that_becomes_a_task_asks_for_is_held_against_the_same_policy() -> None:
    for result in ({**STARTED[NEW], "inputRequests": ASKS}, {"task": {"taskId": TASK, "inputRequests": ASKS}}):
        desk = Desk({"tools": [SEARCH], "answers": {"tools/call": json.dumps(result)}}, era=NEW)
        assert refused(desk.call("search_notes")) == "url_host_denied"


def test_polling_for_an_open_question_is_no_further_round_and_asking_for_ever_is() -> None:
    form = {"method": "elicitation/create", "params": {"message": "Name?", "requestedSchema": {"type": "object"}}}
    rules = policy(**{"max-rounds": 3})
    desk = desk_of(NEW, {}, rules=rules)
    answers = desk.server.state["answers"]
    for round_, name in enumerate(("a", "b", "c", "d")):
        answers["tasks/get"] = json.dumps({"taskId": TASK, "status": "input_required", "inputRequests": {name: form}})
        for _ in range(5):
            answer = fetch(desk, NEW)
            assert ("result" in answer) == (round_ < 3), round_
            if round_ == 3:
                assert refused(answer) == "too_many_rounds"
                return


def test_many_tasks_in_a_row_are_no_rounds_of_questions() -> None:
    desk = desk_of(NEW, finished(NEW))
    for _ in range(20):
        assert desk.call("search_notes")["result"] == STARTED[NEW]


def hidden(word: str) -> tuple[str, dict[str, Any]]:
    text = "a\u001b[2Jb\u200bc"
    return text, {"hidden-characters": word}


@pytest.mark.parametrize("era", [OLD, NEW])
def test_hidden_characters_and_size_are_looked_at_in_later_results_too(era: str) -> None:
    text, strip = hidden("strip")
    result = finished(era, {"content": [{"type": "text", "text": text}]})
    desk = desk_of(era, result, rules=policy(results=strip))
    assert "abc" in json.dumps(fetch(desk, era)["result"])
    large = desk_of(
        era, finished(era, {"content": [{"type": "text", "text": "x" * 900}]}), rules=policy(results={"max-bytes": 900})
    )
    assert refused(fetch(large, era)) == "result_too_large"


def test_hidden_characters_and_size_are_looked_at_in_what_is_told_of_a_task() -> None:
    text, strip = hidden("strip")
    result = {"content": [{"type": "text", "text": text}]}
    desk = desk_of(NEW, finished(NEW), rules=policy(results={**strip, "max-bytes": 900}))
    (passed,) = notice(desk, status="completed", result=result)
    assert json.loads(passed)["params"]["result"]["content"][0]["text"] == "abc"
    assert json.loads(passed)["params"]["_meta"]["pinwarden/warnings"][0]["code"] == "hidden_characters"
    assert notice(desk, status="completed", result={"content": "x" * 900}) == []
    assert desk.facts[-1].code == "result_too_large"


def test_what_is_told_of_a_task_waits_for_the_list_of_tools_and_goes_nowhere_if_the_tool_turned() -> None:
    """Attack: the result is not fetched but pushed."""
    desk = desk_of(NEW, finished(NEW), {"tools": [POISONED, DELETE]})
    plain = {"jsonrpc": "2.0", "method": "notifications/tasks", "params": {"taskId": TASK, "status": "working"}}
    desk.say(plain)
    assert json.loads(desk.to_client[-1]) == plain
    desk.turn()
    desk.now += 31
    assert not any(b"stolen" in each for each in notice(desk, status="completed", result={"content": ["stolen"]}))
    assert not any(b"stolen" in each for each in desk.to_client)
    assert desk.facts[-1].code == "new_exfiltration"


def test_what_is_told_of_a_task_before_its_call_is_answered_passes_if_it_brings_nothing() -> None:
    desk = Desk({"tools": [SEARCH]}, era=NEW)
    desk.open()
    assert len(notice(desk, status="working", statusMessage="Looking")) == 1
    payloads: list[dict[str, Any]] = [{"result": TEXT}, {"error": {"code": 1, "message": "no"}}, {"inputRequests": {}}]
    for brings in payloads:
        assert notice(desk, status="working", **brings) == []
        assert desk.facts[-1].code == "task_unknown"


def test_a_held_notice_is_no_answer_to_anything() -> None:
    desk = desk_of(NEW, finished(NEW), {"deaf": ["tools/list"]})
    desk.turn()
    desk.now += 31
    assert notice(desk, status="completed", result=TEXT) == []
    held = desk.session.holds
    desk.tick(50)
    assert (held, desk.session.holds) == (True, False)
    assert not any("id" in each and each["id"] is None for each in desk.got())
    desk.settle(desk.session.server_gone(desk.now))


@pytest.mark.parametrize(
    "told",
    [
        {"status": "working", "Status": "completed"},
        {"status": "working", "Result": TEXT},
        {"status": "input_required", "InputRequests": ASKS},
        {"status": "completed", "result": {"ResultType": "input_required", "InputRequests": ASKS}},
        {"status": "failed", "error": {"code": 1, "Data": {"elicitations": [URL]}}},
        {"TaskId": "another"},
        {"taskId": 7},
    ],
)
def test_what_two_readers_could_take_for_another_task_or_result_goes_no_further(told: dict[str, Any]) -> None:
    """Attack: parser differential in a task."""
    desk = desk_of(NEW, {"taskId": TASK, **told})
    if told != {"taskId": 7}:
        assert refused(fetch(desk, NEW)) == "JSON_CANONICALIZATION_ERROR"
    assert notice(desk, **told) == []


def test_a_request_for_a_task_that_two_readers_could_take_for_another_goes_no_further() -> None:
    desk = desk_of(NEW, finished(NEW))
    answer = desk.ask("tasks/get", {"taskId": TASK, "TaskId": "another"})
    assert refused(answer) == "message_doubtful"
    assert desk.ask("tasks/get", {"taskId": 7})["error"]["code"] == -32600


# To a server at an address all clients of a gateway are one, so the gateway keeps their tasks apart.


class Office(Turning):
    """A server that gives each call a task, and whoever asks all of them."""

    def __init__(self) -> None:
        offered: dict[str, Any] = {"capabilities": {"tools": {}, "tasks": {"list": {}, "cancel": {}}}}
        super().__init__({"states": [{"tools": [SEARCH, DELETE], "server": offered}]})
        self.tasks: list[dict[str, Any]] = []

    def _result(self, method: Any, params: dict[str, Any]) -> str | None:
        if method == "tools/call":
            text = f"for {params['arguments']['query']}"
            self.tasks.append({"taskId": f"task-{len(self.tasks)}", "status": "working", "statusMessage": text})
            return json.dumps({"task": self.tasks[-1]})
        if method == "tasks/list":
            return json.dumps({"tasks": self.tasks, "nextCursor": "more"}, indent=1)
        if method.startswith("tasks/"):
            found = next(each for each in self.tasks if each["taskId"] == params["taskId"])
            found["status"] = "cancelled" if method == "tasks/cancel" else found["status"]
            return json.dumps(found)
        return super()._result(method, params)


@contextmanager
def office(**rules: Any) -> Iterator[tuple[Office, Raw, Raw, Kept]]:
    """A real remote server, and two clients of one gateway, each with a task of its own."""
    kept, server = Kept(), Office()
    judge = guard("notes", policy=policy(**rules) if rules else DEFAULT_POLICY)
    with turning_http({"states": []}) as world:
        world.server = server
        with (
            gateway({"notes": Behind(judge, url=world.url)}, kept) as made,
            Raw(made, "notes", TOKEN) as first,
            Raw(made, "notes", OTHER) as second,
        ):
            for client, word in ((first, "one"), (second, "two")):
                client.initialize()
                params = {"name": "search_notes", "arguments": {"query": word}, "task": {"ttl": 1000}}
                assert "task" in client.say("tools/call", params)["result"]
            yield server, first, second, kept


LENIENT = {"unknown": "allow_degraded"}


@pytest.mark.parametrize("rules", [{}, LENIENT], ids=["default", "lenient"])
@pytest.mark.parametrize("method", ["tasks/cancel", "tasks/get", "tasks/result"])
def test_attack_a_client_cannot_touch_the_task_of_another_on_a_remote_server(
    method: str, rules: dict[str, str]
) -> None:
    """Attack: client B cancels, or looks at, the task of client A, whose id it saw or guessed."""
    with office(**rules) as (server, first, second, kept):
        asked = len(server.received)
        assert refused(second.say(method, {"taskId": "task-0"}, 7)) == "task_unknown"
        assert [each["status"] for each in server.tasks] == ["working", "working"]
        assert [each for each in server.received[asked:] if each.get("method") == method] == []
        fact = next(each for each in kept.facts if each.method == method)
        assert (fact.kind, fact.client, fact.code) == ("blocked", "other", "task_unknown")
        assert "task-0" not in repr(fact)
        assert first.say(method, {"taskId": "task-0"}, 8)["result"]["taskId"] == "task-0"
    assert server.tasks[0]["status"] == ("cancelled" if method == "tasks/cancel" else "working")


@pytest.mark.parametrize("rules", [{}, LENIENT], ids=["default", "lenient"])
def test_attack_a_client_does_not_see_the_tasks_of_another_in_a_list(rules: dict[str, str]) -> None:
    """Attack: client B lists tasks, and reads what client A has in work, and under which id."""
    with office(**rules) as (server, first, second, kept):
        elsewhere = {"taskId": "task-of-nobody", "status": "working"}
        server.tasks.append(elsewhere)
        more = [elsewhere] if rules else []
        for number in (5, 6):
            expected = {"tasks": [server.tasks[1], *more], "nextCursor": "more"}
            assert second.say("tasks/list", {}, number)["result"] == expected
        assert first.say("tasks/list", {}, 7)["result"]["tasks"] == [server.tasks[0], *more]
        told = [(each.kind, each.client, each.code) for each in kept.facts if each.method == "tasks/list"]
    if rules:
        told = [each for each in told if each[0] == "blocked"]
    assert told == [("blocked", "other", "task_unknown"), ("blocked", "tester", "task_unknown")]


def test_a_list_of_ones_own_tasks_passes_byte_for_byte() -> None:
    desk = desk_of(OLD, finished(OLD))
    answer = '{"tasks" : [ {"taskId":"' + TASK + '", "status":"working"} ],"x":1.0}'
    desk.server.state["answers"]["tasks/list"] = answer
    desk.ask("tasks/list")
    assert desk.to_client[-1].endswith(answer.encode() + b"}")


@pytest.mark.parametrize(
    "listed",
    [
        {"tasks": [{"taskId": TASK, "TaskId": "another"}]},
        {"tasks": [{"taskId": TASK}], "Tasks": [{"taskId": "another"}]},
        {"tasks": [{"status": "working"}]},
        {"tasks": {"taskId": "another"}},
        {},
    ],
)
def test_attack_a_list_of_tasks_that_readers_may_understand_differently_goes_no_further(listed: Any) -> None:
    desk = desk_of(OLD, finished(OLD))
    desk.server.state["answers"]["tasks/list"] = json.dumps(listed)
    assert refused(desk.ask("tasks/list")) in ("JSON_CANONICALIZATION_ERROR", "PROBE_FAILED")


def test_a_task_whose_tool_turned_is_not_in_the_list_but_can_be_cancelled() -> None:
    desk = desk_of(OLD, finished(OLD), {"tools": [POISONED, DELETE]})
    desk.server.script["states"][1]["answers"]["tasks/list"] = json.dumps({"tasks": [{"taskId": TASK}]})
    desk.turn()
    desk.now += 31
    assert desk.ask("tasks/list")["result"]["tasks"] == []
    assert "result" in desk.ask("tasks/cancel", {"taskId": TASK})


@pytest.mark.parametrize("brings", [{}, {"result": TEXT}])
def test_attack_nobody_hears_of_the_task_of_another_client(brings: dict[str, Any]) -> None:
    """Attack: client B subscribes to the task of client A, or the server tells all its listeners of it."""
    from pinwarden.gateway.session import Session

    desk = desk_of(NEW, finished(NEW), rules=policy(**LENIENT))
    desk.guard.tasks.remember({"taskId": "of-another"}, "search_notes", "first")
    desk.session = Session(desk.guard, name="second", client="second")
    desk.open()
    wanted = {"taskIds": ["of-another"]}
    assert refused(desk.ask("subscriptions/listen", {"notifications": wanted})) == "task_unknown"
    assert notice(desk, taskId="of-another", status="working", statusMessage="for A", **brings) == []
    assert desk.ask("subscriptions/listen", {"notifications": {"taskIds": "of-another"}})["error"]["code"] == -32600
