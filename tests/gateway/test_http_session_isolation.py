"""Many short concurrent sessions never receive or execute messages of another session."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CALLS = 3


def run_sessions(folder: Path, count: int, seconds: float) -> dict[str, Any]:
    words = [sys.executable, "-m", "tests.gateway.many_sessions", str(folder), str(count)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"the gateway died with {done.returncode}: {done.stderr[-2000:]}"
    assert done.stderr == ""
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def assert_sessions_stayed_apart(folder: Path, count: int, seconds: float) -> None:
    report = run_sessions(folder, count, seconds)
    assert report["wrong"] == []
    assert len(report["served"]) == count
    assert Counter(noise for *_, noise in report["reports"]) == {"0": count}, "servers received only messages"
    assert {(secret, nonce, calls) for nonce, calls, secret, _ in report["reports"]} == {
        (secret, nonce, str(CALLS)) for secret, nonce in report["served"].items()
    }, "every server executed only the calls of its session"
    assert report["disturbed"] == [], "files and pipes of other threads are untouched"
    assert report["turns"] > count / 10, "other threads used files and pipes"
    assert report["closed_twice"] == []
    assert report["pipes"] == 3 * count
    assert report["checked"] > count / 10
    assert report["left_open"] == []


def test_two_hundred_short_sessions_under_uvloop_stay_isolated(tmp_path: Path) -> None:
    assert_sessions_stayed_apart(tmp_path, 200, 280)


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_five_thousand_short_sessions_under_uvloop_stay_isolated(tmp_path: Path) -> None:
    assert_sessions_stayed_apart(tmp_path, 5000, 1400)
