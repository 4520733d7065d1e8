"""Lockfiles that the real ToolPin wrote: read, written again, verified and digested to the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinwarden.lock import lockfile
from pinwarden.lock.entry import Entry, compute_integrity
from pinwarden.lock.lockfile import Lock, put_entries, verify
from tests.conformance.vectors import load, vectors_dir
from tests.support.locks import InstallPlan, backwards, new_entry

SUFFIX = ".mcp-lock.json"


def files(folder: str) -> list[Path]:
    return sorted((vectors_dir() / "toolpin" / folder).glob(f"*{SUFFIX}"))


def case(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


WRITTEN = files("locks")
SUCCESSIVE = [path for path in WRITTEN if ".all12" in path.name]


def test_there_are_vectors() -> None:
    assert WRITTEN
    assert SUCCESSIVE


@pytest.mark.parametrize("path", WRITTEN, ids=case)
def test_a_lock_round_trips_and_is_intact(path: Path) -> None:
    data = path.read_bytes()
    lock = lockfile.parse(data)
    assert lockfile.to_bytes(lock) == data
    assert lockfile.to_bytes(lock, plain_v2=True) == data
    assert [compute_integrity(entry.document) for entry in lock.entries] == [entry.integrity for entry in lock.entries]
    assert verify(lock) == ()


@pytest.mark.parametrize("path", [*WRITTEN, *files("tamper"), *files("foreign")], ids=case)
def test_the_whole_lock_digest_is_that_of_toolpin(path: Path) -> None:
    digest = path.with_name(case(path) + ".digest.json")
    if not digest.exists() or not digest.read_bytes():
        return  # ToolPin was not asked, or refused; test_toolpin_tamper.py says what we do
    assert (
        lockfile.compute_lock_digest(lockfile.parse(path.read_bytes()))
        == load(f"toolpin/{path.parent.name}/{digest.name}")["digest"]
    )


def locked_again(old: Entry) -> Entry:
    """The entry from the facts in it, through our own writer."""
    evidence = [row for row in old.trust["evidence"] if row["code"] != "lock_integrity"]
    plan = InstallPlan(
        name=old.name,
        version=old.version,
        client=old.client,
        scope=old.scope,
        selected_target=backwards(old.selected_target),
        trust=backwards({**old.trust, "evidence": evidence}),
        config=old.config,
        notes=old.document["notes"],
        manifest=backwards(old.manifest),
        source=str(old.source),
        resolved_at=str(old.resolved_at),
    )
    return new_entry(plan, str(old.locked_at))


@pytest.mark.parametrize("path", WRITTEN, ids=case)
def test_locking_one_after_the_other_gives_the_file_that_as_many_commands_of_toolpin_gave(path: Path) -> None:
    data = path.read_bytes()
    old = lockfile.parse(data)
    lock: Lock | None = None
    for entry in old.entries:
        lock = put_entries(lock, [locked_again(entry)], str(entry.locked_at), plain_v2=True)
    assert lock is not None
    assert lockfile.to_bytes(lock) == data


@pytest.mark.parametrize("path", files("foreign"), ids=case)
def test_a_lock_of_another_writer_is_judged_as_toolpin_judged_it(path: Path) -> None:
    accepted = load(f"toolpin/foreign/{case(path)}.ci.json")["ok"]
    assert (verify(lockfile.parse(path.read_bytes())) == ()) is accepted
