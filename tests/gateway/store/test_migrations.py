"""Databases of every earlier version are upgraded, and those of a later version refused.

`tests/assets/schemas` keeps a copy of every migration as it was published. A database of an earlier version is made
from the copies, without the code under test.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.system.database import Database, Schema, list_tables, load_schema, open_database
from pinwarden.system.transactions import SCHEMAS, split_statements

KEPT = Path(__file__).resolve().parents[2] / "assets" / "schemas"
NAMES = sorted(folder.name for folder in SCHEMAS.iterdir() if folder.is_dir())
VERSIONS = [
    (folder.name, version) for folder in sorted(KEPT.iterdir()) for version in range(1, len([*folder.iterdir()]) + 1)
]


class Raw:
    """A connection that knows nothing of Pinwarden."""

    def __init__(self, connection: Any, *, postgres: bool) -> None:
        self._connection = connection
        self._postgres = postgres

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        cursor = self._connection.execute(sql.replace("?", "%s") if self._postgres else sql, values)
        if cursor.description is None:
            return []
        return [tuple(bytes(value) if isinstance(value, memoryview) else value for value in row) for row in cursor]

    def columns(self) -> dict[str, dict[str, str]]:
        """The type of every column, by table."""
        if self._postgres:
            rows = self.run(
                "SELECT table_name, column_name, data_type FROM information_schema.columns"
                " WHERE table_schema = current_schema() ORDER BY table_name, ordinal_position"
            )
        else:
            rows = self.run(
                "SELECT m.name, c.name, c.type FROM sqlite_master m, pragma_table_info(m.name) c"
                " WHERE m.type = 'table' ORDER BY m.name, c.cid"
            )
        tables: dict[str, dict[str, str]] = {}
        for table, column, kind in rows:
            tables.setdefault(table, {})[column] = kind.lower()
        return tables

    def indexes(self) -> list[Any]:
        if self._postgres:
            return self.run("SELECT indexdef FROM pg_indexes WHERE schemaname = current_schema() ORDER BY 1")
        return self.run("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'index' ORDER BY 1")


@contextmanager
def raw(url: str) -> Iterator[Raw]:
    if url.startswith("postgresql:"):
        with psycopg.connect(url, autocommit=True) as connection:
            yield Raw(connection, postgres=True)
        return
    Path(url).parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(url, isolation_level=None)) as connection:
        yield Raw(connection, postgres=False)


def kept_scripts(name: str, version: int) -> list[str]:
    return [path.read_text() for path in sorted((KEPT / name).iterdir())[:version]]


def make_earlier(database: Raw, name: str, version: int) -> None:
    """Make the database that a release with this version made."""
    database.run("CREATE TABLE pinwarden_schema (name TEXT PRIMARY KEY, version BIGINT NOT NULL)")
    for script in kept_scripts(name, version):
        for statement in split_statements(script):
            database.run(statement)
    database.run("INSERT INTO pinwarden_schema (name, version) VALUES (?, ?)", (name, version))


def fill(database: Raw, tables: Sequence[str]) -> dict[str, Any]:
    """Write a row into every table, in this order. Returns all rows, each with its columns."""
    samples = {"text": "x", "bigint": 7, "bytea": b"\x00\xff"}
    filled: dict[str, Any] = {}
    kinds = database.columns()
    for table in tables:
        columns = kinds[table]
        values = tuple(samples[kind] for kind in columns.values())
        marks = ", ".join("?" for _ in values)
        database.run(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", values)
        filled[table] = (", ".join(columns), [values])
    return filled


def names_of(schema: Schema) -> list[str]:
    return [table.name for table in list_tables(schema)]


def use(database: Database) -> None:
    with closing(database):
        database.rows("SELECT 1")


def test_a_published_migration_never_changes_and_has_a_copy_here() -> None:
    published = {path.relative_to(SCHEMAS): path.read_text() for path in sorted(SCHEMAS.rglob("*.sql"))}
    kept = {path.relative_to(KEPT): path.read_text() for path in sorted(KEPT.rglob("*.sql"))}
    assert kept == published, "copy a new migration to tests/assets/schemas; a published one must not change"


@pytest.mark.parametrize("name", NAMES)
def test_migrations_are_numbered_without_gaps(name: str) -> None:
    numbers = [int(path.name.partition("_")[0]) for path in sorted((SCHEMAS / name).iterdir())]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_a_database_of_every_earlier_version_is_upgraded_with_its_rows(
    name: str, version: int, database_url: str
) -> None:
    # The registry's later tables have indexes on its first ones.
    basis = "registry" if name.startswith("registry_") else ""
    with raw(database_url) as database:
        if basis:
            for statement in split_statements("\n".join(kept_scripts(basis, 1))):
                database.run(statement)
        make_earlier(database, name, version)
        earlier = Schema(name=name, migrations=tuple(kept_scripts(name, version)))
        filled = fill(database, names_of(earlier))
    use(open_database(database_url, load_schema(name)))
    fresh = f"{database_url}-fresh"
    with raw(database_url) as database:
        assert database.run("SELECT name, version FROM pinwarden_schema") == [(name, load_schema(name).version)]
        for table, (columns, rows) in filled.items():
            assert database.run(f"SELECT {columns} FROM {table}") == rows
        upgraded = database.columns(), database.indexes()
    if not basis and not database_url.startswith("postgresql:"):
        use(open_database(fresh, load_schema(name)))
        with raw(fresh) as database:
            assert (database.columns(), database.indexes()) == upgraded


def test_a_review_that_the_first_release_stored_as_waiting_is_pending(database_url: str) -> None:
    with raw(database_url) as database:
        make_earlier(database, "gateway", 1)
        fill(database, ["review"])
        database.run("UPDATE review SET state = 'waiting'")
    with closing(open_database(database_url, load_schema("gateway"))) as upgraded:
        assert upgraded.rows("SELECT state FROM review") == [("pending",)]


@pytest.mark.parametrize("name", NAMES)
def test_the_listed_tables_are_those_of_the_database(name: str, database_url: str) -> None:
    additions = [name] if name.startswith("registry_") else []
    schema = load_schema("registry" if additions else name, *additions)
    use(open_database(database_url, schema))
    with raw(database_url) as database:
        columns = {table: tuple(found) for table, found in database.columns().items() if table != "pinwarden_schema"}
    assert columns == {table.name: table.columns for table in list_tables(schema)}


ONE = "CREATE TABLE trial (\n    number BIGINT PRIMARY KEY\n);\nINSERT INTO trial (number) VALUES (1);"
TWO = "ALTER TABLE trial ADD COLUMN name TEXT NOT NULL DEFAULT 'none';"
BROKEN = "UPDATE trial SET number = 2;\nINSERT INTO nowhere (number) VALUES (1);"


def trial(*migrations: str) -> Schema:
    return Schema(name="trial", migrations=migrations)


def test_each_migration_is_applied_once_by_whoever_comes_first(database_url: str) -> None:
    use(open_database(database_url, trial(ONE)))
    opened = [open_database(database_url, trial(ONE, TWO)) for _ in range(6)]
    with ThreadPoolExecutor(len(opened)) as threads:
        rows = list(threads.map(lambda database: database.rows("SELECT number, name FROM trial"), opened))
    assert rows == [[(1, "none")]] * len(opened)
    for database in opened:
        database.close()


def test_a_migration_that_fails_changes_neither_tables_nor_version(database_url: str) -> None:
    use(open_database(database_url, trial(ONE)))
    with pytest.raises(PinwardenError):
        use(open_database(database_url, trial(ONE, TWO, BROKEN)))
    with raw(database_url) as database:
        assert database.run("SELECT * FROM trial") == [(1,)]
        assert database.run("SELECT version FROM pinwarden_schema") == [(1,)]
    use(open_database(database_url, trial(ONE, TWO)))


def test_a_newer_database_is_refused_and_not_touched(database_url: str) -> None:
    use(open_database(database_url, trial(ONE, TWO)))
    with pytest.raises(PinwardenError) as caught:
        use(open_database(database_url, trial(ONE)))
    assert caught.value.code == "DATABASE_NEWER"
    assert "they have version 2, and this release knows version 1" in caught.value.message
    with raw(database_url) as database:
        assert database.run("SELECT * FROM trial") == [(1, "none")]
        assert database.run("SELECT version FROM pinwarden_schema") == [(2,)]


@pytest.mark.parametrize("version", ["one", -1])
def test_a_malformed_version_is_reported_as_damage(version: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "trial.sqlite")
    use(open_database(url, trial(ONE)))
    with raw(url) as database:
        database.run("UPDATE pinwarden_schema SET version = ?", (version,))
    with pytest.raises(PinwardenError) as caught:
        use(open_database(url, trial(ONE)))
    assert caught.value.code == "DATABASE_CORRUPT"
