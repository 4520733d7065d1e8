"""Read a snapshot of a registry, and verify it: every file, the log, every version against the log, every archive."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from pinwarden.bundle.document import DocumentReader
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, field
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey
from pinwarden.core.strict_json import Limits
from pinwarden.core.tlog import EMPTY_ROOT, Frontier, hash_leaf
from pinwarden.registry.archive_store import FolderArchiveStore
from pinwarden.system.files import read_file

FORMAT = "pinwarden-registry-backup/1"
SNAPSHOTS, BLOBS, TABLES, KEY_COPY = "snapshots", "blobs", "tables", "registry.key"
MAX_ARCHIVE_BYTES = 512 * 1024 * 1024
_LINE_LIMITS = Limits(max_bytes=64 * 1024 * 1024, max_depth=8)


class TableFile(Record):
    """The file of one table in a snapshot."""

    name: str
    columns: tuple[str, ...]
    rows: int
    sha256: str


class Snapshot(Record):
    """A snapshot of a registry, not verified yet."""

    folder: Path
    blobs: Path
    log_id: str
    key: PublicKey
    log_size: int
    checkpoint: Note
    tables: tuple[TableFile, ...] = field(repr=False)

    def read_rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table, by column. Raises BACKUP_INVALID if the file is not the one that was written."""
        table = next((table for table in self.tables if table.name == name), None)
        if table is None:
            raise _invalid(self, f"has no table {name}")
        path, digest, count = self.folder / TABLES / f"{name}.jsonl", sha256(), 0
        try:
            with path.open("rb") as file:
                while line := file.readline(_LINE_LIMITS.max_bytes):
                    digest.update(line)
                    count += 1
                    values = [_decode(value) for value in _parse_line(self, line)]
                    if len(values) != len(table.columns):
                        raise _invalid(self, f"has a row of {name} with {len(values)} columns")
                    yield dict(zip(table.columns, values, strict=True))
        except OSError as err:
            raise PinwardenError("FILE_UNREADABLE", f"{path} cannot be read: {err.strerror}") from err
        if (digest.hexdigest(), count) != (table.sha256, table.rows):
            raise _invalid(self, f"has a table {name} that was changed or cut off")


