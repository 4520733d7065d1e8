"""Changes that wait for a person, and what became of them.

A review is named by a digest of what it is about: the server, the item, the approved digest and the one that was seen.
Whoever approves a name approves exactly that. If the server says something else since, the old review is superseded and
can no longer be approved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field_names, replace
from pinwarden.system.database import Database, Row, Transaction

WAITING = "waiting"
APPROVED = "approved"
REJECTED = "rejected"
SUPERSEDED = "superseded"
STATES = (WAITING, APPROVED, REJECTED, SUPERSEDED)

_MOST_SUPERSEDED = 20  # of one item; a server that says something else each time does not fill the disk
_MOST_WAITING = 2000  # of one server; what is beyond that is withheld all the same, and in the audit log
_NAME_LENGTH = 32  # hex digits: a server that makes up both cannot find two changes of one name by trying
_SHORTEST = 4  # of the beginning of a name that is enough to look at it


class Review(Record):
    """One definition that is not what was approved."""

    name: str
    server: str
    baseline: str
    """Where the approval is kept: ``lock:`` and the lockfile, or ``first-use``."""
    entity: str
    """tool, prompt, resource, resourceTemplate or server."""
    item: str
    """Its key; for the server serverInfo, capabilities or instructions."""
    digest: str
    """Of what was seen; empty if it has none, and then it cannot be approved."""
    expected: str
    """The approved digests, with spaces between them; empty for what is new."""
    definition: str
    """What was seen, as canonical JSON."""
    level: str
    code: str
    reason: str
    opened: str
    last_seen: str
    state: str = WAITING
    decided: str = ""
    decided_by: str = ""
    why: str = ""


_COLUMNS = ", ".join(field_names(Review))
_MARKS = ", ".join("?" for _ in field_names(Review))


def named(review: Review) -> Review:
    """The review with the name that belongs to its content."""
    about = [review.server, review.baseline, review.entity, review.item, review.digest, review.expected]
    if not review.digest:
        about.append(review.definition)
    return replace(review, name=Digest.of_bytes(canonicalize(about)).hex[:_NAME_LENGTH])


class Reviews:
    """The table of reviews."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def hold(self, reviews: Iterable[Review]) -> list[Review]:
        """Let changes wait. Those that were not known before are returned.

        A change that a person decided about is not asked about again. Another change of the same item takes the place
        of one that waits; one that comes back after that waits again.
        """
        fresh: list[Review] = []
        with self._database.transaction(exclusive="reviews") as step:
            for given in reviews:
                review = named(given)
                step.run(
                    "UPDATE review SET state = ? WHERE server = ? AND baseline = ? AND entity = ? AND item = ?"
                    " AND state = ? AND name <> ?",
                    (SUPERSEDED, review.server, review.baseline, review.entity, review.item, WAITING, review.name),
                )
                _forget_oldest(step, review)
                known = step.run(
                    "UPDATE review SET last_seen = ?, state = CASE WHEN state = ? THEN ? ELSE state END WHERE name = ?",
                    (review.last_seen, SUPERSEDED, WAITING, review.name),
                )
                if not known and _has_room(step, review):
                    step.run(f"INSERT INTO review ({_COLUMNS}) VALUES ({_MARKS})", _values(review))  # noqa: S608
                    fresh.append(review)
        return fresh

    def settle(self, server: str, baseline: str, served: Collection[tuple[str, str]]) -> None:
        """Let nothing wait about items, by entity and key, that the server serves as approved now."""
        with self._database.transaction(exclusive="reviews") as step:
            rows = step.rows(
                "SELECT name, entity, item FROM review WHERE server = ? AND baseline = ? AND state = ?",
                (server, baseline, WAITING),
            )
            step.run_many(
                "UPDATE review SET state = ? WHERE name = ?",
                [(SUPERSEDED, name) for name, entity, item in rows if (entity, item) in served],
            )

    def listed(self, states: Sequence[str] = (WAITING,)) -> list[Review]:
        """The reviews in these states, the oldest first."""
        marks = ", ".join("?" for _ in states)
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM review WHERE state IN ({marks}) ORDER BY opened, server, entity, item, name",  # noqa: S608
            tuple(states),
        )
        return [_review(row) for row in rows]

    def named(self, name: str) -> Review:
        """The review of exactly this name: what is decided about is named in full, because its name is its content."""
        rows = self._database.rows(f"SELECT {_COLUMNS} FROM review WHERE name = ?", (name[:_NAME_LENGTH],))  # noqa: S608
        if not rows or len(name) != _NAME_LENGTH:
            raise PinwardenError("REVIEW_NOT_FOUND", f"{name[:80]!a} is not the whole name of a review")
        return _review(rows[0])

    def find(self, name: str) -> Review:
        """The review of a name, or of the beginning of one that no other has: to look at it."""
        if not name.isascii() or not name.isalnum():
            raise PinwardenError("REVIEW_NOT_FOUND", f"{name[:80]!a} is not the name of a review")
        if len(name) < _SHORTEST:
            raise PinwardenError("REVIEW_NOT_FOUND", f"{name!a} is too short: at least {_SHORTEST} letters are needed")
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM review WHERE name >= ? AND name < ? ORDER BY name LIMIT 2",  # noqa: S608
            (name, f"{name}g"),
        )
        if len(rows) != 1:
            why = "begins the names of several reviews" if rows else "is not the name of a review"
            raise PinwardenError("REVIEW_NOT_FOUND", f"{name[:80]!a} {why}")
        return _review(rows[0])

    def decide(self, reviews: Sequence[Review], state: str, *, by: str, why: str, now: str) -> None:
        """Write down a decision about reviews that wait. If one of them no longer does, nothing is written."""
        with self._database.transaction(exclusive="reviews") as step:
            for review in reviews:
                _refuse_unless_waiting(step, review)
                step.run(
                    "UPDATE review SET state = ?, decided = ?, decided_by = ?, why = ? WHERE name = ?",
                    (state, now, by, why, review.name),
                )

    def reopen(self, reviews: Sequence[Review]) -> None:
        """Take back decisions. What nobody decided about since waits again, unless the server serves something else."""
        with self._database.transaction(exclusive="reviews") as step:
            for review in reviews:
                other = step.row(
                    "SELECT name FROM review"
                    " WHERE server = ? AND baseline = ? AND entity = ? AND item = ? AND state = ?",
                    (review.server, review.baseline, review.entity, review.item, WAITING),
                )
                changed = step.run(
                    "UPDATE review SET state = ?, decided = '', decided_by = '', why = ''"
                    " WHERE name = ? AND state = ? AND decided = ?",
                    (SUPERSEDED if other else WAITING, review.name, review.state, review.decided),
                )
                if changed != 1:
                    raise PinwardenError("REVIEW_STALE", f"{review.name} was decided about anew meanwhile")


