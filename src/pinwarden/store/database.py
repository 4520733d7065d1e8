"""One database, whether it is a SQLite file or PostgreSQL: the same SQL goes to both.

What both understand is used and nothing else: ``?`` for a value, TEXT, BIGINT and BYTEA for columns, numbers that the
program gives out itself. Each thread has a connection of its own, so one `Database` serves a whole process.

Whoever asks for a transaction that is ``alone`` is the only one in it, on either database and over all processes: that
is what keeps a chain or a log in one line.
"""

from __future__ import annotations

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import unquote, urlsplit

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

Value = str | int | bytes | None
Row = tuple[Any, ...]

_SCHEMA_VERSION = 1


class DatabaseLimits(Record):
    """How many seconds anything may take, and why: no database, however it fails, holds up its user for ever."""

    connect: float = 10.0
    """To reach a server, for each of its addresses."""
    lock: float = 30.0
    """For another writer. A transaction of ours lasts milliseconds; the export of a whole registry some seconds."""
    statement: float = 45.0
    """For one statement on the server, with its wait for others. Every question of ours reads a page at most."""
    answer: float = 60.0
    """For an answer, as seen from here. It is longer than `statement`, so that a server that still works is the one
    to say no; beyond it the server is stopped or out of reach, and only giving up helps."""
    idle: float = 20.0
    """How long a server keeps a transaction whose owner says nothing: one that was stopped in the middle of it must
    not hold its locks. It is shorter than `lock`, so that those who wait for it still get their turn."""


DEFAULT_LIMITS = DatabaseLimits()


class Conflict(Exception):  # noqa: N818 - it is told to the writer of the row, who knows what it means
    """A row breaks a rule of its table: it is there already, or what it refers to is not."""


class Schema(Record):
    """The tables of one store, and their name."""

    name: str
    sql: str


def schema_of(name: str) -> Schema:
    """The tables in ``schemas/<name>.sql``."""
    return Schema(name=name, sql=(Path(__file__).parent / "schemas" / f"{name}.sql").read_text("utf-8"))


class Transaction(ABC):
    """What may be asked of the database until the transaction ends."""

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Every row of an answer."""

    @abstractmethod
    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        """Change something, and return how many rows that touched."""

    @abstractmethod
    def run_many(self, sql: str, values: Sequence[Sequence[Value]]) -> None:
        """Change something once for each row of values."""

    def row(self, sql: str, values: Sequence[Value] = ()) -> Row | None:
        """The first row of an answer, if there is one."""
        return next(iter(self.rows(sql, values)), None)


class Database(ABC):
    """A database with the tables of one schema. Made by `open_database`."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._local = threading.local()
        self._all: list[Any] = []
        self._guard = threading.Lock()

    @contextmanager
    def transaction(self, *, alone: str | None = None) -> Iterator[Transaction]:
        """All or nothing. With ``alone`` nobody else is inside a transaction of that name at the same time."""
        connection = self._connection()
        with self._told():
            self._begin(connection, alone)
        try:
            yield self._transaction(connection)
        except BaseException:
            self._give_up(connection)
            raise
        with self._told():
            self._commit(connection)

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """One question, in a transaction of its own."""
        with self.transaction() as step:
            return step.rows(sql, values)

    def row(self, sql: str, values: Sequence[Value] = ()) -> Row | None:
        """The first row of one question."""
        with self.transaction() as step:
            return step.row(sql, values)

    def close(self) -> None:
        """Close what every thread has open. No thread may be inside a transaction."""
        with self._guard:
            connections, self._all = self._all, []
            self._local = threading.local()
        for each in connections:
            each.close()

    def _connection(self) -> Any:
        present = getattr(self._local, "connection", None)
        if present is not None and not self._is_lost(present):
            return present
        if present is not None:
            present.close()
        with self._told():
            made = self._connect()
            try:
                self._make_tables(made)
            except BaseException:
                made.close()
                raise
        with self._guard:
            self._all = [each for each in self._all if each is not present]
            self._all.append(made)
        self._local.connection = made
        return made

    def _make_tables(self, connection: Any) -> None:
        name = self._schema.name
        self._begin(connection, f"schema {name}")
        step = self._transaction(connection)
        try:
            step.run("CREATE TABLE IF NOT EXISTS pinwarden_schema (name TEXT PRIMARY KEY, version BIGINT NOT NULL)")
            found = step.row("SELECT version FROM pinwarden_schema WHERE name = ?", (name,))
            if found is None:
                for statement in _statements(self._schema.sql):
                    step.run(statement)
                step.run("INSERT INTO pinwarden_schema (name, version) VALUES (?, ?)", (name, _SCHEMA_VERSION))
            elif found[0] != _SCHEMA_VERSION:
                raise PinwardenError(
                    "DATABASE_NEWER", f"{self} was made by another release (tables of version {found[0]})"
                )
        except BaseException:
            self._give_up(connection)
            raise
        self._commit(connection)

    @abstractmethod
    def _connect(self) -> Any: ...
    @abstractmethod
    def _begin(self, connection: Any, alone: str | None) -> None: ...
    @abstractmethod
    def _commit(self, connection: Any) -> None: ...
    @abstractmethod
    def _give_up(self, connection: Any) -> None: ...
    @abstractmethod
    def _transaction(self, connection: Any) -> Transaction: ...
    @abstractmethod
    def _is_lost(self, connection: Any) -> bool: ...
    @abstractmethod
    def _told(self) -> Any:
        """A context in which the database's own errors become ours."""


