"""The tables of locks that were published for gateways. Their content is hostile until `published_lock` verified it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.system.database import Database, Transaction

TOPIC = "locks"
"""The topic of notifications about published locks."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_FILES = 10_000
_MAX_BYTES = 256 * 1024 * 1024  # of one lock with its files; approved surfaces rarely have a megabyte
_KEPT = 50  # earlier locks of a name, which show what applied when


class PublishedLock(Record):
    """A published lock with everything that belongs to it."""

    name: str
    content: bytes = field(repr=False)
    """The bytes of the lockfile."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """The files that the lock pins, by path."""
    policy: bytes | None = field(default=None, repr=False)
    """The bytes of ``pinwarden.toml``; None if the project has none."""
    signature: bytes | None = field(default=None, repr=False)
    """The DSSE envelope over the lock and the digest of the policy; None if it is not signed."""
    sequence: int = 0
    """A number that increases with every publication of this name."""
    published: str = ""
    published_by: str = ""


def check_name(name: str) -> str:
    """Return the name of a published lock. Raises ``USAGE`` if it is malformed."""
    if not _NAME.fullmatch(name):
        raise PinwardenError(
            "USAGE",
            f"{name[:80]!a} is not a valid name of a published lock",
            hint="Use at most 64 letters, digits, dots, dashes and underscores.",
        )
    return name


class PublishedLocks:
    """The published locks in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __str__(self) -> str:
        return str(self._database)

    def publish(self, lock: PublishedLock) -> int:
        """Store a lock as the newest one of its name. Returns its sequence number."""
        with self._database.transaction(exclusive="published_locks") as transaction:
            sequence = (_read_last_sequence(transaction, lock.name) or 0) + 1
            transaction.run(
                "INSERT INTO published_lock (name, sequence, content, policy, signature, published, published_by)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (lock.name, sequence, lock.content, lock.policy, lock.signature, lock.published, lock.published_by),
            )
            transaction.run_many(
                "INSERT INTO published_lock_file (name, sequence, path, content) VALUES (?, ?, ?, ?)",
                [(lock.name, sequence, path, data) for path, data in sorted(lock.files.items())],
            )
            for table in ("published_lock_file", "published_lock"):
                transaction.run(f"DELETE FROM {table} WHERE name = ? AND sequence < ?", (lock.name, sequence - _KEPT))  # noqa: S608
            transaction.notify(TOPIC)
        return sequence

    def read_sequence(self, name: str) -> int | None:
        """Return the sequence number of the newest lock of a name; None if there is none. A cheap query."""
        with self._database.transaction() as transaction:
            return _read_last_sequence(transaction, name)

    def read_newest(self, name: str) -> PublishedLock | None:
        """Return the newest lock of a name; None if there is none."""
        with self._database.snapshot() as transaction:
            sequence = _read_last_sequence(transaction, name)
            if sequence is None:
                return None
            self._refuse_oversized(transaction, name, sequence)
            row = transaction.row(
                "SELECT content, policy, signature, published, published_by FROM published_lock"
                " WHERE name = ? AND sequence = ?",
                (name, sequence),
            )
            files = transaction.rows(
                "SELECT path, content FROM published_lock_file WHERE name = ? AND sequence = ?", (name, sequence)
            )
        assert row is not None  # noqa: S101 - it was found in the same snapshot
        content, policy, signature, published, published_by = row
        return PublishedLock(
            name=name,
            content=bytes(content),
            files={str(path): bytes(data) for path, data in files},
            policy=None if policy is None else bytes(policy),
            signature=None if signature is None else bytes(signature),
            sequence=sequence,
            published=str(published),
            published_by=str(published_by),
        )

    def _refuse_oversized(self, transaction: Transaction, name: str, sequence: int) -> None:
        sizes = transaction.rows(
            "SELECT 0, LENGTH(content) + COALESCE(LENGTH(policy), 0) + COALESCE(LENGTH(signature), 0)"
            " FROM published_lock WHERE name = ? AND sequence = ?"
            " UNION ALL SELECT COUNT(*), COALESCE(SUM(LENGTH(content)), 0)"
            " FROM published_lock_file WHERE name = ? AND sequence = ?",
            (name, sequence, name, sequence),
        )
        if sum(count for count, _ in sizes) > _MAX_FILES or sum(size for _, size in sizes) > _MAX_BYTES:
            raise PinwardenError("DATABASE_CORRUPT", f"the published lock {name} in {self} is too large")


def _read_last_sequence(transaction: Transaction, name: str) -> int | None:
    row = transaction.row("SELECT MAX(sequence) FROM published_lock WHERE name = ?", (name,))
    return None if row is None or row[0] is None else int(row[0])
