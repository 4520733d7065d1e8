"""The database interface: transactions over the tables of one schema. `open_database` returns a `Database`.

Only SQL that SQLite and PostgreSQL both understand is used: ``?`` for a value, columns of type TEXT, BIGINT and BYTEA,
and numbers that the program assigns itself. Each thread has its own connection, so one `Database` serves a process.

Transactions with the same ``exclusive`` name never run at the same time, in any process. That keeps the hash chain of
the audit log and the transparency log linear.

The tables of a store are made and changed by numbered migrations, only forwards. A new connection applies those that
the database lacks, in one transaction that also records their number. A release refuses a database with a migration
that it does not know.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace

if TYPE_CHECKING:
    from pinwarden.system.change_feed import ChangeFeed

Value = str | int | bytes | None
Row = tuple[Any, ...]
CHANNEL = "pinwarden"
"""The channel of PostgreSQL for all notifications; their payload is the topic."""


class DatabaseLimits(Record):
    """Timeouts, each with its reason. No failure of a database may block a caller forever."""

    connect_seconds: float = 10.0
    """The limit for connecting to each address of the server."""
    lock_seconds: float = 30.0
    """The limit for waiting for another writer. Most transactions take milliseconds, a registry export some seconds."""
    statement_seconds: float = 45.0
    """The limit for one statement on the server, including its wait for locks."""
    response_seconds: float = 60.0
    """For a response, measured by the client. It is longer than ``statement_seconds``, so that a working server reports
    the timeout itself. After it, the server is frozen or unreachable."""
    idle_seconds: float = 20.0
    """How long the server keeps an idle transaction, so that a stopped process does not keep its locks. It is shorter
    than ``lock_seconds``, so that waiting transactions can still proceed."""


DATABASE_LIMITS = DatabaseLimits()


class ConflictError(Exception):
    """A row violates a constraint: it exists already, or refers to a row that does not exist."""


class Schema(Record):
    """The name of a set of tables, and the migrations that make it."""

    name: str
    migrations: tuple[str, ...]
    """SQL scripts in order. A migration that was published never changes: a later one changes its tables."""
    additions: tuple[Schema, ...] = ()
    """Sets of tables that the store also uses, each with its own migrations."""

    @property
    def version(self) -> int:
        """The number of the last migration."""
        return len(self.migrations)


class Table(Record):
    """The name, columns and primary key of a table."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


def list_tables(schema: Schema) -> list[Table]:
    """Return the tables of a schema and its additions. A table comes after the tables that it refers to."""
    tables: dict[str, Table] = {}
    for script in schema.migrations:
        for statement in split_statements(script):
            words = statement.split()
            if words[:2] == ["CREATE", "TABLE"]:
                tables[words[2]] = _parse_table(words[2], statement)
            elif words[:2] == ["ALTER", "TABLE"] and words[3:5] == ["ADD", "COLUMN"]:
                table = tables[words[2]]
                tables[words[2]] = replace(table, columns=(*table.columns, words[5]))
            elif words[:2] == ["DROP", "TABLE"]:
                del tables[words[2]]
    return [*tables.values(), *(table for addition in schema.additions for table in list_tables(addition))]


def _parse_table(name: str, statement: str) -> Table:
    lines = [line.strip().rstrip(",") for line in statement.partition("(")[2].splitlines()]
    columns = tuple(line.split()[0] for line in lines if line[:1].islower())
    keys = [line for line in lines if "PRIMARY KEY" in line]
    key = keys[0].partition("PRIMARY KEY (")[2].rstrip(")") if keys[0].startswith("PRIMARY") else keys[0].split()[0]
    return Table(name=name, columns=columns, key=tuple(part.strip() for part in key.split(",")))


def load_schema(name: str, *additions: str) -> Schema:
    """Return the tables of the migrations in ``schemas/<name>``, with those of the additions."""
    folder = SCHEMAS / name
    scripts = tuple(path.read_text("utf-8") for path in sorted(folder.glob("*.sql")))
    return Schema(name=name, migrations=scripts, additions=tuple(map(load_schema, additions)))


SCHEMAS = Path(__file__).parent / "schemas"
"""A folder for each set of tables, with its migrations: ``0001_create.sql``, then one file for each change."""


