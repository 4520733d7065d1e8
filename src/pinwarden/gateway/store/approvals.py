"""Approvals in a database: those that gateways share, and surfaces that were trusted on first use.

A trusted surface changes only by approval. What a server serves later is compared with it, and a list that the server
did not offer at first is not trusted when it appears.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field_names, replace
from pinwarden.surface.surface import Surface, encode_surface, parse_surface
from pinwarden.system.database import Database, Row, Transaction

APPROVED = "approved"
WITHDRAWN = "withdrawn"

_NAME_LENGTH = 32  # hex digits
_MOST = 5000  # approvals of one server that count; nobody approves more by hand
_MOST_REFUSED = 200  # names that one gateway reports
FRESH_SECONDS = 120
"""For which a gateway that reported counts as running. It reports far more often, and clocks of hosts differ."""


class Approval(Record):
    """A decision about one definition of one server."""

    name: str
    sequence: int
    """Grows with every decision in the database."""
    server: str
    identity: str
    """Of the server in the lock that was approved: what is started or contacted, as a digest."""
    entity: str
    item: str
    digest: str
    expected: str
    """The digests that it was approved in place of, with spaces between them; empty for what was new."""
    definition: str
    """As canonical JSON."""
    place: str
    """The host and the lock that it was written to."""
    state: str
    decided: str
    decided_by: str
    why: str


class Follower(Record):
    """A gateway that takes approvals from the database, for one of its servers."""

    place: str
    server: str
    identity: str
    sequence: int
    """Up to which decision it has followed."""
    refused: str
    """Names of approvals that do not fit what its lock approves, with spaces between them."""
    seen: int
    """When it last reported, in seconds."""


_COLUMNS = ", ".join(field_names(Approval))
_MARKS = ", ".join("?" for _ in field_names(Approval))
_FOLLOWER_COLUMNS = ", ".join(field_names(Follower))
_FOLLOWER_MARKS = ", ".join("?" for _ in field_names(Follower))
Change = tuple[int, int, int]
"""A cheap sign that any decision was added, changed or deleted."""


def named(approval: Approval) -> Approval:
    """The approval with the name that belongs to its content."""
    about = [approval.server, approval.identity, approval.entity, approval.item, approval.digest]
    return replace(approval, name=Digest.of_bytes(canonicalize(about)).hex[:_NAME_LENGTH])


class Approvals:
    """The tables of approvals and of the gateways that follow them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __str__(self) -> str:
        return str(self._database)

    def record(self, approvals: Iterable[Approval]) -> None:
        """Make these the newest decisions about their content."""
        with self._database.transaction(exclusive="approvals") as step:
            for given in approvals:
                approval = replace(named(given), sequence=_next(step))
                step.run("DELETE FROM approval WHERE name = ?", (approval.name,))
                step.run(
                    f"INSERT INTO approval ({_COLUMNS}) VALUES ({_MARKS})",  # noqa: S608
                    tuple(getattr(approval, name) for name in field_names(Approval)),
                )

    def withdraw(self, content: Sequence[tuple[str, str, str, str]], *, by: str, why: str, now: str) -> None:
        """Let definitions (server, entity, item, digest) count no more, whatever the identity of the server."""
        with self._database.transaction(exclusive="approvals") as step:
            for server, entity, item, digest in content:
                step.run(
                    "UPDATE approval SET state = ?, sequence = ?, decided = ?, decided_by = ?, why = ?"
                    " WHERE server = ? AND entity = ? AND item = ? AND digest = ? AND state = ?",
                    (WITHDRAWN, _next(step), now, by, why, server, entity, item, digest, APPROVED),
                )

    def change(self) -> Change:
        """What differs after every decision."""
        row = self._database.row(
            "SELECT COUNT(*), COALESCE(MAX(sequence), 0), COALESCE(SUM(sequence), 0) FROM approval"
        )
        return (0, 0, 0) if row is None else (int(row[0]), int(row[1]), int(row[2]))

    def of_servers(self, servers: Iterable[str]) -> list[Approval]:
        """The approvals that count for servers of these names, in the order in which they were made."""
        found: list[Approval] = []
        for server in servers:
            rows = self._database.rows(
                f"SELECT {_COLUMNS} FROM approval WHERE server = ? AND state = ?"  # noqa: S608
                f" ORDER BY sequence LIMIT {_MOST + 1}",
                (server, APPROVED),
            )
            if len(rows) > _MOST:
                raise PinwardenError("DATABASE_CORRUPT", f"{self} has more approvals of one server than {_MOST}")
            found += [Approval(**dict(zip(field_names(Approval), row, strict=True))) for row in rows]
        return found

    def follow(self, followers: Iterable[Follower]) -> None:
        """Report how far a gateway has followed."""
        with self._database.transaction(exclusive="followers") as step:
            for each in followers:
                refused = " ".join(each.refused.split()[:_MOST_REFUSED])
                values = (each.place, each.server, each.identity, each.sequence, refused, each.seen)
                step.run("DELETE FROM approval_follower WHERE place = ? AND server = ?", (each.place, each.server))
                step.run(
                    f"INSERT INTO approval_follower ({_FOLLOWER_COLUMNS}) VALUES ({_FOLLOWER_MARKS})",  # noqa: S608
                    values,
                )

    def leave(self, place: str) -> None:
        """The gateway at a place ends."""
        with self._database.transaction(exclusive="followers") as step:
            step.run("DELETE FROM approval_follower WHERE place = ?", (place,))

    def followers(self, now: int) -> list[Follower]:
        """The gateways that reported lately."""
        rows: list[Row] = self._database.rows(
            f"SELECT {_FOLLOWER_COLUMNS} FROM approval_follower WHERE seen > ? ORDER BY place, server",  # noqa: S608
            (now - FRESH_SECONDS,),
        )
        return [Follower(**dict(zip(field_names(Follower), row, strict=True))) for row in rows]

    def not_followed(self, now: int) -> dict[Approval, list[Follower]]:
        """Approvals that some running gateway with a server of that name does not apply, and these gateways."""
        followers = self.followers(now)
        approvals = self.of_servers(sorted({each.server for each in followers}))
        found: dict[Approval, list[Follower]] = {}
        for approval in approvals:
            left = [
                each
                for each in followers
                if each.server == approval.server
                and each.place != approval.place
                and (
                    each.identity != approval.identity
                    or each.sequence < approval.sequence
                    or approval.name in each.refused.split()
                )
            ]
            if left:
                found[approval] = left
        return found


