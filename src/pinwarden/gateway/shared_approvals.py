"""Approvals that a gateway takes from its database, in addition to those in its lock.

Somebody who approves a change on one host writes the lock of that host, and the database that all gateways share. Every
other gateway applies the approval if it is for the same server (not only one of the same name), for exactly the
definition that was approved, and in place of what its own lock approves. The lock decides about everything else.

A database that is away says nothing: what was known stays. One whose rows are not what their names say lets nothing of
the server pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.approved_items import KIND_OF, fits, holds, is_intact, with_definitions
from pinwarden.gateway.audit.event import SERVER_ITEM
from pinwarden.gateway.store.approvals import APPROVED, Approval, Approvals, Change, Follower, named
from pinwarden.gateway.store.reviews import storable_name

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.surface.surface import Surface

POLL_SECONDS = 0.5
"""Between looks at the database. An approval counts within about a second."""
REPORT_SECONDS = 20.0
"""Between reports of a gateway that has nothing new to report."""
_LONGEST_DEFINITION = 4 * 1024 * 1024  # characters; longer items are not judged either
_AWAY = "DATABASE_UNAVAILABLE"


class Applied(Record):
    """A surface with the approvals of the database in it."""

    surface: Surface
    names: tuple[str, ...]
    """Of the approvals that changed it."""


def server_identity(entries: Iterable[Entry], name: str, client: str | None = None) -> str:
    """Which server a lock means by a name, as a digest; empty if that is not one server, or not understood.

    ``client`` decides where several clients have different servers of that name.
    """
    from pinwarden.project.locked_servers import servers_by_name

    servers = servers_by_name(entry for entry in entries if entry.name == name).get(name, ())
    if len(servers) > 1:
        servers = tuple(server for server in servers if client in server.clients)
    if len(servers) != 1 or servers[0].identity is None:
        return ""
    identity, pinned = servers[0].identity, servers[0].pinned
    about = [
        list(identity.starts),
        list(identity.arguments),
        [list(value) for value in identity.values],
        identity.folder,
        None if pinned is None else repr(pinned),
    ]
    return str(Digest.of_bytes(canonicalize(about)))


class SharedApprovals:
    """The approvals of a database for the servers of one gateway, looked up on a thread of its own."""

    def __init__(
        self,
        approvals: Callable[[], Approvals],
        place: str,
        clock: Callable[[], int],
        *,
        applies: bool = True,
    ) -> None:
        """``place`` names the host and the lock of the gateway: what was written to this lock itself is not applied.

        A gateway that ``applies`` nothing reports so, for those who approve.
        """
        self._open = approvals
        self._place = place
        self._clock = clock
        self._applies = applies
        self._lock = Lock()
        self._servers: dict[str, str] = {}
        """Kept names of the servers that asked, with their identities."""
        self._by_server: dict[str, tuple[Approval, ...]] = {}
        self._failures: dict[str, PinwardenError] = {}
        self._refused: dict[str, str] = {}
        self._taken: dict[str, int] = {}
        """Up to which decision each server was judged by."""
        self._sequence = 0
        self._change: Change | None = None
        self._reported: tuple[object, ...] = ()
        self._reported_at = 0
        self._looked = Event()
        self._ended = Event()
        self._thread: Thread | None = None
        self.generation = 0
        """Counts the changes of what is known."""

    def start(self, seconds: float = 0.0) -> None:
        """Begin to look, and wait so long for the first answer."""
        self._thread = Thread(target=self._follow, name="approvals", daemon=True)
        self._thread.start()
        self._looked.wait(seconds)

    def close(self) -> None:
        """End, and tell the others that nothing is taken over here any more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def applied(self, server: str, identity: str, approved: Surface) -> Applied:
        """What a lock approves of a server, with the approvals of the database that are meant for it."""
        kept, identity = storable_name(server), identity if self._applies else ""
        with self._lock:
            if self._servers.get(kept) != identity:
                self._servers[kept] = identity
                self._change = None  # look up what there is for it
            failure = self._failures.get(kept)
            known, sequence = self._by_server.get(kept, ()), self._sequence
        if failure is not None and self._applies:
            raise failure
        meant = [each for each in known if identity and each.identity == identity and each.place != self._place]
        surface, names, left = _apply(approved, meant)
        with self._lock:
            self._refused[kept] = " ".join(each.name for each in left)
            self._taken[kept] = sequence
        return Applied(surface=surface, names=tuple(names))

    def refresh(self) -> None:
        """Look at the database once. Raises if it cannot be asked."""
        approvals = self._open()
        with self._lock:
            servers, known = dict(self._servers), self._change
        change = approvals.change()
        if change != known:
            found = approvals.of_servers(sorted(servers))
            failures: dict[str, PinwardenError] = {}
            by_server: dict[str, list[Approval]] = {server: [] for server in servers}
            for approval in found:
                try:
                    by_server[approval.server].append(_intact(approval))
                except PinwardenError as err:
                    failures[approval.server] = err
            with self._lock:
                if self._servers.keys() == servers.keys():
                    self._change = change
                self._by_server = {server: tuple(each) for server, each in by_server.items()}
                self._failures = failures
                self._sequence = change[1]
                self.generation += 1
        self._report(approvals)

    def _report(self, approvals: Approvals) -> None:
        now = self._clock()
        with self._lock:
            rows = [
                Follower(
                    place=self._place,
                    server=server,
                    identity=identity,
                    sequence=self._taken.get(server, 0),
                    refused=self._refused.get(server, ""),
                    seen=now,
                )
                for server, identity in sorted(self._servers.items())
            ]
        said = tuple((each.server, each.identity, each.sequence, each.refused) for each in rows)
        if rows and (said != self._reported or now - self._reported_at >= REPORT_SECONDS):
            approvals.follow(rows)
            self._reported, self._reported_at = said, now

    def _follow(self) -> None:
        while not self._ended.is_set():
            try:
                self.refresh()
            except PinwardenError as err:
                if err.code != _AWAY:
                    self._fail(err)
            self._looked.set()
            self._ended.wait(POLL_SECONDS)
        if self._reported:
            try:
                self._open().leave(self._place)
            except PinwardenError:
                return  # it counts as running until its last report is old

    def _fail(self, err: PinwardenError) -> None:
        with self._lock:
            self._failures = dict.fromkeys(self._servers, err)
            self._change = None
            self.generation += 1


