"""Old entries of the audit log are archived, and the rest is still verifiable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.audit import archive as archiving
from pinwarden.gateway.audit import chain
from pinwarden.gateway.audit.archive import archive_entries
from pinwarden.gateway.audit.chain import append_events, read_head, read_lines, read_start
from pinwarden.gateway.audit.event import AuditEvent, AuditHead, hash_entry
from pinwarden.gateway.audit.journal import JournalBatch, JournalEvent
from pinwarden.gateway.audit.report import verify_log
from pinwarden.gateway.state import GatewayState
from pinwarden.project.lock import Approver

DAY = 86_400 * 10**9
APPROVER = Approver(by="operator", why="")
OLD = "1970-01-03T00:00:00.000000Z"  # the third day: two days of events are older


@pytest.fixture
def state(database_url: str, tmp_path: Path) -> Iterator[GatewayState]:
    with GatewayState(tmp_path / "state", database_url) as made:
        yield made


def record(state: GatewayState, source: str, first: int, days: tuple[int, ...]) -> AuditHead:
    """Append an event for each day to the chain."""
    events = tuple(
        JournalEvent(at=day * DAY, event=AuditEvent(kind="called", server="files", item=f"{source}-{first + nth}"))
        for nth, day in enumerate(days)
    )
    return append_events(
        state.audit_database, JournalBatch(source=source.ljust(24, "0"), gateway="g", first=first, events=events)
    )


def fill(state: GatewayState) -> AuditHead:
    """Two runs with events on five days, two entries on each."""
    record(state, "aa", 1, (0, 0, 1))
    record(state, "bb", 1, (1, 2, 2))
    return record(state, "aa", 4, (3, 3, 4, 4))


def archive(state: GatewayState, folder: Path, before: str = OLD) -> Any:
    return archive_entries(state, before, folder, APPROVER).facts


def verify(state: GatewayState, *exports: Path, heads: tuple[AuditHead, ...] = ()) -> Any:
    return verify_log(state, heads, exports).facts


def test_old_entries_move_into_a_file_and_the_rest_stays_verifiable(state: GatewayState, tmp_path: Path) -> None:
    before = fill(state)
    stored = [line for _, line in read_lines(state.audit_database)]
    facts = archive(state, tmp_path)
    assert (facts["file"], facts["entries"]) == ("audit-1-4.jsonl", 4)
    assert (tmp_path / "audit-1-4.jsonl").read_bytes().splitlines() == stored[:4]
    numbers = [number for number, _ in read_lines(state.audit_database)]
    assert numbers == [5, 6, 7, 8, 9, 10, 11]
    newest = json.loads(list(read_lines(state.audit_database))[-1][1])["fact"]
    assert (newest["kind"], newest["item"], newest["by"]) == ("archived", "audit-1-4.jsonl", "operator")
    assert verify(state, heads=(before,))["ok"]
    assert verify(state, tmp_path / "audit-1-4.jsonl")["ok"]


def test_archives_follow_each_other_and_heads_in_them_are_checked(state: GatewayState, tmp_path: Path) -> None:
    fill(state)
    lines = dict(read_lines(state.audit_database))
    archive(state, tmp_path)
    facts = archive(state, tmp_path, "1970-01-05T00:00:00.000000Z")
    assert facts["file"] == "audit-5-8.jsonl"
    first, second = tmp_path / "audit-1-4.jsonl", tmp_path / "audit-5-8.jsonl"
    head = AuditHead(number=3, hash=hash_entry(lines[3]))
    assert verify(state, first, second, heads=(head,))["ok"]
    with pytest.raises(PinwardenError) as uncovered:
        verify(state, second, heads=(head,))
    assert uncovered.value.code == "AUDIT_NOT_COVERED"
    assert not verify(state, first)["ok"], "the second archive is missing between the first one and the log"
    other = AuditHead(number=3, hash=f"sha256:{'1' * 64}")
    assert not verify(state, first, second, heads=(other,))["ok"]


def test_gateways_go_on_recording_and_events_are_not_written_twice(state: GatewayState, tmp_path: Path) -> None:
    fill(state)
    archive(state, tmp_path, "1970-01-06T00:00:00.000000Z")
    assert read_head(state.audit_database).number == 11
    record(state, "aa", 6, (5, 5, 6))  # the first two of them are in the archive or the log already
    items = [json.loads(line)["fact"].get("item", "") for _, line in read_lines(state.audit_database)]
    assert items.count("aa-8") == 1
    assert items.count("aa-7") <= 1
    assert verify(state)["ok"]


def test_the_newest_entry_is_never_archived_and_nothing_is_archived_twice(state: GatewayState, tmp_path: Path) -> None:
    fill(state)
    archive(state, tmp_path, "9999-01-01T00:00:00.000000Z")
    assert read_start(state.audit_database)[0].number == 9
    assert archive(state, tmp_path, OLD)["file"] is None


def test_a_process_killed_while_it_deletes_leaves_a_log_that_is_valid_and_can_be_archived_again(
    state: GatewayState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(state)
    monkeypatch.setattr(archiving, "_DELETED_AT_ONCE", 1)
    deleted = 0
    real = chain._count_by_source

    def killed(*given: Any) -> Any:
        nonlocal deleted
        deleted += 1
        if deleted == 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(chain, "_count_by_source", killed)
    with pytest.raises(KeyboardInterrupt):
        archive(state, tmp_path)
    monkeypatch.undo()
    assert read_start(state.audit_database)[0].number == 2
    assert verify(state)["ok"]
    assert archive(state, tmp_path)["file"] == "audit-3-4.jsonl"
    assert verify(state)["ok"]


def test_attack_entries_removed_at_the_beginning_are_not_taken_for_archived(
    state: GatewayState, tmp_path: Path
) -> None:
    fill(state)
    lines = dict(read_lines(state.audit_database))
    with state.audit_database.transaction() as transaction:
        transaction.run("DELETE FROM audit_entry WHERE number <= 4")
    assert not verify(state)["ok"]
    with state.audit_database.transaction() as transaction:
        transaction.run("INSERT INTO audit_start (number, hash) VALUES (4, ?)", (hash_entry(lines[4]),))
        for source, nth in (("aa", 3), ("bb", 1)):
            transaction.run("INSERT INTO audit_archived_source VALUES (?, ?)", (source.ljust(24, "0"), nth))
    facts = verify(state)
    assert [problem["code"] for problem in facts["breaks"]] == ["unarchived"]


def test_attack_more_is_removed_than_was_archived(state: GatewayState, tmp_path: Path) -> None:
    fill(state)
    lines = dict(read_lines(state.audit_database))
    archive(state, tmp_path)
    with state.audit_database.transaction() as transaction:
        transaction.run("DELETE FROM audit_entry WHERE number <= 6")
        transaction.run("UPDATE audit_start SET number = 6, hash = ?", (hash_entry(lines[6]),))
        transaction.run("UPDATE audit_archived_source SET nth = 3 WHERE source LIKE 'bb%'")
    assert [problem["code"] for problem in verify(state)["breaks"]] == ["unarchived"]


def test_a_log_that_was_changed_is_not_archived(state: GatewayState, tmp_path: Path) -> None:
    fill(state)
    with state.audit_database.transaction() as transaction:
        transaction.run("UPDATE audit_entry SET entry = REPLACE(entry, 'aa-2', 'aa-x') WHERE number = 2")
    with pytest.raises(PinwardenError) as refused:
        archive(state, tmp_path)
    assert refused.value.code == "AUDIT_TAMPERED"
    assert not list(tmp_path.glob("*.jsonl"))
    assert read_start(state.audit_database)[0].number == 0