def _next(step: Transaction) -> int:
    row = step.row("SELECT COALESCE(MAX(sequence), 0) FROM approval")
    return 1 if row is None else int(row[0]) + 1


class TrustedSurface(Record):
    """A surface, and how it came to be trusted."""

    server: str
    generation: int
    """Grows with every change."""
    surface: Surface
    since: str
    changed: str
    changed_by: str
    """Empty while it is what was first seen."""
    why: str


class TrustedSurfaces:
    """The table of trusted surfaces."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def generation(self, server: str) -> int:
        """A number that changes whenever what is trusted of a server does; 0 if nothing is. Cheap."""
        row = self._database.row("SELECT generation FROM trusted WHERE server = ?", (server,))
        return 0 if row is None else int(row[0])

    def find(self, server: str) -> TrustedSurface | None:
        """What is trusted of a server; None if it was never seen."""
        with self._database.transaction() as step:
            return _find(step, server)

    def servers(self) -> list[str]:
        """The servers of which something is trusted."""
        return [name for (name,) in self._database.rows("SELECT server FROM trusted ORDER BY server")]

    def first_use(self, server: str, surface: Surface, now: str) -> TrustedSurface:
        """Trust a surface if nothing is known of its server; what is trusted then. The first one stays."""
        _refuse_undigestable(surface)
        with self._database.transaction(exclusive="trusted") as step:
            if _find(step, server) is None:
                step.run(
                    "INSERT INTO trusted (server, generation, surface, since, changed, changed_by, why)"
                    " VALUES (?, 1, ?, ?, ?, '', '')",
                    (server, encode_surface(surface).decode(), now, now),
                )
            found = _find(step, server)
        assert found is not None  # noqa: S101 - it was put there two lines above, by us or before us
        return found

    def approve(self, before: TrustedSurface, surface: Surface, *, by: str, why: str, now: str) -> None:
        """Put an approved surface in the place of another. One that was changed by somebody else meanwhile stays."""
        _refuse_undigestable(surface)
        with self._database.transaction(exclusive="trusted") as step:
            changed = step.run(
                "UPDATE trusted SET generation = generation + 1, surface = ?, changed = ?, changed_by = ?, why = ?"
                " WHERE server = ? AND generation = ?",
                (encode_surface(surface).decode(), now, by, why, before.server, before.generation),
            )
        if changed != 1:
            raise PinwardenError("REVIEW_STALE", f"what is trusted of {before.server[:120]!a} was changed meanwhile")

    def forget(self, server: str) -> bool:
        """Trust nothing of a server any more; its next use is its first. Whether anything was trusted."""
        with self._database.transaction(exclusive="trusted") as step:
            return step.run("DELETE FROM trusted WHERE server = ?", (server,)) > 0


def _refuse_undigestable(surface: Surface) -> None:
    if surface.problem is not None:
        raise PinwardenError("SURFACE_INVALID", f"it cannot be trusted: {surface.problem}")


def _find(step: Transaction, server: str) -> TrustedSurface | None:
    row = step.row(
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
