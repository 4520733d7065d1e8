"""`Registry`, an open registry with its identity, database, archive store and limits, and `open_registry`.

By default, a registry keeps its key, database and archives in one folder, and creates them if they do not exist.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, field
from pinwarden.core.signed_note import Checkpoint
from pinwarden.core.tlog import EMPTY_ROOT
from pinwarden.registry.checkpoint_file import CHECKPOINT_FILE, check_not_behind, save_checkpoint
from pinwarden.registry.registry_documents import RegistryIdentity
from pinwarden.registry.store import pointer_log
from pinwarden.system.clock import wall_clock
from pinwarden.system.database import Database, Transaction, load_schema, open_database
from pinwarden.system.files import try_lock_file
from pinwarden.system.key_files import create_key_file, generate_key, load_key_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinwarden.core.keys import Signer
    from pinwarden.registry.archive_store import ArchiveStore

SCHEMA_NAMES = ("registry", "registry_catalog", "registry_operator")
"""The tables of a registry, and those that were added later."""
AUTO, REQUIRED, NEVER = "auto", "required", "never"
"""Whether a registry probes submitted servers to record their surface: if possible, always, or never."""
_IDENTITY = 0


class RegistryLimits(Record):
    """Limits on requests of publishers."""

    archive_bytes: int = 256 * 1024 * 1024
    """Maximum size of an archive: enough for a server with its dependencies, but not for most container images."""
    unpacked_bytes: int = 1024 * 1024 * 1024
    request_bytes: int = 32 * 1024 * 1024
    """Maximum size of manifest, descriptor and attestations together. A manifest of 100,000 files takes half of it."""
    requests_per_hour: int = 600
    """Maximum number of requests per token. A pipeline that publishes to two channels every minute sends 120."""
    bytes_per_hour: int = 4 * 1024 * 1024 * 1024
    statement_seconds: int = 600
    """The maximum age of a signed request, which covers clock differences and the time that a request waits."""
    attestations: int = 100
    """Maximum number of attestations per bundle."""
    attestation_bytes: int = 64 * 1024
    """Maximum size of one attestation. Any token may add attestations to any bundle, and installers read them all."""
    description_chars: int = 4096
    """Maximum length of a version's description. Lists of versions contain all descriptions."""
    compared_items: int = 5_000
    """Maximum number of items of a compared surface. Comparing so many takes seconds; real servers have hundreds."""
    keys: int = 200
    """Maximum number of keys per namespace. The limit is low because other publishers wait while keys are written."""


class Registry(Record):
    """An open registry. Several replicas may share a database and a key."""

    identity: RegistryIdentity
    signer: Signer = field(repr=False)
    database: Database
    blobs: ArchiveStore
    limits: RegistryLimits = field(default_factory=RegistryLimits)
    checkpoint: Path | None = None
    """The file with the last signed checkpoint, which detects a restored or replaced database."""
    probing: str = AUTO
    """Whether the registry probes submitted servers in a sandbox: ``auto``, ``required`` or ``never``."""
    witnesses: tuple[str, ...] = ()
    """Verifier keys of the witnesses whose cosignatures are accepted, each with ``@URL`` if it runs a server."""
    witness_seconds: float = 5.0
    """How long publishing waits for cosignatures."""
    public_url: str | None = None
    """The public URL of the registry, if it differs from the address on which it listens."""
    now: Callable[[], str] = wall_clock

    def now_ms(self) -> int:
        """Return the current time in milliseconds since 1970."""
        return to_milliseconds(self.now())

    def close(self) -> None:
        """Close the database and the archive store."""
        self.database.close()
        self.blobs.close()


