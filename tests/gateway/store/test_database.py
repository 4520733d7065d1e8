from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.system.database import ConflictError, Database, DatabaseLimits, Schema, open_database
from pinwarden.system.postgresql import Postgres
from tests.support.postgres import Cluster, hurried

TRIAL = Schema(
    name="trial",
    migrations=(
        "-- how many; what\nCREATE TABLE trial (number BIGINT PRIMARY KEY, name TEXT NOT NULL, data BYTEA);\n",
    ),
)
ADD = "INSERT INTO trial (number, name, data) VALUES (?, ?, ?)"


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(database_url, TRIAL)
    yield opened
    opened.close()


def test_what_was_written_is_read_back_exactly(database: Database, database_url: str) -> None:
    rows = [(1, "100 % ä \U0001f512", b"\x00\xff"), (2**62, "", None)]
    with database.transaction() as step:
        step.run_many(ADD, rows)
        assert step.run("UPDATE trial SET name = name WHERE number > ?", (0,)) == 2
    again = open_database(database_url, TRIAL)
    stored = again.rows("SELECT number, name, data FROM trial ORDER BY number")
    again.close()
    assert [(number, name, None if data is None else bytes(data)) for number, name, data in stored] == rows
    assert database.row("SELECT name FROM trial WHERE number = 3") is None


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "nonsense"])
def test_texts_are_stored_exactly_whatever_the_encoding_settings(
    encoding: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = cluster.new_database()
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    opened = open_database(url, TRIAL)
    with opened.transaction() as step:
        step.run(ADD, (1, "Größe ☃", None))
    assert opened.rows("SELECT name FROM trial") == [("Größe ☃",)]
    opened.close()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_keep_every_name_is_refused_at_once(encoding: str, cluster: Cluster) -> None:
    url = cluster.other_encoding(encoding)
    opened = open_database(url, TRIAL)
    with pytest.raises(PinwardenError) as caught:
        opened.rows("SELECT 1")
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    assert f"uses the encoding {encoding}" in caught.value.message


def test_an_invalid_text_is_refused_and_leaves_nothing(database: Database) -> None:
    def add() -> None:
        with database.transaction() as step:
            step.run(ADD, (1, "a", None))
            step.run(ADD, (2, "\ud800", None))

    with pytest.raises(PinwardenError) as caught:
        add()
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    assert database.rows("SELECT number FROM trial") == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host:5/db?password=secret", "postgresql://host:5/db"),
        ("postgresql:///db?host=/run", "postgresql://local/db"),
        ("postgresql://host/db?options=a@secret", "postgresql://…"),
        ("postgresql://me:sec/ret@host/db", "postgresql://…"),
        ("postgresql://me:sec?ret@host/db", "postgresql://…"),
        ("postgresql://me:sec#ret@host/db", "postgresql://…"),
        ("postgresql://me:sec@ret@host/db", "postgresql://…"),
        ("postgresql://[::1]:5/db", "postgresql://[::1]:5/db"),
    ],
)
def test_the_displayed_database_contains_no_password(url: str, shown: str) -> None:
    assert str(open_database(url, TRIAL)) == shown


def test_a_missing_driver_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    opened = open_database("postgresql://localhost:1/trial", TRIAL)
    with pytest.raises(PinwardenError) as caught:
        opened.rows("SELECT number FROM trial")
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    assert caught.value.hint.endswith('pip install ".[postgres]"')


def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    def half_way() -> None:
        with database.transaction() as step:
            step.run(ADD, (1, "a", None))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half_way()
    assert database.rows("SELECT number FROM trial") == []


def test_a_row_that_is_there_already_is_a_conflict_and_changes_nothing(database: Database) -> None:
    with database.transaction() as step:
        step.run(ADD, (1, "first", None))
    with pytest.raises(ConflictError), database.transaction() as step:
        step.run(ADD, (1, "second", None))
    assert database.rows("SELECT number, name FROM trial") == [(1, "first")]


def test_exclusive_writers_count_without_gaps(database: Database) -> None:
    def append(_: int) -> None:
        with database.transaction(exclusive="trial") as step:
            (last,) = step.rows("SELECT COALESCE(MAX(number), 0) FROM trial")[0]
            step.run(ADD, (last + 1, "x", None))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(append, range(80)))
    assert [number for (number,) in database.rows("SELECT number FROM trial ORDER BY number")] == list(range(1, 81))


