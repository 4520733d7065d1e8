"""The example server is one that works: it keeps notes, and says what a caller did wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cli.run import pinwarden

SERVER = Path(__file__).parents[2] / "examples" / "notes_server.py"


def conversation(*lines: Any) -> list[Any]:
    """What the server answers to these lines."""
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    command = [sys.executable, str(SERVER)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=240, check=True)
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def test_notes_that_are_written_are_found_until_they_are_deleted() -> None:
    answers = conversation(
        {"jsonrpc": "2.0", "id": 0, "method": "tools/list"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        call(1, "write_note", text="Water the Fern"),
        call(2, "search_notes", query="fern"),
        call(3, "delete_note", id="3"),
        call(4, "search_notes", query="fern"),
        call(5, "delete_note", id="3"),
    )
    assert [tool["name"] for tool in answers[0]["result"]["tools"]] == ["search_notes", "write_note", "delete_note"]
    results = [(each["id"], each["result"]["content"][0]["text"], each["result"]["isError"]) for each in answers[1:]]
    assert results == [
        (1, "3", False),
        (2, "3: Water the Fern", False),
        (3, "deleted: Water the Fern", False),
        (4, "no note holds that", False),
        (5, "there is no note 3", True),
    ]


def test_wrong_calls_are_errors_and_the_server_goes_on() -> None:
    answers = conversation(
        "not json",
        "[]",
        call(1, "__init__"),
        call(2, "write_note", text=7),
        call(3, "write_note", text="a", more="b"),
        {"jsonrpc": "2.0", "id": 4, "method": "tools/call"},
        {"jsonrpc": "2.0", "id": 5, "method": "resources/list"},
        {"jsonrpc": "2.0", "id": 6, "method": "tools/call", "params": {"name": []}},
        {"jsonrpc": "2.0", "id": 7, "method": "ping"},
    )
    assert [(each["id"], each.get("error", {}).get("code")) for each in answers] == [
        (None, -32700),
        (None, -32700),
        (1, -32602),
        (2, -32602),
        (3, -32602),
        (4, -32602),
        (5, -32601),
        (6, -32602),
        (7, None),
    ]


def test_the_example_project_can_be_locked_and_is_as_approved(tmp_path: Path) -> None:
    shutil.copytree(SERVER.parent, tmp_path / "examples")
    project = tmp_path / "examples" / "project"
    env = {"HOME": str(tmp_path)}
    locked = pinwarden("init", "--by", "reader", cwd=project, env=env)
    assert (locked.code, "2 of 2 configured servers locked" in locked.out) == (0, True), locked
    approved = pinwarden("approve", "notes", "--allow-execute", "--yes", "--by", "reader", cwd=project, env=env)
    assert approved.code == 0, approved
    assert pinwarden("ci", "--live", "--allow-execute", cwd=project, env=env).code == 0
