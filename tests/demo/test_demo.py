"""``pinwarden demo``: every chapter of the story, played with real commands."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pinwarden.cli.commands import demo as demo_command
from pinwarden.cli.main import main
from pinwarden.core.errors import PinwardenError
from pinwarden.demo.services import build_wheel
from pinwarden.demo.stage import Stage, shorten
from tools import record_demo

CHAPTERS = (
    "1. Find",
    "2. Pin",
    "3. Lock and verify",
    "4. Approve",
    "5. Enforce",
    "6. Check in CI",
    "7. The rug pull",
    "8. The gateway blocks it",
    "9. Decide",
    "10. Run a registry",
    "11. Publish",
    "12. Install",
    "13. Verify the log",
)


def run_demo(home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "pinwarden", "demo"],
        env=environment | variables,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo as it is run in another home, whose settings are useless, and what it printed."""
    home = tmp_path_factory.mktemp("home")
    temporary = home / "tmp"
    temporary.mkdir()
    others = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/", "PINWARDEN_DATABASE": "nowhere", "XDG_DATA_HOME": "/dev/null"}
    done = run_demo(home, TMPDIR=str(temporary), **others)
    assert done.returncode == 0, done.stdout + done.stderr
    return home, done.stdout


def test_the_demo_plays_every_chapter(played: tuple[Path, str]) -> None:
    lines = played[1].splitlines()
    assert [line for line in lines if line in CHAPTERS] == list(CHAPTERS)
    for outcome in (
        '  +        "pinwarden-demo-notes@1.0.0"',
        "  2 entries checked: everything is as approved",
        "  2 entries checked: 2 findings, 1 of them critical",
        "The model sees no tool.",
        "The model sees sunrise.",
        "  1 event of 1 tool: all entries match the signed head",
    ):
        assert outcome in lines
    assert "  ACCEPT acme.notes 1.0.0 on stable; start it with: pinwarden run acme.notes" in lines


def test_the_demo_leaves_nothing_behind(played: tuple[Path, str]) -> None:
    home, _ = played
    assert list(home.rglob("*")) == [home / "tmp"]


def test_the_recording_shows_what_the_demo_prints(played: tuple[Path, str]) -> None:
    story, _, _ = played[1].rpartition("\n\nOn your own servers")
    recorded = record_demo.PICTURE.read_text(encoding="utf-8")
    assert record_demo.read_constant_text(recorded) == record_demo.read_constant_text(record_demo.draw(story))
    ET.fromstring(recorded)
    assert "http://" not in recorded.replace("http://www.w3.org/2000/svg", "").replace("http://127.0.0.1", "")


def test_a_command_that_fails_ends_the_demo_with_its_output(tmp_path: Path) -> None:
    output = io.StringIO()
    stage = Stage(tmp_path, output, variables={}, columns=80)
    with pytest.raises(PinwardenError, match="exit code 3 instead of 0") as refused:
        stage.run("explain absent")
    assert refused.value.code == "DEMO_FAILED"
    assert "[LOCK_MISSING]" in output.getvalue()
    with pytest.raises(PinwardenError, match="did not print 'absent'"):
        stage.run("status", expect=["absent"])


def test_a_server_that_does_not_start_ends_the_demo_with_its_log(tmp_path: Path) -> None:
    output = io.StringIO()
    stage = Stage(tmp_path, output, variables={}, columns=80)
    with (
        pytest.raises(PinwardenError, match="did not start"),
        stage.serve("registry serve --port nowhere", lines=3),
    ):
        pass
    assert "[USAGE]" in output.getvalue()


def test_without_the_registry_extra_the_demo_ends_after_the_decision(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_command, "find_spec", lambda name: None if name == "starlette" else object())
    assert main(["demo"]) == 0
    printed = capfd.readouterr().out
    assert "9. Decide" in printed
    assert "10. Run a registry" not in printed
    assert 'pip install "pinwarden[registry]"' in printed


def test_the_package_of_the_demo_has_always_the_same_bytes() -> None:
    assert build_wheel() == build_wheel()


def test_a_line_that_is_too_long_is_cut_with_an_ellipsis() -> None:
    assert shorten("12345", 5) == "12345"
    assert shorten("123456", 5) == "1234…"
