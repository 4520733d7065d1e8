"""The lockfile on disk: old or new, never torn; one writer at a time; nothing changed after a refusal."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from pinwarden import PinwardenError
from pinwarden.lock import lock_store, lockfile
from pinwarden.lock.extension import format_surface_path, pin_surface, with_extension
from pinwarden.lock.lock_store import (
    LockWrite,
    read,
    read_with_files,
    surfaces_folder_name,
    update,
)
from pinwarden.lock.lockfile import Lock, put_entries, remove_entries, verify, verify_files
from pinwarden.surface.surface import encode_surface, surface_from_listing
from pinwarden.system.clock import now
from pinwarden.system.files import MAX_WAIT_SECONDS, hold_write_lock
from tests.conformance.vectors import REPOSITORY
from tests.support.locks import LATER, NOON, SURFACE, entry, our_entry, record

NAME = "io.github.acme/notes"
PATH = format_surface_path(NAME)


def approve(text: str, at: str = NOON) -> tuple[dict[str, bytes], Lock]:
    surface = surface_from_listing({"tools": [{"name": "add", "description": text}]})
    written = with_extension(entry(at=at), record(at=at, surface=pin_surface(surface, PATH)))
    return {PATH: encode_surface(surface)}, put_entries(None, [written], at)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def code_of(caught: pytest.ExceptionInfo[PinwardenError]) -> str:
    return caught.value.code


def test_a_lock_and_its_surfaces_are_written_and_read_back_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "mcp-lock.json"
    assert read(path) is None
    lock = put_entries(None, [our_entry()], NOON)
    update(path, lambda _: LockWrite(lock=lock, files={PATH: encode_surface(SURFACE)}))
    assert read(path) == lock
    assert verify_files(lock, read_with_files(path)[1]) == ()
    assert tree(tmp_path) == {"mcp-lock.json": lockfile.to_bytes(lock), PATH: encode_surface(SURFACE)}
    assert PATH.startswith(surfaces_folder_name(path) + "/")


def test_locking_the_same_entries_again_does_not_touch_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mcp-lock.json"
    surfaces = {PATH: encode_surface(SURFACE)}
    update(path, lambda old: LockWrite(lock=put_entries(old, [our_entry()], NOON), files=surfaces))
    before, inode = tree(tmp_path), path.stat().st_ino
    update(path, lambda old: LockWrite(lock=put_entries(old, [our_entry(at=LATER)], LATER), files=surfaces))
    assert tree(tmp_path) == before
    assert path.stat().st_ino == inode


def test_a_foreign_layout_is_not_rewritten_when_nothing_changed(tmp_path: Path) -> None:
    path = tmp_path / "mcp-lock.json"
    compact = lockfile.to_bytes(put_entries(None, [entry()], NOON, plain_v2=True)).replace(b"\n", b" ")
    path.write_bytes(compact)
    update(path, lambda old: LockWrite(lock=put_entries(old, [entry(at=LATER)], LATER)))
    assert path.read_bytes() == compact


def test_the_surface_of_a_removed_server_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "mcp-lock.json"
    entries = [our_entry(), entry("io.github.acme/plain")]
    update(path, lambda _: LockWrite(lock=put_entries(None, entries, NOON), files={PATH: encode_surface(SURFACE)}))

    def remove(old: Lock | None) -> LockWrite:
        assert old is not None
        return LockWrite(lock=remove_entries(old, [entries[0].key], LATER))

    update(path, remove)
    assert set(tree(tmp_path)) == {"mcp-lock.json"}


# Refusals


def test_a_failing_change_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mcp-lock.json"
    path.write_bytes(lockfile.to_bytes(put_entries(None, [entry()], NOON)))
    before = tree(tmp_path)

    def fail(_: Lock | None) -> LockWrite:
        raise PinwardenError("LOCK_TAMPERED", "no")

    with pytest.raises(PinwardenError):
        update(path, fail)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("text", [b"", b"{", b'{"lockfileVersion":1}', b"\xff"])
def test_a_corrupt_lock_is_not_treated_as_empty(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "mcp-lock.json"
    path.write_bytes(text)
    with pytest.raises(PinwardenError) as caught:
        update(path, lambda old: LockWrite(lock=put_entries(old, [entry()], NOON)))
    assert caught.value.exit_code == 3
    assert tree(tmp_path) == {"mcp-lock.json": text}


@pytest.mark.skipif(os.name != "posix", reason="symbolic links are those of POSIX")
@pytest.mark.parametrize("link", ["mcp-lock.json", "mcp-lock.surfaces", PATH, PATH + ".pending", ".mcp-lock.json.lock"])
def test_a_symbolic_link_is_refused_and_its_target_stays_unchanged(tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    lock = put_entries(None, [our_entry()], NOON)
    (outside / "file").write_bytes(lockfile.to_bytes(lock))
    project = tmp_path / "project"
    (project / link).parent.mkdir(parents=True)
    (project / link).symlink_to(outside / ("folder" if link.endswith("surfaces") else "file"))
    before = tree(outside)
    with pytest.raises(PinwardenError) as caught:
        update(project / "mcp-lock.json", lambda _: LockWrite(lock=lock, files={PATH: encode_surface(SURFACE)}))
    assert code_of(caught) in ("FILE_UNREADABLE", "FILE_UNWRITABLE")
    assert tree(outside) == before
    assert not (project / "mcp-lock.json").exists() or (project / "mcp-lock.json").is_symlink()


def test_a_folder_instead_of_the_lock_or_a_file_instead_of_its_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mcp-lock.json").mkdir()
    (tmp_path / "file").touch()
    for path, code in (
        (tmp_path / "mcp-lock.json", "FILE_UNREADABLE"),
        (tmp_path / "file" / "mcp-lock.json", "FILE_UNWRITABLE"),
    ):
        with pytest.raises(PinwardenError) as caught:
            update(path, lambda old: LockWrite(lock=put_entries(old, [entry()], NOON)))
        assert code_of(caught) == code
    assert {path.name for path in tmp_path.iterdir()} == {"file", "mcp-lock.json"}


def test_a_missing_folder_is_created_for_its_owner_only(tmp_path: Path) -> None:
    update(tmp_path / "new" / "mcp-lock.json", lambda old: LockWrite(lock=put_entries(old, [entry()], NOON)))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["../evil.json", "mcp-lock.surfaces", "/etc/x.surfaces/y.json", "a/b.json"])
def test_a_surface_outside_its_folder_is_not_written(tmp_path: Path, name: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    with pytest.raises(PinwardenError) as caught:
        update(
            project / "mcp-lock.json", lambda _: LockWrite(lock=put_entries(None, [entry()], NOON), files={name: b"x"})
        )
    assert code_of(caught) == "LOCK_INVALID"
    assert tree(tmp_path) == {}


# Several writers


def test_a_second_writer_waits_no_longer_than_its_timeout(tmp_path: Path) -> None:
    path = tmp_path / "mcp-lock.json"
    started = time.monotonic()
    with hold_write_lock(path), pytest.raises(PinwardenError) as caught:
        update(path, lambda old: LockWrite(lock=put_entries(old, [entry()], NOON)), wait_seconds=0.05)
    assert code_of(caught) == "LOCK_BUSY"
    assert caught.value.exit_code == 3
    assert time.monotonic() - started < MAX_WAIT_SECONDS
    assert tree(tmp_path) == {}


@pytest.mark.skipif(os.name != "posix", reason="the locks of POSIX")
def test_a_file_system_without_locks_is_not_reported_as_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def no_locks(_: int, __: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(PinwardenError, match="No locks available") as caught:
        update(tmp_path / "mcp-lock.json", lambda old: LockWrite(lock=put_entries(old, [entry()], NOON)))
    assert code_of(caught) == "FILE_UNWRITABLE"
    assert not (tmp_path / "mcp-lock.json").exists()


WRITER = """
import sys
from pathlib import Path
from pinwarden.lock.lock_store import LockWrite, update
from pinwarden.lock.lockfile import put_entries
from tests.support.locks import NOON, entry