def _statements(text: str) -> list[str]:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return [each.strip() for each in "\n".join(lines).split(";") if each.strip()]


def open_database(url: str | Path, schema: Schema, limits: DatabaseLimits = DEFAULT_LIMITS) -> Database:
    """The database at a path (SQLite) or a ``postgresql://`` address. It is opened when it is first used."""
    if isinstance(url, str) and url.startswith(("postgresql://", "postgres://")):
        from pinwarden.store.postgresql import Postgres

        return Postgres(url, schema, limits)
    if isinstance(url, str) and url.startswith("sqlite://"):
        url = unquote(urlsplit(url).path)
    elif isinstance(url, str) and "://" in url:
        raise PinwardenError(
            "USAGE", f"{url.partition('://')[0]!a} is no database that is known", hint="Give a path or postgresql://…"
        )
    return _Sqlite(Path(url), schema, limits)


class _SqliteTransaction(Transaction):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        with _sqlite_errors():
            return self._connection.execute(sql, values).fetchall()

    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        with _sqlite_errors():
            return self._connection.execute(sql, values).rowcount

    def run_many(self, sql: str, values: Sequence[Sequence[Value]]) -> None:
        with _sqlite_errors():
            self._connection.executemany(sql, values)


class _Sqlite(Database):
    def __init__(self, path: Path, schema: Schema, limits: DatabaseLimits) -> None:
        super().__init__(schema)
        self._path = path
        self._limits = limits

    def __str__(self) -> str:
        return str(self._path)

    def _connect(self) -> sqlite3.Connection:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)  # before SQLite makes it: its journals take over the mode
        except OSError as err:
            raise PinwardenError("DATABASE_UNAVAILABLE", f"{self._path} cannot be opened: {err.strerror}") from err
        made = sqlite3.connect(self._path, timeout=self._limits.lock, isolation_level=None, check_same_thread=False)
        try:
            _keep_journal(made, self._limits.lock)
            made.execute("PRAGMA synchronous = FULL")  # what was committed survives a power cut
            made.execute("PRAGMA foreign_keys = ON")
            made.execute("PRAGMA trusted_schema = OFF")
        except BaseException:
            made.close()
            raise
        return made

    def _begin(self, connection: sqlite3.Connection, alone: str | None) -> None:
        connection.execute("BEGIN" if alone is None else "BEGIN IMMEDIATE")

    def _commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def _give_up(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _transaction(self, connection: sqlite3.Connection) -> Transaction:
        return _SqliteTransaction(connection)

    def _is_lost(self, connection: sqlite3.Connection) -> bool:  # noqa: ARG002 - a file does not hang up
        return False

    def _told(self) -> Any:
        return _sqlite_errors()


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
def _sqlite_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as err:
        raise PinwardenError("DATABASE_UNAVAILABLE", f"the database did not do it: {err}") from err
    except sqlite3.IntegrityError as err:
        raise Conflict(str(err)) from err
    except sqlite3.DatabaseError as err:
        raise PinwardenError("DATABASE_CORRUPT", f"the database is damaged: {err}") from err
