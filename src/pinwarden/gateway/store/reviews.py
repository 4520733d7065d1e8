"""The tables of reviews and of observed definitions.

A review is a change that is pending review, or a decision about one. A review's name is a digest of the server, the
item, the approved digest and the served digest, so approving a name approves exactly that change. When the server
serves another definition, the old review is superseded and can no longer be approved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field_names, replace
from pinwarden.gateway.audit.event import HELD, AuditEvent
from pinwarden.gateway.gates.verdict import ALLOW, Verdict
from pinwarden.lock.gateway_policy import DRIFT_LEVELS
from pinwarden.system.clock import now
from pinwarden.system.database import Database, Row, Transaction
from pinwarden.system.masking import mask_item_key

TOPIC = "reviews"
"""The topic of notifications about reviews."""
PENDING = "pending"
APPROVED = "approved"
REJECTED = "rejected"
SUPERSEDED = "superseded"
STATES = (PENDING, APPROVED, REJECTED, SUPERSEDED)

_MAX_SUPERSEDED = 20  # old reviews kept for one item, so that a server that always changes does not fill the disk
_MAX_COMMENTS = 100  # about one review
_MAX_OWN_COMMENTS = 25  # of one person, so that a viewer cannot use up those of the others
_MAX_PENDING = 2000  # pending reviews of one server; further changes are blocked, but only the audit log has them
_NAME_LENGTH = 32  # hex digits, so that no server can construct two changes with the same name
_MIN_PREFIX = 4  # hex digits of an abbreviated name


class Review(Record):
    """One definition that differs from the approved one."""

    name: str
    server: str
    baseline: str
    """Where the approvals of the server are: the text of a `Baseline` (gateway/baselines.py)."""
    entity: str
    """The type of the item: tool, prompt, resource, resourceTemplate or server."""
    item: str
    """The item's key; for ``server``: serverInfo, capabilities or instructions."""
    digest: str
    """The digest of the served definition; empty if the definition has none and therefore cannot be approved."""
    expected: str
    """The approved digests, separated by spaces; empty for a new item."""
    definition: str
    """The served definition as canonical JSON."""
    level: str
    code: str
    reason: str
    opened: str
    last_seen: str
    state: str = PENDING
    decided: str = ""
    decided_by: str = ""
    why: str = ""


class FirstApproval(Record):
    """The first of two approvals of a pending review. It has no effect until another person approves too."""

    name: str
    """The name of the review."""
    identity: str
    """Identifies the person at the issuer."""
    approved_by: str
    why: str
    approved: str
    """When it was given."""


class ReviewComment(Record):
    """What a person wrote about a review. It decides nothing."""

    name: str
    """The name of the review."""
    position: int
    written_by: str
    written: str
    """When it was written."""
    kind: str
    """``comment``, or ``question`` to other reviewers."""
    content: str


class ReviewDecision(Record):
    """What to store about decided reviews."""

    state: str
    by: str
    why: str
    now: str
    first: FirstApproval | None = None
    """The first of two approvals, if this is the second one."""


_COLUMNS = ", ".join(field_names(Review))
_MARKS = ", ".join("?" for _ in field_names(Review))


def assign_name(review: Review) -> Review:
    """Return the review with its name, a digest of its content."""
    content = [review.server, review.baseline, review.entity, review.item, review.digest, review.expected]
    if not review.digest:
        content.append(review.definition)
    return replace(review, name=Digest.of_bytes(canonicalize(content)).hex[:_NAME_LENGTH])


