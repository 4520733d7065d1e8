"""PostgreSQL as a `Database`. Every wait has a timeout.

A working server enforces the timeouts of statements, locks and idle transactions itself. A frozen or unreachable server
does not respond, so each response also has a deadline here. A connection that missed its deadline is closed, because
late responses could still arrive on it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.system.transactions import (
    CHANNEL,
    ConflictError,
    Database,
    DatabaseLimits,
    Row,
    Schema,
    Transaction,
    Value,
)

if TYPE_CHECKING:
    import psycopg

    from pinwarden.system.change_feed import ChangeFeed

_LOCK_NAMESPACE = 0x70696E77  # keeps our advisory locks apart from those of other applications


class Postgres(Database):
    """A database at a ``postgresql://`` address."""

    def __init__(self, url: str, schema: Schema, limits: DatabaseLimits, *, create: bool = True) -> None:
        super().__init__(schema, create=create)
        self._url = url
        self._limits = limits
        self._name = _hide_credentials(url)

    def __str__(self) -> str:
        return self._name

    def open_feed(self) -> ChangeFeed:
        """Open a feed of other processes' changes, with a connection of its own."""
        from pinwarden.system.change_feed import ChangeFeed

        def connect() -> psycopg.Connection[Row]:
            with _translate_postgres_errors():
                return self._connect()

        return ChangeFeed(connect)

    def flush(self) -> None:
        """Do nothing, because a PostgreSQL server writes its own files."""

    def _connect(self) -> psycopg.Connection[Row]:
        import psycopg

        try:
            connection: Any = _create_connection_class().connect(
                **self._build_parameters(), autocommit=True, prepare_threshold=2
            )
        except psycopg.Error as err:
            # libpq repeats the address in its message, which can contain the password.
            raise PinwardenError(
                "DATABASE_UNAVAILABLE", f"could not connect to {self._name} ({type(err).__name__})"
            ) from None
        connection.response_seconds = self._limits.response_seconds
        try:
            self._require_utf8(connection)
            self._set_timeouts(connection)
        except BaseException:
            connection.close()
            raise
        return connection  # type: ignore[no-any-return]

    def _build_parameters(self) -> dict[str, Any]:
        """Return the connection parameters in the address, with defaults for the timeouts."""
        from psycopg.conninfo import conninfo_to_dict

        limits = self._limits
        ours = {
            "connect_timeout": max(1, round(limits.connect_seconds)),
            # TCP detects a machine that disappeared within our own timeout.
            "tcp_user_timeout": round(limits.response_seconds * 1000),
            "keepalives_idle": max(1, round(limits.response_seconds / 4)),
            "keepalives_interval": max(1, round(limits.response_seconds / 4)),
            "keepalives_count": 3,
        }
        # Entries are hashed as UTF-8, so PGCLIENTENCODING and the address must not change the encoding.
        return {**ours, **conninfo_to_dict(self._url), "client_encoding": "utf8"}

    def _require_utf8(self, connection: psycopg.Connection[Row]) -> None:
        """Refuse a database whose encoding is not UTF-8, because it cannot store every name."""
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise PinwardenError(
                "DATABASE_UNAVAILABLE",
                f"{self._name} uses the encoding {encoding} instead of UTF8",
                hint="Create a database with: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
            )

    def _set_timeouts(self, connection: psycopg.Connection[Row]) -> None:
        """Set the timeouts with statements, because the options in the address belong to the user."""
        for name, seconds in (
            ("statement_timeout", self._limits.statement_seconds),
            ("lock_timeout", self._limits.lock_seconds),
            ("idle_in_transaction_session_timeout", self._limits.idle_seconds),
        ):
            connection.execute("SELECT set_config(%s, %s, false)", (name, f"{round(seconds * 1000)}ms"))

    def _is_pinwarden_database(self, connection: psycopg.Connection[Row]) -> bool:
        row = self._wrap_connection(connection).row("SELECT to_regclass('pinwarden_schema') IS NOT NULL")
        return row is not None and bool(row[0])

    def _begin(self, connection: psycopg.Connection[Row], exclusive: str | None) -> None:
        connection.execute("BEGIN")
        if exclusive is None:
            return
        try:
            connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", (_LOCK_NAMESPACE, _hash_lock_name(exclusive)))
        except BaseException:
            self._roll_back(connection)  # otherwise the next transaction would begin inside this failed one
            raise

    def _begin_snapshot(self, connection: psycopg.Connection[Row]) -> None:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def _commit(self, connection: psycopg.Connection[Row]) -> None:
        connection.execute("COMMIT")

    def _roll_back(self, connection: psycopg.Connection[Row]) -> None:
        import psycopg

        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()  # this ends the transaction too

    def _wrap_connection(self, connection: psycopg.Connection[Row]) -> Transaction:
        return _PostgresTransaction(connection)

    def _is_lost(self, connection: psycopg.Connection[Row]) -> bool:
        return connection.closed or connection.broken

    def _translate_errors(self) -> Any:
        return _translate_postgres_errors()


