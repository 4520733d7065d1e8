"""Task results follow the same rules as immediate results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY
from tests.gateway.http_gateway import OTHER_TOKEN, TOKEN, InMemoryRecorder, RawClient, UpstreamServer, gateway, guard
from tests.gateway.session_harness import (
    DELETE,
    POISONED,
    SEARCH,
    SessionHarness,
    approved_surface,
    policy,
    refusal_code,
)
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
    """Return a response that contains the result of a task."""
    return result if era == OLD else {"resultType": "complete", "taskId": TASK, "status": "completed", "result": result}


def harness_with_task(era: str, fetched: Any, *more: dict[str, Any], **kinds: Any) -> SessionHarness:
    """Return a session in which a call became a task."""
    text = fetched if isinstance(fetched, str) else json.dumps(fetched)
    answers = {"tools/call": json.dumps(STARTED[era]), FETCH[era]: text, "tasks/update": "{}", "tasks/cancel": "{}"}
    server = {"capabilities": {"tools": {}, "tasks": {}}} if era == OLD else EXTENDED
    first = {"tools": [SEARCH, DELETE], "server": server, "answers": answers}
    harness = SessionHarness(first, *({**first, **part} for part in more), era=era, **kinds)
    harness.open()
    assert "result" in harness.call_tool("search_notes")
    return harness


def fetch(harness: SessionHarness, era: str) -> dict[str, Any]:
    return harness.request(FETCH[era], {"taskId": TASK})


def notice(harness: SessionHarness, **params: Any) -> list[bytes]:
    """Send a task notification; return what the client receives of it."""
    got = len(harness.to_client)
    harness.server_sends({"jsonrpc": "2.0", "method": "notifications/tasks", "params": {"taskId": TASK, **params}})
    return harness.to_client[got:]


@pytest.mark.parametrize("era", [OLD, NEW])
def test_a_task_result_is_forwarded_byte_for_byte(era: str) -> None:
    harness = harness_with_task(era, finished(era))
    assert fetch(harness, era)["result"] == finished(era)
    assert json.dumps(finished(era)).encode() in harness.to_client[-1]


@pytest.mark.parametrize("era", [OLD, NEW])
def test_a_tasks_tool_must_still_be_approved_when_its_result_is_requested(era: str) -> None:
    """Attack: the tool changes while its task runs, and the result comes from the changed tool."""
    harness = harness_with_task(era, finished(era), {"tools": [POISONED, DELETE]})
    harness.switch_server_state()
    harness.now += 31
    assert refusal_code(fetch(harness, era)) == "new_exfiltration"
    assert not any(m.get("method") == FETCH[era] for m in harness.server.received)
    assert "result" in harness.request("tasks/cancel", {"taskId": TASK})


def test_updating_a_task_needs_an_approved_tool() -> None:
    harness = harness_with_task(NEW, finished(NEW), {"tools": [POISONED, DELETE]})
    assert "result" in harness.request("tasks/update", {"taskId": TASK, "inputResponses": {}})
    harness.switch_server_state()
    harness.now += 31
    assert (
        refusal_code(harness.request("tasks/update", {"taskId": TASK, "inputResponses": {"a": {}}}))
        == "new_exfiltration"
    )


@pytest.mark.parametrize(
    ("word", "passes"), [("block", False), ("warn", True), ("allow_degraded", True), (None, False)]
)
def test_the_unknown_policy_decides_about_a_task_whose_call_was_not_seen(word: str | None, passes: bool) -> None:
    """Attack: a task of an unapproved tool was started elsewhere, and its result is requested here."""
    harness = harness_with_task(NEW, finished(NEW), **({} if word is None else {"rules": policy(unknown=word)}))
    answer = harness.request("tasks/get", {"taskId": "another"})
    assert ("result" in answer) == passes
    assert passes or refusal_code(answer) == "task_unknown"
    assert "another" not in json.dumps(
        [[fact.item, fact.reason] for fact in harness.events]
    )  # the id suffices to get the result


def test_a_task_is_known_to_every_session_of_the_server() -> None:
    from pinwarden.gateway.session.session import Session

    harness = harness_with_task(NEW, finished(NEW))
    harness.session = Session(harness.guard, name="another")
    assert fetch(harness, NEW)["result"] == finished(NEW)


def test_results_of_an_unapproved_extension_are_refused() -> None:
    lock = approved_surface({"tools": [SEARCH, DELETE]})
    harness = harness_with_task(NEW, finished(NEW), lock=lock)
    assert refusal_code(fetch(harness, NEW)) == "capability_added"


@pytest.mark.parametrize(
    "status",
    [
        {"status": "input_required", "inputRequests": ASKS},
        {"status": "working", "inputRequests": ASKS},
        {"status": "failed", "error": {"code": -32042, "message": "Pay", "data": {"elicitations": [URL]}}},
        {"status": "completed", "result": {"resultType": "input_required", "inputRequests": ASKS}},
    ],
)
def test_server_requests_of_a_task_follow_the_request_policy(status: dict[str, Any]) -> None:
    """Attack: elicitation in a task, which a gateway that checks only calls misses."""
    whole = {"resultType": "complete", "taskId": TASK, **status}
    harness = harness_with_task(NEW, whole)
    assert refusal_code(fetch(harness, NEW)) == "url_host_denied"
    assert notice(harness, **status) == []
    assert harness.events[-1].code == "url_host_denied"
    free = harness_with_task(NEW, whole, rules=policy(**{"url-hosts": ["*.example.com"]}))
    assert fetch(free, NEW)["result"] == whole
    assert len(notice(free, **status)) == 1


def test_server_requests_of_a_call_that_becomes_a_task_follow_the_request_policy() -> None:
    for result in ({**STARTED[NEW], "inputRequests": ASKS}, {"task": {"taskId": TASK, "inputRequests": ASKS}}):
        harness = SessionHarness({"tools": [SEARCH], "answers": {"tools/call": json.dumps(result)}}, era=NEW)
        assert refusal_code(harness.call_tool("search_notes")) == "url_host_denied"


def test_polling_does_not_count_as_another_input_request_but_new_requests_do() -> None:
    form = {"method": "elicitation/create", "params": {"message": "Name?", "requestedSchema": {"type": "object"}}}
    rules = policy(**{"max-rounds": 3})
    harness = harness_with_task(NEW, {}, rules=rules)
    answers = harness.server.state["answers"]
    for round_, name in enumerate(("a", "b", "c", "d")):
        answers["tasks/get"] = json.dumps({"taskId": TASK, "status": "input_required", "inputRequests": {name: form}})
        for _ in range(5):
            answer = fetch(harness, NEW)
            assert ("result" in answer) == (round_ < 3), round_
            if round_ == 3:
                assert refusal_code(answer) == "too_many_rounds"
                return


def test_consecutive_tasks_do_not_count_as_repeated_input_requests() -> None:
    harness = harness_with_task(NEW, finished(NEW))
    for _ in range(20):
        assert harness.call_tool("search_notes")["result"] == STARTED[NEW]


def hidden(word: str) -> tuple[str, dict[str, Any]]:
    text = "a\u001b[2Jb\u200bc"
    return text, {"hidden-characters": word}


@pytest.mark.parametrize("era", [OLD, NEW])
def test_hidden_characters_and_size_are_checked_in_task_results(era: str) -> None:
    text, strip = hidden("strip")
    result = finished(era, {"content": [{"type": "text", "text": text}]})
    harness = harness_with_task(era, result, rules=policy(results=strip))
    assert "abc" in json.dumps(fetch(harness, era)["result"])
    large = harness_with_task(
        era, finished(era, {"content": [{"type": "text", "text": "x" * 900}]}), rules=policy(results={"max-bytes": 900})
    )
    assert refusal_code(fetch(large, era)) == "result_too_large"


def test_hidden_characters_and_size_are_checked_in_task_notifications() -> None:
    text, strip = hidden("strip")
    result = {"content": [{"type": "text", "text": text}]}
    harness = harness_with_task(NEW, finished(NEW), rules=policy(results={**strip, "max-bytes": 900}))
    (passed,) = notice(harness, status="completed", result=result)
    assert json.loads(passed)["params"]["result"]["content"][0]["text"] == "abc"
    assert json.loads(passed)["params"]["_meta"]["pinwarden/warnings"][0]["code"] == "hidden_characters"
    assert notice(harness, status="completed", result={"content": "x" * 900}) == []
    assert harness.events[-1].code == "result_too_large"


def test_a_task_notification_waits_for_the_tool_list_and_is_dropped_if_the_tool_changed() -> None:
    """Attack: the result is pushed in a notification instead of requested."""
    harness = harness_with_task(NEW, finished(NEW), {"tools": [POISONED, DELETE]})
    plain = {"jsonrpc": "2.0", "method": "notifications/tasks", "params": {"taskId": TASK, "status": "working"}}
    harness.server_sends(plain)
    assert json.loads(harness.to_client[-1]) == plain
    harness.switch_server_state()
    harness.now += 31
    assert not any(
        b"stolen" in message for message in notice(harness, status="completed", result={"content": ["stolen"]})
    )
    assert not any(b"stolen" in frame for frame in harness.to_client)
    assert harness.events[-1].code == "new_exfiltration"


def test_a_task_notification_before_the_calls_response_is_forwarded_if_it_has_no_result() -> None:
    harness = SessionHarness({"tools": [SEARCH]}, era=NEW)
    harness.open()
    assert len(notice(harness, status="working", statusMessage="Looking")) == 1
    payloads: list[dict[str, Any]] = [{"result": TEXT}, {"error": {"code": 1, "message": "no"}}, {"inputRequests": {}}]
    for brings in payloads:
        assert notice(harness, status="working", **brings) == []
        assert harness.events[-1].code == "task_unknown"


def test_a_deferred_notification_produces_no_response() -> None:
    harness = harness_with_task(NEW, finished(NEW), {"deaf": ["tools/list"]})
    harness.switch_server_state()
    harness.now += 31
    assert notice(harness, status="completed", result=TEXT) == []
    was_waiting = harness.session.waits_for_list
    harness.tick(50)
    assert (was_waiting, harness.session.waits_for_list) == (True, False)
    assert not any("id" in message and message["id"] is None for message in harness.client_messages())
    harness.deliver(harness.session.on_server_closed())


@pytest.mark.parametrize(
    "status",
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
def test_an_ambiguous_task_status_is_refused(status: dict[str, Any]) -> None:
    """Attack: parser differential in a task."""
    harness = harness_with_task(NEW, {"taskId": TASK, **status})
    if status != {"taskId": 7}:
        assert refusal_code(fetch(harness, NEW)) == "JSON_CANONICALIZATION_ERROR"
    assert notice(harness, **status) == []


def test_an_ambiguous_task_request_is_refused() -> None:
    harness = harness_with_task(NEW, finished(NEW))
    answer = harness.request("tasks/get", {"taskId": TASK, "TaskId": "another"})
    assert refusal_code(answer) == "message_doubtful"
    assert harness.request("tasks/get", {"taskId": 7})["error"]["code"] == -32600


# A remote server sees all clients of a gateway as one, so the gateway separates their tasks.


class Office(Turning):
    """A server that turns every call into a task, and returns all tasks to every client."""

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
            task = next(known for known in self.tasks if known["taskId"] == params["taskId"])
            task["status"] = "cancelled" if method == "tasks/cancel" else task["status"]
            return json.dumps(task)
        return super()._result(method, params)


@contextmanager
def office(**rules: Any) -> Iterator[tuple[Office, RawClient, RawClient, InMemoryRecorder]]:
    """A real remote server, and two clients of one gateway, each with its own task."""
    kept, server = InMemoryRecorder(), Office()
    judge = guard("notes", policy=policy(**rules) if rules else DEFAULT_GATEWAY_POLICY)
    with turning_http({"states": []}) as world:
        world.server = server
        with (
            gateway({"notes": UpstreamServer(judge, url=world.url)}, kept) as running,
            RawClient(running, "notes", TOKEN) as first,
            RawClient(running, "notes", OTHER_TOKEN) as second,
        ):
            for client, word in ((first, "one"), (second, "two")):
                client.initialize()
                params = {"name": "search_notes", "arguments": {"query": word}, "task": {"ttl": 1000}}
                assert "task" in client.session_request("tools/call", params)["result"]
            yield server, first, second, kept


LENIENT = {"unknown": "allow_degraded"}


@pytest.mark.parametrize("rules", [{}, LENIENT], ids=["default", "lenient"])
@pytest.mark.parametrize("method", ["tasks/cancel", "tasks/get", "tasks/result"])
def test_attack_a_client_cannot_use_another_clients_task_on_a_remote_server(method: str, rules: dict[str, str]) -> None:
    """Attack: client B cancels or polls the task of client A, whose id it saw or guessed."""
    with office(**rules) as (server, first, second, kept):
        before = len(server.received)
        assert refusal_code(second.session_request(method, {"taskId": "task-0"}, 7)) == "task_unknown"
        assert [task["status"] for task in server.tasks] == ["working", "working"]
        assert [message for message in server.received[before:] if message.get("method") == method] == []
        fact = next(event for event in kept.events if event.method == method)
        assert (fact.kind, fact.client, fact.code) == ("blocked", "other", "task_unknown")
        assert "task-0" not in repr(fact)
        assert first.session_request(method, {"taskId": "task-0"}, 8)["result"]["taskId"] == "task-0"
    assert server.tasks[0]["status"] == ("cancelled" if method == "tasks/cancel" else "working")


@pytest.mark.parametrize("rules", [{}, LENIENT], ids=["default", "lenient"])
def test_attack_a_task_list_does_not_contain_another_clients_tasks(rules: dict[str, str]) -> None:
    """Attack: client B lists tasks and learns the ids and states of client A's tasks."""
    with office(**rules) as (server, first, second, kept):
        elsewhere = {"taskId": "unknown-task", "status": "working"}
        server.tasks.append(elsewhere)
        more = [elsewhere] if rules else []
        for request_id in (5, 6):
            expected = {"tasks": [server.tasks[1], *more], "nextCursor": "more"}
            assert second.session_request("tasks/list", {}, request_id)["result"] == expected
        assert first.session_request("tasks/list", {}, 7)["result"]["tasks"] == [server.tasks[0], *more]
        events = [(event.kind, event.client, event.code) for event in kept.events if event.method == "tasks/list"]
    if rules:
        events = [event for event in events if event[0] == "blocked"]
    assert events == [("blocked", "other", "task_unknown"), ("blocked", "tester", "task_unknown")]


