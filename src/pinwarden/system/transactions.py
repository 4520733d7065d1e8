"""The database interface: transactions over the tables of one schema. `open_database` returns a `Database`.

Only SQL that SQLite and PostgreSQL both understand is used: ``?`` for a value, columns of type TEXT, BIGINT and BYTEA,
and numbers that the program assigns itself. Each thread has its own connection, so one `Database` serves a process.

Transactions with the same ``exclusive`` name never run at the same time, in any process. That keeps the hash chain of
the audit log and the transparency log linear.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

Value = str | int | bytes | None
Row = tuple[Any, ...]

_SCHEMA_VERSION = 1


class DatabaseLimits(Record):
    """How many seconds anything may take, and why: no database, however it fails, holds up its user for ever."""

    connect_seconds: float = 10.0
    """To reach a server, for each of its addresses."""
    lock_seconds: float = 30.0
    """For another writer. A transaction of ours lasts milliseconds; the export of a whole registry some seconds."""
    statement_seconds: float = 45.0
    """For one statement on the server, with its wait for others. Every question of ours reads a page at most."""
    answer_seconds: float = 60.0
    """For an answer, as seen from here. It is longer than `statement`, so that a server that still works is the one
    to say no; beyond it the server is stopped or out of reach, and only giving up helps."""
    idle_seconds: float = 20.0
    """How long a server keeps a transaction whose owner says nothing: one that was stopped in the middle of it must
    not hold its locks. It is shorter than `lock`, so that those who wait for it still get their turn."""


DEFAULT_LIMITS = DatabaseLimits()


class ConflictError(Exception):
    """A row breaks a rule of its table: it is there already, or what it refers to is not."""


class Schema(Record):
    """The tables of one store, and their name."""

    name: str
    sql: str


def load_schema(name: str) -> Schema:
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

    def __init__(self, schema: Schema, *, create: bool = True) -> None:
        """Without ``create`` a database that is not there, or not one of ours, is an error when it is first used."""
        self._schema = schema
        self._create = create
        self._local = threading.local()
        self._all: list[Any] = []
        self._guard = threading.Lock()
        self._opened = 0

    @contextmanager
    def transaction(self, *, exclusive: str | None = None) -> Iterator[Transaction]:
        """All or nothing. With ``exclusive`` nobody else is inside a transaction of that name at the same time."""
        connection = self._connection()
        with self._translated_errors():
            self._begin(connection, exclusive)
        try:
            yield self._transaction(connection)
        except BaseException:
            self._roll_back(connection)
            raise
        with self._translated_errors():
            self._commit(connection)

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """One question, in a transaction of its own."""
        with self.transaction() as step:
            return step.rows(sql, values)

    def row(self, sql: str, values: Sequence[Value] = ()) -> Row | None:
        """The first row of one question."""
        with self.transaction() as step:
            return step.row(sql, values)

    def open_count(self) -> int:
        """How often the database was opened, with now: if it is more often than before, it may be another one."""
        self._connection()
        return self._opened

    @abstractmethod
    def flush(self) -> None:
        """Have what is committed in the file that people copy. Nothing to do where there is no such file."""

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
            self._local.connection = None
        with self._translated_errors():
            made = self._connect()
            try:
                self._make_tables(made)
            except BaseException:
                made.close()
                raise
        with self._guard:
            self._all = [each for each in self._all if each is not present]
            self._all.append(made)
            self._opened += 1
        self._local.connection = made
        return made

    def _has_tables(self, connection: Any) -> bool:
        """Whether the tables are there, asked without a wait for whoever writes: every thread that reads begins so."""
        sql = "SELECT version FROM pinwarden_schema WHERE name = ?"
        try:
            found = self._transaction(connection).row(sql, (self._schema.name,))
        except PinwardenError:
            if self._is_lost(connection):
                raise
            return False  # a database with nothing in it, or one that cannot be read, which is told in a moment
        return found is not None and found[0] == _SCHEMA_VERSION

    def _make_tables(self, connection: Any) -> None:
        if self._has_tables(connection):
            return
        if not self._create and not self._is_ours(connection):
            raise database_missing(str(self))
        name = self._schema.name
        self._begin(connection, "schema")  # one after another, whatever tables: they share the one that names them
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
            self._roll_back(connection)
            raise
        self._commit(connection)

    @abstractmethod
    def _connect(self) -> Any: ...
    @abstractmethod
    def _is_ours(self, connection: Any) -> bool:
        """Whether any of our tables are there."""

    @abstractmethod
    def _begin(self, connection: Any, exclusive: str | None) -> None: ...
    @abstractmethod
    def _commit(self, connection: Any) -> None: ...
    @abstractmethod
    def _roll_back(self, connection: Any) -> None: ...
    @abstractmethod
    def _transaction(self, connection: Any) -> Transaction: ...
    @abstractmethod
    def _is_lost(self, connection: Any) -> bool: ...
    @abstractmethod
    def _translated_errors(self) -> Any:
        """A context in which the database's own errors become ours."""


def database_missing(name: str) -> PinwardenError:
    """What is told of a database that is not there."""
    return PinwardenError(
        "DATABASE_MISSING",
        f"there is no database of Pinwarden at {name}",
        hint="Name the one that the gateway uses: --audit, PINWARDEN_DATABASE or PINWARDEN_STATE. "
        "It is made by the first pinwarden run or pinwarden gateway.",
    )


def _statements(text: str) -> list[str]:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return [each.strip() for each in "\n".join(lines).split(";") if each.strip()]
