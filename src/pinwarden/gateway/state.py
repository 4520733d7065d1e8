"""The gateway's state: its folder, database and journals."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.inside_server import get_running_folder
from pinwarden.system.state_folder import DATABASE_FILE, find_state_folder, prepare_state_folder, read_host_id

if TYPE_CHECKING:
    from pinwarden.gateway.audit.event import AuditEvent
    from pinwarden.gateway.audit.log import AuditLimits, AuditLog, WhenUnavailable
    from pinwarden.gateway.baselines import Baseline
    from pinwarden.gateway.shared_approvals import SharedApprovals
    from pinwarden.gateway.shared_budgets import SharedBudgets
    from pinwarden.gateway.store.approvals import Approvals, TrustedSurfaces
    from pinwarden.gateway.store.devices import Devices
    from pinwarden.gateway.store.published_locks import PublishedLocks
    from pinwarden.gateway.store.reviews import ObservedDefinitions, Reviews, SightingRecorder
    from pinwarden.gateway.store.tokens import Tokens
    from pinwarden.identity.grants import Grant
    from pinwarden.project.project import Project
    from pinwarden.system.change_feed import ChangeFeed
    from pinwarden.system.database import Database


class GatewayState:
    """The state of one user's gateways: a folder on this machine, and a database in it or elsewhere.

    Files and databases are opened on first use. A missing database is created; with ``read_only`` it is an error. With
    ``is_empty`` no database is opened, and all stores are empty.
    """

    def __init__(
        self, folder: Path, url: str | None = None, *, read_only: bool = False, is_empty: bool = False
    ) -> None:
        self.folder = folder
        self._read_only = read_only
        self._is_empty = is_empty
        if url:
            _check_url(url)
        self.url = url or str(folder / DATABASE_FILE)
        self._checked: dict[tuple[str, Path], float] = {}

    def close(self) -> None:
        """Close the databases."""
        for name in [name for name, member in vars(type(self)).items() if isinstance(member, cached_property)]:
            opened = self.__dict__.pop(name, None)
            if opened is not None and name.endswith("database"):
                opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def display_name(self) -> str:
        """The address of the database without its password, for display."""
        return str(self._database)

    @property
    def journal_folder(self) -> Path:
        """The folder of the journals with events for this database."""
        return self.folder / "journals" / _name_journal_folder(self.url)

    @property
    def running_folder(self) -> Path:
        """The folder in which running gateways register their processes."""
        return get_running_folder(self.folder)

    def open_audit_log(
        self, *, gateway: str = "", when_unavailable: WhenUnavailable = "refuse", limits: AuditLimits | None = None
    ) -> AuditLog:
        """Open the log for a process that records events. The caller closes it."""
        from pinwarden.gateway.audit.log import AuditLimits, AuditLog

        prepare_state_folder(self.folder)
        return AuditLog(
            self.url,
            self.journal_folder,
            gateway=gateway,
            when_unavailable=when_unavailable,
            limits=limits or AuditLimits(),
        )

    def record_events(self, *events: AuditEvent) -> None:
        """Record what a person does, before it takes effect. Raises if the audit log cannot be written."""
        with self.open_audit_log() as log:
            log.record_durably(*events)
            if log.problem is not None:
                raise log.problem

    @cached_property
    def audit_database(self) -> Database:
        """The database of the audit log, for reading. Recovers the journals of killed gateways first."""
        from pinwarden.gateway.audit.log import recover_journals

        database = self._open("audit")
        recover_journals(database, self.journal_folder)
        return database

    @cached_property
    def chain_database(self) -> Database:
        """The database of the audit log, for a gateway that appends the events of other machines."""
        return self._open("audit")

    @cached_property
    def _devices_database(self) -> Database:
        return self._open("devices")

    @cached_property
    def devices(self) -> Devices:
        """The machines that follow this gateway."""
        from pinwarden.gateway.store.devices import Devices

        return Devices(self._devices_database)

    @cached_property
    def _database(self) -> Database:
        return self._open("gateway")

    def _open(self, tables: str) -> Database:
        from pinwarden.system.database import load_schema, open_database, open_empty_database

        if self._is_empty:
            return open_empty_database(load_schema(tables))
        if not self._read_only or self.folder.exists():
            prepare_state_folder(self.folder)
        # A gateway that was killed before its first commit leaves a journal but no database.
        return open_database(self.url, load_schema(tables), create=not self._read_only or self.has_journals())

    def has_journals(self) -> bool:
        """Whether there are journals with events for the database."""
        return any(self.journal_folder.glob("*.journal"))

    @cached_property
    def reviews(self) -> Reviews:
        """The store of changes that are pending review, and of decisions about them."""
        from pinwarden.gateway.store.reviews import Reviews

        return Reviews(self._database)

    @cached_property
    def trusted_surfaces(self) -> TrustedSurfaces:
        """The store of surfaces that were trusted on first use."""
        from pinwarden.gateway.store.approvals import TrustedSurfaces

        return TrustedSurfaces(self._database)

    @cached_property
    def observed_definitions(self) -> ObservedDefinitions:
        """The store of definitions that servers served."""
        from pinwarden.gateway.store.reviews import ObservedDefinitions

        return ObservedDefinitions(self._database)

    @cached_property
    def _approvals_database(self) -> Database:
        return self._open("approvals")

    @cached_property
    def approvals(self) -> Approvals:
        """The approvals that all gateways with this database share."""
        from pinwarden.gateway.store.approvals import Approvals

        return Approvals(self._approvals_database)

    @cached_property
    def _locks_database(self) -> Database:
        return self._open("published_locks")

    @cached_property
    def published_locks(self) -> PublishedLocks:
        """The locks that CI published for gateways."""
        from pinwarden.gateway.store.published_locks import PublishedLocks

        return PublishedLocks(self._locks_database)

    def get_published_folder(self, name: str) -> Path:
        """Return the folder with this gateway's copy of a published lock."""
        return self.folder / "published" / name

    @cached_property
    def grants_database(self) -> Database:
        """The database of the grants for remote servers."""
        return self._open("grants")

    def read_grants(self) -> list[Grant]:
        """Return the grants for remote servers, without their tokens."""
        from pinwarden.identity.grants import list_grants

        return list_grants(self.grants_database)

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the database is a file, so that no other host uses it."""
        return not self.url.startswith(("postgresql://", "postgres://"))

    def read_host_id(self) -> str:
        """Return what identifies this state folder among all that use the database."""
        return read_host_id(self.folder)

    def get_lock_location(self, lock: Path) -> str:
        """Return host and path of a lockfile, which identify it among all hosts that share the database."""
        return f"{self.read_host_id()}:{lock.resolve()}"

    def open_change_feed(self) -> ChangeFeed | None:
        """Open a feed of what other gateways and reviewers change in a PostgreSQL database; None for SQLite."""
        return self._database.open_feed()

    def open_shared_approvals(
        self,
        lock: Path,
        *,
        applies: bool = True,
        feed: ChangeFeed | None = None,
        table: Callable[[], Approvals] | None = None,
    ) -> SharedApprovals:
        """Return the shared approvals for the gateway of a lockfile. ``table`` replaces those of the database."""
        from pinwarden.gateway.shared_approvals import SharedApprovals

        location = self.get_lock_location(lock)
        table = table or (lambda: self.approvals)
        return SharedApprovals(table, location, lambda: int(time.time()), applies=applies, feed=feed)

    def open_shared_budgets(self, write_log: Callable[[str], None]) -> SharedBudgets | None:
        """Return what counts the limits of calls for all gateways with a PostgreSQL database; None for SQLite."""
        if not self.url.startswith(("postgresql://", "postgres://")):
            return None
        from pinwarden.gateway.shared_budgets import BudgetTable, SharedBudgets

        return SharedBudgets(lambda: BudgetTable(self._budgets_database), write_log)

    @cached_property
    def _budgets_database(self) -> Database:
        return self._open("call_budgets")

    @contextmanager
    def exclude_other_approvals(self) -> Iterator[None]:
        """Prevent concurrent approvals in this context. Raises ``LOCK_BUSY`` if another approval is in progress."""
        from pinwarden.system.files import try_lock_file

        if self._is_empty:
            yield
            return
        prepare_state_folder(self.folder)
        descriptor = os.open(self.folder / "approving.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not try_lock_file(descriptor):
                raise PinwardenError("LOCK_BUSY", "another approval is in progress")
            yield
        finally:
            os.close(descriptor)

    @cached_property
    def _tokens_database(self) -> Database:
        from pinwarden.gateway.store.tokens import load_tokens_schema
        from pinwarden.system.database import open_database

        prepare_state_folder(self.folder)
        return open_database(self.url, load_tokens_schema())

    @cached_property
    def tokens(self) -> Tokens:
        """The tokens of clients."""
        from pinwarden.gateway.store.tokens import Tokens

        return Tokens(self._tokens_database)

    def open_sighting_recorder(self, server: str, baseline: Baseline) -> SightingRecorder:
        """Return a recorder for the definitions that a server serves."""
        from pinwarden.gateway.store.reviews import SightingRecorder

        return SightingRecorder(
            server,
            str(baseline),
            self.observed_definitions,
            self.reviews,
            on_served=partial(self._record_checked, server, Path(baseline.name)) if baseline.is_lock else None,
        )

    def _record_checked(self, server: str, lock: Path) -> None:
        """Store for ``pinwarden status`` that a locked server was just compared with its approvals."""
        from pinwarden.project.last_checked import record_checked

        moment = time.monotonic()
        last = self._checked.get((server, lock))
        if last is None or moment - last >= _SECONDS_BETWEEN_RECORDS:
            self._checked[server, lock] = moment
            record_checked(self.folder, lock, (server,))


def open_state(project: Project, url: str | None = None) -> GatewayState:
    """Return this user's state. ``PINWARDEN_STATE`` and ``PINWARDEN_DATABASE`` can name another folder and database."""
    return GatewayState(
        find_state_folder(project.variables, project.home), url or project.variables.get("PINWARDEN_DATABASE")
    )


