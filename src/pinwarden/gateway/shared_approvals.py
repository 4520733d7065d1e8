"""Approvals from the database that gateways share, in addition to those in the lock.

Approving a change on one host writes the lock of that host and the shared database. Another gateway applies the
approval if it has the same server (not just a server of the same name), and if its own lock approves the definition
that the change replaced. Otherwise, only the lock of that gateway counts.

While the database is unavailable, the known approvals still apply. If an approval in the database does not match its
name, which is a digest of its content, the gateway blocks everything from the approval's server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.approved_items import KIND_BY_ENTITY, add_definitions, can_be_added, is_approved, is_intact
from pinwarden.gateway.audit.event import SERVER_ITEM
from pinwarden.gateway.store.approvals import (
    APPROVED,
    TOPIC,
    Approvals,
    ChangeMark,
    Follower,
    StoredApproval,
    assign_name,
)
from pinwarden.gateway.store.reviews import make_storable_name
from pinwarden.lock.entry import is_for_client

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.surface.surface import Surface
    from pinwarden.system.change_feed import ChangeFeed, Mark

POLL_SECONDS = 0.5
"""Seconds between queries. An approval takes effect within about a second."""
REPORT_SECONDS = 20.0
"""Seconds between reports of a gateway whose status does not change."""
_MAX_DEFINITION = 4 * 1024 * 1024  # characters of a stored definition


class SharedSurface(Record):
    """An approved surface with shared approvals applied."""

    surface: Surface
    names: tuple[str, ...]
    """The names of the shared approvals that changed the surface."""


def compute_server_identity(entries: Iterable[Entry], name: str, client: str | None = None) -> str:
    """Return a digest of the command or URL that a lock has for a server name; empty if there is none or several.

    ``client`` selects one of several different servers of that name.
    """
    from pinwarden.project.locked_servers import group_servers_by_name

    servers = group_servers_by_name(entry for entry in entries if entry.name == name).get(name, ())
    if len(servers) > 1:
        servers = tuple(
            server for server in servers if any(is_for_client(entry, client or "") for entry in server.entries)
        )
    if len(servers) != 1 or servers[0].identity is None:
        return ""
    identity, pinned = servers[0].identity, servers[0].pinned_bytes
    content = [
        list(identity.launch_parts),
        list(identity.arguments),
        [list(value) for value in identity.values],
        identity.folder,
        None if pinned is None else repr(pinned),
    ]
    return str(Digest.of_bytes(canonicalize(content)))


class SharedApprovals:
    """The shared approvals for the servers of one gateway, queried on a thread."""

    def __init__(
        self,
        approvals: Callable[[], Approvals],
        place: str,
        clock: Callable[[], int],
        *,
        applies: bool = True,
        feed: ChangeFeed | None = None,
    ) -> None:
        """``place`` is the host and lockfile of the gateway. Approvals from that place are already in the lock.

        Without ``applies``, the gateway applies no shared approvals, and only reports that to the database. While
        ``feed`` works, the thread queries the database only after a change.
        """
        self._open_table = approvals
        self._place = place
        self._clock = clock
        self._applies = applies
        self._feed = feed
        self._mark: Mark | None = None
        """The mark of the feed before the last successful query."""
        self._lock = Lock()
        self._servers: dict[str, str] = {}
        """The identities of this gateway's servers, by storable name."""
        self._by_server: dict[str, tuple[StoredApproval, ...]] = {}
        self._failures: dict[str, PinwardenError] = {}
        self._refused: dict[str, str] = {}
        self._applied: dict[str, int] = {}
        """The sequence number of the last decision that was applied, by server."""
        self._sequence = 0
        self._change: ChangeMark | None = None
        self._reported: tuple[object, ...] = ()
        self._reported_at = 0
        self._queried = Event()
        self._stopped = Event()
        self._thread: Thread | None = None
        self.generation = 0
        """Increases whenever the known approvals change."""

    def start(self, seconds: float = 0.0) -> None:
        """Start the thread, and wait up to ``seconds`` for the first query."""
        self._thread = Thread(target=self._poll, name="approvals", daemon=True)
        self._thread.start()
        self._queried.wait(seconds)

    def close(self) -> None:
        """Stop the thread and remove this gateway from the database."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def apply(self, server: str, identity: str, approved: Surface) -> SharedSurface:
        """Return the approved surface of a lock with the shared approvals for this server applied."""
        name, identity = make_storable_name(server), identity if self._applies else ""
        with self._lock:
            if self._servers.get(name) != identity:
                self._servers[name] = identity
                self._change = None  # query its approvals
            failure = self._failures.get(name)
            approvals, sequence = self._by_server.get(name, ()), self._sequence
        if failure is not None and self._applies:
            raise failure
        matching = [
            approval
            for approval in approvals
            if identity and approval.identity == identity and approval.place != self._place
        ]
        surface, names, refused = apply_approvals(approved, matching)
        with self._lock:
            self._refused[name] = " ".join(approval.name for approval in refused)
            self._applied[name] = sequence
        return SharedSurface(surface=surface, names=tuple(names))

    def refresh(self) -> None:
        """Query the database once, and report this gateway's status. Raises if the database is unavailable."""
        approvals = self._open_table()
        with self._lock:
            servers, last_change = dict(self._servers), self._change
        change = approvals.read_change_mark()
        if change != last_change:
            failures: dict[str, PinwardenError] = {}
            by_server: dict[str, list[StoredApproval]] = {server: [] for server in servers}
            for approval in approvals.list_for_servers(sorted(servers)):
                try:
                    by_server[approval.server].append(check_intact(approval))
                except PinwardenError as err:
                    failures[approval.server] = err
            with self._lock:
                if self._servers.keys() == servers.keys():
                    self._change = change
                self._by_server = {server: tuple(checked) for server, checked in by_server.items()}
                self._failures = failures
                self._sequence = change[1]
                self.generation += 1
        self._report_status(approvals)

    def _report_status(self, approvals: Approvals) -> None:
        now = self._clock()
        with self._lock:
            rows = [
                Follower(
                    place=self._place,
                    server=server,
                    identity=identity,
                    sequence=self._applied.get(server, 0),
                    refused=self._refused.get(server, ""),
                    seen=now,
                )
                for server, identity in sorted(self._servers.items())
            ]
        report = tuple((row.server, row.identity, row.sequence, row.refused) for row in rows)
        if rows and (report != self._reported or now - self._reported_at >= REPORT_SECONDS):
            approvals.report_followers(rows)
            self._reported, self._reported_at = report, now

    def _poll(self) -> None:
        while not self._stopped.is_set():
            try:
                self._refresh_if_changed()
            except PinwardenError as err:
                if err.code != "DATABASE_UNAVAILABLE":
                    self._fail(err)
            self._queried.set()
            self._stopped.wait(POLL_SECONDS)
        if self._reported:
            try:
                self._open_table().remove_followers(self._place)
            except PinwardenError:
                return  # the gateway counts as running until its last report is too old

    def _refresh_if_changed(self) -> None:
        mark = None if self._feed is None else self._feed.read_mark(TOPIC)
        with self._lock:
            is_current = mark is not None and mark == self._mark and self._change is not None
        if is_current:
            self._report_status(self._open_table())
            return
        self._mark = None
        self.refresh()
        self._mark = mark

    def _fail(self, err: PinwardenError) -> None:
        with self._lock:
            self._failures = dict.fromkeys(self._servers, err)
            self._change = None
            self.generation += 1


