"""One database, whether it is a SQLite file or PostgreSQL: the same SQL goes to both."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import unquote, urlsplit

from pinwarden.core.errors import PinwardenError
from pinwarden.system.transactions import (
    DEFAULT_LIMITS,
    ConflictError,
    Database,
    DatabaseLimits,
    Row,
    Schema,
    Transaction,
    Value,
    database_missing,
    load_schema,
)

__all__ = [
    "ConflictError",
    "Database",
    "DatabaseLimits",
    "Row",
    "Schema",
    "Transaction",
    "Value",
    "empty_database",
    "load_schema",
    "open_database",
]


def open_database(
    url: str | Path, schema: Schema, limits: DatabaseLimits = DEFAULT_LIMITS, *, create: bool = True
) -> Database:
    """The database at a path (SQLite) or a ``postgresql://`` address. It is opened when it is first used.

    Without ``create`` nothing is made where there is none: DATABASE_MISSING.
    """
    if isinstance(url, str) and url.startswith(("postgresql://", "postgres://")):
        from pinwarden.system.postgresql import Postgres

        return Postgres(url, schema, limits, create=create)
    if isinstance(url, str) and url.startswith("sqlite://"):
        url = unquote(urlsplit(url).path)
    elif isinstance(url, str) and "://" in url:
        raise PinwardenError(
            "USAGE", f"{url.partition('://')[0]!a} is no database that is known", hint="Give a path or postgresql://…"
        )
    return _Sqlite(Path(url), schema, limits, create=create)


def empty_database(schema: Schema) -> Database:
    """One with nothing in it, which nobody else sees: for whoever reads where nothing was ever written."""
    return _Nowhere(Path("nothing"), schema, DEFAULT_LIMITS)


class _SqliteTransaction(Transaction):
    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        with _sqlite_errors(self._path):
            return self._connection.execute(sql, values).fetchall()

    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        with _sqlite_errors(self._path):
            return self._connection.execute(sql, values).rowcount

    def run_many(self, sql: str, values: Sequence[Sequence[Value]]) -> None:
        with _sqlite_errors(self._path):
            self._connection.executemany(sql, values)


class _Connection(sqlite3.Connection):
    """A connection that knows which file it has open."""

    file: tuple[int, int] | None = None


_OPENED: Counter[Path] = Counter()
"""The files that this process has open, or had while nobody closed them."""


class _Sqlite(Database):
    def __init__(self, path: Path, schema: Schema, limits: DatabaseLimits, *, create: bool = True) -> None:
        super().__init__(schema, create=create)
        self._path = path
        self._limits = limits
        self._is_counted = False

    def flush(self) -> None:
        """Move what is committed from the journal to the database's file, as far as no reader needs the journal."""
        with self._translated_errors():
            self._connection().execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Empty the journal, then close: whoever copies the file of a stopped registry has all of it."""
        present = getattr(self._local, "connection", None)
        if present is not None and not self._is_lost(present):
            with suppress(sqlite3.Error):  # nothing is lost: it stays in the journal
                present.execute("PRAGMA busy_timeout = 1000")
                present.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        super().close()
        if self._is_counted:
            self._is_counted = False
            _OPENED[self._path] -= 1

    def __str__(self) -> str:
        return str(self._path)

    def _connect(self) -> _Connection:
        before = _OPENED[self._path] > 0
        if self._create and not before:
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._path.touch(mode=0o600)  # before SQLite makes it: its journals take over the mode
            except OSError as err:
                raise PinwardenError("DATABASE_UNAVAILABLE", f"{self._path} cannot be opened: {err.strerror}") from err
        file = self._file()
        if file is None and before:
            # Made anew it would be one without tokens, approvals and events, as if there had never been any.
            raise PinwardenError("DATABASE_UNAVAILABLE", f"{self._path} was there, and is gone")
        if file is None:
            raise database_missing(str(self))
        made: _Connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=rw",  # it may be taken away just now, and is not made here
            self._limits.lock_seconds,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
            uri=True,
        )
        try:
            made.file = file
            _keep_journal(made, self._limits.lock_seconds)
            made.execute("PRAGMA synchronous = FULL")  # what was committed survives a power cut
            made.execute("PRAGMA foreign_keys = ON")
            made.execute("PRAGMA trusted_schema = OFF")
        except BaseException:
            made.close()
            raise
        if not self._is_counted:
            self._is_counted = True
            _OPENED[self._path] += 1
        return made

    def _is_ours(self, connection: _Connection) -> bool:
        sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'pinwarden_schema'"
        return self._transaction(connection).row(sql) is not None

    def _begin(self, connection: _Connection, exclusive: str | None) -> None:
        connection.execute("BEGIN" if exclusive is None else "BEGIN IMMEDIATE")

    def _commit(self, connection: _Connection) -> None:
        connection.execute("COMMIT")
        if self._is_lost(connection):
            raise PinwardenError("DATABASE_UNAVAILABLE", f"{self._path} was taken away while it was written to")

    def _roll_back(self, connection: _Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _transaction(self, connection: _Connection) -> Transaction:
        return _SqliteTransaction(connection, self._path)

    def _is_lost(self, connection: _Connection) -> bool:
        """Whether another file has the name by now, or none: what is written to this one, nobody would find."""
        return connection.file is None or connection.file != self._file()

    def _file(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _translated_errors(self) -> Any:
        return _sqlite_errors(self._path)


class _Nowhere(_Sqlite):
    def _connect(self) -> _Connection:
        return sqlite3.connect(":memory:", isolation_level=None, factory=_Connection)

    def _is_lost(self, connection: _Connection) -> bool:  # noqa: ARG002 - no file is behind it
        return False


def _keep_journal(connection: sqlite3.Connection, seconds: float) -> None:
    """Have changes written beside the file first. While others open a new file, SQLite refuses this without a wait."""
    deadline = monotonic() + seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as err:
            if err.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() > deadline:
                raise
            sleep(_BUSY_PAUSE)
        else:
            return


_BUSY_PAUSE = 0.01


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as err:
        if err.sqlite_errorcode == sqlite3.SQLITE_ERROR:  # of our own SQL: its tables are not the ones that we made
            raise PinwardenError("DATABASE_CORRUPT", f"the database {path} is damaged: {err}") from err
        raise PinwardenError("DATABASE_UNAVAILABLE", f"the database {path} did not do it: {err}") from err
    except sqlite3.IntegrityError as err:
        raise ConflictError(str(err)) from err
    except (UnicodeError, OverflowError) as err:
        raise PinwardenError("DATABASE_UNAVAILABLE", f"a value cannot be kept or read ({type(err).__name__})") from err
    except sqlite3.DatabaseError as err:
        raise PinwardenError("DATABASE_CORRUPT", f"the database {path} is damaged: {err}") from err