def test_a_transaction_that_reads_before_it_writes_needs_an_exclusive_name(tmp_path: Path) -> None:
    """Otherwise it would fail with "database is locked" whenever another process writes between the two."""
    database = open_database(tmp_path / "a.sqlite", TRIAL)
    with database.transaction() as step:
        assert step.rows("SELECT number FROM trial") == []
        with pytest.raises(TypeError, match="exclusive"):
            step.run(ADD, (1, "", None))
    with database.transaction() as step:
        step.run(ADD, (1, "", None))
        assert step.rows("SELECT number FROM trial") == [(1,)]
        step.run(ADD, (2, "", None))
    with database.transaction(exclusive="count") as step:
        assert step.rows("SELECT number FROM trial") == [(1,), (2,)]
        step.run(ADD, (3, "", None))
    assert database.rows("SELECT COUNT(*) FROM trial") == [(3,)]
    database.close()


def test_several_kinds_of_tables_are_made_at_once_in_a_new_database(database_url: str) -> None:
    """A gateway opens its log and its other tables on two threads, in a new database."""
    kinds = [
        Schema(name=f"trial{index}", migrations=(f"CREATE TABLE trial{index} (number BIGINT);",)) for index in range(8)
    ]
    opened = [open_database(database_url, kind) for kind in kinds]
    start = Barrier(len(kinds))

    def use(database: Database) -> int:
        start.wait(60)
        return len(database.rows("SELECT 1"))

    with ThreadPoolExecutor(len(kinds)) as threads:
        assert list(threads.map(use, opened)) == [1] * len(kinds)
    assert opened[0].row("SELECT COUNT(*) FROM pinwarden_schema") == (len(kinds),)
    for database in opened:
        database.close()


def test_a_damaged_file_is_reported_and_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "trial.sqlite"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(PinwardenError) as caught:
        open_database(path, TRIAL).rows("SELECT 1")
    assert caught.value.code == "DATABASE_CORRUPT"
    assert path.read_bytes() == b"this is no database" * 100


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "trial.sqlite"
    open_database(path, TRIAL).rows("SELECT 1")
    assert {file.name: file.stat().st_mode & 0o077 for file in path.parent.iterdir()}.items() >= {("trial.sqlite", 0)}
    assert path.parent.stat().st_mode & 0o077 == 0