path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    update(path, lambda old: LockWrite(lock=put_entries(old, [entry(f"{name}/{number}")], NOON)), wait_seconds=60)
"""


def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mcp-lock.json"
    writers = [start(WRITER, str(path), name, "10") for name in ("one", "two", "three")]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=240)
        assert writer.returncode == 0
    lock = read(path)
    assert lock is not None
    assert {entry.name for entry in lock.entries} == {f"{n}/{k}" for n in ("one", "two", "three") for k in range(10)}
    assert verify(lock) == ()
    assert set(tree(tmp_path)) == {"mcp-lock.json"}


# Crashes


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
@pytest.mark.timeout(300)
def test_two_hundred_kills_at_random_times_leave_the_old_or_the_new_lock_with_its_surface(tmp_path: Path) -> None:
    path = tmp_path / "mcp-lock.json"
    versions = [approve("first " * 2000), approve("second " * 2000)]
    whole = {lockfile.to_bytes(lock): surfaces for surfaces, lock in versions}
    chance = random.Random(4)
    seen: set[bytes] = set()
    update(path, lambda _: LockWrite(lock=versions[0][1], files=versions[0][0]))
    processes = multiprocessing.get_context("forkserver")  # a fresh interpreter each time would take minutes
    processes.set_forkserver_preload([__name__])
    longest = 0.012
    for _ in range(200):
        ready, started = processes.Pipe(duplex=False)
        writer = processes.Process(target=rewrite_without_end, args=(path, versions, started))
        writer.start()
        assert ready.recv()
        time.sleep(chance.uniform(0.0, longest))  # the instant of the kill, not a wait for something
        writer.kill()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        data = path.read_bytes()
        assert data in whole
        lock, texts = read_with_files(path)
        assert lock is not None
        assert texts == whole[data]
        seen.add(data)
        if len(seen) == 1:
            longest *= 1.05  # a slow machine: every kill came before the first write was done
    assert len(seen) == 2
    update(path, lambda old: LockWrite(lock=old or versions[0][1]))
    assert set(tree(tmp_path)) == {"mcp-lock.json", PATH}
    assert {PATH: (tmp_path / PATH).read_bytes()} == whole[path.read_bytes()]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_a_reader_beside_a_writer_always_sees_a_lock_with_its_surfaces(tmp_path: Path) -> None:
    path = tmp_path / "mcp-lock.json"
    versions = [approve("first"), approve("second")]
    update(path, lambda _: LockWrite(lock=versions[0][1], files=versions[0][0]))
    processes = multiprocessing.get_context("forkserver")
    ready, started = processes.Pipe(duplex=False)
    writer = processes.Process(target=rewrite_without_end, args=(path, versions, started))
    writer.start()
    try:
        assert ready.recv()
        for _ in range(300):
            lock, texts = read_with_files(path)
            assert lock is not None
            assert verify_files(lock, texts) == ()
    finally:
        writer.kill()
        writer.join()


def rewrite_without_end(path: Path, versions: list[tuple[dict[str, bytes], Lock]], ready: Connection) -> None:
    ready.send(True)
    for surfaces, lock in cycle(versions):
        change = LockWrite(lock=lock, files=surfaces)
        update(path, lambda _, change=change: change)  # type: ignore[misc]


def test_a_crash_between_the_lock_and_its_surface_is_completed_by_the_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mcp-lock.json"
    (old_text, old), (new_text, new) = approve("old"), approve("new", LATER)
    update(path, lambda _: LockWrite(lock=old, files=old_text))

    def crash(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lock_store, "_replace_by_pending", crash)
        with pytest.raises(KeyboardInterrupt):
            update(path, lambda _: LockWrite(lock=new, files=new_text))
    assert read_with_files(path) == (new, new_text)
    update(path, lambda lock: LockWrite(lock=lock or new))
    assert tree(tmp_path) == {"mcp-lock.json": lockfile.to_bytes(new), **new_text}


def test_a_crash_before_the_lock_is_replaced_keeps_the_old_surface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mcp-lock.json"
    (old_text, old), (new_text, new) = approve("old"), approve("new", LATER)
    update(path, lambda _: LockWrite(lock=old, files=old_text))

    def no_room(_: Lock) -> bytes:
        raise PinwardenError("FILE_UNWRITABLE", "no room")

    with monkeypatch.context() as patch:
        patch.setattr(lockfile, "to_bytes", no_room)
        with pytest.raises(PinwardenError):
            update(path, lambda _: LockWrite(lock=new, files=new_text))
    assert read_with_files(path) == (old, old_text)
    update(path, lambda lock: LockWrite(lock=lock or old))
    assert tree(tmp_path) == {"mcp-lock.json": lockfile.to_bytes(old), **old_text}


# The clock


def test_the_time_is_that_of_source_date_epoch_if_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1784548800")
    assert now() == "2026-07-20T12:00:00.000Z"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "noon")
    with pytest.raises(PinwardenError) as caught:
        now()
    assert code_of(caught) == "USAGE"
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert now() > "2026"
    assert len(now()) == len(NOON)
