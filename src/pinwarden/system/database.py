"""Opens databases. SQLite is implemented here, PostgreSQL in ``postgresql.py``; both get the same SQL."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import unquote, urlsplit

from pinwarden.core.errors import PinwardenError
from pinwarden.system.transactions import (
    DATABASE_LIMITS,
    ConflictError,
    Database,
    DatabaseLimits,
    Row,
    Schema,
    Table,
    Transaction,
    Value,
    database_missing_error,
    list_tables,
    load_schema,
)

__all__ = [
    "ConflictError",
    "Database",
    "DatabaseLimits",
    "Row",
    "Schema",
    "Table",
    "Transaction",
    "Value",
    "copy_sqlite_database",
    "is_postgresql",
    "list_tables",
    "load_schema",
    "open_database",
    "open_empty_database",
]


def open_database(
    url: str | Path, schema: Schema, limits: DatabaseLimits = DATABASE_LIMITS, *, create: bool = True
) -> Database:
    """Return the database at a path (SQLite) or a ``postgresql://`` address. It is opened on first use.

    Without ``create``, a missing database raises DATABASE_MISSING instead of being created.
    """
    if is_postgresql(url):
        from pinwarden.system.postgresql import Postgres

        return Postgres(str(url), schema, limits, create=create)
    if isinstance(url, str) and url.startswith("sqlite://"):
        url = find_sqlite_file(url)
    elif isinstance(url, str) and "://" in url:
        raise PinwardenError(
            "USAGE", f"unknown kind of database {url.partition('://')[0]!a}", hint="Give a path or postgresql://…"
        )
    return _Sqlite(Path(url), schema, limits, create=create)


def is_postgresql(url: str | Path) -> bool:
    """Whether this is the address of a PostgreSQL database."""
    return isinstance(url, str) and url.startswith(("postgresql://", "postgres://"))


def find_sqlite_file(url: str) -> Path:
    """Return the file of an SQLite database, which is named by its path or a URL."""
    return Path(unquote(urlsplit(url).path) if url.startswith("sqlite://") else url)


def copy_sqlite_database(url: str, target: Path) -> None:
    """Copy a SQLite database that may be in use, with its write-ahead log, into a file without one."""
    path = find_sqlite_file(url)
    with _translate_sqlite_errors(path), closing(sqlite3.connect(target)) as copy:
        if not path.is_file():
            raise database_missing_error(str(path))
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", DATABASE_LIMITS.lock_seconds, uri=True)
        ) as one:
            one.execute("PRAGMA trusted_schema = OFF")
            one.backup(copy)  # in one step: writers go on, and a step by step copy would begin again with each write
        copy.execute("PRAGMA trusted_schema = OFF")
        copy.execute("PRAGMA journal_mode = DELETE")
        problem = copy.execute("PRAGMA integrity_check(1)").fetchone()
        if problem != ("ok",):
            raise PinwardenError("DATABASE_CORRUPT", f"{path} is damaged: {str(problem)[:200]}")
        program = copy.execute("SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view') LIMIT 1").fetchone()
        if program is not None:  # it would run later, with what Pinwarden writes
            name = str(program[0])[:80]
            raise PinwardenError(
                "DATABASE_CORRUPT", f"{path} has a trigger or view, which is not Pinwarden's: {name!a}"
            )


def open_empty_database(schema: Schema) -> Database:
    """Open an empty database in memory, for commands that read a database that does not exist."""
    return _EmptySqlite(Path("nothing"), schema, DATABASE_LIMITS)


class _SqliteTransaction(Transaction):
    """A transaction that was begun with ``is_exclusive`` has SQLite's write lock from the start.

    Another one gets it with its first write. That fails at once, without waiting, if the transaction has read before
    and another process has written since. So such a transaction must not read before it writes.
    """

    def __init__(self, connection: _Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._has_read = self._has_written = False

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        self._has_read = True
        with _translate_sqlite_errors(self._path):
            return self._connection.execute(sql, values).fetchall()

    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        self._refuse_late_write()
        with _translate_sqlite_errors(self._path):
            return self._connection.execute(sql, values).rowcount

    def run_many(self, sql: str, values: Sequence[Sequence[Value]]) -> None:
        self._refuse_late_write()
        with _translate_sqlite_errors(self._path):
            self._connection.executemany(sql, values)

    def _refuse_late_write(self) -> None:
        if self._has_read and not (self._has_written or self._connection.is_exclusive):
            raise TypeError("a transaction that reads before it writes needs an exclusive name")
        self._has_written = True


class _Connection(sqlite3.Connection):
    """A connection that records which file it opened: device and inode."""

    file: tuple[int, int] | None = None
    is_exclusive = False
    """Whether the transaction was begun with the write lock."""


_open_databases: Counter[Path] = Counter()
"""Number of databases that this process has opened and not closed, by file."""


class _Sqlite(Database):
    def __init__(self, path: Path, schema: Schema, limits: DatabaseLimits, *, create: bool = True) -> None:
        super().__init__(schema, create=create)
        self._path = path
        self._limits = limits
        self._is_counted = False

    def flush(self) -> None:
        """Move committed data from the write-ahead log to the database file, except what readers still need there."""
        with self._translate_errors():
            self._get_connection().execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Empty the write-ahead log, then close, so that a copy of the database file is complete."""
        present = getattr(self._local, "connection", None)
        if present is not None and not self._is_lost(present):
            with suppress(sqlite3.Error):  # the data is safe in the write-ahead log
                present.execute("PRAGMA busy_timeout = 1000")
                present.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        super().close()
        if self._is_counted:
            self._is_counted = False
            _open_databases[self._path] -= 1

    def __str__(self) -> str:
        return str(self._path)

    def _connect(self) -> _Connection:
        before = _open_databases[self._path] > 0
        if self._create and not before:
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._path.touch(mode=0o600)  # SQLite's journals get the mode of the file
            except OSError as err:
                raise PinwardenError("DATABASE_UNAVAILABLE", f"{self._path} cannot be opened: {err.strerror}") from err
        file = self._file_identity()
        if file is None and before:
            # A new file would have no tokens, approvals and events.
            raise PinwardenError("DATABASE_UNAVAILABLE", f"{self._path} was deleted while it was in use")
        if file is None:
            raise database_missing_error(str(self))
        connection: _Connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=rw",  # never creates the file, even if it was deleted just now
            self._limits.lock_seconds,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
            uri=True,
        )
        try:
            connection.file = file
            _enable_write_ahead_log(connection, self._limits.lock_seconds)
            connection.execute("PRAGMA synchronous = FULL")  # commits survive a power failure
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
        except BaseException:
            connection.close()
            raise
        if not self._is_counted:
            self._is_counted = True
            _open_databases[self._path] += 1
        return connection

    def _is_pinwarden_database(self, connection: _Connection) -> bool:
        sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'pinwarden_schema'"
        return self._wrap_connection(connection).row(sql) is not None

    def _begin(self, connection: _Connection, exclusive: str | None) -> None:
        connection.execute("BEGIN" if exclusive is None else "BEGIN IMMEDIATE")
        connection.is_exclusive = exclusive is not None

    def _begin_snapshot(self, connection: _Connection) -> None:
        connection.execute("BEGIN")  # with a write-ahead log, every transaction reads one state

    def _commit(self, connection: _Connection) -> None:
        connection.execute("COMMIT")
        if self._is_lost(connection):
            raise PinwardenError("DATABASE_UNAVAILABLE", f"{self._path} was removed or replaced during a transaction")

    def _roll_back(self, connection: _Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _wrap_connection(self, connection: _Connection) -> Transaction:
        return _SqliteTransaction(connection, self._path)

    def _is_lost(self, connection: _Connection) -> bool:
        """Whether the path now names another file or none, so that writes to the open file would be lost."""
        return connection.file is None or connection.file != self._file_identity()

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _translate_errors(self) -> Any:
        return _translate_sqlite_errors(self._path)


class _EmptySqlite(_Sqlite):
    def _connect(self) -> _Connection:
        return sqlite3.connect(":memory:", isolation_level=None, factory=_Connection)

    def _is_lost(self, connection: _Connection) -> bool:  # noqa: ARG002 - no file is behind it
        return False


def _enable_write_ahead_log(connection: sqlite3.Connection, seconds: float) -> None:
    """Switch to write-ahead logging. Retries while another process opens a new file, where SQLite does not wait."""
    deadline = monotonic() + seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as err:
            if err.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() > deadline:
                raise
            sleep(_BUSY_RETRY_SECONDS)
        else:
            return


_BUSY_RETRY_SECONDS = 0.01


@contextmanager
def _translate_sqlite_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as err:
        if err.sqlite_errorcode == sqlite3.SQLITE_ERROR:  # another program created the tables
            raise PinwardenError("DATABASE_CORRUPT", f"the database {path} is damaged: {err}") from err
        raise PinwardenError("DATABASE_UNAVAILABLE", f"the database {path} failed: {err}") from err
    except sqlite3.IntegrityError as err:
        raise ConflictError(str(err)) from err
    except (UnicodeError, OverflowError) as err:
        raise PinwardenError(
            "DATABASE_UNAVAILABLE", f"a value cannot be stored or read ({type(err).__name__})"
        ) from err
    except sqlite3.DatabaseError as err:
        raise PinwardenError("DATABASE_CORRUPT", f"the database {path} is damaged: {err}") from err