class Reviews:
    """The table of reviews."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, reviews: Iterable[Review]) -> list[Review]:
        """Add changes that are pending review. Returns the new changes.

        A change that a person approved or rejected keeps that decision. Another pending change of the same item is
        superseded; if the server serves it again, it is pending again.
        """
        added: list[Review] = []
        with self._database.transaction(exclusive="reviews") as transaction:
            for unnamed in reviews:
                review = assign_name(unnamed)
                transaction.run(
                    "UPDATE review SET state = ? WHERE server = ? AND baseline = ? AND entity = ? AND item = ?"
                    " AND state = ? AND name <> ?",
                    (SUPERSEDED, review.server, review.baseline, review.entity, review.item, PENDING, review.name),
                )
                _delete_oldest(transaction, review)
                known = transaction.run(
                    "UPDATE review SET last_seen = ?, state = CASE WHEN state = ? THEN ? ELSE state END WHERE name = ?",
                    (review.last_seen, SUPERSEDED, PENDING, review.name),
                )
                if not known and _may_add_review(transaction, review):
                    transaction.run(f"INSERT INTO review ({_COLUMNS}) VALUES ({_MARKS})", _to_row(review))  # noqa: S608
                    added.append(review)
            transaction.notify(TOPIC)
        return added

    def supersede(self, server: str, baseline: str, served: Collection[tuple[str, str]]) -> None:
        """Supersede the pending changes of these items (entity and key), which the server again serves as approved."""
        with self._database.transaction(exclusive="reviews") as transaction:
            rows = transaction.rows(
                "SELECT name, entity, item FROM review WHERE server = ? AND baseline = ? AND state = ?",
                (server, baseline, PENDING),
            )
            transaction.run_many(
                "UPDATE review SET state = ? WHERE name = ?",
                [(SUPERSEDED, name) for name, entity, item in rows if (entity, item) in served],
            )
            if rows:
                transaction.notify(TOPIC)

    def select(self, states: Sequence[str] = (PENDING,)) -> list[Review]:
        """Return the reviews in these states, the oldest first."""
        marks = ", ".join("?" for _ in states)
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM review WHERE state IN ({marks}) ORDER BY opened, server, entity, item, name",  # noqa: S608
            tuple(states),
        )
        return [_parse_review(row) for row in rows]

    def count_pending(self) -> dict[str, int]:
        """Return how many changes are pending, by severity. Every severity is present."""
        rows = self._database.rows("SELECT level, COUNT(*) FROM review WHERE state = ? GROUP BY level", (PENDING,))
        counts = dict.fromkeys(DRIFT_LEVELS, 0)
        for level, count in rows:
            counts[level if level in counts else DRIFT_LEVELS[-1]] += count
        return counts

    def read_change_mark(self) -> tuple[Row, ...]:
        """Return a value that differs after every change of what is pending, every decision, and every comment."""
        queries = (
            "SELECT state, COUNT(*), MAX(opened), MAX(last_seen), MAX(decided) FROM review"
            " GROUP BY state ORDER BY state",
            "SELECT COUNT(*), MAX(approved) FROM first_approval",
            "SELECT COUNT(*) FROM review_comment",
        )
        with self._database.transaction() as transaction:
            return tuple(row for query in queries for row in transaction.rows(query))

    def select_item(self, server: str, entity: str, item: str) -> list[Review]:
        """Return the reviews of an item, the newest first."""
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM review WHERE server = ? AND entity = ? AND item = ?"  # noqa: S608
            " ORDER BY opened DESC, name",
            (server, entity, item),
        )
        return [_parse_review(row) for row in rows]

    def get(self, name: str) -> Review:
        """Return the review with this full name. Decisions need the full name, because it identifies the content."""
        rows = self._database.rows(f"SELECT {_COLUMNS} FROM review WHERE name = ?", (name[:_NAME_LENGTH],))  # noqa: S608
        if not rows or len(name) != _NAME_LENGTH:
            raise PinwardenError("REVIEW_NOT_FOUND", f"{name[:80]!a} is not the full name of a review")
        return _parse_review(rows[0])

    def find(self, name: str) -> Review:
        """Return the review with this name or unique prefix, to display it."""
        if not name.isascii() or not name.isalnum():
            raise PinwardenError("REVIEW_NOT_FOUND", f"{name[:80]!a} is not the name of a review")
        if len(name) < _MIN_PREFIX:
            raise PinwardenError("REVIEW_NOT_FOUND", f"{name!a} is too short: give at least {_MIN_PREFIX} characters")
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM review WHERE name >= ? AND name < ? ORDER BY name LIMIT 2",  # noqa: S608
            (name, f"{name}g"),
        )
        if len(rows) != 1:
            why = "is ambiguous: several reviews begin with it" if rows else "is not the name of a review"
            raise PinwardenError("REVIEW_NOT_FOUND", f"{name[:80]!a} {why}")
        return _parse_review(rows[0])

    def list_comments(self, name: str) -> list[ReviewComment]:
        """Return the comments about a review, the oldest first."""
        columns = ", ".join(field_names(ReviewComment))
        rows = self._database.rows(
            f"SELECT {columns} FROM review_comment WHERE name = ? ORDER BY position",  # noqa: S608
            (name,),
        )
        return [ReviewComment(**dict(zip(field_names(ReviewComment), row, strict=True))) for row in rows]

    def list_questions(self) -> dict[str, str]:
        """Return who asked, by review, where a question is the last comment."""
        rows = self._database.rows(
            "SELECT review_comment.name, review_comment.written_by FROM review_comment JOIN (SELECT name AS of_review,"
            " MAX(position) AS last FROM review_comment GROUP BY name) AS newest ON review_comment.name ="
            " newest.of_review AND review_comment.position = newest.last WHERE review_comment.kind = 'question'"
        )
        return {str(name): str(by) for name, by in rows}

    def add_comment(self, comment: ReviewComment) -> None:
        """Store a comment as the last one of its review. Raises ``INPUT_LIMIT`` if the review has too many."""
        columns = ", ".join(field_names(ReviewComment))
        with self._database.transaction(exclusive="reviews") as transaction:
            row = transaction.row("SELECT MAX(position) FROM review_comment WHERE name = ?", (comment.name,))
            position = (row[0] if row and row[0] is not None else 0) + 1
            if position > _MAX_COMMENTS:
                raise PinwardenError("INPUT_LIMIT", f"a review has at most {_MAX_COMMENTS} comments")
            own = transaction.row(
                "SELECT COUNT(*) FROM review_comment WHERE name = ? AND written_by = ?",
                (comment.name, comment.written_by),
            )
            if own and own[0] >= _MAX_OWN_COMMENTS:
                raise PinwardenError("INPUT_LIMIT", f"a review has at most {_MAX_OWN_COMMENTS} comments of one person")
            placed = replace(comment, position=position)
            transaction.run(
                f"INSERT INTO review_comment ({columns}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608
                tuple(getattr(placed, name) for name in field_names(ReviewComment)),
            )
            transaction.notify(TOPIC)

    def list_first_approvals(self) -> dict[str, FirstApproval]:
        """Return the first approvals of changes that need two, by review."""
        columns = ", ".join(field_names(FirstApproval))
        rows = self._database.rows(f"SELECT {columns} FROM first_approval")  # noqa: S608
        found = [FirstApproval(**dict(zip(field_names(FirstApproval), row, strict=True))) for row in rows]
        return {approval.name: approval for approval in found}

    def record_first_approval(self, review: Review, approval: FirstApproval) -> None:
        """Store the first approval. Raises ``REVIEW_STALE`` if the review is not pending or has one already."""
        columns = ", ".join(field_names(FirstApproval))
        with self._database.transaction(exclusive="reviews") as transaction:
            _refuse_unless_pending(transaction, review)
            _refuse_other_first_approval(transaction, review, None)
            transaction.run(
                f"INSERT INTO first_approval ({columns}) VALUES (?, ?, ?, ?, ?)",  # noqa: S608
                tuple(getattr(approval, name) for name in field_names(FirstApproval)),
            )
            transaction.notify(TOPIC)

    def decide(self, reviews: Sequence[Review], decision: ReviewDecision) -> None:
        """Store a decision about reviews. Raises ``REVIEW_STALE``, and stores nothing, if one is no longer pending.

        The first approval that it completes must still be there. All first approvals of the reviews end with it.
        """
        with self._database.transaction(exclusive="reviews") as transaction:
            for review in reviews:
                _refuse_unless_pending(transaction, review)
                if decision.first is not None:
                    _refuse_other_first_approval(transaction, review, decision.first.identity)
                transaction.run("DELETE FROM first_approval WHERE name = ?", (review.name,))
                transaction.run(
                    "UPDATE review SET state = ?, decided = ?, decided_by = ?, why = ? WHERE name = ?",
                    (decision.state, decision.now, decision.by, decision.why, review.name),
                )
            transaction.notify(TOPIC)

    def reopen(self, reviews: Sequence[Review]) -> None:
        """Undo decisions. The reviews are pending again, or superseded if a newer change of the item is pending."""
        with self._database.transaction(exclusive="reviews") as transaction:
            for review in reviews:
                newer = transaction.row(
                    "SELECT name FROM review"
                    " WHERE server = ? AND baseline = ? AND entity = ? AND item = ? AND state = ?",
                    (review.server, review.baseline, review.entity, review.item, PENDING),
                )
                changed = transaction.run(
                    "UPDATE review SET state = ?, decided = '', decided_by = '', why = ''"
                    " WHERE name = ? AND state = ? AND decided = ?",
                    (SUPERSEDED if newer else PENDING, review.name, review.state, review.decided),
                )
                if changed != 1:
                    raise PinwardenError("REVIEW_STALE", f"the decision about {review.name} changed in the meantime")
            transaction.notify(TOPIC)


def _refuse_other_first_approval(transaction: Transaction, review: Review, identity: str | None) -> None:
    row = transaction.row("SELECT identity FROM first_approval WHERE name = ?", (review.name,))
    if (row[0] if row else None) != identity:
        raise PinwardenError("REVIEW_STALE", f"the approvals of {review.name} changed in the meantime")


def _refuse_unless_pending(transaction: Transaction, review: Review) -> None:
    row = transaction.row("SELECT state FROM review WHERE name = ?", (review.name,))
    state = row[0] if row else "deleted"
    if state != PENDING:
        raise PinwardenError("REVIEW_STALE", f"{review.name} is no longer pending: it is {state}")


def _delete_oldest(transaction: Transaction, review: Review) -> None:
    values = (review.server, review.baseline, review.entity, review.item, SUPERSEDED)
    condition = "server = ? AND baseline = ? AND entity = ? AND item = ? AND state = ?"
    transaction.run(
        f"DELETE FROM review WHERE {condition} AND name NOT IN (SELECT name FROM review WHERE {condition}"  # noqa: S608
        f" ORDER BY last_seen DESC, name LIMIT {_MAX_SUPERSEDED})",
        (*values, *values),
    )


def _may_add_review(transaction: Transaction, review: Review) -> bool:
    row = transaction.row("SELECT COUNT(*) FROM review WHERE server = ? AND state = ?", (review.server, PENDING))
    return row is not None and row[0] < _MAX_PENDING


def _to_row(review: Review) -> tuple[str, ...]:
    return tuple(getattr(review, name) for name in field_names(Review))


def _parse_review(row: Row) -> Review:
    return Review(**dict(zip(field_names(Review), row, strict=True)))


class SightingRecorder:
    """Stores the definitions that one server serves, and adds reviews for unapproved definitions."""

    def __init__(
        self,
        server: str,
        baseline: str,
        observed: ObservedDefinitions,
        reviews: Reviews,
        on_served: Callable[[], None] | None = None,
    ) -> None:
        """``on_served`` is called whenever the server served definitions."""
        self._server = server
        self._baseline = baseline
        self._observed = observed
        self._reviews = reviews
        self._on_served = on_served

    def record(self, verdicts: Iterable[Verdict]) -> tuple[AuditEvent, ...]:
        """Store the definitions. Returns an audit event for each new review."""
        checked = tuple(verdicts)
        time = now()
        reviews = [
            self._build_review(verdict, time) for verdict in checked if verdict.action != ALLOW and _is_served(verdict)
        ]
        pending = {(review.entity, review.item) for review in reviews}
        allowed = {
            (verdict.entity, make_storable_name(verdict.key)) for verdict in checked if verdict.action == ALLOW
        } - pending
        if allowed:
            self._reviews.supersede(make_storable_name(self._server), self._baseline, allowed)
        added = self._reviews.add(reviews) if reviews else []
        self._observed.record(self._build_sighting(verdict, time) for verdict in checked if _is_served(verdict))
        if checked and self._on_served is not None:
            self._on_served()
        return tuple(build_review_event(review, HELD, review.reason) for review in added)

    def _build_review(self, verdict: Verdict, time: str) -> Review:
        return Review(
            name="",
            server=make_storable_name(self._server),
            baseline=self._baseline,
            entity=verdict.entity,
            item=make_storable_name(verdict.key),
            digest=str(verdict.digest or ""),
            expected=" ".join(verdict.expected) if _is_pinned(verdict) else "",
            definition=encode_definition(verdict),
            level=verdict.level,
            code=verdict.code,
            reason=make_storable_name(verdict.reason),
            opened=time,
            last_seen=time,
        )

    def _build_sighting(self, verdict: Verdict, time: str) -> Sighting:
        return Sighting(
            server=make_storable_name(self._server),
            entity=verdict.entity,
            item=make_storable_name(verdict.key),
            digest=str(verdict.digest or ""),
            definition=encode_definition(verdict),
            action=verdict.action,
            first_seen=time,
            last_seen=time,
            sessions=0 if verdict.again else 1,
        )


def build_review_event(review: Review, kind: str, reason: str, by: str = "") -> AuditEvent:
    """Return an audit event about a review. The correlation id of the event is the name of the review."""
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


def _is_served(verdict: Verdict) -> bool:
    """Whether the verdict is about a served definition, and not about a removed member of the server's description."""
    return verdict.value is not None or verdict.digest is not None