def find_snapshot(path: Path) -> Snapshot:
    """Open a snapshot, or the newest snapshot of a backup folder."""
    if (path / "backup.json").is_file():
        return open_snapshot(path, path.parent.parent / BLOBS)
    folder = path / SNAPSHOTS
    snapshots = sorted(each for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    if not snapshots:
        raise PinwardenError("FILE_UNREADABLE", f"{path} is not a backup of a registry")
    return open_snapshot(snapshots[-1], path / BLOBS)


def open_snapshot(folder: Path, blobs: Path) -> Snapshot:
    """Open the snapshot in a folder."""
    value = strict_json.parse_json(read_file(folder / "backup.json"))
    reader = DocumentReader(value, "backup")
    reader.one_of("format", (FORMAT,))
    return Snapshot(
        folder=folder,
        blobs=blobs,
        log_id=reader.text("log_id"),
        key=PublicKey.from_did(reader.text("key_id")),
        log_size=reader.integer("log_size"),
        checkpoint=Note.parse(read_file(folder / "checkpoint")),
        tables=tuple(
            TableFile(
                name=table.text("name"),
                columns=table.strings("columns"),
                rows=table.integer("rows"),
                sha256=table.text("sha256"),
            )
            for table in reader.objects("tables", max_items=100)
        ),
    )


def verify_snapshot(snapshot: Snapshot, seen: Sequence[Checkpoint]) -> int:
    """Verify a snapshot, and return the number of its archives.

    1. Hash all log entries; their root must be that of the checkpoint, which the registry's key must have signed.
    2. The snapshot's log must contain every checkpoint in ``seen``. If one is longer, restoring would fork the log.
    3. Every version must be the one in its log entry.
    4. Every archive of a version must be there, with the bytes of its CID.
    5. Every other table must have the digest that was written.
    """
    identity = next(snapshot.read_rows("identity"), None)
    if identity is None or (identity["log_id"], identity["key_id"]) != (snapshot.log_id, snapshot.key.did):
        raise _invalid(snapshot, "belongs to another registry than it states")
    roots = _verify_log(snapshot, seen)
    archives = set()
    for version in snapshot.read_rows("versions"):
        if roots.get(version["seq"]) != (version["tool"], version["root_cid"]):
            raise _invalid(snapshot, f"has a version {version['tool']} {version['version']} that is not in its log")
        archives.add(version["archive_cid"])
    _verify_archives(snapshot, archives)
    for table in snapshot.tables:
        if table.name not in ("log_entries", "versions"):
            for _ in snapshot.read_rows(table.name):
                pass
    return len(archives)


def _verify_log(snapshot: Snapshot, seen: Sequence[Checkpoint]) -> Mapping[int, tuple[str, str]]:
    """Verify the log. Returns the bundle and root CID of each pointer event, by index."""
    checkpoint = Checkpoint.parse(snapshot.checkpoint.text)
    if checkpoint.origin != snapshot.log_id or checkpoint.size != snapshot.log_size:
        raise _invalid(snapshot, "has the checkpoint of another log")
    snapshot.checkpoint.verify([NoteKey(name=snapshot.log_id, key=snapshot.key)])
    wanted = {item.size: item.root for item in seen if item.origin == snapshot.log_id}
    if any(item.origin != snapshot.log_id for item in seen):
        raise PinwardenError("REGISTRY_LOG_BEHIND", f"a given checkpoint belongs to another log than {snapshot.log_id}")
    ahead = max(wanted, default=0)
    if ahead > checkpoint.size:
        raise PinwardenError(
            "REGISTRY_LOG_BEHIND",
            f"the backup has {checkpoint.size} log entries, but others have seen {ahead}; restoring it would fork "
            "the log",
            data={"backup": checkpoint.size, "seen": ahead},
        )
    edge, events = Frontier(), dict[int, tuple[str, str]]()
    for row in snapshot.read_rows("log_entries"):
        if edge.size in wanted and edge.root != wanted[edge.size]:
            _raise_other_history(edge.size)
        entry = row["entry"]
        if row["seq"] != edge.size or hash_leaf(entry) != row["leaf"]:
            raise _invalid(snapshot, f"has a damaged log entry {row['seq']}")
        document = strict_json.parse_json(entry)
        if "new_root_cid" in document:
            events[edge.size] = document["tool"], document["new_root_cid"]
        edge, _ = edge.append(hash_leaf(entry))
    if edge.size != checkpoint.size or (edge.root if edge.size else EMPTY_ROOT) != checkpoint.root:
        raise _invalid(snapshot, "has a log that does not match its signed checkpoint")
    if edge.size in wanted and edge.root != wanted[edge.size]:
        _raise_other_history(edge.size)
    return events


def _raise_other_history(size: int) -> None:
    raise PinwardenError(
        "REGISTRY_LOG_BEHIND", f"the backup has another history of {size} log entries than others have seen"
    )


def _verify_archives(snapshot: Snapshot, archives: Iterable[str]) -> None:
    blobs = FolderArchiveStore(snapshot.blobs)
    for cid in archives:
        if blobs.get(cid, MAX_ARCHIVE_BYTES) is None:
            raise PinwardenError("ARTIFACT_MISSING", f"the backup has no archive {cid}", data={"cid": cid})


def _parse_line(snapshot: Snapshot, line: bytes) -> list[Any]:
    try:
        values = strict_json.parse_json(line, _LINE_LIMITS)
    except PinwardenError as err:
        raise _invalid(snapshot, f"has a line that cannot be read: {err.message}") from err
    if not isinstance(values, list):
        raise _invalid(snapshot, "has a line that is not a row")
    return values


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        try:
            return b64decode(value["base64"], validate=True)
        except (KeyError, TypeError, BinasciiError) as err:
            raise PinwardenError("BACKUP_INVALID", "a value in the backup is not base64") from err
    return value


def _invalid(snapshot: Snapshot, problem: str) -> PinwardenError:
    return PinwardenError("BACKUP_INVALID", f"{snapshot.folder} {problem}")