def apply_approvals(
    approved: Surface, approvals: Sequence[StoredApproval]
) -> tuple[Surface, list[str], list[StoredApproval]]:
    """Apply approvals in order, and try the remaining ones again as long as one could be applied.

    An approval may replace a definition that only a later approval adds.
    Returns the surface, the names of applied approvals, and the approvals that cannot be applied.
    """
    names: list[str] = []
    remaining = list(approvals)
    while True:
        skipped: list[StoredApproval] = []
        for approval in remaining:
            if is_approved(approval, approved):
                continue
            if can_be_added(approval, approved):
                approved = add_definitions(approved, [approval])
                names.append(approval.name)
            else:
                skipped.append(approval)
        if len(skipped) == len(remaining) or not skipped:
            return approved, names, skipped
        remaining = skipped


def check_intact(approval: StoredApproval) -> StoredApproval:
    """Return the approval if it matches its name. Other programs may be able to write to the database."""
    reason = ""
    texts = (approval.item, approval.digest, approval.expected, approval.definition, approval.place)
    if not all(isinstance(text, str) for text in texts) or not isinstance(approval.sequence, int):
        reason = "it has values of wrong types"
    elif len(approval.definition) > _MAX_DEFINITION:
        reason = "its definition is too long"
    elif approval.entity != SERVER_ITEM and approval.entity not in KIND_BY_ENTITY:
        reason = "the kind of its item is unknown"
    elif approval.state != APPROVED or assign_name(approval).name != approval.name:
        reason = "it does not match its name"
    else:
        try:
            reason = "" if is_intact(approval) else "its definition does not match its digest"
        except PinwardenError as err:
            reason = err.message
    if reason:
        raise PinwardenError(
            "DATABASE_CORRUPT",
            f"an approval of {str(approval.server)[:120]!a} in the database ({approval.name!s:.40}) is damaged:"
            f" {reason}",
            hint="Approve it again, or start the gateway with --approvals lock.",
        )
    return approval
