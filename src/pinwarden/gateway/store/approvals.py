"""The tables of shared approvals, and of surfaces that were trusted on first use.

Later lists of a server are compared with its trusted surface, which changes only by approval. A list that the server
did not offer at its first use is not trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field_names, replace
from pinwarden.surface.surface import Surface, encode_surface, parse_surface
from pinwarden.system.database import Database, Row, Transaction

TOPIC = "approvals"
"""The topic of notifications about decisions."""
APPROVED = "approved"
WITHDRAWN = "withdrawn"

_NAME_LENGTH = 32  # hex digits of the name of an approval
_MAX_APPROVALS = 5000  # approvals for one server; people approve fewer
_MAX_REFUSED = 200  # names of refused approvals that one gateway reports
FRESH_SECONDS = 120
"""How long a gateway counts as running after its last report. Gateways report more often, but clocks differ."""


class StoredApproval(Record):
    """A decision about one definition of one server."""

    name: str
    sequence: int
    """A number that increases with every decision in the database."""
    server: str
    identity: str
    """The identity of the server in the approver's lock: a digest of its command or URL."""
    entity: str
    item: str
    digest: str
    expected: str
    """The approved digests that this definition replaces, separated by spaces; empty for a new item."""
    definition: str
    """The definition as canonical JSON."""
    place: str
    """The host and lockfile of the approver."""
    state: str
    decided: str
    decided_by: str
    why: str


class Follower(Record):
    """A gateway that applies approvals from the database, for one of its servers."""

    place: str
    server: str
    identity: str
    sequence: int
    """The sequence number of the last decision that the gateway has applied."""
    refused: str
    """Names of approvals that the gateway does not apply, separated by spaces."""
    seen: int
    """The time of the gateway's last report, in seconds since 1970."""


_COLUMNS = ", ".join(field_names(StoredApproval))
_MARKS = ", ".join("?" for _ in field_names(StoredApproval))
_FOLLOWER_COLUMNS = ", ".join(field_names(Follower))
_FOLLOWER_MARKS = ", ".join("?" for _ in field_names(Follower))
ChangeMark = tuple[int, ...]
"""Count, maximum and sum of the sequence numbers. Every change alters at least one of the values."""


def assign_name(approval: StoredApproval) -> StoredApproval:
    """Return the approval with its name, a digest of its content."""
    content = [approval.server, approval.identity, approval.entity, approval.item, approval.digest]
    return replace(approval, name=Digest.of_bytes(canonicalize(content)).hex[:_NAME_LENGTH])


