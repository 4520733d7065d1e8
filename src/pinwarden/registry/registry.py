"""One registry: who it is, where it keeps what it knows, and what it allows."""

from __future__ import annotations

import secrets
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, field
from pinwarden.core.signed_note import Checkpoint
from pinwarden.core.tlog import EMPTY_ROOT
from pinwarden.registry.checkpoint import check_log
from pinwarden.registry.store import pointer_log
from pinwarden.registry.version import Identity
from pinwarden.system.clock import wall_clock
from pinwarden.system.database import Database, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinwarden.core.keys import Signer
    from pinwarden.registry.blobs.blobs import Blobs

SCHEMA_NAME = "registry"
_IDENTITY = 0


class RegistryLimits(Record):
    """How much a registry takes, with the reason beside each."""

    archive_bytes: int = 256 * 1024 * 1024
    """A server with everything it needs; container images are not what this is for."""
    unpacked_bytes: int = 1024 * 1024 * 1024
    request_bytes: int = 32 * 1024 * 1024
    """Manifest, descriptor and attestations; a manifest of a hundred thousand files has half of this."""
    requests_per_hour: int = 600
    """By one token. A pipeline that publishes every minute in two channels stays below."""
    bytes_per_hour: int = 4 * 1024 * 1024 * 1024
    statement_seconds: int = 600
    """How far the clocks of a publisher and of the registry may be apart, waiting included."""
    attestations: int = 100
    """Of one bundle."""
    attestation_bytes: int = 64 * 1024
    """Of one. Anybody with a token may add some to any bundle, and everybody who installs it reads all of them."""
    description_chars: int = 4096
    """Of one version. Lists of everything that is here show them."""
    compared_items: int = 5_000
    """Of one surface, to be compared. The largest real servers have hundreds; so many take some seconds."""
    keys: int = 200
    """Of one namespace. Each is a row that is written while everybody else who publishes waits."""


class Registry(Record):
    """A registry that can be asked and written to. Any number of them may share a database, with one key."""

    identity: Identity
    signer: Signer = field(repr=False)
    database: Database
    blobs: Blobs
    limits: RegistryLimits = field(default_factory=RegistryLimits)
    checkpoint: Path | None = None
    """The file with the last signed checkpoint: no log that is shorter, or another one, is appended to."""
    probing: str = "auto"
    """Whether servers are started to learn their surface: auto, required or never. Always in a sandbox."""
    witnesses: tuple[str, ...] = ()
    """The verifier keys of witnesses whose cosignatures are taken."""
    public_url: str | None = None
    """Where everybody reaches it, if that is not where it listens."""
    now: Callable[[], str] = wall_clock

    def moment(self) -> int:
        """Now, in milliseconds since 1970."""
        return milliseconds(self.now())

    def close(self) -> None:
        """Let go of the database and of the store of archives."""
        self.database.close()
        self.blobs.close()


def milliseconds(moment: str) -> int:
    """A moment that a document names, in milliseconds since 1970."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def new_id() -> str:
    """A name for a row that nobody can guess or meet twice."""
    return secrets.token_hex(12)


def default_log_id(key: PublicKey) -> str:
    """The origin of a log that nobody named: no other key has it."""
    return f"pinwarden-registry/{key.did.removeprefix('did:key:')[:20]}"


def settle_identity(
    database: Database, wanted: Identity, signer: Signer, checkpoint: Path | None, *, new_key: bool
) -> Identity:
    """Write down who this registry is, or make sure that the database belongs to the same one.

    A key that is not new has signed a log, if neither the database nor the file of the checkpoint says otherwise.
    """
    with database.transaction(exclusive=pointer_log.ALONE) as step:
        found = identity_in(step)
        if found is None or found.key == wanted.key:
            check_log(step, checkpoint, (found or wanted).log_id, wanted.key)
        if found is None:
            if not new_key and (checkpoint is None or not checkpoint.exists()):
                raise PinwardenError(
                    "REGISTRY_LOG_BEHIND", f"the database {database} is empty, and the key was there before it"
                )
            values = (_IDENTITY, wanted.name, wanted.log_id, wanted.key.did)
            step.run("INSERT INTO identity (id, name, log_id, key_id) VALUES (?, ?, ?, ?)", values)
            note = Checkpoint(origin=wanted.log_id, size=0, root=EMPTY_ROOT).note()
            pointer_log.begin(step, bytes(note.sign(wanted.log_id, signer)))
            return wanted
    if found.key != wanted.key:
        raise PinwardenError(
            "REGISTRY_KEY_MISMATCH", f"the database {database} belongs to {found.key.did}, not to {wanted.key.did}"
        )
    return found


def set_key(step: Transaction, key: PublicKey) -> None:
    """Write down which key the registry has from now on."""
    step.run("UPDATE identity SET key_id = ? WHERE id = ?", (key.did, _IDENTITY))


def check_key(step: Transaction, registry: Registry) -> None:
    """Sign nothing with a key that was changed meanwhile by another process: nobody would believe it."""
    present = identity_in(step)
    if present is None or present.key != registry.signer.public_key:
        raise PinwardenError(
            "REGISTRY_KEY_MISMATCH",
            "the registry has another key by now",
            hint="Start this replica again, with the new key.",
        )


def identity_in(step: Transaction) -> Identity | None:
    """Who the registry of a database is."""
    found = step.row("SELECT name, log_id, key_id FROM identity WHERE id = ?", (_IDENTITY,))
    return None if found is None else Identity(name=found[0], log_id=found[1], key=PublicKey.from_did(found[2]))