def to_milliseconds(moment: str) -> int:
    """Convert an ISO 8601 timestamp to milliseconds since 1970."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def generate_row_id() -> str:
    """Return a random, unique row id."""
    return secrets.token_hex(12)


def build_default_log_id(key: PublicKey) -> str:
    """Return the default log id, derived from the key and therefore unique."""
    return f"pinwarden-registry/{key.did.removeprefix('did:key:')[:20]}"


def initialize_identity(
    database: Database, wanted: RegistryIdentity, signer: Signer, checkpoint: Path | None, *, new_key: bool
) -> RegistryIdentity:
    """Store the identity in an empty database; otherwise check the key of the stored one. Returns the stored identity.

    Raises ``REGISTRY_LOG_BEHIND`` if the key already existed but the database is empty: the key may have signed another
    log before.
    """
    with database.transaction(exclusive=pointer_log.WRITE_LOCK) as transaction:
        stored = load_identity(transaction)
        if stored is None or stored.key == wanted.key:
            check_not_behind(transaction, checkpoint, (stored or wanted).log_id, wanted.key)
        if stored is None:
            if not new_key and (checkpoint is None or not checkpoint.exists()):
                raise PinwardenError(
                    "REGISTRY_LOG_BEHIND", f"the database {database} is empty, but the registry key already existed"
                )
            values = (_IDENTITY, wanted.name, wanted.log_id, wanted.key.did)
            transaction.run("INSERT INTO identity (id, name, log_id, key_id) VALUES (?, ?, ?, ?)", values)
            note = Checkpoint(origin=wanted.log_id, size=0, root=EMPTY_ROOT).note()
            pointer_log.create_log(transaction, bytes(note.sign(wanted.log_id, signer)))
            return wanted
    if stored.key != wanted.key:
        raise PinwardenError(
            "REGISTRY_KEY_MISMATCH", f"the database {database} belongs to {stored.key.did}, not to {wanted.key.did}"
        )
    return stored


def store_key(transaction: Transaction, key: PublicKey) -> None:
    """Store the registry's new key."""
    transaction.run("UPDATE identity SET key_id = ? WHERE id = ?", (key.did, _IDENTITY))


def check_current_key(transaction: Transaction, registry: Registry) -> None:
    """Raise if another process has rotated the registry's key, so that this process would sign with the old key."""
    present = load_identity(transaction)
    if present is None or present.key != registry.signer.public_key:
        raise PinwardenError(
            "REGISTRY_KEY_MISMATCH",
            "another process rotated the registry's key",
            hint="Restart this replica with the new key.",
        )


def load_identity(transaction: Transaction) -> RegistryIdentity | None:
    """Return the identity that is stored in a database; None if the database is new."""
    row = transaction.row("SELECT name, log_id, key_id FROM identity WHERE id = ?", (_IDENTITY,))
    return None if row is None else RegistryIdentity(name=row[0], log_id=row[1], key=PublicKey.from_did(row[2]))


DATA_VARIABLE = "PINWARDEN_REGISTRY_DATA"
DATABASE_VARIABLE = "PINWARDEN_REGISTRY_DATABASE"
KEY_FILE = "registry.key"
NEXT_KEY_FILE = "registry.key.next"
DEFAULT_NAME = "Pinwarden registry"
_OPENING_SECONDS = 60.0


class RegistrySettings(Record):
    """The settings with which an operator starts a registry."""

    folder: Path
    database: str | None = field(default=None, repr=False)
    """A ``postgresql://…`` URL or a path; None for a file in the folder. May contain a password."""
    blobs: str | None = None
    """The archive store as ``oci://host/repository``; None for a subfolder of the folder."""
    name: str = DEFAULT_NAME
    log_id: str | None = None
    probing: str = AUTO
    witnesses: tuple[str, ...] = ()
    witness_seconds: float = 5.0
    limits: RegistryLimits = field(default_factory=RegistryLimits)
    public_url: str | None = None


def find_default_folder() -> Path:
    """Return the default folder of a registry's data."""
    data_folder = os.environ.get(DATA_VARIABLE)
    if data_folder:
        return Path(data_folder)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "pinwarden" / "registry"


def open_registry_database(settings: RegistrySettings) -> Database:
    """Open the registry's database. The connection is made on first use."""
    return open_database(locate_registry_database(settings), load_schema(*SCHEMA_NAMES))


def locate_registry_database(settings: RegistrySettings) -> str:
    """Return the address of the registry's database: a URL, or the path of a file."""
    return settings.database or str(settings.folder / "registry.sqlite")


