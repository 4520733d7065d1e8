"""One database, whether it is a SQLite file or PostgreSQL: the same SQL goes to both.

What both understand is used and nothing else: ``?`` for a value, TEXT, BIGINT and BYTEA for columns, numbers that the
program gives out itself. Each thread has a connection of its own, so one `Database` serves a whole process.

Whoever asks for a transaction that is ``alone`` is the only one in it, on either database and over all processes: that
is what keeps a chain or a log in one line.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

if TYPE_CHECKING:
    import psycopg

Value = str | int | bytes | None
Row = tuple[Any, ...]

_WAIT_SECONDS = 30.0  # for another writer; a transaction of ours lasts milliseconds
_SCHEMA_VERSION = 1


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


def open_database(url: str | Path, schema: Schema) -> Database:
    """The database at a path (SQLite) or a ``postgresql://`` address. It is opened when it is first used."""
    if isinstance(url, str) and url.startswith(("postgresql://", "postgres://")):
        return _Postgres(url, schema)
    if isinstance(url, str) and url.startswith("sqlite://"):
        url = unquote(urlsplit(url).path)
    elif isinstance(url, str) and "://" in url:
        raise PinwardenError(
            "USAGE", f"{url.partition('://')[0]!a} is no database that is known", hint="Give a path or postgresql://…"
        )
    return _Sqlite(Path(url), schema)


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
    def __init__(self, path: Path, schema: Schema) -> None:
        super().__init__(schema)
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def _connect(self) -> sqlite3.Connection:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)  # before SQLite makes it: its journals take over the mode
        except OSError as err:
            raise PinwardenError("DATABASE_UNAVAILABLE", f"{self._path} cannot be opened: {err.strerror}") from err
        made = sqlite3.connect(self._path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("PRAGMA synchronous = FULL")  # what was committed survives a power cut
        made.execute("PRAGMA foreign_keys = ON")
        made.execute("PRAGMA trusted_schema = OFF")
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


@lru_cache(maxsize=512)
def _for_postgres(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


class _PostgresTransaction(Transaction):
    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        with _postgres_errors():
            return self._connection.execute(_for_postgres(sql).encode(), values).fetchall()

    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        with _postgres_errors():
            return self._connection.execute(_for_postgres(sql).encode(), values).rowcount

    def run_many(self, sql: str, values: Sequence[Sequence[Value]]) -> None:
        with _postgres_errors(), self._connection.cursor() as cursor:
            cursor.executemany(_for_postgres(sql).encode(), values)


class _Postgres(Database):
    def __init__(self, url: str, schema: Schema) -> None:
        super().__init__(schema)
        self._url = url
        parts = urlsplit(url)
        # Never with the user and the password.
        self._name = f"postgresql://{parts.hostname or 'local'}{parts.path}"

    def __str__(self) -> str:
        return self._name

    def _connect(self) -> psycopg.Connection[Row]:
        try:
            import psycopg
        except ImportError as err:
            raise PinwardenError(
                "DATABASE_UNAVAILABLE",
                "PostgreSQL needs the package psycopg, which is not installed",
                hint='Install it with: pip install "pinwarden[postgres]"',
            ) from err
        try:
            return psycopg.connect(self._url, autocommit=True, connect_timeout=10, prepare_threshold=2)
        except psycopg.Error as err:
            # libpq repeats the address in its message, at times with what it should not.
            raise PinwardenError(
                "DATABASE_UNAVAILABLE", f"{self._name} cannot be reached ({type(err).__name__})"
            ) from None

    def _begin(self, connection: psycopg.Connection[Row], alone: str | None) -> None:
        connection.execute("BEGIN")
        if alone is not None:
            connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", (_LOCK_FAMILY, _lock_number(alone)))

    def _commit(self, connection: psycopg.Connection[Row]) -> None:
        connection.execute("COMMIT")

    def _give_up(self, connection: psycopg.Connection[Row]) -> None:
        import psycopg

        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()  # with its connection a transaction is gone too

    def _transaction(self, connection: psycopg.Connection[Row]) -> Transaction:
        return _PostgresTransaction(connection)

    def _is_lost(self, connection: psycopg.Connection[Row]) -> bool:
        return connection.closed or connection.broken

    def _told(self) -> Any:
        return _postgres_errors()


_LOCK_FAMILY = 0x70696E77  # so that other users of the same PostgreSQL do not wait for ours


def _lock_number(name: str) -> int:
    return zlib.crc32(name.encode()) - (1 << 31)


@contextmanager
def _postgres_errors() -> Iterator[None]:
    import psycopg

    try:
        yield
    except psycopg.errors.IntegrityError as err:
        raise Conflict(str(err)) from err
    except psycopg.Error as err:
        raise PinwardenError("DATABASE_UNAVAILABLE", f"the database did not do it ({type(err).__name__})") from err