def test_a_file_moved_while_it_is_opened_is_not_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file would have no tokens, approvals and events."""
    path, away = tmp_path / "a b?#%.sqlite", tmp_path / "away"
    present = open_database(path, TRIAL)
    with present.transaction() as step:
        step.run(ADD, (1, "one", None))
    connect = sqlite3.connect

    def late(*words: Any, **named: Any) -> Any:
        path.rename(away)
        monkeypatch.setattr(sqlite3, "connect", connect)
        return connect(*words, **named)

    monkeypatch.setattr(sqlite3, "connect", late)
    second = open_database(path, TRIAL)
    for _ in range(2):
        with pytest.raises(PinwardenError) as caught:
            second.rows("SELECT number FROM trial")
        assert caught.value.code == "DATABASE_UNAVAILABLE"
        assert not path.exists()
    assert "was deleted while it was in use" in caught.value.message
    away.rename(path)
    assert second.rows("SELECT number FROM trial") == [(1,)]
    present.close()
    second.close()


def test_a_stopped_postgresql_is_an_error_and_a_started_one_is_used_again(cluster: Cluster) -> None:
    database = open_database(cluster.new_database(), TRIAL)
    with database.transaction() as step:
        step.run(ADD, (1, "before", None))
    cluster.stop()
    try:
        for _ in range(2):
            with pytest.raises(PinwardenError) as caught:
                database.rows("SELECT 1")
            assert caught.value.code == "DATABASE_UNAVAILABLE"
    finally:
        cluster.start()
    assert database.rows("SELECT name FROM trial") == [("before",)]
    database.close()


PATIENT = DatabaseLimits(
    connect_seconds=60, lock_seconds=60, statement_seconds=60, response_seconds=60, idle_seconds=60
)
"""A test shortens the one wait that it is about: a busy machine needs more time for everything else."""


def test_a_lock_that_another_session_keeps_is_waited_for_only_so_long(database_url: str) -> None:
    holder, waiter = (open_database(database_url, TRIAL, replace(PATIENT, lock_seconds=0.2)) for _ in range(2))
    assert waiter.rows("SELECT number FROM trial") == []
    with (
        holder.transaction(exclusive="trial"),
        pytest.raises(PinwardenError) as caught,
        waiter.transaction(exclusive="trial"),
    ):
        pytest.fail("two were alone at the same time")
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    with waiter.transaction(exclusive="trial") as step:
        step.run(ADD, (1, "later", None))
    assert waiter.rows("SELECT name FROM trial") == [("later",)]
    holder.close()
    waiter.close()


def test_a_statement_of_postgresql_may_last_only_so_long(cluster: Cluster) -> None:
    url = cluster.new_database()
    patient = open_database(url, TRIAL, PATIENT)
    assert patient.rows("SELECT 1") == [(1,)]  # and its tables are made
    patient.close()
    database = open_database(url, TRIAL, replace(PATIENT, statement_seconds=3))
    with pytest.raises(PinwardenError) as caught:
        database.rows("SELECT pg_sleep(30)")
    assert (caught.value.code, caught.value.message) == (
        "DATABASE_UNAVAILABLE",
        "a statement took too long (QueryCanceled)",
    )
    assert database.rows("SELECT 1") == [(1,)]
    database.close()


def test_a_frozen_postgresql_is_an_error_in_a_connection_and_in_a_new_one_and_is_used_again(cluster: Cluster) -> None:
    database = open_database(cluster.new_database(), TRIAL, PATIENT)
    with database.transaction() as step:
        step.run(ADD, (1, "before", None))
    errors: list[str] = []
    with cluster.frozen(), hurried(database, replace(PATIENT, connect_seconds=2, response_seconds=2)):
        for _ in range(2):
            with pytest.raises(PinwardenError) as caught:
                database.rows("SELECT 1")
            errors.append(f"{caught.value.code}: {caught.value.message}")
    assert errors == [
        "DATABASE_UNAVAILABLE: the database did not respond in time (ResponseTimeout)",
        "DATABASE_UNAVAILABLE: could not connect to postgresql://local/postgres (ConnectionTimeout)",
    ]
    assert database.rows("SELECT name FROM trial") == [("before",)]
    database.close()


def test_an_interrupted_transaction_releases_its_lock(cluster: Cluster) -> None:
    url = cluster.new_database()
    stopped = open_database(url, TRIAL, replace(PATIENT, idle_seconds=3))
    other = open_database(url, TRIAL, PATIENT)
    assert other.rows("SELECT 1") == [(1,)]  # and its tables are made

    def stop_in_the_middle() -> None:
        with stopped.transaction(exclusive="trial") as mine:
            mine.run(ADD, (1, "never committed", None))
            with other.transaction(exclusive="trial") as step:
                step.run(ADD, (1, "meanwhile", None))
            mine.run(ADD, (2, "too late", None))

    with pytest.raises(PinwardenError) as caught:
        stop_in_the_middle()
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    assert stopped.rows("SELECT name FROM trial") == [("meanwhile",)]
    stopped.close()
    other.close()


def test_timeouts_in_a_database_url_apply(cluster: Cluster) -> None:
    database = open_database(f"{cluster.new_database()}&connect_timeout=2", TRIAL)
    assert isinstance(database, Postgres)
    assert database._build_parameters()["connect_timeout"] == "2"
    database.close()


def test_no_password_of_a_database_url_is_shown() -> None:
    database = open_database("postgresql://someone:hunter2@127.0.0.1:1/db", TRIAL)
    with pytest.raises(PinwardenError) as caught:
        database.rows("SELECT 1")
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    assert "hunter2" not in f"{database} {caught.value!r} {caught.value.__cause__!r}"


def test_an_unknown_kind_of_database_is_a_usage_error() -> None:
    with pytest.raises(PinwardenError) as caught:
        open_database("mysql://x/y", TRIAL)
    assert caught.value.code == "USAGE"