def open_registry(settings: RegistrySettings, signer: Signer | None = None) -> Registry:
    """Open a registry. Creates its key if there is none; raises if the database belongs to another key."""
    try:
        settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{settings.folder} cannot be created: {err.strerror or err}") from err
    database, blobs = open_registry_database(settings), open_archive_store(settings)
    try:
        return _open_with_stores(settings, signer, database, blobs)
    except BaseException:
        database.close()
        blobs.close()
        raise


def _open_with_stores(
    settings: RegistrySettings, signer: Signer | None, database: Database, blobs: ArchiveStore
) -> Registry:
    checkpoint = settings.folder / CHECKPOINT_FILE
    with _open_exclusively(settings.folder):
        new_key = signer is not None or not (settings.folder / KEY_FILE).exists()
        key = signer or _load_own_key(settings.folder, database)
        wanted = RegistryIdentity(
            name=settings.name, log_id=settings.log_id or build_default_log_id(key.public_key), key=key.public_key
        )
        wanted.note_key  # noqa: B018 - raises if the name is invalid in a checkpoint
        identity = initialize_identity(database, wanted, key, checkpoint, new_key=new_key)
        with database.transaction() as transaction:
            head = pointer_log.load_head(transaction)
        if head is not None:
            save_checkpoint(checkpoint, head)
    return Registry(
        identity=identity,
        signer=key,
        database=database,
        blobs=blobs,
        checkpoint=checkpoint,
        limits=settings.limits,
        probing=settings.probing,
        witnesses=settings.witnesses,
        witness_seconds=settings.witness_seconds,
        public_url=settings.public_url,
    )


@contextmanager
def _open_exclusively(folder: Path) -> Iterator[None]:
    """Let one process at a time open the registry, so that no other process sees a key before its database exists."""
    path, deadline = folder / "registry.lock", monotonic() + _OPENING_SECONDS
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path} cannot be written: {err.strerror or err}") from err
    try:
        while not try_lock_file(descriptor):
            if monotonic() > deadline:
                raise PinwardenError("DATABASE_UNAVAILABLE", f"another process has been opening {folder} for a minute")
            sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def prepare_next_key(folder: Path) -> Signer:
    """Load the key to which the registry in a folder will rotate. Creates the key if there is none."""
    path = folder / NEXT_KEY_FILE
    if not path.exists():
        create_key_file(path, generate_key())
    return load_key_file(path)


def activate_next_key(folder: Path) -> None:
    """Replace the key file with the next key. The old key is deleted, so that it cannot be stolen."""
    try:
        (folder / NEXT_KEY_FILE).replace(folder / KEY_FILE)
    except OSError as err:
        raise PinwardenError(
            "FILE_UNWRITABLE", f"{folder / KEY_FILE} cannot be replaced: {err.strerror or err}"
        ) from err


def _load_own_key(folder: Path, database: Database) -> Signer:
    """Load or create the key in the folder. Completes a key rotation that was interrupted after it was logged."""
    path = folder / KEY_FILE
    if (folder / NEXT_KEY_FILE).exists():
        with database.transaction() as transaction:
            present = load_identity(transaction)
        if present is not None and present.key == load_key_file(folder / NEXT_KEY_FILE).public_key:
            activate_next_key(folder)
    if not path.exists():
        try:
            create_key_file(path, generate_key())
        except PinwardenError as err:
            if err.code != "FILE_EXISTS":  # FILE_EXISTS: another replica on this machine created the key first
                raise
    return load_key_file(path)


def open_archive_store(settings: RegistrySettings) -> ArchiveStore:
    """Open the archive store that the settings name: a folder or an OCI repository."""
    if settings.blobs is None:
        from pinwarden.registry.archive_store import FolderArchiveStore

        return FolderArchiveStore(settings.folder / "blobs")
    if not settings.blobs.startswith("oci://"):
        raise PinwardenError(
            "USAGE", f"{settings.blobs[:80]!a} is not an archive store", hint="Use oci://host/repository."
        )
    from pinwarden.registry.oci_archive_store import OciArchiveStore

    return OciArchiveStore.open_at(settings.blobs)