class Approvals:
    """The tables of approvals and of the gateways that follow them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __str__(self) -> str:
        return str(self._database)

    @property
    def database(self) -> Database:
        """The database of the tables."""
        return self._database

    def record(self, approvals: Iterable[StoredApproval]) -> None:
        """Store approvals as the newest decisions about their definitions."""
        with self._database.transaction(exclusive="approvals") as transaction:
            for unnamed in approvals:
                approval = replace(assign_name(unnamed), sequence=_compute_next_sequence(transaction))
                transaction.run("DELETE FROM approval WHERE name = ?", (approval.name,))
                transaction.run(
                    f"INSERT INTO approval ({_COLUMNS}) VALUES ({_MARKS})",  # noqa: S608
                    tuple(getattr(approval, name) for name in field_names(StoredApproval)),
                )
            transaction.notify(TOPIC)

    def withdraw(self, content: Sequence[tuple[str, str, str, str]], *, by: str, why: str, now: str) -> None:
        """Withdraw the approvals of definitions (server, entity, item, digest), for servers of any identity."""
        with self._database.transaction(exclusive="approvals") as transaction:
            for server, entity, item, digest in content:
                transaction.run(
                    "UPDATE approval SET state = ?, sequence = ?, decided = ?, decided_by = ?, why = ?"
                    " WHERE server = ? AND entity = ? AND item = ? AND digest = ? AND state = ?",
                    (
                        WITHDRAWN,
                        _compute_next_sequence(transaction),
                        now,
                        by,
                        why,
                        server,
                        entity,
                        item,
                        digest,
                        APPROVED,
                    ),
                )
            transaction.notify(TOPIC)

    def read_change_mark(self) -> ChangeMark:
        """Return a value that differs after every decision."""
        row = self._database.row(
            "SELECT COUNT(*), COALESCE(MAX(sequence), 0), COALESCE(SUM(sequence), 0) FROM approval"
        )
        return (0, 0, 0) if row is None else (int(row[0]), int(row[1]), int(row[2]))

    def list_for_servers(self, servers: Iterable[str]) -> list[StoredApproval]:
        """Return the approvals for servers with these names, the oldest first."""
        approvals: list[StoredApproval] = []
        for server in servers:
            rows = self._database.rows(
                f"SELECT {_COLUMNS} FROM approval WHERE server = ? AND state = ?"  # noqa: S608
                f" ORDER BY sequence LIMIT {_MAX_APPROVALS + 1}",
                (server, APPROVED),
            )
            if len(rows) > _MAX_APPROVALS:
                raise PinwardenError(
                    "DATABASE_CORRUPT", f"{self} has more than {_MAX_APPROVALS} approvals of one server"
                )
            approvals += [StoredApproval(**dict(zip(field_names(StoredApproval), row, strict=True))) for row in rows]
        return approvals

    def report_followers(self, followers: Iterable[Follower]) -> None:
        """Store which decisions a gateway has applied, for each of its servers."""
        with self._database.transaction(exclusive="followers") as transaction:
            for follower in followers:
                refused = " ".join(follower.refused.split()[:_MAX_REFUSED])
                values = (
                    follower.place,
                    follower.server,
                    follower.identity,
                    follower.sequence,
                    refused,
                    follower.seen,
                )
                transaction.run(
                    "DELETE FROM approval_follower WHERE place = ? AND server = ?", (follower.place, follower.server)
                )
                transaction.run(
                    f"INSERT INTO approval_follower ({_FOLLOWER_COLUMNS}) VALUES ({_FOLLOWER_MARKS})",  # noqa: S608
                    values,
                )

    def remove_followers(self, place: str) -> None:
        """Remove the followers of a gateway that stops."""
        with self._database.transaction(exclusive="followers") as transaction:
            transaction.run("DELETE FROM approval_follower WHERE place = ?", (place,))

    def list_followers(self, now: int) -> list[Follower]:
        """Return the followers that reported within `FRESH_SECONDS`, so their gateways are running."""
        rows: list[Row] = self._database.rows(
            f"SELECT {_FOLLOWER_COLUMNS} FROM approval_follower WHERE seen > ? ORDER BY place, server",  # noqa: S608
            (now - FRESH_SECONDS,),
        )
        return [Follower(**dict(zip(field_names(Follower), row, strict=True))) for row in rows]

    def find_unapplied(self, now: int) -> dict[StoredApproval, list[Follower]]:
        """Return where approvals are not applied: running gateways with a server of the same name, by approval."""
        followers = self.list_followers(now)
        approvals = self.list_for_servers(sorted({follower.server for follower in followers}))
        behind = {
            approval: [follower for follower in followers if _does_not_apply(approval, follower)]
            for approval in approvals
        }
        return {approval: followers for approval, followers in behind.items() if followers}


def _does_not_apply(approval: StoredApproval, follower: Follower) -> bool:
    return (
        follower.server == approval.server
        and follower.place != approval.place
        and (
            follower.identity != approval.identity
            or follower.sequence < approval.sequence
            or approval.name in follower.refused.split()
        )
    )


def _compute_next_sequence(transaction: Transaction) -> int:
    row = transaction.row("SELECT COALESCE(MAX(sequence), 0) FROM approval")
    return 1 if row is None else int(row[0]) + 1


class TrustedSurface(Record):
    """A trusted surface, with the last decision about it."""

    server: str
    generation: int
    """Increases with every change."""
    surface: Surface
    since: str
    changed: str
    changed_by: str
    """Who approved the last change; empty if the surface is as trusted on first use."""
    why: str


class TrustedSurfaces:
    """The table of trusted surfaces."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read_generation(self, server: str) -> int:
        """Return a number that changes with the trusted surface of a server; 0 if there is none. A cheap query."""
        row = self._database.row("SELECT generation FROM trusted WHERE server = ?", (server,))
        return 0 if row is None else int(row[0])

    def find(self, server: str) -> TrustedSurface | None:
        """Return the trusted surface of a server; None if there is none."""
        with self._database.transaction() as transaction:
            return _find_trusted(transaction, server)

    def list_servers(self) -> list[str]:
        """Return the names of the servers with a trusted surface."""
        return [name for (name,) in self._database.rows("SELECT server FROM trusted ORDER BY server")]

    def trust_first_use(self, server: str, surface: Surface, now: str) -> TrustedSurface:
        """Trust a surface if the server has no trusted surface yet. Returns the trusted surface, old or new."""
        _refuse_undigestable(surface)
        with self._database.transaction(exclusive="trusted") as transaction:
            if _find_trusted(transaction, server) is None:
                transaction.run(
                    "INSERT INTO trusted (server, generation, surface, since, changed, changed_by, why)"
                    " VALUES (?, 1, ?, ?, ?, '', '')",
                    (server, encode_surface(surface).decode(), now, now),
                )
            trusted = _find_trusted(transaction, server)
        assert trusted is not None  # noqa: S101 - it exists or was inserted above
        return trusted

    def approve(self, before: TrustedSurface, surface: Surface, *, by: str, why: str, now: str) -> None:
        """Replace a trusted surface by an approved one. Raises ``REVIEW_STALE`` if another process changed it."""
        _refuse_undigestable(surface)
        with self._database.transaction(exclusive="trusted") as transaction:
            changed = transaction.run(
                "UPDATE trusted SET generation = generation + 1, surface = ?, changed = ?, changed_by = ?, why = ?"
                " WHERE server = ? AND generation = ?",
                (encode_surface(surface).decode(), now, by, why, before.server, before.generation),
            )
        if changed != 1:
            raise PinwardenError(
                "REVIEW_STALE", f"the trusted surface of {before.server[:120]!a} changed in the meantime"
            )

    def forget(self, server: str) -> bool:
        """Delete the trusted surface of a server. Returns whether there was one."""
        with self._database.transaction(exclusive="trusted") as transaction:
            return transaction.run("DELETE FROM trusted WHERE server = ?", (server,)) > 0


def _refuse_undigestable(surface: Surface) -> None:
    if surface.problem is not None:
        raise PinwardenError("SURFACE_INVALID", f"the surface cannot be trusted: {surface.problem}")


def _find_trusted(transaction: Transaction, server: str) -> TrustedSurface | None:
    row = transaction.row(
        "SELECT generation, surface, since, changed, changed_by, why FROM trusted WHERE server = ?", (server,)
    )
    if row is None:
        return None
    generation, text, since, changed, changed_by, why = row
    return TrustedSurface(
        server=server,
        generation=generation,
        surface=parse_surface(str(text).encode()),
        since=since,
        changed=changed,
        changed_by=changed_by,
        why=why,
    )
