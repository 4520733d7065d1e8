"""The audit log: no event is lost or written twice, and every change is detected."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import field_names
from pinwarden.gateway.audit.chain import (
    append_events,
    format_time,
    load_audit_schema,
    read_head,
    read_lines,
    read_newest_entries,
)
from pinwarden.gateway.audit.event import (
    EMPTY_HEAD,
    TEXT_MEMBERS,
    AuditEvent,
    AuditHead,
    LogEntry,
    encode_entry,
    encode_event,
    hash_entry,
    parse_entry,
    parse_event,
)
from pinwarden.gateway.audit.journal import Journal, JournalBatch, JournalEvent, pack_event, unpack_event
from pinwarden.gateway.audit.log import AuditLimits, AuditLog, recover_journals
from pinwarden.system.database import Database, DatabaseLimits, Schema, open_database
from tests.support.audit import verify
from tests.support.postgres import Cluster, hurried

QUICK = AuditLimits(retry_seconds=0.02, max_retry_seconds=0.05, commit_seconds=60.0)
CALM = AuditLimits(commit_seconds=60.0)
"""The default limits with a longer wait, for busy machines."""
PATIENT = AuditLimits(gather_seconds=60.0, commit_seconds=60.0)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(database_url, load_audit_schema())
    yield opened
    opened.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journals"


def entries(database: Database) -> list[LogEntry]:
    return [parse_entry(line) for _, line in read_lines(database)]


def items(database: Database) -> list[str]:
    return [entry.event.item for entry in entries(database)]


def called(item: object) -> AuditEvent:
    return AuditEvent(kind="called", server="files", item=str(item))


def eventually(holds: Callable[[], bool]) -> None:
    end = monotonic() + 60
    while not holds():
        assert monotonic() < end
        Event().wait(0.01)


def test_events_of_many_threads_are_one_chain_in_the_order_of_each_thread(
    database: Database, database_url: str, folder: Path
) -> None:
    with AuditLog(database_url, folder, gateway="desk", limits=CALM) as log, ThreadPoolExecutor(4) as threads:

        def work(name: str) -> None:
            for number in range(100):
                log.record(called(f"{name}{number}"))

        list(threads.map(work, "abcd"))
    recorded = items(database)
    assert [[item for item in recorded if item[0] == name] for name in "abcd"] == [
        [f"{name}{number}" for number in range(100)] for name in "abcd"
    ]
    assert verify(database).breaks == ()
    assert {(entry.gateway, entry.source) for entry in entries(database)} == {("desk", log.source)}
    assert list(folder.iterdir()) == []


def test_gateways_on_one_database_write_one_chain(database: Database, database_url: str, folder: Path) -> None:
    other = open_database(database_url, load_audit_schema())
    with (
        AuditLog(database_url, folder, limits=CALM) as first,
        AuditLog(database_url, folder, limits=CALM) as second,
        ThreadPoolExecutor(2) as threads,
    ):

        def work(log: AuditLog) -> None:
            for number in range(15):
                log.record_durably(called(number))

        list(threads.map(work, (first, second)))
    outcome = verify(database)
    assert (outcome.entries, outcome.breaks, outcome.head) == (30, (), read_head(other))
    assert [entry.nth for entry in entries(database) if entry.source == first.source] == list(range(1, 16))
    other.close()


def test_a_refusal_is_committed_with_all_before_it_when_record_durably_returns(
    database: Database, database_url: str, folder: Path
) -> None:
    with AuditLog(database_url, folder, limits=PATIENT) as log:
        log.record(called("before"))
        log.record_durably(AuditEvent(kind="blocked", item="refused"))
        assert items(database) == ["before", "refused"]


def test_what_was_recorded_is_in_the_journal_at_once_and_in_the_chain_once(
    database: Database, database_url: str, folder: Path
) -> None:
    """The last commit of a killed gateway may have reached the database."""
    log = AuditLog(database_url, folder, limits=PATIENT)
    log.record_durably(called(1))
    log.record(called(2), called(3))
    (left,) = folder.iterdir()
    copy = left.read_bytes()
    log.close()
    left.write_bytes(copy)
    assert recover_journals(database, folder) == 1
    assert items(database) == ["1", "2", "3"]
    assert verify(database).breaks == ()
    assert list(folder.iterdir()) == []


def test_the_same_events_again_are_not_written_again(database: Database) -> None:
    events = tuple(JournalEvent(at=number, event=called(number)) for number in range(5))
    append_events(database, JournalBatch(gateway="g", source="s", first=1, events=events[:3]))
    head = append_events(database, JournalBatch(gateway="g", source="s", first=1, events=events))
    assert (
        append_events(database, JournalBatch(gateway="g", source="s", first=1, events=events))
        == head
        == read_head(database)
    )
    assert items(database) == ["0", "1", "2", "3", "4"]


def test_an_entry_says_when_who_and_what_in_canonical_form(database: Database) -> None:
    append_events(
        database,
        JournalBatch(gateway="g", source="s", first=1, events=(JournalEvent(at=1_500_000_000, event=called("x")),)),
    )
    ((number, line),) = read_lines(database)
    assert (number, line.decode()) == (
        1,
        '{"at":"1970-01-01T00:00:01.500000Z","fact":{"item":"x","kind":"called","server":"files"},'
        '"format":"pinwarden-audit/1","gateway":"g","nth":1,"number":1,"previous":"sha256:' + "0" * 64 + '",'
        '"source":"s"}',
    )
    assert read_head(database) == AuditHead(number=1, hash=hash_entry(line))
    assert list(read_newest_entries(database)) == [parse_entry(line)]


# What tampering looks like


@pytest.fixture
def written(database: Database) -> Database:
    events = tuple(JournalEvent(at=number, event=called(number)) for number in range(1, 7))
    append_events(database, JournalBatch(gateway="g", source="s", first=1, events=events))
    return database


def change(database: Database, *statements: str) -> None:
    with database.transaction() as step:
        for statement in statements:
            step.run(statement)


def breaks(database: Database, *heads: AuditHead) -> list[tuple[int, str]]:
    return [(problem.number, problem.code) for problem in verify(database, heads).breaks]


def test_an_edited_event_is_detected(written: Database) -> None:
    change(written, """UPDATE audit_entry SET entry = REPLACE(entry, '"item":"3"', '"item":"9"') WHERE number = 3""")
    assert breaks(written) == [(4, "broken_link")]


def test_a_malformed_event_is_detected(written: Database) -> None:
    change(written, "UPDATE audit_entry SET entry = '{}' WHERE number = 3")
    assert breaks(written) == [(3, "unreadable"), (4, "broken_link"), (4, "lost_event")]


def test_a_removed_event_is_detected(written: Database) -> None:
    change(written, "DELETE FROM audit_entry WHERE number = 3")
    assert breaks(written) == [(4, "gap"), (4, "lost_event")]


def test_a_removed_event_whose_gap_was_closed_is_detected(written: Database) -> None:
    change(
        written,
        "DELETE FROM audit_entry WHERE number = 3",
        *(f"UPDATE audit_entry SET number = {number - 1} WHERE number = {number}" for number in (4, 5, 6)),
    )
    assert breaks(written)[:2] == [(3, "moved"), (3, "lost_event")]


def test_swapped_events_are_detected(written: Database) -> None:
    change(
        written,
        "UPDATE audit_entry SET number = 100 WHERE number = 3",
        "UPDATE audit_entry SET number = 3 WHERE number = 4",
        "UPDATE audit_entry SET number = 4 WHERE number = 100",
    )
    assert (3, "moved") in breaks(written)
    assert (4, "moved") in breaks(written)


def test_events_removed_at_the_end_are_detected_by_a_head(written: Database) -> None:
    head = read_head(written)
    change(written, "DELETE FROM audit_entry WHERE number > 4")
    assert breaks(written) == []  # a chain cannot know what came after its end
    assert breaks(written, head) == [(6, "cut_off")]


def test_events_removed_under_a_running_gateway_are_detected_without_a_head(
    database: Database, database_url: str, folder: Path
) -> None:
    with AuditLog(database_url, folder, limits=PATIENT) as log:
        for number in range(4):
            log.record_durably(called(number))
        change(database, "DELETE FROM audit_entry WHERE number > 2")
        log.record_durably(called("after"))
    assert breaks(database) == [(3, "lost_event")]


def test_a_log_rewritten_from_an_edited_event_on_is_detected_by_a_head(written: Database) -> None:
    head = read_head(written)
    previous, forged = EMPTY_HEAD.hash, []
    for entry in entries(written):
        fact = called("harmless") if entry.number == 3 else entry.event
        line = encode_entry(
            LogEntry(
                number=entry.number,
                previous=previous,
                at=entry.at,
                gateway=entry.gateway,
                source=entry.source,
                nth=entry.nth,
                event=fact,
            )
        )
        previous = hash_entry(line)
        forged.append((line.decode(), entry.number))
    with written.transaction() as step:
        step.run_many("UPDATE audit_entry SET entry = ? WHERE number = ?", forged)
    assert breaks(written) == []
    assert breaks(written, head) == [(6, "rewritten")]


@pytest.mark.parametrize(
    "name", ["notes", "50%", "a_b", "back\\slash", 'quo"te', "new\nline", "ü ☃", "\x00", "'; DROP", "\x7f{}[]"]
)
def test_entries_are_found_by_names_with_any_characters(name: str, database: Database) -> None:
    facts = [
        AuditEvent(kind="called", server=name, item="1"),
        AuditEvent(kind="blocked", server=f"{name}x", item="2"),
        AuditEvent(kind="blocked", server=name, item='"kind":"held"'),
        AuditEvent(kind="held", server="other", item="4", reason=f'"server":"{name}"'),
    ]
    append_events(
        database, JournalBatch(gateway="g", source="s", first=1, events=tuple(JournalEvent(9, fact) for fact in facts))
    )

    def newest_items(*members: list[tuple[str, str]]) -> list[str]:
        return [entry.event.item for entry in read_newest_entries(database, members)]

    assert [item for item in newest_items([("server", name)]) if item in ("1", '"kind":"held"')] == [
        '"kind":"held"',
        "1",
    ]
    assert newest_items([("kind", "held")]) == ["4"]
    assert newest_items([("kind", "blocked")], [("server", "other")]) == []
    assert newest_items([("kind", "held"), ("kind", "called")], []) == ["4", "1"]
    assert newest_items() == ["4", '"kind":"held"', "2", "1"]


def test_the_newest_entries_are_listed_across_gaps(written: Database) -> None:
    change(written, f"UPDATE audit_entry SET number = {1 << 62} WHERE number = 6")
    assert [entry.event.item for entry in read_newest_entries(written, [[("kind", "called")]])] == items(written)[::-1]


def test_a_head_stays_valid_while_the_log_grows(written: Database) -> None:
    head = read_head(written)
    append_events(
        written, JournalBatch(gateway="g", source="t", first=1, events=(JournalEvent(at=9, event=called("more")),))
    )
    assert breaks(written, head) == []


def test_heads_that_contradict_each_other_are_not_both_right(written: Database) -> None:
    head = read_head(written)
    other = AuditHead(number=head.number, hash=EMPTY_HEAD.hash)
    assert breaks(written, head, other) == breaks(written, other, head) == [(6, "rewritten")]
    assert breaks(written, EMPTY_HEAD) == []
    assert breaks(written, AuditHead(number=0, hash=head.hash)) == [(0, "rewritten")]


@pytest.mark.parametrize("number", [0, -1, -(2**63)])
def test_a_row_outside_of_the_chain_suppresses_no_event_and_is_detected(
    number: int, database: Database, database_url: str, folder: Path
) -> None:
    """Attack: a row outside of the chain claims that the log already has all events of a running gateway."""
    with AuditLog(database_url, folder, limits=PATIENT) as log:
        log.record_durably(called(1))
        with database.transaction() as step:
            step.run("INSERT INTO audit_entry VALUES (?, ?, ?, 'x')", (number, log.source, 1 << 60))
        log.record_durably(called(2))
        assert items(database) == ["1", "2"]
    assert breaks(database) == [(number, "moved")]


def test_a_row_without_a_number_is_detected(tmp_path: Path, folder: Path) -> None:
    """Attack: SQLite allows rows without a number, which no query for numbers finds."""
    url = str(tmp_path / "audit.sqlite")
    database = open_database(url, load_audit_schema())
    with AuditLog(url, folder, limits=PATIENT) as log:
        log.record_durably(called(1))
        with database.transaction() as step:
            step.run("INSERT INTO audit_entry VALUES (NULL, ?, ?, 'x')", (log.source, 1 << 60))
        log.record_durably(called(2))
        assert items(database) == ["1", "2"]
    assert breaks(database) == [(0, "moved")]
    database.close()


@pytest.mark.parametrize(
    "change_one",
    [
        "UPDATE audit_entry SET nth = 1000000 WHERE number = 2",
        "UPDATE audit_entry SET source = (SELECT source FROM audit_entry WHERE number = 2), nth = 9 WHERE number = 1",
    ],
)
def test_an_entry_with_contradicting_columns_stops_the_log_and_is_detected(
    change_one: str, database: Database, database_url: str, folder: Path
) -> None:
    """Attack: the same, by a row that is part of the chain."""
    append_events(
        database, JournalBatch(gateway="g", source="other", first=1, events=(JournalEvent(at=9, event=called(0)),))
    )
    with AuditLog(database_url, folder, limits=QUICK) as log:
        log.record_durably(called(1))
        change(database, change_one)
        log.record_durably(AuditEvent(kind="blocked", item="2"))  # it is synced to the disk
        assert log.problem is not None
        assert log.problem.code == "AUDIT_TAMPERED"
        with pytest.raises(PinwardenError) as caught:
            log.record(called(3))
        assert caught.value.code == "AUDIT_UNAVAILABLE"
    assert [code for _, code in breaks(database)] == ["misfiled"]
    assert len(list(folder.iterdir())) == 1


def test_an_event_that_a_running_gateway_did_not_count_is_reported(
    database: Database, database_url: str, folder: Path
) -> None:
    """Attack: forge entries with the next counts of a running gateway."""
    with AuditLog(database_url, folder, limits=QUICK) as log:
        log.record_durably(called(1))
        forged = tuple(JournalEvent(at=number, event=called("forged")) for number in range(5))
        append_events(database, JournalBatch(gateway="desk", source=log.source, first=2, events=forged))
        log.record_durably(AuditEvent(kind="blocked", item="2"))
        assert log.problem is not None
        assert log.problem.code == "AUDIT_TAMPERED"


# Faults


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_gateway_killed_ten_times_loses_no_recorded_event(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "journals"
    cluster: Cluster | None = request.getfixturevalue("cluster") if kind == "postgresql" else None
    url = cluster.new_database() if cluster else str(tmp_path / "state" / "audit.sqlite")
    recorded: list[tuple[str, str]] = []
    for kill in range(10 if kind == "sqlite" else 3):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.gateway.store.audit_writer", url, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
        ) as writer:
            assert writer.stdout is not None
            for _ in range(40 + 37 * kill):
                source, number = writer.stdout.readline().split()
            writer.kill()
            recorded += [(source, str(count)) for count in range(int(number) + 1)]
    database = open_database(url, load_audit_schema())
    recover_journals(database, folder)
    assert verify(database).breaks == ()
    kept = {(entry.source, entry.event.item or entry.event.call.partition("/")[2]) for entry in entries(database)}
    assert set(recorded) - kept == set()
    assert list(folder.glob("*.journal")) == []
    database.close()


def test_a_gateway_that_must_log_lets_nothing_pass_while_postgresql_is_stopped(cluster: Cluster, folder: Path) -> None:
    database_url = cluster.new_database()
    database = open_database(database_url, load_audit_schema())
    log = AuditLog(database_url, folder, when_unavailable="refuse", limits=QUICK)
    log.record_durably(called("before"))
    cluster.stop()
    try:
        log.record_durably(AuditEvent(kind="blocked", item="meanwhile"))  # is durable on this machine
        with pytest.raises(PinwardenError) as caught:
            log.record(called("passes"))
        assert caught.value.code == "AUDIT_UNAVAILABLE"
        assert log.problem is not None
        assert log.waiting_count == 1
    finally:
        cluster.start()
    eventually(lambda: log.problem is None)
    log.record(called("after"))
    log.close()
    assert items(database) == ["before", "meanwhile", "after"]
    assert verify(database).breaks == ()
    database.close()


def test_a_gateway_that_must_log_lets_nothing_pass_before_the_database_has_answered(
    tmp_path: Path, folder: Path
) -> None:
    """No event waits for the database, so only a query shows that it is unavailable."""
    place = tmp_path / "away"
    place.write_text("a file where a folder should be")
    log = AuditLog(place / "audit.sqlite", folder, when_unavailable="refuse", limits=QUICK)
    form = AuditEvent(kind="called", server="files", call="session/")
    takes: list[Callable[[], None]] = [
        lambda: log.record_call(form, 1),
        lambda: log.record(called(1)),
        lambda: log.record_calls([(form, 1)]),
    ]
    for take in takes:
        with pytest.raises(PinwardenError) as caught:
            take()
        assert caught.value.code == "AUDIT_UNAVAILABLE"
    problem = log.problem
    eventually(lambda: log.problem is not problem)  # it was tried again
    with pytest.raises(PinwardenError):
        log.record_call(form, 2)
    assert log.waiting_count == 0
    place.unlink()
    eventually(lambda: log.problem is None)
    log.record_call(form, 3)
    log.close()
    database = open_database(place / "audit.sqlite", load_audit_schema())
    assert [entry.event.call for entry in entries(database)] == ["session/3"]
    database.close()


def test_a_hanging_postgresql_counts_as_unavailable_and_nothing_is_lost(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Database] = []

    def opening(url: str, schema: Schema) -> Database:
        opened.append(open_database(url, schema))
        return opened[-1]

    monkeypatch.setattr("pinwarden.system.database.open_database", opening)
    database_url = cluster.new_database()
    log = AuditLog(database_url, folder, when_unavailable="refuse", limits=QUICK)
    log.record_durably(called("before"))
    with cluster.frozen(), hurried(opened[0], DatabaseLimits(connect_seconds=2, response_seconds=1.5)):
        log.record_durably(
            AuditEvent(kind="blocked", item="meanwhile")
        )  # returns when the writer gave up, and is durable
        assert log.problem is not None
        assert log.problem.code == "DATABASE_UNAVAILABLE"
        with pytest.raises(PinwardenError) as caught:
            log.record(called("passes"))
        assert caught.value.code == "AUDIT_UNAVAILABLE"
    eventually(lambda: log.problem is None)
    log.record(called("after"))
    log.close()
    database = open_database(database_url, load_audit_schema())
    assert items(database) == ["before", "meanwhile", "after"]
    assert verify(database).breaks == ()
    database.close()


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
@pytest.mark.parametrize("durably", [True, False])
def test_a_replaced_database_file_is_noticed_and_gets_everything_in_the_journal(
    how: str, durably: bool, tmp_path: Path, folder: Path
) -> None:
    path, away = tmp_path / "state" / "audit.sqlite", tmp_path / "away"
    away.mkdir()

    def files() -> list[Path]:
        return sorted(path.parent.glob("audit.sqlite*"))

    with AuditLog(path, folder, when_unavailable="spool", limits=PATIENT) as log:
        log.record_durably(called(1))
        for file in files():
            shutil.copy(file, away)
        log.record_durably(called(2))
        for file in files():
            file.rename(tmp_path / file.name) if how == "moved" else file.unlink()
        if how == "replaced":
            for file in away.iterdir():
                file.rename(path.parent / file.name)
        take = log.record_durably if durably else log.record
        for number in (3, 4, 5):
            take(called(number))
    assert path.exists() == (how == "replaced"), "a running gateway does not create a deleted database again"
    AuditLog(path, folder, limits=PATIENT).close()
    database = open_database(path, load_audit_schema())
    assert items(database) == ["1", "2", "3", "4", "5"]
    assert verify(database).breaks == ()
    database.close()
    assert list(folder.iterdir()) == []


def test_events_of_a_deleted_database_file_are_reported_as_lost(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "audit.sqlite"
    with AuditLog(path, folder, limits=AuditLimits(gather_seconds=60.0, commit_seconds=60.0, batch_bytes=100)) as log:
        log.record_durably(*(called(number) for number in range(10)))  # more than a batch, so the journal is reset
        path.unlink()
        log.record_durably(AuditEvent(kind="blocked", item="10"))
    AuditLog(path, folder, limits=PATIENT).close()
    database = open_database(path, load_audit_schema())
    assert (items(database), breaks(database)) == (["10"], [(1, "lost_event")])
    database.close()


def test_spooled_events_reach_the_chain_in_order_when_postgresql_is_back(cluster: Cluster, folder: Path) -> None:
    database_url = cluster.new_database()
    database = open_database(database_url, load_audit_schema())
    log = AuditLog(database_url, folder, when_unavailable="spool", limits=QUICK)
    log.record_durably(called(0))
    cluster.stop()
    try:
        log.record_durably(called(1))
        for number in range(2, 200):
            log.record(called(number))
        log.close()  # the gateway ends before the database is back
    finally:
        cluster.start()
    assert items(database) == ["0"]
    with AuditLog(database_url, folder, limits=QUICK) as next_log:
        next_log.record_durably(called(200))
    assert items(database) == [str(number) for number in range(201)]
    assert verify(database).breaks == ()
    assert list(folder.iterdir()) == []
    database.close()


def test_a_full_journal_refuses_events_and_loses_none(tmp_path: Path, folder: Path) -> None:
    place = tmp_path / "away"
    place.write_text("a file where a folder should be")
    limits = AuditLimits(max_backlog_bytes=2000, max_journal_bytes=5000, retry_seconds=0.02, max_retry_seconds=0.02)
    log = AuditLog(place / "audit.sqlite", folder, when_unavailable="spool", limits=limits)
    log.record_durably(called(0))
    taken = 1

    def fill() -> None:
        nonlocal taken
        while True:
            log.record(called(taken))
            taken += 1

    with pytest.raises(PinwardenError) as caught:
        fill()
    assert caught.value.code == "AUDIT_UNAVAILABLE"
    log.close()
    assert next(folder.iterdir()).stat().st_size < 5200
    database = open_database(tmp_path / "audit.sqlite", load_audit_schema())
    assert recover_journals(database, folder) == 1
    assert items(database) == [str(number) for number in range(taken)]


def test_a_closed_log_refuses_events_and_writes_to_no_other_file(tmp_path: Path, folder: Path) -> None:
    log = AuditLog(tmp_path / "audit.sqlite", folder, limits=CALM)
    log.record(called(1))
    log.close()
    log.close()
    with (tmp_path / "other").open("w+b") as other:  # gets the number that the journal had
        for record in (log.record, log.record_durably):
            with pytest.raises(PinwardenError) as caught:
                record(called(2))
            assert caught.value.code == "AUDIT_UNAVAILABLE"
        assert other.read() == b""


def test_an_event_that_comes_while_the_log_is_closed_is_kept_or_refused(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(tmp_path / "audit.sqlite", folder, when_unavailable="spool")
    log.record(called(1))
    with ThreadPoolExecutor(1) as thread:
        late: list[Future[None]] = []
        closes = Journal.close

        def close(journal: Journal, *, remove: bool) -> None:
            late.append(thread.submit(log.record, called(2)))
            wait(late, 0.5)
            closes(journal, remove=remove)

        monkeypatch.setattr(Journal, "close", close)
        log.close()
        with pytest.raises(PinwardenError) as caught:
            late[0].result(60)
    assert caught.value.code == "AUDIT_UNAVAILABLE"


def test_the_journal_of_a_long_run_stays_small(tmp_path: Path, folder: Path) -> None:
    database = open_database(tmp_path / "audit.sqlite", load_audit_schema())
    limits = AuditLimits(batch_bytes=4000, max_backlog_bytes=8000, gather_seconds=0.001, commit_seconds=60.0)
    with AuditLog(tmp_path / "audit.sqlite", folder, limits=limits) as log:
        for number in range(400):
            log.record(called(f"{number} {'x' * 100}"))
            assert next(folder.glob("*.journal")).stat().st_size < 9000
    assert len(items(database)) == 400
    assert verify(database).breaks == ()


# The journal


def left(folder: Path, count: int = 3) -> Path:
    journal = Journal.create(folder, "desk", "s1")
    for number in range(count):
        journal.append([pack_event(number, called(number))])
    journal.close(remove=False)
    return journal.path


@pytest.mark.parametrize("more", [b"\0\0", b"\0\0\0\x40half an event", b"\0" * 5000])
def test_an_incomplete_event_is_ignored(more: bytes, tmp_path: Path, folder: Path) -> None:
    path = left(folder)
    path.write_bytes(path.read_bytes() + more)
    database = open_database(tmp_path / "audit.sqlite", load_audit_schema())
    assert recover_journals(database, folder) == 1
    assert items(database) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("old", "new"), [(b"called", b"warned"), (b"pinwarden-journal/4 s1 0", b"pinwarden-journal/4 s2 0"), (b"/4", b"/9")]
)
def test_an_edited_journal_is_reported_and_kept(old: bytes, new: bytes, tmp_path: Path, folder: Path) -> None:
    path = left(folder)
    edited = path.read_bytes().replace(old, new, 1)
    path.write_bytes(edited)
    database = open_database(tmp_path / "audit.sqlite", load_audit_schema())
    with pytest.raises(PinwardenError) as caught:
        recover_journals(database, folder)
    assert caught.value.code == "AUDIT_TAMPERED"
    assert path.read_bytes() == edited
    assert items(database) == []


def test_a_damaged_journal_does_not_stop_other_gateways_and_is_reported_in_the_log(
    tmp_path: Path, folder: Path
) -> None:
    path = left(folder)
    edited = path.read_bytes().replace(b"called", b"warned", 1)
    path.write_bytes(edited)
    url = tmp_path / "audit.sqlite"
    with AuditLog(url, folder, limits=QUICK) as log:
        log.record(called("goes on"))
    recorded = [
        (entry.event.kind, entry.event.code, entry.event.item)
        for entry in entries(open_database(url, load_audit_schema()))
    ]
    assert sorted(recorded) == [("called", "", "goes on"), ("spooled", "journal_damaged", "")]
    assert [file.read_bytes() for file in folder.iterdir()] == [edited]


def test_a_database_that_hangs_makes_one_refusal_wait_and_not_the_next(tmp_path: Path, folder: Path) -> None:
    url = tmp_path / "audit.sqlite"
    database = open_database(url, load_audit_schema())
    limits = AuditLimits(gather_seconds=0.001, commit_seconds=1.0)
    with AuditLog(url, folder, limits=limits) as log:
        log.record_durably(called(0))
        with database.transaction(exclusive="audit"):  # another process keeps the database locked
            log.record_durably(called(1))
            start = monotonic()
            for number in range(2, 42):
                log.record_durably(called(number))
            assert monotonic() - start < 40 * 1.0
            with pytest.raises(PinwardenError) as caught:
                log.record(called("passes"))
            assert caught.value.code == "AUDIT_UNAVAILABLE"
        eventually(lambda: log.waiting_count == 0)
        log.record(called(42))
    assert items(database) == [str(number) for number in range(43)]
    database.close()


def test_an_unfinished_journal_is_removed_after_an_hour(tmp_path: Path, folder: Path) -> None:
    folder.mkdir()
    old, new = folder / "a.new", folder / "b.new"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    assert recover_journals(open_database(tmp_path / "audit.sqlite", load_audit_schema()), folder) == 0
    assert list(folder.iterdir()) == [new]


def test_the_journal_of_a_running_gateway_is_left_alone(tmp_path: Path, folder: Path) -> None:
    database = open_database(tmp_path / "audit.sqlite", load_audit_schema())
    journal = Journal.create(folder, "desk", "s1")
    journal.append([pack_event(1, called(1))])
    assert recover_journals(database, folder) == 0
    assert items(database) == []
    journal.close(remove=True)


def test_a_journal_is_for_its_owner_alone(folder: Path) -> None:
    path = left(folder)
    assert (path.stat().st_mode & 0o077, folder.stat().st_mode & 0o077) == (0, 0)


@pytest.mark.parametrize(
    "fact",
    [
        called("plain"),
        AuditEvent(kind="blocked", item="a\x1fb\x1ec", expected=("x", "y")),
        AuditEvent(kind="blocked", item="a", expected=("x\x1ey",)),
        AuditEvent(kind="blocked", item="ä\n\0", expected=("x", "y"), reason="z", by="w"),
        AuditEvent(kind="called", item="t", arguments=b'{"a":1}'),
    ],
)
def test_a_name_with_the_journals_own_separators_stays_one_name(fact: AuditEvent) -> None:
    assert unpack_event(pack_event(7, fact)) == JournalEvent(at=7, event=fact)


def test_every_member_of_an_event_survives_the_journal_and_the_log() -> None:
    texts: dict[str, Any] = {name: f"{name} of the event" for name in TEXT_MEMBERS} | {"kind": "called"}
    event = AuditEvent(**texts, expected=("x", "y"))
    assert set(field_names(AuditEvent)) == {*texts, "expected", "arguments"}
    assert unpack_event(pack_event(7, event)).event == parse_event(encode_event(event)) == event


def test_an_event_of_a_release_with_fewer_members_is_read_from_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = pack_event(7, called("plain"))
    earlier = now.removesuffix(b"\x1f")  # without the last member, which is empty here
    for packed, texts in ((earlier, 13), (now + b"\x1f", 15)):
        with pytest.raises(ValueError, match=f"{texts} texts"):
            unpack_event(packed)
    monkeypatch.setattr("pinwarden.gateway.audit.journal._FEWEST_TEXTS", 13)
    assert unpack_event(earlier).event == called("plain")


def test_a_name_of_a_megabyte_does_not_fill_the_journal() -> None:
    assert len(pack_event(7, called("x" * 1_000_000))) < 2000


def test_times_have_microseconds() -> None:
    assert format_time(1_795_000_000_123_456_789) == "2026-11-18T11:06:40.123456Z"