def open_state_for_reading(project: Project, url: str | None = None, *, needed: bool = False) -> GatewayState:
    """Return the state of this user for reading. Nothing is created.

    If no gateway was used yet, the state is empty. With ``needed``, or if the user names a folder or database, the
    database must exist.
    """
    state = open_state(project, url)
    is_named = url or project.variables.get("PINWARDEN_DATABASE") or project.variables.get("PINWARDEN_STATE")
    is_empty = not is_named and not needed and not Path(state.url).exists() and not state.has_journals()
    return GatewayState(state.folder, state.url, read_only=True, is_empty=is_empty)


def _check_url(url: str) -> None:
    """Raise ``USAGE`` if the URL is malformed or its database is not supported."""
    from urllib.parse import urlsplit

    scheme, separator, _ = url.partition("://")
    try:
        urlsplit(url)
    except ValueError as err:
        problem = f"the database URL is not valid: {err}"
    else:
        if not separator or scheme in ("postgresql", "postgres", "sqlite"):
            return
        problem = f"{scheme[:40]!a} databases are not supported"
    raise PinwardenError("USAGE", problem, hint="Give the path of an SQLite file, or postgresql://…")


def _name_journal_folder(url: str) -> str:
    """Return a folder name for a database: a digest of its address without the password."""
    from hashlib import sha256
    from urllib.parse import urlsplit

    if "://" in url:
        parts = urlsplit(url)
        url = "\n".join((parts.scheme, parts.username or "", parts.netloc.rpartition("@")[2], parts.path, parts.query))
    else:
        url = str(Path(url).resolve())
    return sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:16]


_SECONDS_BETWEEN_RECORDS = 60.0  # between two writes for one server, because clients may connect often
