"""Readers that leave, streams that are missing or full, narrow terminals: the verdict stays the verdict."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_lock_and_gate import NOTES, World

PINWARDEN = f"{shlex.quote(sys.executable)} -m pinwarden"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.configure({"notes": NOTES})
    assert world.run("init").code == 0
    return world


def shell(world: World, line: str, **variables: str) -> tuple[int, str, str]:
    """What a line of a shell leaves behind; ``pinwarden`` in it is ours."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.replace("pinwarden", PINWARDEN)],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        cwd=world.root,
        env={**os.environ, "HOME": str(world.home), **variables},
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def on_terminal(world: World, columns: int, *arguments: str) -> str:
    """What a terminal of that width shows."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pinwarden", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        cwd=world.root,
        env={**os.environ, "HOME": str(world.home), "COLUMNS": str(columns)},
    )
    os.close(terminal)
    shown = b""
    try:
        while chunk := os.read(controller, 65536):
            shown += chunk
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(controller)
    process.wait(60)
    return shown.decode().replace("\r\n", "\n")


class TestClosedPipes:
    def test_a_gate_that_found_drift_fails_even_if_the_pipe_is_closed(self, world: World) -> None:
        world.configure({"notes": {**NOTES, "args": ["acme-notes-mcp==1.5.0"]}})
        code, _, err = shell(world, "pinwarden ci | true")
        assert code in (1, 3)
        assert "Traceback" not in err

    def test_a_report_that_does_not_fit_the_pipe_is_not_clean(self, world: World) -> None:
        planted = {f"planted-{number}": {"command": "npx", "args": [f"x{number}@1.0.0"]} for number in range(600)}
        world.configure({"notes": NOTES, **planted})
        code, _, _ = shell(world, "pinwarden ci --format json | head -c 10 > /dev/null")
        assert code in (1, 3)

    def test_help_ends_quietly(self, world: World) -> None:
        for line in ("pinwarden --help | true", "pinwarden ci --help | true"):
            code, _, err = shell(world, line)
            assert (code, err) == (0, "")


class TestMissingAndFullStreams:
    def test_a_full_disk_is_reported_as_such(self, world: World) -> None:
        code, _, err = shell(world, "pinwarden list > /dev/full")
        assert code == 3
        assert "[FILE_UNWRITABLE]" in err
        assert "Exception ignored" not in err

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
    def test_a_closed_stream_does_not_change_the_exit_code(self, world: World, closed: str) -> None:
        before = world.lock.read_bytes()
        assert shell(world, f"pinwarden ci {closed}")[0] == 0
        assert shell(world, f"pinwarden init --by me {closed}")[0] == 0
        assert shell(world, f"pinwarden --version {closed}")[0] == 0
        assert world.lock.read_bytes() == before

    def test_a_name_that_the_encoding_lacks_is_spelt_out(self, world: World) -> None:
        world.configure({"notes": NOTES, "café": {"command": "npx", "args": ["x@1.0.0"]}})
        code, out, err = shell(world, "pinwarden ci", PYTHONIOENCODING="ascii")
        assert (code, err) == (1, "")
        assert "caf\\xe9" in out


class TestNarrowTerminals:
    @pytest.mark.parametrize("command", [("list",), ("ci",), ("init",), ("--help",), ("policy", "--help")])
    def test_lines_keep_within_forty_columns(self, world: World, command: tuple[str, ...]) -> None:
        shown = on_terminal(world, 40, *command)
        assert shown
        lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
        assert [line for line in lines if len(line) > 40] == []

    def test_a_program_reads_each_note_on_one_line(self, world: World) -> None:
        assert "note: live servers were not checked (--live)\n" in shell(world, "pinwarden ci", COLUMNS="40")[1]


def test_approving_without_variables_that_name_the_user_takes_the_systems_name(world: World) -> None:
    world.lock.unlink()
    env = {"PATH": os.environ["PATH"], "HOME": str(world.home)}
    done = subprocess.run(
        [sys.executable, "-m", "pinwarden", "init"], cwd=world.root, env=env, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(world.lock.read_bytes())["servers"].values()
    import pwd

    assert entry["capabilityManifest"]["pinwarden"]["approval"]["by"] == pwd.getpwuid(os.getuid()).pw_name
