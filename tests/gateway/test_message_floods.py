"""Attacks by repetition: floods of messages fill neither the log nor stderr, and delay no client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.system.service_log import MAX_LINES_PER_SECOND, ServiceLog
from tests.gateway.session_harness import SEARCH, SessionHarness
from tests.gateway.test_run_stdio import OPENING, PLAYER, talk


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"jsonrpc":"2.0","id":900000,"result":{}}', "answer_unasked"),
        (b'{"jsonrpc":"2.0","method":"tools/call"}', "request_without_id"),
        (b'{"jsonrpc":"2.0","a":1,"a":2}', "JSON_CANONICALIZATION_ERROR"),
    ],
)
def test_attack_a_flood_of_unmatched_responses_is_counted_in_the_log_not_listed(line: bytes, code: str) -> None:
    harness = SessionHarness({"tools": [SEARCH]})
    harness.open()
    before, sent = len(harness.events), len(harness.to_client)
    for _ in range(3000):
        harness.server_sends(line)
    events = harness.events[before:]
    assert [fact.code for fact in events] == [code] * 4
    assert [fact.reason.partition(events[0].reason)[2] for fact in events] == [
        "",
        " 10 times in this session.",
        " 100 times in this session.",
        " 1000 times in this session.",
    ]
    assert len(harness.to_client) == sent
    assert "result" in harness.call_tool("search_notes")


def test_attack_a_flood_of_server_requests_is_logged_singly_at_first_and_then_only_counted() -> None:
    harness = SessionHarness({"tools": [SEARCH]})
    harness.open()
    before, sent = len(harness.events), len(harness.to_server)
    for request_id in range(3000):
        harness.server_sends(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "no/such/method"}).encode())
    events = harness.events[before:]
    assert len(harness.to_server) - sent == 3000, "every request is answered"
    assert [fact.call.rpartition("/")[2] for fact in events[:100]] == [str(request_id) for request_id in range(100)]
    counted = [" 10 times", " 100 times", " 1000 times"]
    assert [fact.reason.partition(events[0].reason)[2] for fact in events[100:]] == [
        "",
        *(f"{line} in this session." for line in counted),
    ]


def test_a_refusal_that_could_not_be_recorded_is_recorded_the_next_time() -> None:
    harness = SessionHarness({"tools": [SEARCH]})
    harness.open()
    unasked = b'{"jsonrpc":"2.0","id":900000,"result":{}}'
    step = harness.session.on_server_message(unasked, harness.now)
    assert len(step.events) == 1
    harness.session.replace_unrecorded(step, PinwardenError("DATABASE_UNAVAILABLE", "full"))
    assert len(harness.session.on_server_message(unasked, harness.now).events) == 1


def test_log_lines_above_the_rate_limit_are_counted() -> None:
    lines: list[str] = []
    now = [0.0]
    log = ServiceLog(lines.append, clock=lambda: now[0])
    for number in range(MAX_LINES_PER_SECOND + 30):
        log(str(number))
    now[0] = 1.0
    log("later")
    log.close(60)
    counted = [text for text in lines if "dropped" in text]
    assert [text for text in lines if text not in counted] == [*map(str, range(MAX_LINES_PER_SECOND)), "later"]
    assert sum(int(text.split()[0]) for text in counted) == 30


def test_a_slow_reader_of_the_log_does_not_block_the_gateway() -> None:
    read = Event()
    lines: list[str] = []

    def write(text: str) -> None:
        assert read.wait(60)
        lines.append(text)

    log = ServiceLog(write)
    for number in range(5):
        log(str(number))
    assert lines == []
    read.set()
    log.close(60)
    assert lines == ["0", "1", "2", "3", "4"]


def test_json_log_lines_have_time_level_and_message_and_lower_levels_are_omitted() -> None:
    lines: list[str] = []
    log = ServiceLog(print, lines.append, level="warning", log_format="json")
    log("the server ended")
    log.warning("blocked tool 'a\u202e\n::error'")
    log.error("no database")
    log.close(60)
    logged = [json.loads(line) for line in lines]
    assert [(entry["level"], entry["message"]) for entry in logged] == [
        ("warning", "blocked tool 'a\u202e\n::error'"),
        ("error", "no database"),
    ]
    assert all(entry["time"].endswith("Z") for entry in logged)
    assert all(line.isascii() and "\n" not in line for line in lines)


def fill(pipe: int) -> None:
    """Fill a pipe, so that the next write blocks."""
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 4096)
    os.set_blocking(pipe, True)


def test_a_gateway_with_an_unread_stderr_relays_and_shuts_down(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    fill(writes)
    done = subprocess.run(
        [sys.executable, "-m", "pinwarden", "run", "--", sys.executable, "-c", PLAYER],
        input=talk(*OPENING, {"id": 2, "method": "tools/call", "params": {"name": "environment"}}),
        stdout=subprocess.PIPE,
        stderr=writes,
        cwd=tmp_path,
        env={**os.environ, "PINWARDEN_STATE": str(tmp_path / "state")},
        timeout=240,
        check=False,
    )
    os.close(reads)
    os.close(writes)
    assert done.returncode == 7
    assert [line[:24] for line in done.stdout.splitlines()] == [b'{"jsonrpc": "2.0", "id":'] * 2
