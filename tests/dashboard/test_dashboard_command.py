"""``pinwarden dashboard`` as a process: its address, its codes, TLS, and what it refuses to start with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinwarden.gateway.inside_server import MARK
from tests.dashboard.world import Client
from tests.gateway.review_world import CHANGED, ReviewWorld, names

COMMAND = (sys.executable, "-m", "pinwarden", "dashboard")


@contextmanager
def started(*arguments: str) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """A running dashboard: its address and its first code."""
    with subprocess.Popen(
        [*COMMAND, "--listen", "127.0.0.1:0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            url = process.stdout.readline().strip()
            line = process.stderr.readline()
            found = re.fullmatch(r"pinwarden: sign in at (\S+) with the code (\S+)\n", line)
            assert found is not None, line
            assert found[1] == url
            yield url, found[2], process
        finally:
            process.kill()


def test_a_person_signs_in_with_the_code_from_the_terminal_and_approves(world: ReviewWorld) -> None:
    (name,) = world.serve(CHANGED)
    with started("--by", "ana") as (url, code, process):
        client = Client(url)
        assert client.get("/").headers["location"] == "/sign-in"
        assert client.sign_in(code).status == 303
        change = client.page(f"reviews/{name}/").values("change")
        assert client.submit("decide", {"change": change, "action": "approve", "why": "read it"}).status == 303
        assert names(world.approved()) == {"search": CHANGED["description"]}
        assert process.stderr is not None
        assert "with the code" in process.stderr.readline()  # the next one
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)
    assert world.events() == [("approved", "search", "ana", "read it")]


def test_a_viewer_is_a_viewer(world: ReviewWorld) -> None:
    with started("--role", "viewer") as (url, code, _):
        client = Client(url)
        assert client.sign_in(code).status == 303
        assert client.submit("reopen", {"name": "x"}).status == 403


def test_what_other_machines_could_read_is_refused(world: ReviewWorld, tmp_path: Path) -> None:
    outcome = world.run("dashboard", "--listen", "0.0.0.0:0")
    assert (outcome.code, "[DASHBOARD_UNAVAILABLE]" in outcome.err) == (3, True)
    outcome = world.run("dashboard", "--tls-cert", str(tmp_path / "none.pem"))
    assert (outcome.code, "[DASHBOARD_UNAVAILABLE]" in outcome.err) == (3, True)
    outcome = world.run("dashboard", "--tls-key", str(tmp_path / "none.pem"))
    assert (outcome.code, "[USAGE]" in outcome.err) == (2, True)


def test_attack_a_server_cannot_start_a_dashboard(world: ReviewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "notes")
    outcome = world.run("dashboard", "--listen", "127.0.0.1:0")
    assert (outcome.code, "[REVIEW_FROM_SERVER]" in outcome.err) == (1, True)
