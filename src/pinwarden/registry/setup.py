"""Open a registry from its settings. Without any, all it needs is made in a folder: key, database, archives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.registry.bundle_facts import AUTO
from pinwarden.registry.checkpoint import CHECKPOINT_FILE, keep_checkpoint
from pinwarden.registry.registry import (
    SCHEMA_NAME,
    Registry,
    RegistryLimits,
    default_log_id,
    identity_in,
    settle_identity,
)
from pinwarden.registry.store import pointer_log
from pinwarden.registry.version import Identity
from pinwarden.system.database import Database, load_schema, open_database
from pinwarden.system.files import try_lock_file
from pinwarden.system.key_files import create_key_file, generate_key, load_key_file

if TYPE_CHECKING:
    from pinwarden.core.keys import Signer
    from pinwarden.registry.blobs.blobs import Blobs

DATA_VARIABLE = "PINWARDEN_REGISTRY_DATA"
DATABASE_VARIABLE = "PINWARDEN_REGISTRY_DATABASE"
KEY_FILE = "registry.key"
NEXT_KEY_FILE = "registry.key.next"
DEFAULT_NAME = "Pinwarden registry"
_OPENING_SECONDS = 60.0


class RegistrySettings(Record):
    """What an operator says of a registry."""

    folder: Path
    database: str | None = field(default=None, repr=False)
    """``postgresql://…``, or a path; otherwise a file in the folder. It may hold a password."""
    blobs: str | None = None
    """``oci://host/repository``; otherwise a folder in the folder."""
    name: str = DEFAULT_NAME
    log_id: str | None = None
    probing: str = AUTO
    witnesses: tuple[str, ...] = ()
    limits: RegistryLimits = field(default_factory=RegistryLimits)
    public_url: str | None = None


def default_folder() -> Path:
    """Where a registry keeps everything, unless told otherwise."""
    named = os.environ.get(DATA_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "pinwarden" / "registry"


def database_of(settings: RegistrySettings) -> Database:
    """The database, opened when it is first used."""
    return open_database(settings.database or settings.folder / "registry.sqlite", load_schema(SCHEMA_NAME))


def open_registry(settings: RegistrySettings, signer: Signer | None = None) -> Registry:
    """A registry that can be served. Its key is made if there is none; a database of another key is refused."""
    try:
        settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{settings.folder}: {err.strerror}") from err
    database, blobs = database_of(settings), blobs_of(settings)
    try:
        return _open(settings, signer, database, blobs)
    except BaseException:
        database.close()
        blobs.close()
        raise


def _open(settings: RegistrySettings, signer: Signer | None, database: Database, blobs: Blobs) -> Registry:
    checkpoint = settings.folder / CHECKPOINT_FILE
    with _opened_by_one(settings.folder):
        new_key = signer is not None or not (settings.folder / KEY_FILE).exists()
        held = signer or _own_key(settings.folder, database)
        wanted = Identity(
            name=settings.name, log_id=settings.log_id or default_log_id(held.public_key), key=held.public_key
        )
        wanted.note_key  # noqa: B018 - a name that cannot stand in a checkpoint is refused now
        identity = settle_identity(database, wanted, held, checkpoint, new_key=new_key)
        with database.transaction() as step:
            head = pointer_log.head_of(step)
        if head is not None:
            keep_checkpoint(checkpoint, head)
    return Registry(
        identity=identity,
        signer=held,
        database=database,
        blobs=blobs,
        checkpoint=checkpoint,
        limits=settings.limits,
        probing=settings.probing,
        witnesses=settings.witnesses,
        public_url=settings.public_url,
    )


@contextmanager
def _opened_by_one(folder: Path) -> Iterator[None]:
    """One process at a time: a second one must not see a key whose database is about to be made."""
    path, deadline = folder / "registry.lock", monotonic() + _OPENING_SECONDS
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path}: {err.strerror}") from err
    try:
        while not try_lock_file(descriptor):
            if monotonic() > deadline:
                raise PinwardenError("DATABASE_UNAVAILABLE", f"another process has been opening {folder} for a minute")
            sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def next_key(folder: Path) -> Signer:
    """The key that will take the place of the one in the folder; made, unless an earlier attempt made it."""
    path = folder / NEXT_KEY_FILE
    if not path.exists():
        create_key_file(path, generate_key())
    return load_key_file(path)


def take_next_key(folder: Path) -> None:
    """Put the new key in the place of the old one, which is of no use to anybody but a thief from now on."""
    try:
        (folder / NEXT_KEY_FILE).replace(folder / KEY_FILE)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{folder / KEY_FILE}: {err.strerror}") from err


def _own_key(folder: Path, database: Database) -> Signer:
    """The key in the folder. If a change of key was cut short after the log had it, it is finished here."""
    path = folder / KEY_FILE
    if (folder / NEXT_KEY_FILE).exists():
        with database.transaction() as step:
            present = identity_in(step)
        if present is not None and present.key == load_key_file(folder / NEXT_KEY_FILE).public_key:
            take_next_key(folder)
    if not path.exists():
        try:
            create_key_file(path, generate_key())
        except PinwardenError as err:
            if err.code != "FILE_EXISTS":  # another replica on this machine was faster
                raise
    return load_key_file(path)


def blobs_of(settings: RegistrySettings) -> Blobs:
    """Where archives are kept."""
    if settings.blobs is None:
        from pinwarden.registry.blobs.folder import FolderBlobs

        return FolderBlobs(settings.folder / "blobs")
    if not settings.blobs.startswith("oci://"):
        raise PinwardenError(
            "USAGE", f"{settings.blobs[:80]!a} is no place for archives", hint="Give oci://host/repository."
        )
    from pinwarden.registry.blobs.oci import OciBlobs

    return OciBlobs.at(settings.blobs)
