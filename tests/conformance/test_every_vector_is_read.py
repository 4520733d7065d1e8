"""No recording of ToolPin lies unread: each is opened by a conformance test, or a reason says why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.vectors import REPOSITORY, vectors_dir

TOOLPIN = vectors_dir() / "toolpin"

NOT_READ = {
    "README.md": "for people",
    "freeze.mjs": "stops the clock of ToolPin itself; our clock is an argument",
    "registry_server.py": "run as a program of its own, by test_toolpin_ci.py",
}

WATCH = """
import os, sys
from pathlib import Path

FOLDER = os.environ["WATCHED_FOLDER"] + os.sep
opened = set()

def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
        path = os.fspath(arguments[0])
        if isinstance(path, str) and path.startswith(FOLDER):
            opened.add(path.removeprefix(FOLDER).replace(os.sep, "/"))

sys.addaudithook(watch)

def pytest_sessionfinish(session, exitstatus):
    Path(os.environ["WATCHED_LIST"]).write_text("\\n".join(sorted(opened)))
"""


@pytest.mark.soak  # runs all these tests once more
def test_every_recording_is_read_by_some_conformance_test(tmp_path: Path) -> None:
    (tmp_path / "watch_vectors.py").write_text(WATCH)
    suites = sorted(path.name for path in Path(__file__).parent.glob("test_*toolpin*.py"))
    suites.append("test_foreign_canonical_forms.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "-m", "not soak"]
        + ["-p", "no:cacheprovider", "-p", "watch_vectors"]
        + [f"tests/conformance/{name}" for name in suites],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "WATCHED_FOLDER": str(TOOLPIN),
            "WATCHED_LIST": str(tmp_path / "opened"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    opened = set((tmp_path / "opened").read_text().splitlines())
    there = {
        path.relative_to(TOOLPIN).as_posix() for path in TOOLPIN.rglob("*") if path.is_file() and path.suffix != ".pyc"
    }
    if vectors_dir() == REPOSITORY / "tests" / "vectors":
        assert there - opened == set(NOT_READ)
    else:  # another collection may hold recordings of runs that gave no lock; none of its folders lies unread
        assert {Path(name).parent for name in there} == {Path(name).parent for name in opened}
