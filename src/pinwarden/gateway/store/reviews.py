"""Definitions that servers served, changes that wait for a review, and the decisions about them.

A review is named by a digest of its subject: the server, the item, the approved digest and the observed one. Approving
that name approves exactly this change. When the server serves something else, the old review is superseded and can no
longer be approved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field_names, replace
from pinwarden.gateway.audit.event import HELD, AuditEvent
from pinwarden.gateway.gates.verdict import ALLOW, Verdict
from pinwarden.system.clock import now
from pinwarden.system.database import Database, Row, Transaction
from pinwarden.system.masking import mask_item_key

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


def with_name(review: Review) -> Review:
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
                review = with_name(given)
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
                if not known and _has_review_space(step, review):
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


def _has_review_space(step: Transaction, review: Review) -> bool:
    row = step.row("SELECT COUNT(*) FROM review WHERE server = ? AND state = ?", (review.server, WAITING))
    return row is not None and row[0] < _MOST_WAITING


def _values(review: Review) -> tuple[str, ...]:
    return tuple(getattr(review, name) for name in field_names(Review))


def _review(row: Row) -> Review:
    return Review(**dict(zip(field_names(Review), row, strict=True)))


class SightingRecorder:
    """What one server was seen to serve, and which of it waits for review."""

    def __init__(
        self,
        server: str,
        baseline: str,
        observed: ObservedDefinitions,
        reviews: Reviews,
        clock: Callable[[], str] = now,
    ) -> None:
        self._server = server
        self._baseline = baseline
        self._observed = observed
        self._reviews = reviews
        self._now = clock

    def keep(self, verdicts: Iterable[Verdict]) -> tuple[AuditEvent, ...]:
        """Keep every definition, and hold those that are not what was approved: what waits for review from now on."""
        seen = tuple(verdicts)
        moment = self._now()
        held = [self._review(verdict, moment) for verdict in seen if verdict.action != ALLOW and _is_there(verdict)]
        waiting = {(review.entity, review.item) for review in held}
        passed = {(each.entity, storable_name(each.key)) for each in seen if each.action == ALLOW} - waiting
        if passed:
            self._reviews.settle(storable_name(self._server), self._baseline, passed)
        fresh = self._reviews.hold(held) if held else []
        self._observed.saw(self._sighting(verdict, moment) for verdict in seen if _is_there(verdict))
        return tuple(review_event(review, HELD, review.reason) for review in fresh)

    def _review(self, verdict: Verdict, moment: str) -> Review:
        return Review(
            name="",
            server=storable_name(self._server),
            baseline=self._baseline,
            entity=verdict.entity,
            item=storable_name(verdict.key),
            digest=str(verdict.digest or ""),
            expected=" ".join(verdict.expected) if _is_pinned(verdict) else "",
            definition=definition_text(verdict),
            level=verdict.level,
            code=verdict.code,
            reason=storable_name(verdict.reason),
            opened=moment,
            last_seen=moment,
        )

    def _sighting(self, verdict: Verdict, moment: str) -> Sighting:
        return Sighting(
            server=storable_name(self._server),
            entity=verdict.entity,
            item=storable_name(verdict.key),
            digest=str(verdict.digest or ""),
            definition=definition_text(verdict),
            action=verdict.action,
            first_seen=moment,
            last_seen=moment,
            sessions=0 if verdict.again else 1,
        )


def review_event(review: Review, kind: str, reason: str, by: str = "") -> AuditEvent:
    """What happened to a change, for the log; its correlation id is the name of the review."""
    return AuditEvent(
        kind=kind,
        server=review.server,
        call=review.name,
        item_kind=review.entity,
        item=mask_item_key(review.entity, review.item),
        expected=tuple(review.expected.split()),
        observed=review.digest,
        level=review.level,
        code=review.code,
        reason=reason,
        by=by,
    )


def _is_there(verdict: Verdict) -> bool:
    """Whether something was served. What a server no longer says of itself is a fact, but nothing to approve."""
    return verdict.value is not None or verdict.digest is not None


def _is_pinned(verdict: Verdict) -> bool:
    """Whether the lock or the store has an item of this key: a digest that only a policy allows is not kept there."""
    return not any(change.kind == "item_added" for change in verdict.changes)


def definition_text(verdict: Verdict) -> str:
    """What was served, as canonical JSON; of an undigestable thing what can be shown of it."""
    try:
        return canonicalize(verdict.value).decode()
    except PinwardenError:
        return canonicalize({"unreadable": ascii(verdict.value)[:4096]}).decode()


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
_SEEN_COLUMNS = ", ".join(field_names(Sighting))
_SEEN_MARKS = ", ".join("?" for _ in field_names(Sighting))


class ObservedDefinitions:
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
                if not known and _has_space(step, sighting):
                    step.run(
                        f"INSERT INTO sighting ({_SEEN_COLUMNS}) VALUES ({_SEEN_MARKS})",  # noqa: S608
                        tuple(getattr(sighting, name) for name in field_names(Sighting)),
                    )

    def all(self) -> list[Sighting]:
        """Everything that was seen, in the order of names and then of time."""
        query = f"SELECT {_SEEN_COLUMNS} FROM sighting ORDER BY server, entity, item, first_seen, digest"  # noqa: S608
        rows = self._database.rows(query)
        return [Sighting(**dict(zip(field_names(Sighting), row, strict=True))) for row in rows]

    def definition(self, server: str, entity: str, item: str, digest: str) -> str | None:
        """What was served under a digest, as canonical JSON; None if that was never seen, or is not it."""
        row = self._database.row(
            "SELECT definition FROM sighting WHERE server = ? AND entity = ? AND item = ? AND digest = ?",
            (server, entity, item, digest),
        )
        return str(row[0]) if row is not None and str(Digest.of_bytes(str(row[0]).encode())) == digest else None


def _has_space(step: Transaction, sighting: Sighting) -> bool:
    """Whether one more is kept. The first digests of an item stay: what came later is what has to be explained."""
    about = (sighting.server, sighting.entity, sighting.item)
    same = step.row("SELECT COUNT(*) FROM sighting WHERE server = ? AND entity = ? AND item = ?", about)
    every = step.row("SELECT COUNT(*) FROM sighting WHERE server = ?", (sighting.server,))
    return same is not None and every is not None and same[0] < _MOST_DIGESTS and every[0] < _MOST_ITEMS


def storable_name(text: str) -> str:
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
