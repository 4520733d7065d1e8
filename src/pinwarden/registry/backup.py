"""Back up a registry while it runs, and verify the backup against the registry's log.

A backup folder has one folder of archives, which all snapshots share, and a folder for each snapshot: the tables as
JSON lines, the signed checkpoint, and ``backup.json`` with the digest of each table. A snapshot is independent of the
kind of database. It is complete as soon as its folder exists.
"""

from __future__ import annotations

import json
import os
import shutil
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report
from pinwarden.core.strict_json import encode_json_file
from pinwarden.core.text import plural
from pinwarden.registry.archive_store import FolderArchiveStore
from pinwarden.registry.backup_reader import BLOBS, FORMAT, KEY_COPY, SNAPSHOTS, TABLES, open_snapshot, verify_snapshot
from pinwarden.registry.registry import KEY_FILE, SCHEMA_NAMES, Registry
from pinwarden.registry.store import pointer_log, publications
from pinwarden.system.database import Table, Transaction, list_tables, load_schema
from pinwarden.system.files import create_file, write_atomically

_PAGE = 500
_MAX_KEPT = 10_000


class BackupOptions(Record):
    """Where a backup is written, what it contains, and how many snapshots are kept."""

    folder: Path
    keep: int | None = None
    """The number of snapshots to keep; None for all."""
    key_folder: Path | None = None
    """The folder whose ``registry.key`` is copied into the backup; None to leave the key out."""


def back_up(registry: Registry, options: BackupOptions) -> Report:
    """Write a snapshot of a registry, which may be publishing meanwhile, and verify it.

    1. Write all tables as of one moment, with the log's signed checkpoint.
    2. Copy the archives of all published versions that the backup does not have yet. Archives never change.
    3. Verify the snapshot: the log's root and signature, every version against its log entry, every archive.
    4. Put the snapshot in place, and remove older snapshots beyond the number to keep.
    """
    folder = options.folder
    partial = folder / f".partial-{os.getpid()}"
    _make_folder(partial)
    try:
        size, archives = _write_snapshot(registry, partial)
        copied = _copy_archives(registry, archives, FolderArchiveStore(folder / BLOBS))
        if options.key_folder is not None:
            _copy_key(options.key_folder, partial)
        verified = verify_snapshot(open_snapshot(partial, folder / BLOBS), ())
        target = folder / SNAPSHOTS / _name_snapshot(registry, size)
        _put_in_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    removed = _remove_old_snapshots(folder, options.keep) if options.keep is not None else 0
    return Report(
        command="registry backup",
        subject=str(target),
        summary=f"{plural(size, 'event')} and {plural(verified, 'archive')} verified, {copied} of them new; "
        f"{plural(removed, 'old snapshot')} removed",
        exit_code=EXIT_CLEAN,
        notes=()
        if options.key_folder
        else ("the registry's key is not in the backup; keep a copy of it, or add --include-key",),
        facts={
            "snapshot": str(target),
            "log_size": size,
            "archives": verified,
            "copied": copied,
            "removed": removed,
            "has_key": options.key_folder is not None,
        },
    )


def _write_snapshot(registry: Registry, partial: Path) -> tuple[int, list[str]]:
    """Write the tables and the checkpoint. Returns the log's size, and the CIDs of all archives."""
    _make_folder(partial / TABLES)
    with registry.database.snapshot() as transaction:
        head = pointer_log.load_head(transaction)
        if head is None:
            raise PinwardenError("DATABASE_CORRUPT", "the registry has no log")
        tables = [_write_table(transaction, table, partial) for table in list_tables(load_schema(*SCHEMA_NAMES))]
        archives = publications.list_archives(transaction)
    _write(partial / "checkpoint", head.note)
    identity = registry.identity
    document = {
        "format": FORMAT,
        "log_id": identity.log_id,
        "key_id": identity.key.did,
        "log_size": head.size,
        "created_at_utc": registry.now(),
        "tables": tables,
    }
    _write(partial / "backup.json", encode_json_file(document))
    return head.size, archives


def _write_table(transaction: Transaction, table: Table, partial: Path) -> dict[str, Any]:
    path, digest, count = partial / TABLES / f"{table.name}.jsonl", sha256(), 0
    try:
        with path.open("xb") as file:
            for row in _read_rows(transaction, table):
                line = json.dumps([_encode(value) for value in row], ensure_ascii=False).encode() + b"\n"
                digest.update(line)
                file.write(line)
                count += 1
            file.flush()
            os.fsync(file.fileno())
    except OSError as err:
        raise _unwritable(path, err) from err
    return {"name": table.name, "columns": list(table.columns), "rows": count, "sha256": digest.hexdigest()}


def _read_rows(transaction: Transaction, table: Table) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table in the order of its key, one page at a time."""
    columns, key = ", ".join(table.columns), ", ".join(table.key)
    places = [table.columns.index(name) for name in table.key]
    after: tuple[Any, ...] = ()
    while True:
        marks = ", ".join("?" for _ in after)
        where = f"WHERE ({key}) > ({marks}) " if after else ""
        rows = transaction.rows(f"SELECT {columns} FROM {table.name} {where}ORDER BY {key} LIMIT {_PAGE}", after)  # noqa: S608
        yield from rows
        if len(rows) < _PAGE:
            return
        after = tuple(rows[-1][place] for place in places)


def _encode(value: Any) -> Any:
    return {"base64": b64encode(bytes(value)).decode()} if isinstance(value, (bytes, memoryview)) else value


def _copy_archives(registry: Registry, archives: list[str], blobs: FolderArchiveStore) -> int:
    copied = 0
    for cid in archives:
        if blobs.has(cid):
            continue
        data = registry.blobs.get(cid, registry.limits.archive_bytes)
        if data is None:
            raise PinwardenError(
                "ARTIFACT_MISSING",
                f"the archive {cid} of a published version is not in the archive store",
                hint="Restore it from an earlier backup: its folder blobs has the same layout.",
                data={"cid": cid},
            )
        blobs.put(data)
        copied += 1
    return copied


def _copy_key(key_folder: Path, partial: Path) -> None:
    try:
        create_file(partial / KEY_COPY, (key_folder / KEY_FILE).read_bytes(), 0o600)
    except OSError as err:
        raise PinwardenError("FILE_UNREADABLE", f"{key_folder / KEY_FILE} cannot be copied: {err.strerror}") from err


def _name_snapshot(registry: Registry, size: int) -> str:
    """Return a name that sorts by the size of the log, and then by time."""
    moment = registry.now().partition(".")[0].replace(":", "").replace("-", "").rstrip("Z")
    return f"{size:012d}-{moment}Z"


def _put_in_place(partial: Path, target: Path) -> None:
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
    except OSError as err:
        raise _unwritable(target, err) from err


def _remove_old_snapshots(folder: Path, keep: int) -> int:
    """Remove all but the newest snapshots. Archives stay, because published versions are never removed."""
    if not 1 <= keep <= _MAX_KEPT:
        raise PinwardenError("USAGE", f"the number of snapshots to keep must be from 1 to {_MAX_KEPT}")
    snapshots = sorted(path for path in (folder / SNAPSHOTS).iterdir() if path.is_dir())
    for path in snapshots[:-keep]:
        shutil.rmtree(path)
    return len(snapshots[:-keep])


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise _unwritable(path, err) from err


def _write(path: Path, data: bytes) -> None:
    write_atomically(path, data)


def _unwritable(path: Path, err: OSError) -> PinwardenError:
    return PinwardenError("FILE_UNWRITABLE", f"{path} cannot be written: {err.strerror or err}")
