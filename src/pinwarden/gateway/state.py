"""Where the gateway keeps its state, and opening it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinwarden.gateway.audit.log import AuditLimits, AuditLog, WhenAway
    from pinwarden.gateway.shared_approvals import SharedApprovals
    from pinwarden.gateway.store.approvals import Approvals, TrustedSurfaces
    from pinwarden.gateway.store.reviews import ObservedDefinitions, Reviews, SightingRecorder
    from pinwarden.gateway.store.tokens import Tokens
    from pinwarden.project.project import Project
    from pinwarden.system.database import Database

FIRST_USE = "first-use"
"""The baseline of a server that no lock speaks of."""


class GatewayState:
    """The state of the gateways of one user: a folder of this machine, and a database in it or elsewhere.

    Nothing is opened before it is used. Who only reads makes nothing where there is nothing: that is an error, or,
    ``absent``, as if it were empty.
    """

    def __init__(self, folder: Path, url: str | None = None, *, reads: bool = False, absent: bool = False) -> None:
        self.folder = folder
        self._reads = reads
        self._absent = absent
        if url:
            _refuse_unknown(url)
        self.url = url or str(folder / "gateway.sqlite")

    def close(self) -> None:
        """Close what was opened."""
        for name in ("audit_database", "_database", "_tokens_database", "_approvals_database"):
            opened = self.__dict__.pop(name, None)
            if opened is not None:
                opened.close()
        for name in ("reviews", "trusted", "observed", "tokens", "approvals"):
            self.__dict__.pop(name, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def shown(self) -> str:
        """The database as it may be told to anybody: without a password."""
        return str(self._database)

    @property
    def journals(self) -> Path:
        """Where events wait for the database: for each one a folder of its own, so that none gets another's events."""
        return self.folder / "journals" / _named_by(self.url)

    @property
    def running(self) -> Path:
        """Where running gateways write down their processes."""
        return _running(self.folder)

    def audit_log(
        self, *, gateway: str = "", when_away: WhenAway = "refuse", limits: AuditLimits | None = None
    ) -> AuditLog:
        """The log for a process that records events. It is closed by whoever opens it."""
        from pinwarden.gateway.audit.log import AuditLimits, AuditLog

        refuse_unsafe(self.folder)
        return AuditLog(self.url, self.journals, gateway=gateway, when_away=when_away, limits=limits or AuditLimits())

    @cached_property
    def audit_database(self) -> Database:
        """The chain, for reading; with the events of killed gateways in it."""
        from pinwarden.gateway.audit.log import recover

        database = self._open("audit")
        recover(database, self.journals)
        return database

    @cached_property
    def _database(self) -> Database:
        return self._open("gateway")

    def _open(self, tables: str) -> Database:
        from pinwarden.system.database import empty_database, load_schema, open_database

        if self._absent:
            return empty_database(load_schema(tables))
        if not self._reads or self.folder.exists():
            refuse_unsafe(self.folder)
        # A gateway that was killed before its first commit has left a log all the same.
        return open_database(self.url, load_schema(tables), create=not self._reads or self.has_journals())

    def has_journals(self) -> bool:
        """Whether events wait for the database."""
        return any(self.journals.glob("*.journal"))

    @cached_property
    def reviews(self) -> Reviews:
        """What waits for a person."""
        from pinwarden.gateway.store.reviews import Reviews

        return Reviews(self._database)

    @cached_property
    def trusted(self) -> TrustedSurfaces:
        """What was trusted on first use."""
        from pinwarden.gateway.store.approvals import TrustedSurfaces

        return TrustedSurfaces(self._database)

    @cached_property
    def observed(self) -> ObservedDefinitions:
        """What was served."""
        from pinwarden.gateway.store.reviews import ObservedDefinitions

        return ObservedDefinitions(self._database)

    @cached_property
    def _approvals_database(self) -> Database:
        return self._open("approvals")

    @cached_property
    def approvals(self) -> Approvals:
        """The approvals that every gateway of the database takes over."""
        from pinwarden.gateway.store.approvals import Approvals

        return Approvals(self._approvals_database)

    def place_of(self, lock: Path) -> str:
        """The name of a lock among all hosts that use the database: two hosts may each have one of the same path."""
        refuse_unsafe(self.folder)
        return f"{_host(self.folder)}:{lock.resolve()}"

    def shared_approvals(self, lock: Path, *, applies: bool = True) -> SharedApprovals:
        """The approvals of the database, for the gateway of a lock."""
        from pinwarden.gateway.shared_approvals import SharedApprovals

        return SharedApprovals(lambda: self.approvals, self.place_of(lock), lambda: int(time.time()), applies=applies)

    @contextmanager
    def approving(self) -> Iterator[None]:
        """Keep others from approving at the same time: each builds on what is approved."""
        from pinwarden.system.files import try_lock_file

        if self._absent:
            yield
            return
        refuse_unsafe(self.folder)
        descriptor = os.open(self.folder / "approving.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not try_lock_file(descriptor):
                raise PinwardenError("LOCK_BUSY", "somebody else approves something right now")
            yield
        finally:
            os.close(descriptor)

    @cached_property
    def _tokens_database(self) -> Database:
        from pinwarden.gateway.store.tokens import tokens_schema
        from pinwarden.system.database import open_database

        refuse_unsafe(self.folder)
        return open_database(self.url, tokens_schema())

    @cached_property
    def tokens(self) -> Tokens:
        """Who may ask the gateway."""
        from pinwarden.gateway.store.tokens import Tokens

        return Tokens(self._tokens_database)

    def sightings(self, server: str, baseline: str) -> SightingRecorder:
        """Where the sessions of a server write what they see."""
        from pinwarden.gateway.store.reviews import SightingRecorder

        return SightingRecorder(server, baseline, self.observed, self.reviews)


def open_state(project: Project, url: str | None = None) -> GatewayState:
    """The state of this user. ``PINWARDEN_STATE`` names another folder, ``PINWARDEN_DATABASE`` another database."""
    return GatewayState(
        state_folder(project.variables, project.home), url or project.variables.get("PINWARDEN_DATABASE")
    )


def state_to_read(project: Project, url: str | None = None, *, needed: bool = False) -> GatewayState:
    """The same for whoever only reads it, and makes nothing.

    The state of a user who used no gateway yet is empty, unless it is ``needed``; one that somebody named has to be
    there.
    """
    found = open_state(project, url)
    named = url or project.variables.get("PINWARDEN_DATABASE") or project.variables.get("PINWARDEN_STATE")
    absent = not named and not needed and not Path(found.url).exists() and not found.has_journals()
    return GatewayState(found.folder, found.url, reads=True, absent=absent)


def state_folder(variables: Mapping[str, str], home: Path) -> Path:
    """The folder of the state."""
    named = variables.get("PINWARDEN_STATE")
    if named:
        return Path(named)
    base = variables.get("XDG_STATE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else home / ".local" / "state") / "pinwarden"


def running_folder(variables: Mapping[str, str], home: Path) -> Path:
    """Where the running gateways of this user write down their processes, whatever database they use."""
    return _running(state_folder(variables, home))


def _running(folder: Path) -> Path:
    return folder / "running"


def _refuse_unknown(url: str) -> None:
    """Raise for what is the address of no database, before anything begins that would need it."""
    from urllib.parse import urlsplit

    scheme, between, _ = url.partition("://")
    try:
        urlsplit(url)
    except ValueError as err:
        why = f"the address of a database cannot be read: {err}"
    else:
        if not between or scheme in ("postgresql", "postgres", "sqlite"):
            return
        why = f"{scheme[:40]!a} is no database that is known"
    raise PinwardenError("USAGE", why, hint="Give a path or postgresql://…")


def _named_by(url: str) -> str:
    """A folder's name for a database. Its password is no part of it."""
    from hashlib import sha256
    from urllib.parse import urlsplit

    if "://" in url:
        parts = urlsplit(url)
        url = "\n".join((parts.scheme, parts.username or "", parts.netloc.rpartition("@")[2], parts.path, parts.query))
    else:
        url = str(Path(url).resolve())
    return sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _host(folder: Path) -> str:
    """The name of this host, with something random that is kept in its state: names of hosts are not unique."""
    from socket import gethostname

    path = folder / "host"
    fresh = folder / f"host.{os.getpid()}"
    try:
        if not path.exists():
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(os.urandom(8).hex())
            with suppress(FileExistsError):  # another process was faster
                os.link(fresh, path)
            fresh.unlink()
        text = path.read_text("ascii")[:_HOST_LETTERS]
    except (OSError, UnicodeError) as err:
        raise PinwardenError("DATABASE_UNAVAILABLE", f"{path} cannot be used: {err}") from err
    if len(text) != _HOST_LETTERS or not text.isalnum():
        raise PinwardenError("DATABASE_CORRUPT", f"{path} is damaged", hint="Delete it; the gateway makes another one.")
    return f"{gethostname()[:64]}#{text}"


_HOST_LETTERS = 16


def lock_baseline(lock: Path) -> str:
    """The name of a lock as the place of approvals."""
    return f"lock:{lock.resolve()}"


def refuse_unsafe(folder: Path) -> None:
    """Raise if somebody else could write to the state; make the folder if it is not there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as err:
        raise PinwardenError("DATABASE_UNAVAILABLE", f"{folder}: {err.strerror or err}") from err
    if os.name == "posix" and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
        raise PinwardenError(
            "STORE_UNSAFE",
            f"{folder} belongs to somebody else, or others may write to it",
            hint="Take it away from the others (chmod 700), or name another folder with PINWARDEN_STATE.",
        )