@lru_cache(maxsize=512)
def _to_postgres_sql(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


class _PostgresTransaction(Transaction):
    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        with _translate_postgres_errors():
            return self._connection.execute(_to_postgres_sql(sql).encode(), values).fetchall()

    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        with _translate_postgres_errors():
            return self._connection.execute(_to_postgres_sql(sql).encode(), values).rowcount

    def run_many(self, sql: str, values: Sequence[Sequence[Value]]) -> None:
        with _translate_postgres_errors(), self._connection.cursor() as cursor:
            cursor.executemany(_to_postgres_sql(sql).encode(), values)

    def notify(self, topic: str) -> None:
        """Notify the channel that `ChangeFeed` listens on. PostgreSQL delivers it when the transaction commits."""
        with _translate_postgres_errors():
            self._connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, topic))


@cache
def _create_connection_class() -> Any:
    """Return a psycopg connection class with a deadline for responses."""
    import psycopg

    class ResponseTimeout(psycopg.OperationalError):
        pass

    class _DeadlineConnection(psycopg.Connection[Any]):
        response_seconds = DatabaseLimits().response_seconds

        def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
            try:
                return super().wait(_wait_until(gen, monotonic() + self.response_seconds), *args, **options)
            except _DeadlinePassed as err:
                self.close()
                raise ResponseTimeout from err

    return _DeadlineConnection


class _DeadlinePassed(Exception):  # noqa: N818 - it never leaves this module
    """The deadline passed."""


def _wait_until(steps: Generator[Any, int, Any], deadline: float) -> Generator[Any, int, Any]:
    """Wrap psycopg's wait generator, and raise if nothing is ready when the deadline has passed.

    psycopg resumes the generator several times a second, even if nothing is ready.
    """
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if not ready and monotonic() > deadline:
                raise _DeadlinePassed
            wanted = steps.send(ready)
    except StopIteration as end:
        return end.value


_ADDRESS = re.compile(r"[a-z]+://(?P<user>[^@/?#]*@)?(?P<location>[^@/?#]*(/[^@?#]*)?)([?#].*)?", re.DOTALL)


def _hide_credentials(url: str) -> str:
    """Return the address without user and password. An ambiguous address is hidden completely."""
    match = _ADDRESS.fullmatch(url)
    if match is None or (match["user"] is None and "@" in url):
        return "postgresql://…"
    return f"postgresql://{'local' if match['location'][:1] in ('', '/') else ''}{match['location']}"


def _hash_lock_name(name: str) -> int:
    return zlib.crc32(name.encode()) - (1 << 31)


@contextmanager
def _translate_postgres_errors() -> Iterator[None]:
    # Every use of the database begins here, so a missing driver is noticed here.
    try:
        import psycopg
    except ImportError as err:
        raise PinwardenError(
            "DATABASE_UNAVAILABLE",
            "PostgreSQL needs the Python package psycopg, which is not installed",
            hint='In a checkout of Pinwarden, run: pip install ".[postgres]"',
        ) from err
    try:
        yield
    except psycopg.errors.IntegrityError as err:
        raise ConflictError(str(err)) from err
    except UnicodeError as err:
        raise PinwardenError("DATABASE_UNAVAILABLE", f"a text cannot be stored or read ({type(err).__name__})") from err
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as err:
        raise PinwardenError("DATABASE_CORRUPT", "a table or column is missing in the database") from err
    except psycopg.Error as err:
        name = type(err).__name__
        why = _MESSAGES.get(name, "the database failed")
        raise PinwardenError("DATABASE_UNAVAILABLE", f"{why} ({name})") from err


_MESSAGES = {
    "LockNotAvailable": "another session of the database did not release a lock in time",
    "QueryCanceled": "a statement took too long",
    "IdleInTransactionSessionTimeout": "the database ended a transaction that was idle for too long",
    "ResponseTimeout": "the database did not respond in time",
}