def _apply(approved: Surface, approvals: Sequence[Approval]) -> tuple[Surface, list[str], list[Approval]]:
    """Each approval in its order, and again those that build on a later one. What fits nowhere is left."""
    names: list[str] = []
    left = list(approvals)
    while True:
        before = len(left)
        waiting: list[Approval] = []
        for approval in left:
            if holds(approval, approved):
                continue
            if fits(approval, approved):
                approved = with_definitions(approved, [approval])
                names.append(approval.name)
            else:
                waiting.append(approval)
        left = waiting
        if len(left) == before or not left:
            return approved, names, left


def _intact(approval: Approval) -> Approval:
    """The approval, if it is what its name says. Whoever can write to the database could have put anything there."""
    why = ""
    texts = (approval.item, approval.digest, approval.expected, approval.definition, approval.place)
    if not all(isinstance(each, str) for each in texts) or not isinstance(approval.sequence, int):
        why = "it has values of other types"
    elif len(approval.definition) > _LONGEST_DEFINITION:
        why = "its definition is too long"
    elif approval.entity != SERVER_ITEM and approval.entity not in KIND_OF:
        why = "it is about nothing that is known"
    elif approval.state != APPROVED or named(approval).name != approval.name:
        why = "it is not what its name says"
    else:
        try:
            why = "" if is_intact(approval) else "its definition is another one"
        except PinwardenError as err:
            why = err.message
    if why:
        raise PinwardenError(
            "DATABASE_CORRUPT",
            f"an approval of {str(approval.server)[:120]!a} in the database is damaged ({approval.name!s:.40}): {why}",
            hint="Approve it again, or start the gateway with --approvals lock.",
        )
    return approval
