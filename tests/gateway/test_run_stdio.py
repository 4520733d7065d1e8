"""``pinwarden run`` as a process: streams, signals, first use and warnings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import pinwarden
from tests.gateway.session_harness import DELETE, SEARCH
from tests.gateway.test_drift_sequences_stdio import SERVER, Client, gateway

HONEST = {"states": [{"tools": [SEARCH, DELETE]}]}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t"}}
# Prints a log line to stdout, then answers each call with its environment, or with as many bytes as requested; exits
# with code 7.
PLAYER = """
import json, os, sys
print("listening", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method = message["method"]
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "p"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "environment", "inputSchema": {}}, {"name": "bytes", "inputSchema": {}}]}
    elif message["params"]["name"] == "bytes":
        result = {"content": [{"type": "text", "text": "x" * message["params"]["arguments"]["count"]}]}
    else:
        result = {"structuredContent": dict(os.environ)}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
sys.exit(7)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(HONEST))
    return f"@{path}"


def talk(*messages: dict[str, Any]) -> bytes:
    return "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages).encode()


OPENING = ({"id": 1, "method": "initialize", "params": HELLO}, {"method": "notifications/initialized"})


def test_run_keeps_environment_large_results_and_exit_code_and_drops_non_json_output(
    tmp_path: Path,
) -> None:
    large = 8_000_000
    done = pinwarden(
        "run",
        "--",
        sys.executable,
        "-c",
        PLAYER,
        stdin=talk(
            *OPENING,
            {"id": 2, "method": "tools/call", "params": {"name": "environment"}},
            {"id": 3, "method": "tools/call", "params": {"name": "bytes", "arguments": {"count": large}}},
        ),
        cwd=tmp_path,
        env={"PINWARDEN_STATE": str(tmp_path / "state"), "TOKEN_OF_THE_SERVER": "kept"},
    )
    answers = {message["id"]: message["result"] for message in map(json.loads, done.out.splitlines())}
    assert done.code == 7
    assert sorted(answers) == [1, 2, 3]
    environment = answers[2]["structuredContent"]
    assert environment["TOKEN_OF_THE_SERVER"] == "kept"
    assert not {name for name in environment if name.startswith("PINWARDEN_")} - {"PINWARDEN_STARTED_SERVER"}
    assert len(answers[3]["content"][0]["text"]) == large
    assert "First use of this server: 2 items" in done.err


def test_first_use_is_reported_once_per_command_line(tmp_path: Path, script: str) -> None:
    said = []
    for extra in ((), (), ("--more",)):
        with gateway(tmp_path, sys.executable, str(SERVER), script, *extra) as (client, stderr):
            assert client.names() == ["search_notes", "delete_note"]
        said.append(stderr.read_text().count("First use"))
    assert said == [1, 1, 2]


def test_an_unlocked_server_is_refused_where_a_lock_is_required(tmp_path: Path, script: str) -> None:
    started = tmp_path / "started"
    touch = f"open({str(started)!r}, 'w')"
    done = pinwarden("run", "--require-lock", "--", sys.executable, "-c", touch, cwd=tmp_path)
    assert (done.code, done.out) == (1, "")
    assert "[SERVER_NOT_LOCKED]" in done.err
    assert not started.exists(), script


def test_a_damaged_store_is_not_a_first_use(tmp_path: Path, script: str) -> None:
    """Attack: damage the store, so that everything is trusted on first use again."""
    with gateway(tmp_path, sys.executable, str(SERVER), script) as (client, _):
        assert client.names() == ["search_notes", "delete_note"]
    database = tmp_path / "state" / "gateway.sqlite"
    for beside in ("-wal", "-shm"):  # otherwise SQLite would repair the file from its write-ahead log
        database.with_name(database.name + beside).unlink(missing_ok=True)
    database.write_bytes(b"garbage" * 1000)
    with gateway(tmp_path, sys.executable, str(SERVER), script) as (client, stderr):
        answer = client.ask("tools/call", {"name": "search_notes"})
    assert "error" in answer
    assert stderr.read_text().count("First use") == 1


def test_a_resource_link_in_a_fast_path_result_can_be_read(tmp_path: Path) -> None:
    link = json.dumps({"content": [{"type": "resource_link", "uri": "notes://7", "name": "7"}]}, separators=(",", ":"))
    state = {"tools": [SEARCH], "resources": [], "answers": {"tools/call": link}}
    (tmp_path / "script.json").write_text(json.dumps({"states": [state]}))
    with gateway(tmp_path, sys.executable, str(SERVER), f"@{tmp_path / 'script.json'}") as (client, _):
        assert "error" in client.ask("resources/read", {"uri": "notes://7"})
        for _ in range(3):
            assert client.ask("tools/call", {"name": "search_notes"})["result"] == json.loads(link)
        assert "result" in client.ask("resources/read", {"uri": "notes://7"})


def test_an_unreadable_policy_file_prevents_the_start(tmp_path: Path, script: str) -> None:
    (tmp_path / "pinwarden.toml").write_text('[policy.gateway]\nenforcment = "audit"\n')
    done = pinwarden("run", "--", sys.executable, str(SERVER), script, cwd=tmp_path)
    assert done.code == 3
    assert "policy.gateway.enforcment" in done.err


def test_a_signal_to_run_ends_the_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pinwarden", "run", "--", sys.executable, "-c", PLAYER]
    environment = {**os.environ, "PINWARDEN_STATE": str(tmp_path / "state")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd=tmp_path
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        client = Client(process.stdin, process.stdout)
        client.ask("initialize", HELLO)
        client.notify("notifications/initialized")
        name = client.ask("tools/call", {"name": "environment"})["result"]["structuredContent"]
        assert name["PINWARDEN_STARTED_SERVER"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


def test_a_missing_program_is_named_in_the_error(tmp_path: Path) -> None:
    done = pinwarden("run", "--", "no-such-program-anywhere", cwd=tmp_path)
    assert "[PROGRAM_UNKNOWN]" in done.err
    assert "[USAGE]" in pinwarden("run", cwd=tmp_path).err


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('enforcement = "audit"', 'the policy says enforcement = "audit": changes are recorded, but not blocked'),
        ('enforcement = "warn"', "changes are recorded, and reported to clients, but not blocked"),
        ('unknown = "warn"', 'the policy says unknown = "warn": unapproved items pass'),
        ('block-at = "review"', ""),
    ],
)
def test_run_warns_when_a_folders_policy_allows_unapproved_tools(tmp_path: Path, table: str, said: str) -> None:
    (tmp_path / "pinwarden.toml").write_text(f"[policy.gateway]\n{table}\n")
    done = pinwarden("run", "--project", ".", "--", sys.executable, "-c", PLAYER, stdin=talk(*OPENING), cwd=tmp_path)
    assert said in done.err
    assert ("the policy says" in done.err) is bool(said)
