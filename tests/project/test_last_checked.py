"""The record of when servers were last checked: bounded, and safe with many writers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pinwarden.project.last_checked import FILE_NAME, MAX_SERVERS, read_last_checked, record_checked
from pinwarden.project.project import Project

_WRITER = """
import sys
from pathlib import Path
from pinwarden.project.last_checked import record_checked
folder, lock, name = sys.argv[1:]
for number in range(5):
    record_checked(Path(folder), Path(lock), (f"{name}-{number}",))
"""


def times_of(folder: Path, lock: Path) -> dict[str, str]:
    project = Project(root=lock.parent, lock=lock, home=lock.parent, variables={"PINWARDEN_STATE": str(folder)})
    return dict(read_last_checked(project).times.get(str(lock.resolve()), {}))


def test_processes_that_write_at_the_same_time_lose_no_time(tmp_path: Path) -> None:
    folder, lock = tmp_path / "state", tmp_path / "mcp-lock.json"
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(folder), str(lock), f"writer-{number}"])
        for number in range(4)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert set(times_of(folder, lock)) == {f"writer-{number}-{turn}" for number in range(4) for turn in range(5)}


def test_the_servers_checked_longest_ago_are_forgotten_first(tmp_path: Path) -> None:
    folder, lock, old = tmp_path / "state", tmp_path / "mcp-lock.json", tmp_path / "gone" / "mcp-lock.json"
    folder.mkdir(mode=0o700)
    rows = {f"server-{number}": f"2026-01-01T00:00:{number % 60:02}Z" for number in range(MAX_SERVERS)}
    document = {"format": "pinwarden-last-checked/1", "locks": {str(old.resolve()): rows}}
    (folder / FILE_NAME).write_text(json.dumps(document))
    record_checked(folder, lock, ("notes",))
    assert list(times_of(folder, lock)) == ["notes"]
    assert len(times_of(folder, old)) == MAX_SERVERS - 1


def test_a_folder_that_other_users_may_write_to_is_not_used(tmp_path: Path) -> None:
    """Attack: a file of another user in a shared state folder."""
    folder, lock = tmp_path / "state", tmp_path / "mcp-lock.json"
    folder.mkdir()
    folder.chmod(0o777)
    record_checked(folder, lock, ("notes",))
    assert list(folder.iterdir()) == []


def test_a_name_of_any_length_is_no_error(tmp_path: Path) -> None:
    folder, lock = tmp_path / "state", tmp_path / "mcp-lock.json"
    record_checked(folder, lock, ("x" * 10_000, "a\nb\0c\ud800"))
    record_checked(folder, lock, ("notes",))
    assert list(times_of(folder, lock))[-1:] == ["notes"]
