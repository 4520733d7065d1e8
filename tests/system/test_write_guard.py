"""What a sandboxed server does to keep the write guard from renaming the repository that it plants."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pinwarden.system import write_guard
from pinwarden.system.processes import ProcessTree
from pinwarden.system.sandbox import Sandbox, build_sandbox_command
from tests.support.needs import needs

NAMES = frozenset({".git"})
PLANTING = """
import os, sys
os.chdir(sys.argv[1])
os.mkdir("stage")
print("ready", flush=True)
sys.stdin.readline()
{first}
os.rename("stage", {to!r})
{then}
print("planted", flush=True)
sys.stdin.read()
"""
HIDING = """
import os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
{hide}
with open({to!r}, "w") as file:
    file.write("gitdir: /elsewhere")
print("planted", flush=True)
sys.stdin.read()
"""
DEEP = """
here = os.open(".", 0)
for _ in range(30):
    os.mkdir("a" * 200)
    os.chdir("a" * 200)
os.fchdir(here)
"""


def respecting_modes() -> Callable[[], None]:
    """What a child does before it starts the guard, so that modes bind it as they bind a user. They do not bind root,
    who may run the tests."""
    prctl = ctypes.CDLL(None).prctl
    drop_capability, override_modes, read_all = 24, 1, 2  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH

    def drop() -> None:
        prctl(drop_capability, override_modes, 0, 0, 0)
        prctl(drop_capability, read_all, 0, 0, 0)

    return drop


def start(folder: Path, code: str) -> subprocess.Popen[bytes]:
    """A server in the sandbox that may write the folder. It plants as soon as a line is written to it."""
    sandbox = Sandbox(writable=(str(folder),), forbidden_names=tuple(NAMES))
    command = build_sandbox_command(
        ("/usr/bin/env", "python3", "-c", code, str(folder)), dict(os.environ), str(folder), sandbox
    )
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=respecting_modes(),  # noqa: PLW1509  two system calls, which take no lock
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def repositories(folder: Path) -> list[str]:
    return [name for _, folders, _ in os.walk(folder) for name in folders if name == ".git"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "w"
    made.mkdir()
    return made


@needs("bwrap", install="apt-get install bubblewrap")
@pytest.mark.parametrize(
    ("first", "to", "then"),
    [
        (DEEP, ".git", ""),
        ("os.mkdir('closed', 0)", ".git", ""),
        ("os.mkdir('closed')", "closed/.git", "os.chmod('closed', 0o555)"),
        ("os.mkdir('closed')", "closed/.git", "os.chmod('closed', 0)"),
    ],
    ids=["path-too-long", "unreadable-folder", "repository-in-read-only-folder", "repository-in-unreadable-folder"],
)
def test_attack_a_server_cannot_keep_its_repository_by_making_the_folder_uncheckable(
    folder: Path, first: str, to: str, then: str
) -> None:
    """The guard ended with an error, and the repository stayed."""
    with start(folder, PLANTING.format(first=first, to=to, then=then)) as process:
        _, stderr = process.communicate(b"\n", timeout=60)
    assert process.returncode == 1
    assert b"stopped the server, because" in stderr
    assert b"Traceback" not in stderr
    with suppress(FileNotFoundError):
        (folder / "closed").chmod(0o700)
    assert repositories(folder) == []


@needs("bwrap", install="apt-get install bubblewrap")
@pytest.mark.parametrize(
    ("hide", "to"),
    [
        ("os.chmod('closed', 0o333)", "closed/.git"),
        ("os.chdir('closed/deep'); os.chmod('..', 0)", ".git"),
    ],
    ids=["unreadable-folder", "below-an-unreadable-folder"],
)
def test_attack_a_server_that_hides_an_existing_folder_before_it_plants_there_is_stopped(
    folder: Path, hide: str, to: str
) -> None:
    """The guard took the unreadable folder for one without forbidden names, and the server went on. Its input stays
    open, so that it does not end by itself."""
    (folder / "closed/deep").mkdir(parents=True)
    with start(folder, HIDING.format(hide=hide, to=to)) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        try:
            assert process.wait(60) == 1
        finally:
            process.terminate()
        stderr = process.stderr.read()
    assert b"stopped the server, because its files cannot be checked: Permission denied" in stderr
    assert b"Traceback" not in stderr
    (folder / "closed").chmod(0o700)
    assert [path.name for path in folder.rglob(".git*")] == [f".git{write_guard.BLOCKED_SUFFIX}"]


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is part of Linux")
def test_a_server_does_not_start_if_a_folder_was_unreadable_before(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o333)
    command = [sys.executable, write_guard.__file__, ".git", str(folder), "--", "/usr/bin/env", "echo", "started"]
    done = subprocess.run(command, capture_output=True, preexec_fn=respecting_modes(), timeout=60, check=False)
    closed.chmod(0o700)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"could not watch a writable folder: Permission denied" in done.stderr


@needs("bwrap", install="apt-get install bubblewrap")
def test_attack_a_server_that_provokes_its_own_end_does_not_end_the_guard_before_it_renamed_the_repository(
    folder: Path,
) -> None:
    """The gateway killed the whole group, for example after a message that is too long. The guard is held while the
    repository is planted, as on a busy machine."""
    with start(folder, PLANTING.format(first="", to=".git", then="")) as process:
        tree = ProcessTree(process)
        os.kill(process.pid, signal.SIGSTOP)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"planted\n"
        tree.kill()
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        tree.end(60, immediately=True)
    assert repositories(folder) == []


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is part of Linux")
def test_attack_a_folder_that_appears_while_events_are_lost_is_watched_all_the_same(folder: Path) -> None:
    watch = write_guard._FolderWatch(NAMES)
    try:
        watch.add(str(folder))
        most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        if most > 100_000:
            pytest.skip("it would take too long to fill this machine's queue of events")
        for number in range(most + 1):
            (folder / f"{number % 2}").touch()
            (folder / f"{number % 2}").unlink()
        (folder / "new/deep").mkdir(parents=True)
        assert write_guard._is_allowed(watch, [str(folder)], NAMES, set())
        (folder / "new/deep/.git").mkdir()
        assert not write_guard._is_allowed(watch, [str(folder)], NAMES, set())
    finally:
        os.close(watch.descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is part of Linux")
def test_attack_too_many_files_stop_the_server_and_do_not_hide_what_it_created(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard ended with an error, and what was forbidden stayed."""
    watch = write_guard._FolderWatch(NAMES)
    try:
        watch.add(str(folder))
        for number in range(4):
            (folder / f"{number}").touch()
        (folder / ".git").mkdir()
        monkeypatch.setattr(write_guard, "MAX_ENTRIES", 3)
        assert not write_guard._is_allowed(watch, [str(folder)], NAMES, set())
        assert write_guard._rename_all_created([str(folder)], NAMES, set())
    finally:
        os.close(watch.descriptor)
    assert repositories(folder) == []
