"""Process limits of the HTTP gateway: how many run, how long, and the error at the limit."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinwarden.core.record import replace
from pinwarden.gateway.http.http_limits import HttpLimits
from tests.cli.run import pinwarden
from tests.gateway.http_gateway import (
    OTHER_TOKEN,
    EventStream,
    RawClient,
    RunningGateway,
    UpstreamServer,
    gateway,
    guard,
)
from tests.gateway.session_harness import SEARCH, approved_surface
from tests.gateway.test_gateway_command import Project, running
from tests.servers import turning
from tests.support.waiting import poll

STATE: dict[str, Any] = {"tools": [SEARCH]}
LIMITS = HttpLimits(reload_seconds=0.05, merged_opening_seconds=60, merged_list_seconds=60)
FULL = "the gateway runs 1 server processes already, which is its limit"


def script(folder: Path, eras: Sequence[str]) -> list[str]:
    path = folder / f"{'-'.join(eras)}.json"
    path.write_text(json.dumps({"states": [STATE], "eras": list(eras)}))
    return [sys.executable, str(Path(turning.__file__)), f"@{path}"]


@contextmanager
def serving(
    commands: dict[str, list[str]], limits: HttpLimits = LIMITS
) -> Iterator[tuple[RunningGateway, dict[str, UpstreamServer]]]:
    servers = {
        name: UpstreamServer(guard(name, None if name == "strict" else approved_surface(STATE)), command=command)
        for name, command in sorted(commands.items())
    }
    with gateway(servers, limits=limits) as at:
        yield at, servers


def starts(servers: dict[str, UpstreamServer]) -> dict[str, int]:
    return {name: server.supervisor.starts for name, server in servers.items() if server.supervisor is not None}


def tools(answer: Any) -> list[str]:
    return [tool["name"].partition("__")[0] for tool in answer["result"]["tools"]]


@pytest.mark.parametrize("era", ["newest", "handshake"])
def test_five_stdio_servers_at_the_merged_endpoint_use_five_processes(era: str, tmp_path: Path) -> None:
    commands = {f"old-{number}": script(tmp_path, ["initialize"]) for number in range(4)}
    commands["new"] = script(tmp_path, ["discover"])
    with serving(commands) as (at, servers), RawClient(at) as raw:
        if era == "handshake":
            raw.initialize()
        ask = raw.session_request if era == "handshake" else raw.request
        assert tools(ask("tools/list")) == sorted(commands)
        for name in commands:
            assert "result" in ask("tools/call", {"name": f"{name}__search_notes", "arguments": {}}, 7)
        assert starts(servers) == dict.fromkeys(commands, 1)


def test_a_second_session_starts_only_stateful_servers_again(tmp_path: Path) -> None:
    commands = {"old": script(tmp_path, ["initialize"]), "new": script(tmp_path, ["discover"])}
    with serving(commands) as (at, servers), RawClient(at) as first, RawClient(at) as second:
        for raw in (first, second):
            raw.initialize()
            assert tools(raw.session_request("tools/list")) == ["new", "old"]
        assert starts(servers) == {"new": 1, "old": 2}


STRICT = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] != "initialize" and not globals().get("begun"):
        sys.exit(1)
    begun = True
    if message["method"] == "initialize":
        info = {"name": "strict", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "serverInfo": info, "capabilities": {"tools": {}}}
    else:
        result = {"tools": [json.loads(sys.argv[1])]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def test_a_server_that_exits_without_a_handshake_is_served_at_the_merged_endpoint(
    tmp_path: Path,
) -> None:
    commands = {
        "strict": [sys.executable, "-c", STRICT, json.dumps(SEARCH)],
        "old": script(tmp_path, ["initialize"]),
    }
    with serving(commands, replace(LIMITS, first_backoff_seconds=0.01)) as (at, servers), RawClient(at) as raw:
        raw.initialize()
        assert tools(raw.session_request("tools/list")) == ["old", "strict"]
        assert starts(servers) == {"old": 1, "strict": 2}


def test_a_client_without_any_process_slot_gets_an_error_with_the_limit_instead_of_an_empty_list(
    tmp_path: Path,
) -> None:
    commands = {"old": script(tmp_path, ["initialize"]), "new": script(tmp_path, ["discover"])}
    with (
        serving(commands, replace(LIMITS, max_processes=1, share_processes=False)) as (at, _),
        RawClient(at) as first,
        RawClient(at, token=OTHER_TOKEN) as second,
    ):
        first.initialize()
        assert tools(first.session_request("tools/list")) == ["new", "old"]
        for method in ("server/discover", "tools/list"):
            error = second.request(method)["error"]
            assert error["code"] == -32000
            assert error["message"].startswith(f"no server is available: new: {FULL}")
            assert "--max-processes" in error["message"]
        assert FULL in second.initialize()["error"]["message"]


def test_a_session_without_a_process_slot_gets_an_error_with_the_limit(tmp_path: Path) -> None:
    with (
        serving({"old": script(tmp_path, ["initialize"])}, replace(LIMITS, max_processes=1)) as (at, _),
        RawClient(at, "old") as first,
        RawClient(at, "old", token=OTHER_TOKEN) as second,
    ):
        assert "result" in first.initialize()
        assert FULL in second.initialize()["error"]["message"]


def test_a_list_and_a_call_name_the_server_that_got_no_process_slot(tmp_path: Path) -> None:
    commands = {"old": script(tmp_path, ["initialize"]), "other": script(tmp_path, ["initialize"])}
    with (
        serving(commands, replace(LIMITS, max_processes=1)) as (at, _),
        RawClient(at, "old", token=OTHER_TOKEN) as first,
        RawClient(at) as second,
    ):
        first.initialize()
        second.initialize()
        result = second.session_request("tools/list")["result"]
        assert [tool["name"] for tool in result["tools"]] == ["other__search_notes"]
        assert list(result["_meta"]["pinwarden/unavailable"]) == ["old"]
        assert FULL in result["_meta"]["pinwarden/unavailable"]["old"]
        error = second.session_request("tools/call", {"name": "old__search_notes", "arguments": {}}, 3)["error"]
        assert error["message"].startswith(f"the server old is unavailable: {FULL}")


def test_idle_processes_of_an_open_session_end_and_restart_on_demand(
    tmp_path: Path,
) -> None:
    commands = {"old": script(tmp_path, ["initialize"]), "new": script(tmp_path, ["discover"])}
    with serving(commands) as (at, servers), RawClient(at) as raw:
        raw.initialize()
        assert tools(raw.session_request("tools/list")) == ["new", "old"]
        with EventStream(at, raw.session):
            at.advance_clock(LIMITS.idle_seconds + 1)
            poll(lambda: not any(server.supervisor and server.supervisor.running for server in servers.values()))
            assert "result" in raw.session_request("tools/call", {"name": "old__search_notes", "arguments": {}}, 8)
            assert tools(raw.session_request("tools/list")) == ["new", "old"]
        assert starts(servers) == {"old": 2, "new": 2}


def test_the_process_limit_is_configurable(tmp_path: Path) -> None:
    project = Project(tmp_path)
    command, *arguments = script(tmp_path, ["initialize"])
    project.lock({"notes": {"command": command, "args": arguments}})
    with running(project, "--max-processes", "1", "--idle-seconds", "3600") as at:
        assert at.hello("notes", at.token)[2] is None
        error = at.hello("notes", at.token)[2]
        assert FULL in error["message"]


@pytest.mark.parametrize("count", ["0", "-1", "4097", "many", "1" * 5000])
def test_an_invalid_process_limit_is_rejected(count: str) -> None:
    done = pinwarden("gateway", f"--max-processes={count}")
    assert done.code == 2
    assert "is not a number of processes from 1 to 4096" in done.err
