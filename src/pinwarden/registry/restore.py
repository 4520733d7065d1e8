"""Restore a registry from a backup into empty storage, and verify it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pinwarden.bundle.log_documents import key_change_from_json
from pinwarden.core import strict_json
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import Signer
from pinwarden.core.record import Record
from pinwarden.core.report import Report
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey
from pinwarden.core.text import plural
from pinwarden.registry import names
from pinwarden.registry.archive_store import ArchiveStore, FolderArchiveStore
from pinwarden.registry.backup_reader import KEY_COPY, MAX_ARCHIVE_BYTES, Snapshot, find_snapshot, verify_snapshot
from pinwarden.registry.checkpoint_file import CHECKPOINT_FILE, KEYS, NO_TOOL
from pinwarden.registry.log_verification import parse_log_state
from pinwarden.registry.registry import (
    KEY_FILE,
    SCHEMA_NAMES,
    RegistrySettings,
    load_identity,
    open_archive_store,
    open_registry,
    open_registry_database,
)
from pinwarden.registry.registry_client import FolderRegistry, RegistryReader
from pinwarden.registry.store import pointer_log
from pinwarden.system.database import Transaction, list_tables, load_schema
from pinwarden.system.files import create_file, read_file
from pinwarden.system.key_files import load_key_file

_BATCH = 500


class RestoreOptions(Record):
    """The backup, the empty storage, and what clients and witnesses have seen of the log."""

    backup: Path
    settings: RegistrySettings
    signer: Signer | None = None
    """The registry's key; None to use the key in the backup."""
    seen: tuple[RegistryReader | Path, ...] = ()
    """Checkpoints that others have seen: of another copy or export of the registry, or in files."""


def restore(options: RestoreOptions) -> Report:
    """Restore a registry, and return the report of ``pinwarden registry restore``.

    1. Verify the whole backup, and that its log contains every checkpoint that others have seen.
    2. Check that the key is the registry's and that the storage is empty.
    3. Copy the archives, then all tables in one transaction.
    4. Open the registry, which compares the restored log with the signed checkpoint.
    """
    snapshot = find_snapshot(options.backup)
    keys = _list_keys(snapshot)
    seen = [_verify_seen(note, snapshot, keys) for note in _read_seen(options)]
    archives = verify_snapshot(snapshot, seen)
    signer = _load_key(options, snapshot)
    settings = options.settings
    database, blobs = open_registry_database(settings), open_archive_store(settings)
    try:
        with database.transaction() as transaction:
            if load_identity(transaction) is not None:
                raise PinwardenError(
                    "BACKUP_INVALID",
                    f"{database} already has a registry, so nothing was restored",
                    hint="Restore into an empty database and folder: --data DIR, --database URL.",
                )
        _copy_archives(snapshot, blobs)
        with database.transaction(exclusive=pointer_log.WRITE_LOCK) as transaction:
            _write_tables(transaction, snapshot)
    finally:
        database.close()
        blobs.close()
    _write_files(options, snapshot)
    opened = open_registry(settings, signer if options.signer else None)
    opened.close()
    counts = f"{plural(snapshot.log_size, 'event')} and {plural(archives, 'archive')}"
    return Report(
        command="registry restore",
        subject=str(snapshot.folder),
        summary=f"{opened.identity.log_id} is restored: {counts}, verified against the log",
        exit_code=EXIT_CLEAN,
        notes=()
        if options.seen
        else ("clients may have seen a longer log; compare it with theirs before you serve it: --seen",),
        facts={
            "log_id": opened.identity.log_id,
            "key_id": opened.identity.key.did,
            "log_size": snapshot.log_size,
            "archives": archives,
        },
    )


def _read_seen(options: RestoreOptions) -> list[Note]:
    notes = []
    for source in options.seen:
        if isinstance(source, Path):
            notes.append(_read_note(source))
        else:
            notes.append(Note.parse(source.get(names.CHECKPOINT)))
    own = options.settings.folder / CHECKPOINT_FILE
    return [*notes, _read_note(own)] if own.exists() else notes


def _read_note(path: Path) -> Note:
    """Read a checkpoint from a note, from the saved state of ``log monitor``, or from a static export."""
    if path.is_dir():
        return Note.parse(FolderRegistry(path).get(names.CHECKPOINT))
    data = read_file(path, 256 * 1024 * 1024)
    return Note.parse(parse_log_state(data).checkpoint.encode() if data.startswith(b"{") else data)


def _list_keys(snapshot: Snapshot) -> list[NoteKey]:
    """Return all keys that the registry has had."""
    changes = [
        key_change_from_json(strict_json.parse_json(row["entry"]))
        for row in snapshot.read_rows("log_entries")
        if (row["tool"], row["channel"]) == (NO_TOOL, KEYS)
    ]
    return [NoteKey(name=snapshot.log_id, key=key) for key in (snapshot.key, *(change.old for change in changes))]


def _verify_seen(note: Note, snapshot: Snapshot, keys: Sequence[NoteKey]) -> Checkpoint:
    checkpoint = Checkpoint.parse(note.text)
    if checkpoint.size > snapshot.log_size and checkpoint.origin == snapshot.log_id:
        return checkpoint  # perhaps signed by a key that is newer than the backup
    note.verify(keys)
    return checkpoint


def _load_key(options: RestoreOptions, snapshot: Snapshot) -> Signer:
    copy = snapshot.folder / KEY_COPY
    if options.signer is None and not copy.is_file():
        raise PinwardenError(
            "REGISTRY_KEY_MISMATCH",
            "the backup does not contain the registry's key",
            hint="Give it with --key FILE.",
        )
    signer = options.signer or load_key_file(copy)
    if signer.public_key != snapshot.key:
        raise PinwardenError(
            "REGISTRY_KEY_MISMATCH", f"the backup belongs to {snapshot.key.did}, not to {signer.public_key.did}"
        )
    return signer


def _copy_archives(snapshot: Snapshot, blobs: ArchiveStore) -> None:
    source = FolderArchiveStore(snapshot.blobs)
    for version in snapshot.read_rows("versions"):
        data = source.get(version["archive_cid"], MAX_ARCHIVE_BYTES)
        if data is None:
            raise PinwardenError("ARTIFACT_MISSING", f"the backup has no archive {version['archive_cid']}")
        blobs.put(data)


def _write_tables(transaction: Transaction, snapshot: Snapshot) -> None:
    for table in list_tables(load_schema(*SCHEMA_NAMES)):
        if all(present.name != table.name for present in snapshot.tables):
            continue  # a table of a later release, which fills it when it opens the registry
        marks = ", ".join("?" for _ in table.columns)
        sql = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({marks})"  # noqa: S608 - names of the schema
        batch: list[list[Any]] = []
        for row in snapshot.read_rows(table.name):
            batch.append([row.get(column) for column in table.columns])
            if len(batch) == _BATCH:
                transaction.run_many(sql, batch)
                batch = []
        if batch:
            transaction.run_many(sql, batch)


def _write_files(options: RestoreOptions, snapshot: Snapshot) -> None:
    folder = options.settings.folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy = snapshot.folder / KEY_COPY
    if options.signer is None and not (folder / KEY_FILE).exists():
        create_file(folder / KEY_FILE, read_file(copy), 0o600)
    if not (folder / CHECKPOINT_FILE).exists():
        create_file(folder / CHECKPOINT_FILE, bytes(snapshot.checkpoint), 0o600)