def _refuse_unless_waiting(step: Transaction, review: Review) -> None:
    row = step.row("SELECT state FROM review WHERE name = ?", (review.name,))
    state = row[0] if row else "gone"
    if state != WAITING:
        raise PinwardenError("REVIEW_STALE", f"{review.name} does not wait any more: it is {state}")


def _forget_oldest(step: Transaction, review: Review) -> None:
    about = (review.server, review.baseline, review.entity, review.item, SUPERSEDED)
    which = "server = ? AND baseline = ? AND entity = ? AND item = ? AND state = ?"
    step.run(
        f"DELETE FROM review WHERE {which} AND name NOT IN (SELECT name FROM review WHERE {which}"  # noqa: S608
        f" ORDER BY last_seen DESC, name LIMIT {_MOST_SUPERSEDED})",
        (*about, *about),
    )


def _has_room(step: Transaction, review: Review) -> bool:
    row = step.row("SELECT COUNT(*) FROM review WHERE server = ? AND state = ?", (review.server, WAITING))
    return row is not None and row[0] < _MOST_WAITING


def _values(review: Review) -> tuple[str, ...]:
    return tuple(getattr(review, name) for name in field_names(Review))


def _review(row: Row) -> Review:
    return Review(**dict(zip(field_names(Review), row, strict=True)))