class Transaction(ABC):
    """An open transaction."""

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Return all rows of a query."""

    @abstractmethod
    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        """Run a statement and return the number of changed rows."""

    @abstractmethod
    def run_many(self, sql: str, values: Sequence[Sequence[Value]]) -> None:
        """Run a statement once for each row of values."""

    def row(self, sql: str, values: Sequence[Value] = ()) -> Row | None:
        """Return the first row of a query, or None."""
        return next(iter(self.rows(sql, values)), None)

    def notify(self, topic: str) -> None:  # noqa: B027 - SQLite needs nothing
        """Notify other processes at commit that something changed (`ChangeFeed`). SQLite has no notifications."""


class Database(ABC):
    """A database with the tables of one schema. Made by `open_database`."""

    def __init__(self, schema: Schema, *, create: bool = True) -> None:
        """Without ``create``, first use of a missing or foreign database raises DATABASE_MISSING."""
        self._schema = schema
        self._create = create
        self._local = threading.local()
        self._connections: list[Any] = []
        self._lock = threading.Lock()
        self._opened = 0

    @contextmanager
    def transaction(self, *, exclusive: str | None = None) -> Iterator[Transaction]:
        """Commit on success, roll back on error. Transactions with the same ``exclusive`` name never overlap."""
        connection = self._get_connection()
        with self._translate_errors():
            self._begin(connection, exclusive)
        try:
            yield self._wrap_connection(connection)
        except BaseException:
            self._roll_back(connection)
            raise
        with self._translate_errors():
            self._commit(connection)

    @contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        """Open a transaction that reads all tables as they are at its first query, while others write."""
        connection = self._get_connection()
        with self._translate_errors():
            self._begin_snapshot(connection)
        try:
            yield self._wrap_connection(connection)
        finally:
            self._roll_back(connection)

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Return all rows of a query, in its own transaction."""
        with self.transaction() as transaction:
            return transaction.rows(sql, values)

    def row(self, sql: str, values: Sequence[Value] = ()) -> Row | None:
        """Return the first row of a query, in its own transaction."""
        with self.transaction() as transaction:
            return transaction.row(sql, values)

    def open_count(self) -> int:
        """How often a connection was opened. If the count has grown, the database file may have been replaced."""
        self._get_connection()
        return self._opened

    def open_feed(self) -> ChangeFeed | None:
        """Open a feed of other processes' changes; None for SQLite. The caller starts and closes it."""
        return None

    @abstractmethod
    def flush(self) -> None:
        """Write committed data to the database file, so that it can be copied. No-op for a database server."""

    def close(self) -> None:
        """Close the connections of all threads. No thread may be inside a transaction."""
        with self._lock:
            connections, self._connections = self._connections, []
            self._local = threading.local()
        for connection in connections:
            connection.close()

    def _get_connection(self) -> Any:
        present = getattr(self._local, "connection", None)
        if present is not None and not self._is_lost(present):
            return present
        if present is not None:
            present.close()
            self._local.connection = None
        with self._translate_errors():
            connection = self._connect()
            try:
                for schema in (self._schema, *self._schema.additions):
                    self._migrate(connection, schema)
            except BaseException:
                connection.close()
                raise
        with self._lock:
            self._connections = [other for other in self._connections if other is not present]
            self._connections.append(connection)
            self._opened += 1
        self._local.connection = connection
        return connection

    def _has_version(self, connection: Any, schema: Schema) -> bool:
        """Whether the tables are up to date. Does not wait for writers, because every new connection calls this."""
        try:
            return self._read_version(self._wrap_connection(connection), schema) == schema.version
        except PinwardenError:
            if self._is_lost(connection):
                raise
            return False  # empty, or unreadable, which the next statement reports

    def _read_version(self, transaction: Transaction, schema: Schema) -> int:
        row = transaction.row("SELECT version FROM pinwarden_schema WHERE name = ?", (schema.name,))
        version = 0 if row is None else row[0]
        if not isinstance(version, int) or version < 0:
            raise PinwardenError("DATABASE_CORRUPT", f"the version of the {schema.name} tables of {self} is malformed")
        return version

    def _migrate(self, connection: Any, schema: Schema) -> None:
        """Apply the migrations that the database lacks, all or none, and record the number of the last one."""
        if self._has_version(connection, schema):
            return
        if not self._create and not self._is_pinwarden_database(connection):
            raise database_missing_error(str(self))
        self._begin(connection, "schema")  # one at a time: all schemas share the table of versions
        transaction = self._wrap_connection(connection)
        try:
            transaction.run(
                "CREATE TABLE IF NOT EXISTS pinwarden_schema (name TEXT PRIMARY KEY, version BIGINT NOT NULL)"
            )
            version = self._read_version(transaction, schema)
            if version > schema.version:
                raise PinwardenError(
                    "DATABASE_NEWER",
                    f"a newer release of Pinwarden changed the {schema.name} tables of {self}: they have version"
                    f" {version}, and this release knows version {schema.version}",
                )
            for script in schema.migrations[version:]:
                for statement in split_statements(script):
                    transaction.run(statement)
            transaction.run("DELETE FROM pinwarden_schema WHERE name = ?", (schema.name,))
            transaction.run("INSERT INTO pinwarden_schema (name, version) VALUES (?, ?)", (schema.name, schema.version))
        except BaseException:
            self._roll_back(connection)
            raise
        self._commit(connection)

    @abstractmethod
    def _connect(self) -> Any: ...
    @abstractmethod
    def _is_pinwarden_database(self, connection: Any) -> bool:
        """Whether the database has any of our tables."""

    @abstractmethod
    def _begin(self, connection: Any, exclusive: str | None) -> None: ...
    @abstractmethod
    def _begin_snapshot(self, connection: Any) -> None: ...
    @abstractmethod
    def _commit(self, connection: Any) -> None: ...
    @abstractmethod
    def _roll_back(self, connection: Any) -> None: ...
    @abstractmethod
    def _wrap_connection(self, connection: Any) -> Transaction: ...
    @abstractmethod
    def _is_lost(self, connection: Any) -> bool: ...
    @abstractmethod
    def _translate_errors(self) -> Any:
        """Return a context that translates the database's own exceptions."""


def database_missing_error(name: str) -> PinwardenError:
    """Return the error for a missing database."""
    return PinwardenError(
        "DATABASE_MISSING",
        f"there is no Pinwarden database at {name}",
        hint="Name the gateway's database with --audit, PINWARDEN_DATABASE or PINWARDEN_STATE. "
        "The first `pinwarden run` or `pinwarden gateway` creates it.",
    )


def split_statements(text: str) -> list[str]:
    """Return the statements of a script. Comments are lines of their own, and no value contains a semicolon."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]
