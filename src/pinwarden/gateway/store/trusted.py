"""Surfaces that are trusted because they were the first ever seen of their server.

What is here changes only by approval. A server that says something else later is held against it, and a list that it
did not offer at first is not trusted when it appears.
"""

from __future__ import annotations

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.surface.surface import Surface, encode_surface, parse_surface
from pinwarden.system.database import Database, Transaction


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


class Trusted:
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
