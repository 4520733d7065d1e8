"""All clients share one process of a stateless server, and none receives messages of another."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pinwarden.core.record import replace
from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.gateway.http.http_limits import HttpLimits
from tests.gateway.http_gateway import (
    EventStream,
    RawClient,
    RunningGateway,
    UpstreamServer,
    gateway,
    guard,
    messages,
    rpc,
    stateless_request,
)
from tests.gateway.test_gateway_command import Project, running
from tests.servers import stateless_witness
from tests.support.waiting import poll

TOKENS = [f"pwt_client-{number}" for number in range(6)]
LIMITS = HttpLimits(
    reload_seconds=0.05,
    merged_opening_seconds=60,
    merged_list_seconds=60,
    first_backoff_seconds=0.01,
)
WITNESS = [sys.executable, "-I", "-S", str(Path(stateless_witness.__file__))]


class Scene:
    """A gateway with one server, and one client per token."""

    def __init__(self, at: RunningGateway, behind: UpstreamServer) -> None:
        self.at = at
        self.behind = behind

    @property
    def processes(self) -> tuple[int, int]:
        """Return how many processes were started, and how many are running."""
        assert self.behind.supervisor is not None
        return self.behind.supervisor.starts, len(self.behind.supervisor.running)

    def call(
        self, token: str, tool: str, request_id: Any = 7, progress: Any = None, path: str = "witness", **arguments: Any
    ) -> list[Any]:
        """Return all messages in response to a call."""
        meta = {} if progress is None else {"_meta": {"progressToken": progress}}
        name = tool if path else f"witness__{tool}"
        with RawClient(self.at, path, token=token) as raw:
            body, headers = stateless_request("tools/call", {"name": name, "arguments": arguments, **meta}, request_id)
            _, given, answer = raw.send(body, headers)
            return messages(given, answer)

    def said(self, token: str, tool: str, **arguments: Any) -> Any:
        """Return the result of a call."""
        return json.loads(self.call(token, tool, **arguments)[-1]["result"]["content"][0]["text"])


@contextmanager
def serving(
    command: Sequence[str] = WITNESS,
    limits: HttpLimits = LIMITS,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> Iterator[Scene]:
    behind = UpstreamServer(guard("witness"), command=command)
    clients = {token: GatewayClient(name=token[4:]) for token in TOKENS}
    with gateway({"witness": behind}, limits=limits, clients=clients, new_loop=new_loop) as at:
        yield Scene(at, behind)


def in_parallel(scene: Scene, tool: str, **arguments: Any) -> list[list[Any]]:
    """Let all clients make the same call at once, each with its own secret."""
    with ThreadPoolExecutor(len(TOKENS)) as pool:
        calls = [pool.submit(scene.call, token, tool, secret=token, **arguments) for token in TOKENS]
        return [call.result(60) for call in calls]


@pytest.mark.parametrize("path", ["", "witness"])
def test_concurrent_clients_share_one_process_of_a_stateless_server(path: str) -> None:
    with serving() as scene:

        def names(token: str) -> list[str]:
            with RawClient(scene.at, path, token=token) as raw:
                return [tool["name"] for tool in raw.request("tools/list")["result"]["tools"]]

        with ThreadPoolExecutor(len(TOKENS)) as pool:
            assert len(set(map(tuple, pool.map(names, TOKENS)))) == 1
        assert scene.processes == (1, 1)


def test_concurrent_discovery_at_a_servers_endpoint_starts_one_process() -> None:
    with serving() as scene:

        def discover(token: str) -> Any:
            with RawClient(scene.at, "witness", token=token) as raw:
                return raw.request("server/discover", request_id=token)

        with ThreadPoolExecutor(len(TOKENS)) as pool:
            answers = list(pool.map(discover, TOKENS))
        assert [answer["id"] for answer in answers] == TOKENS
        assert all(answer["result"]["capabilities"] == {"tools": {}} for answer in answers)
        assert scene.processes == (1, 1)


@pytest.mark.parametrize("path", ["", "witness"])
@pytest.mark.parametrize("request_id", [7, "seven", 1 << 40])
def test_responses_and_progress_under_the_same_id_and_token_reach_only_their_client(request_id: Any, path: str) -> None:
    with serving() as scene:
        scene.said(TOKENS[0], "echo", secret="first")
        answers = in_parallel(scene, "meet", request_id=request_id, progress="t", count=len(TOKENS), path=path)
        for token, (progress, answer) in zip(TOKENS, answers, strict=True):
            assert progress["params"] == {"progressToken": "t", "progress": 1, "message": token}
            assert answer["id"] == request_id
            assert json.loads(answer["result"]["content"][0]["text"])["secret"] == token
        assert scene.processes == (1, 1)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("progress", [None, 3])
def test_many_calls_of_several_clients_under_colliding_ids_never_mix(
    progress: Any, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    with serving(new_loop=new_loop) as scene:
        scene.said(TOKENS[0], "echo", secret="first")

        def calls(token: str) -> list[str]:
            wrong = []
            with RawClient(scene.at, "witness", token=token) as raw:
                for request_id in range(60):
                    secret, meta = f"{token}/{request_id}", {} if progress is None else {"progressToken": progress}
                    params = {"name": "echo", "arguments": {"secret": secret}, "_meta": meta}
                    _, headers, body = raw.send(*stateless_request("tools/call", params, request_id))
                    *before, answer = messages(headers, body)
                    said = json.loads(answer["result"]["content"][0]["text"])["secret"]
                    progress_texts = [message["params"]["message"] for message in before]
                    if (answer["id"], said, progress_texts) != (request_id, secret, [secret] if progress else []):
                        wrong.append(body.decode())
            return wrong

        with ThreadPoolExecutor(2 * len(TOKENS)) as pool:
            assert [wrong for problems in pool.map(calls, TOKENS * 2) for wrong in problems] == []
        assert len(scene.said(TOKENS[0], "seen")["calls"]) == 1 + 2 * 60 * len(TOKENS) + 1
        assert scene.processes == (1, 1)


def test_unsolicited_messages_of_a_shared_process_reach_no_client() -> None:
    with serving() as scene:
        scene.said(TOKENS[0], "echo", secret="first")
        with ThreadPoolExecutor(2) as pool:
            waiting = [
                pool.submit(scene.call, token, "meet", secret=token, count=3, progress="t") for token in TOKENS[:2]
            ]
            poll(lambda: {*TOKENS[:2]} <= {*scene.said(TOKENS[3], "seen")["calls"]})
            assert [message["id"] for message in scene.call(TOKENS[2], "stray", secret="s")] == [7]
            scene.call(TOKENS[3], "meet", secret="third", count=3)
            responses = [future.result(60) for future in waiting]
        assert "STRAY" not in json.dumps(responses)
        assert [len(entry) for entry in responses] == [2, 2]


def test_a_notification_reaches_only_the_client_whose_subscription_it_names() -> None:
    with serving() as scene, ExitStack() as stack:
        scene.said(TOKENS[0], "echo", secret="first")

        def listening(token: str) -> EventStream:
            body, headers = stateless_request(
                "subscriptions/listen", {"notifications": {"toolsListChanged": True}}, "mine"
            )
            stream = stack.enter_context(EventStream(scene.at, "", "witness", body=body, headers=headers, token=token))
            assert stream.next()["method"] == "notifications/subscriptions/acknowledged"
            return stream

        first, last = listening(TOKENS[0]), listening(TOKENS[1])
        scene.said(TOKENS[2], "change", secret="s")
        notification = last.next()
        assert notification["method"] == "notifications/tools/list_changed"
        assert notification["params"]["_meta"][stateless_witness.META + "subscriptionId"] == "mine"
        scene.said(TOKENS[2], "stray", secret="s")
        scene.at.call_on_loop(scene.at.manager.end_streams)
        assert (first.next(), last.next()) == (None, None)


def test_a_log_message_without_a_request_reaches_a_client_only_until_another_uses_the_process() -> None:
    with serving() as scene:
        alone = scene.call(TOKENS[0], "log", secret="s")
        assert [message.get("method") for message in alone] == ["notifications/message", None]
        scene.said(TOKENS[1], "echo", secret="s")
        for token in TOKENS[:2]:
            assert [message.get("method") for message in scene.call(token, "log", secret="s")] == [None]


def test_a_shared_process_that_is_late_but_answers_a_ping_is_not_replaced() -> None:
    with serving() as scene:
        pid = scene.said(TOKENS[0], "echo", secret="first")["pid"]
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(scene.call, token, "meet", secret=token, count=9) for token in TOKENS[:2]]
            poll(lambda: {*TOKENS[:2]} <= {*scene.said(TOKENS[3], "seen")["calls"]})
            scene.at.advance_clock(LIMITS.response_seconds + 1, silent=True)
            assert [future.result(60)[-1]["error"]["code"] for future in waiting] == [-32000, -32000]
        poll(lambda: scene.said(TOKENS[3], "seen")["pings"] >= 1)  # two sessions may notice the silence
        assert {scene.said(token, "echo", secret="s")["pid"] for token in TOKENS} == {pid}
        assert scene.at.manager.upstreams["witness"]._process._ping_timeout is None  # type: ignore[union-attr]
        assert sorted(scene.said(TOKENS[3], "seen")["cancelled"]) == TOKENS[:2]
        assert scene.processes == (1, 1)


def test_a_shared_process_that_does_not_answer_a_ping_is_replaced() -> None:
    with serving(limits=replace(LIMITS, shared_ping_seconds=0.1)) as scene:
        pid = scene.said(TOKENS[0], "echo", secret="first")["pid"]
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(scene.call, token, "meet", secret=token, count=9) for token in TOKENS[:2]]
            poll(lambda: {*TOKENS[:2]} <= {*scene.said(TOKENS[3], "seen")["calls"]})
            os.kill(pid, signal.SIGSTOP)
            scene.at.advance_clock(LIMITS.response_seconds + 1, silent=True)
            assert [future.result(60)[-1]["error"]["code"] for future in waiting] == [-32000, -32000]
        poll(lambda: scene.processes == (1, 0))
        assert scene.said(TOKENS[3], "echo", secret="s")["pid"] != pid
        assert scene.processes[0] == 2


@pytest.mark.parametrize("path", ["", "witness"])
@pytest.mark.parametrize("progress", [None, "t"])
@pytest.mark.parametrize("leaver", TOKENS[:2])
def test_a_client_that_disconnects_cancels_only_its_own_call_under_a_shared_id(
    leaver: str, progress: Any, path: str
) -> None:
    """The other call comes from another client, or from another program with the same token."""
    with serving() as scene:
        scene.said(TOKENS[0], "echo", secret="first")
        with ThreadPoolExecutor(1) as pool:
            staying = pool.submit(scene.call, TOKENS[1], "meet", secret="stays", count=2, path=path, progress=progress)
            poll(lambda: "stays" in scene.said(TOKENS[3], "seen")["calls"])
            meta = {} if progress is None else {"_meta": {"progressToken": progress}}
            call = {"name": "meet" if path else "witness__meet", "arguments": {"secret": "leaves", "count": 9}, **meta}
            body, headers = stateless_request("tools/call", call, 7)
            with closing(http.client.HTTPConnection(scene.at.host, scene.at.port)) as leaving:
                headers |= {"Authorization": f"Bearer {leaver}", "Content-Type": "application/json"}
                headers |= {"Accept": "application/json, text/event-stream"}
                leaving.request("POST", "/mcp/witness" if path else "/mcp", body, headers)
                poll(lambda: "leaves" in scene.said(TOKENS[3], "seen")["calls"])
            poll(lambda: scene.said(TOKENS[3], "seen")["cancelled"] == ["leaves"])
            scene.call(TOKENS[2], "meet", secret="second", count=2)
            assert json.loads(staying.result(60)[-1]["result"]["content"][0]["text"])["secret"] == "stays"
        assert scene.said(TOKENS[3], "seen")["cancelled"] == ["leaves"]
        assert scene.processes == (1, 1)


def test_a_handshake_client_cancels_only_its_own_call_under_a_shared_id() -> None:
    with serving() as scene, ExitStack() as stack, ThreadPoolExecutor(2) as pool:

        def client(token: str, session: str = "") -> RawClient:
            raw = stack.enter_context(RawClient(scene.at, token=token))
            raw.session = session
            return raw

        def meet(raw: RawClient, secret: str, request_id: int) -> list[Any]:
            params = {"name": "witness__meet", "arguments": {"secret": secret, "count": 9}}
            _, headers, body = raw.send(json.dumps(rpc("tools/call", params, request_id)).encode())
            return messages(headers, body)

        def cancel(session: str, token: str, request_id: Any) -> None:
            note = rpc("notifications/cancelled", {"requestId": request_id}, None)
            client(token, session).send(json.dumps(note).encode())

        first, last = client(TOKENS[0]), client(TOKENS[1])
        for raw in (first, last):
            raw.initialize()
        calls = {
            request_id: pool.submit(meet, client(TOKENS[0], first.session), f"call-{request_id}", request_id)
            for request_id in (7, 8)
        }
        poll(lambda: {"call-7", "call-8"} <= {*scene.said(TOKENS[3], "seen")["calls"]})
        for request_id in (7, "7", 1 << 40, "pinwarden-0-1"):  # of a session without open calls
            cancel(last.session, TOKENS[1], request_id)
        assert scene.said(TOKENS[3], "seen")["cancelled"] == []
        for request_id, cancelled in ((7, ["call-7"]), (8, ["call-7", "call-8"])):
            cancel(first.session, TOKENS[0], request_id)
            poll(lambda expected=cancelled: scene.said(TOKENS[3], "seen")["cancelled"] == expected)  # type: ignore[misc]
            assert calls[request_id].result(60) == []


def test_when_a_shared_process_is_killed_every_waiting_client_gets_an_error_and_one_process_restarts() -> None:
    with serving() as scene:
        pid = scene.said(TOKENS[0], "echo", secret="first")["pid"]
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(scene.call, token, "meet", secret=token, count=9) for token in TOKENS[:2]]
            poll(lambda: {*TOKENS[:2]} <= {*scene.said(TOKENS[3], "seen")["calls"]})
            os.kill(pid, signal.SIGKILL)
            assert [future.result(60)[-1]["error"]["code"] for future in waiting] == [-32000, -32000]
        pids = {
            json.loads(answers[-1]["result"]["content"][0]["text"])["pid"] for answers in in_parallel(scene, "echo")
        }
        assert len(pids) == 1
        assert pids != {pid}
        assert scene.processes == (2, 1)


@pytest.mark.parametrize(
    ("capabilities", "shared"),
    [({"tools": {}}, True), ({"tools": {}, "logging": {}}, False), ({"tools": {}, "extensions": {"x/y": {}}}, False)],
)
def test_a_server_with_a_connection_bound_capability_is_not_shared(capabilities: dict[str, Any], shared: bool) -> None:
    with serving([*WITNESS, json.dumps(capabilities)]) as scene:
        pids = {scene.said(token, "echo", secret="s")["pid"] for token in TOKENS}
        assert len(pids) == (1 if shared else len(TOKENS))


@pytest.mark.parametrize(("options", "processes"), [([], 1), (["--no-shared-processes"], 2)])
def test_process_sharing_can_be_disabled(tmp_path: Path, options: list[str], processes: int) -> None:
    project = Project(tmp_path)
    command, *arguments = WITNESS
    project.lock({"witness": {"command": command, "args": arguments}})
    tokens = [project("gateway", "token", "add", name).out.strip() for name in ("alice", "bob")]
    with running(project, *options) as at:
        answers = [at.ask("witness", token, "tools/call", name="echo", arguments={"secret": "s"}) for token in tokens]
    texts = [answer["result"]["content"][0]["text"] for _, answer in answers]
    assert len({json.loads(text)["pid"] for text in texts}) == processes


def test_calls_of_one_client_that_fill_a_shared_process_leave_capacity_for_others() -> None:
    with serving(limits=replace(LIMITS, max_shared_in_flight=2)) as scene, ThreadPoolExecutor(4) as pool:
        scene.said(TOKENS[0], "echo", secret="first")
        flood = [
            pool.submit(scene.call, TOKENS[0], "meet", request_id=n, secret=f"flood-{n}", count=3) for n in range(4)
        ]
        poll(lambda: sum("flood" in str(call) for call in scene.said(TOKENS[1], "seen")["calls"]) == 2)
        assert scene.said(TOKENS[1], "echo", secret="other")["secret"] == "other"
        for _ in range(2):
            scene.call(TOKENS[1], "meet", secret="third", count=3)
        assert sorted(json.loads(call.result(60)[-1]["result"]["content"][0]["text"])["secret"] for call in flood) == [
            f"flood-{n}" for n in range(4)
        ]


def test_a_server_of_the_official_sdk_serves_all_clients_from_one_process() -> None:
    with serving([sys.executable, str(Path(stateless_witness.__file__).with_name("sdk_server.py")), "stdio"]) as scene:
        answers = in_parallel(scene, "weather", city="Oslo")
        assert [answer[-1]["id"] for answer in answers] == [7] * len(TOKENS)
        assert {answer[-1]["result"]["content"][0]["text"] for answer in answers} == {"fine in Oslo, 20 C"}
        assert scene.processes == (1, 1)
