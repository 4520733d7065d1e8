"""Every definition that was ever served, with when it was first and last seen. How often is in the audit log."""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.core.digest import Digest
from pinwarden.core.record import Record, field_names
from pinwarden.system.database import Database, Transaction


class Sighting(Record):
    """One definition of one item."""

    server: str
    entity: str
    item: str
    digest: str
    """Empty for what has none."""
    definition: str
    """As canonical JSON, or what could be read of it."""
    action: str
    """What was decided about it when it was last seen: allow, audit, warn or block."""
    first_seen: str
    last_seen: str
    sessions: int = 1
    """In how many sessions it was seen; 0 if this one is counted already."""


_MOST_DIGESTS = 20  # of one item: a server that says something else each time does not fill the disk
_MOST_ITEMS = 5000  # of one server
_COLUMNS = ", ".join(field_names(Sighting))
_MARKS = ", ".join("?" for _ in field_names(Sighting))


class Observed:
    """The table of sightings."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def saw(self, sightings: Iterable[Sighting]) -> None:
        """Keep what a session saw for the first time."""
        with self._database.transaction(exclusive="sightings") as step:
            for sighting in sightings:
                known = step.run(
                    "UPDATE sighting SET last_seen = ?, action = ?, sessions = sessions + ?"
                    " WHERE server = ? AND entity = ? AND item = ? AND digest = ?",
                    (
                        sighting.last_seen,
                        sighting.action,
                        sighting.sessions,
                        sighting.server,
                        sighting.entity,
                        sighting.item,
                        sighting.digest,
                    ),
                )
                if not known and _has_room(step, sighting):
                    step.run(
                        f"INSERT INTO sighting ({_COLUMNS}) VALUES ({_MARKS})",  # noqa: S608
                        tuple(getattr(sighting, name) for name in field_names(Sighting)),
                    )

    def all(self) -> list[Sighting]:
        """Everything that was seen, in the order of names and then of time."""
        rows = self._database.rows(f"SELECT {_COLUMNS} FROM sighting ORDER BY server, entity, item, first_seen, digest")  # noqa: S608
        return [Sighting(**dict(zip(field_names(Sighting), row, strict=True))) for row in rows]

    def definition(self, server: str, entity: str, item: str, digest: str) -> str | None:
        """What was served under a digest, as canonical JSON; None if that was never seen, or is not it."""
        row = self._database.row(
            "SELECT definition FROM sighting WHERE server = ? AND entity = ? AND item = ? AND digest = ?",
            (server, entity, item, digest),
        )
        return str(row[0]) if row is not None and str(Digest.of_bytes(str(row[0]).encode())) == digest else None


def _has_room(step: Transaction, sighting: Sighting) -> bool:
    """Whether one more is kept. The first digests of an item stay: what came later is what has to be explained."""
    about = (sighting.server, sighting.entity, sighting.item)
    same = step.row("SELECT COUNT(*) FROM sighting WHERE server = ? AND entity = ? AND item = ?", about)
    every = step.row("SELECT COUNT(*) FROM sighting WHERE server = ?", (sighting.server,))
    return same is not None and every is not None and same[0] < _MOST_DIGESTS and every[0] < _MOST_ITEMS


def kept_name(text: str) -> str:
    """A name as both databases can keep and index it: no NUL, nothing that is not UTF-8, not longer than a line.

    The name as it was sent is inside the definition.
    """
    plain = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
    return (
        plain if len(plain) <= _LONGEST_NAME else f"{plain[:_LONGEST_NAME]}… {Digest.of_bytes(plain.encode()).hex[:16]}"
    )


def is_cut(name: str) -> bool:
    """Whether a kept name is not all of it."""
    return len(name) > _LONGEST_NAME


_LONGEST_NAME = 200  # an index of PostgreSQL takes 2.7 kB