def _is_pinned(verdict: Verdict) -> bool:
    """Whether a definition of the item is approved, and not only allowed by a policy."""
    return not any(change.kind == "item_added" for change in verdict.changes)


def encode_definition(verdict: Verdict) -> str:
    """Return the served definition as canonical JSON; for an undigestable definition, an escaped excerpt."""
    try:
        return canonicalize(verdict.value).decode()
    except PinwardenError:
        return canonicalize({"unreadable": ascii(verdict.value)[:4096]}).decode()


class Sighting(Record):
    """One definition of one item, as a server served it."""

    server: str
    entity: str
    item: str
    digest: str
    """The digest of the definition; empty if it is undigestable."""
    definition: str
    """The definition as canonical JSON; for an undigestable definition, an excerpt."""
    action: str
    """The last decision of the gateway about the definition: allow, audit, warn or block."""
    first_seen: str
    last_seen: str
    sessions: int = 1
    """The number of sessions in which the definition was served; 0 in an update by a session that already counts."""


_MAX_DIGESTS = 20  # digests kept for one item, so that a server that always changes does not fill the disk
_MAX_ITEMS = 5000  # items kept for one server
_SIGHTING_COLUMNS = ", ".join(field_names(Sighting))
_SIGHTING_MARKS = ", ".join("?" for _ in field_names(Sighting))