def test_a_list_of_the_clients_own_tasks_is_forwarded_byte_for_byte() -> None:
    harness = harness_with_task(OLD, finished(OLD))
    answer = '{"tasks" : [ {"taskId":"' + TASK + '", "status":"working"} ],"x":1.0}'
    harness.server.state["answers"]["tasks/list"] = answer
    harness.request("tasks/list")
    assert harness.to_client[-1].endswith(answer.encode() + b"}")


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
def test_attack_an_ambiguous_task_list_is_refused(listed: Any) -> None:
    harness = harness_with_task(OLD, finished(OLD))
    harness.server.state["answers"]["tasks/list"] = json.dumps(listed)
    assert refusal_code(harness.request("tasks/list")) in ("JSON_CANONICALIZATION_ERROR", "PROBE_FAILED")


def test_a_task_whose_tool_changed_is_not_listed_but_can_be_cancelled() -> None:
    harness = harness_with_task(OLD, finished(OLD), {"tools": [POISONED, DELETE]})
    harness.server.script["states"][1]["answers"]["tasks/list"] = json.dumps({"tasks": [{"taskId": TASK}]})
    harness.switch_server_state()
    harness.now += 31
    assert harness.request("tasks/list")["result"]["tasks"] == []
    assert "result" in harness.request("tasks/cancel", {"taskId": TASK})


@pytest.mark.parametrize("brings", [{}, {"result": TEXT}])
def test_attack_task_notifications_do_not_reach_another_client(brings: dict[str, Any]) -> None:
    """Attack: client B subscribes to the task of client A, or the server notifies all subscribers."""
    from pinwarden.gateway.guard import SessionClient
    from pinwarden.gateway.session.session import Session

    harness = harness_with_task(NEW, finished(NEW), rules=policy(**LENIENT))
    harness.guard.tasks.remember({"taskId": "of-another"}, "search_notes", "first")
    harness.session = Session(harness.guard, name="second", client=SessionClient(name="second", has_token=True))
    harness.open()
    wanted = {"taskIds": ["of-another"]}
    assert refusal_code(harness.request("subscriptions/listen", {"notifications": wanted})) == "task_unknown"
    assert notice(harness, taskId="of-another", status="working", statusMessage="for A", **brings) == []
    assert (
        harness.request("subscriptions/listen", {"notifications": {"taskIds": "of-another"}})["error"]["code"] == -32600
    )