class ObservedDefinitions:
    """The table of sightings."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, sightings: Iterable[Sighting]) -> None:
        """Store or update sightings."""
        with self._database.transaction(exclusive="sightings") as transaction:
            for sighting in sightings:
                known = transaction.run(
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
                if not known and _may_add_sighting(transaction, sighting):
                    transaction.run(
                        f"INSERT INTO sighting ({_SIGHTING_COLUMNS}) VALUES ({_SIGHTING_MARKS})",  # noqa: S608
                        tuple(getattr(sighting, name) for name in field_names(Sighting)),
                    )

    def list_all(self) -> list[Sighting]:
        """Return all sightings, ordered by server, item and time."""
        query = f"SELECT {_SIGHTING_COLUMNS} FROM sighting ORDER BY server, entity, item, first_seen, digest"  # noqa: S608
        rows = self._database.rows(query)
        return [Sighting(**dict(zip(field_names(Sighting), row, strict=True))) for row in rows]

    def select_item(self, server: str, entity: str, item: str) -> list[Sighting]:
        """Return the sightings of an item, the newest first."""
        rows = self._database.rows(
            f"SELECT {_SIGHTING_COLUMNS} FROM sighting WHERE server = ? AND entity = ? AND item = ?"  # noqa: S608
            " ORDER BY first_seen DESC, digest",
            (server, entity, item),
        )
        return [Sighting(**dict(zip(field_names(Sighting), row, strict=True))) for row in rows]

    def summarize_servers(self) -> list[tuple[str, int, int, str]]:
        """Return each observed server with its number of items, how many of them are blocked, and when it was seen."""
        rows = self._database.rows(
            "SELECT server, COUNT(*), SUM(blocked), MAX(seen) FROM (SELECT newest.server AS server,"
            " newest.seen AS seen, MAX(CASE WHEN sighting.action = 'block' THEN 1 ELSE 0 END) AS blocked"
            " FROM (SELECT server, entity, item, MAX(last_seen) AS seen FROM sighting GROUP BY server, entity, item)"
            " AS newest JOIN sighting ON sighting.server = newest.server AND sighting.entity = newest.entity"
            " AND sighting.item = newest.item AND sighting.last_seen = newest.seen"
            " GROUP BY newest.server, newest.entity, newest.item, newest.seen) AS items GROUP BY server ORDER BY server"
        )
        return [(str(server), int(items), int(blocked), str(seen)) for server, items, blocked, seen in rows]

    def select_current(self, server: str) -> list[Sighting]:
        """Return the newest sighting of each item of a server."""
        return self._select_current("server = ?", (server,))

    def search_tools(self, words: Sequence[str], limit: int) -> list[Sighting]:
        """Return the newest sighting of tools whose name or definition contains all words, whatever their case."""
        condition = "entity = 'tool'" + " AND LOWER(definition) LIKE ?" * len(words)
        return self._select_current(condition, tuple(_build_pattern(word) for word in words), limit)

    def _select_current(self, condition: str, values: Sequence[str], limit: int | None = None) -> list[Sighting]:
        columns = ", ".join(f"sighting.{name}" for name in field_names(Sighting))
        rows = self._database.rows(
            f"SELECT {columns} FROM (SELECT server, entity, item, MAX(last_seen) AS seen FROM sighting"  # noqa: S608
            f" WHERE {condition} GROUP BY server, entity, item) AS newest JOIN sighting"
            " ON sighting.server = newest.server AND sighting.entity = newest.entity AND sighting.item = newest.item"
            " AND sighting.last_seen = newest.seen ORDER BY sighting.item, sighting.server, sighting.entity,"
            " sighting.first_seen DESC" + (f" LIMIT {limit}" if limit is not None else ""),
            tuple(values),
        )
        current: dict[tuple[str, str, str], Sighting] = {}
        for row in rows:
            sighting = Sighting(**dict(zip(field_names(Sighting), row, strict=True)))
            current.setdefault((sighting.server, sighting.entity, sighting.item), sighting)
        return list(current.values())

    def find_definition(self, server: str, entity: str, item: str, digest: str) -> str | None:
        """Return the stored definition with this digest, as canonical JSON; None if there is none."""
        row = self._database.row(
            "SELECT definition FROM sighting WHERE server = ? AND entity = ? AND item = ? AND digest = ?",
            (server, entity, item, digest),
        )
        return str(row[0]) if row is not None and str(Digest.of_bytes(str(row[0]).encode())) == digest else None


def _build_pattern(word: str) -> str:
    """Return a LIKE pattern for definitions with a word. Special characters match any character."""
    return f"%{''.join(char if char.isalnum() or char in ' .:@/-' else '_' for char in word.lower())}%"


def _may_add_sighting(transaction: Transaction, sighting: Sighting) -> bool:
    """Whether the limits allow another sighting. At the limit, earlier sightings are kept."""
    item = (sighting.server, sighting.entity, sighting.item)
    same = transaction.row("SELECT COUNT(*) FROM sighting WHERE server = ? AND entity = ? AND item = ?", item)
    total = transaction.row("SELECT COUNT(*) FROM sighting WHERE server = ?", (sighting.server,))
    return same is not None and total is not None and same[0] < _MAX_DIGESTS and total[0] < _MAX_ITEMS


def make_storable_name(text: str) -> str:
    """Convert a name so that both databases can store and index it: no NUL, valid UTF-8, and limited length.

    A long name is truncated and gets a digest of the full name. The definition still has the original name.
    """
    escaped = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
    if len(escaped) <= _MAX_NAME:
        return escaped
    return f"{escaped[:_MAX_NAME]}… {Digest.of_bytes(escaped.encode()).hex[:16]}"


def is_truncated(name: str) -> bool:
    """Whether `make_storable_name` truncated a name."""
    return len(name) > _MAX_NAME


_MAX_NAME = 200  # characters; an index entry of PostgreSQL has at most 2.7 kB
