"""Database queries for published content: versions, channels, documents and attestations."""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.core.record import Record, field, replace
from pinwarden.registry.registry_documents import PublishedVersion
from pinwarden.system.database import Row, Transaction

_COLUMNS = (
    "tool, version, namespace, description, root_cid, descriptor_cid, archive_cid, archive_size, media_type, "
    "content_hash, api_surface, surface_cid, surface_problem, published_at, published_by, seq, yanked"
)
_NAMES = tuple(name.strip() for name in _COLUMNS.split(","))
_TAKEDOWN = "FROM takedowns t WHERE t.tool = versions.tool AND t.version IN ('', versions.version)"
_SELECT = f"SELECT {_COLUMNS}, (SELECT MIN(t.reason) {_TAKEDOWN}) FROM versions"  # noqa: S608 - constants


class Channel(Record):
    """A channel and the version that it points to. After a yank, a channel may point to no version."""

    tool: str
    channel: str
    version: str | None
    root_cid: str | None
    seq: int
    """The log index of its latest event."""
    pointer: bytes | None = field(repr=False)
    """The signed pointer document."""


def find_version(transaction: Transaction, tool: str, version: str) -> PublishedVersion | None:
    """Return one version of a bundle; None if it is not published."""
    row = transaction.row(f"{_SELECT} WHERE tool = ? AND version = ?", (tool, version))
    return None if row is None else _add_attestations(transaction, _row_to_version(row))


def list_versions(transaction: Transaction, tool: str) -> list[PublishedVersion]:
    """Return all versions of a bundle, in publishing order."""
    rows = transaction.rows(f"{_SELECT} WHERE tool = ? ORDER BY seq", (tool,))
    attested: dict[tuple[str, str], list[str]] = {}
    for root_cid, descriptor_cid, cid in transaction.rows(_ATTESTED, (tool,)):  # one query for all versions
        attested.setdefault((root_cid, descriptor_cid), []).append(cid)
    versions = map(_row_to_version, rows)
    return [
        replace(version, attestations=tuple(attested.get((version.root_cid, version.descriptor_cid), ())))
        for version in versions
    ]


_ATTESTED = (
    "SELECT DISTINCT a.root_cid, a.descriptor_cid, a.cid FROM attestations a JOIN versions v "
    "ON v.root_cid = a.root_cid AND v.descriptor_cid = a.descriptor_cid WHERE v.tool = ? ORDER BY a.cid"
)


def find_content(transaction: Transaction, tool: str, root_cid: str) -> str | None:
    """Return the first version of a bundle with this content; None if there is none."""
    sql = "SELECT version FROM versions WHERE tool = ? AND root_cid = ? ORDER BY seq"
    row = transaction.row(sql, (tool, root_cid))
    return None if row is None else str(row[0])


def find_versions_by_cid(transaction: Transaction, cid: str, limit: int) -> list[PublishedVersion]:
    """Return versions whose content, descriptor, archive or surface has this CID, without attestations."""
    rows = transaction.rows(
        f"{_SELECT} WHERE root_cid = ? OR descriptor_cid = ? OR archive_cid = ? OR surface_cid = ? "
        "ORDER BY seq LIMIT ?",
        (cid, cid, cid, cid, limit),
    )
    return list(map(_row_to_version, rows))


def list_releases(transaction: Transaction, tool: str) -> list[tuple[str, bool]]:
    """Return all versions of a bundle as (version, is yanked or taken down), in publishing order."""
    sql = f"SELECT version, yanked, (SELECT COUNT(*) {_TAKEDOWN}) FROM versions WHERE tool = ? ORDER BY seq"  # noqa: S608
    return [
        (str(version), yanked is not None or taken > 0) for version, yanked, taken in transaction.rows(sql, (tool,))
    ]


def list_archives(transaction: Transaction, after: str = "", limit: int = 1_000_000_000) -> list[str]:
    """Return the CIDs of the archives of all versions, in order, beginning after ``after``."""
    sql = "SELECT DISTINCT archive_cid FROM versions WHERE archive_cid > ? ORDER BY archive_cid LIMIT ?"
    return [str(row[0]) for row in transaction.rows(sql, (after, limit))]


def count_versions(transaction: Transaction) -> tuple[int, int]:
    """Return the number of versions and of bundles."""
    row = transaction.row("SELECT COUNT(*), COUNT(DISTINCT tool) FROM versions") or (0, 0)
    return int(row[0]), int(row[1])


def read_versions_page(
    transaction: Transaction, tool: str, seq: int, search: str, limit: int
) -> list[PublishedVersion]:
    """Return one page of the versions of all bundles, without attestations.

    The page begins after the version with this bundle name and log index. ``search`` matches names and descriptions.
    """
    pattern = _build_like_pattern(search)
    rows = transaction.rows(
        f"{_SELECT} WHERE (tool > ? OR (tool = ? AND seq > ?)) AND "
        "(tool LIKE ? ESCAPE '!' OR LOWER(description) LIKE ? ESCAPE '!') ORDER BY tool, seq LIMIT ?",
        (tool, tool, seq, pattern, pattern, limit),
    )
    return list(map(_row_to_version, rows))


def add_version(transaction: Transaction, version: PublishedVersion) -> None:
    """Add a version. Raises a conflict error if the version exists."""
    marks = ", ".join("?" for _ in _NAMES)
    values = tuple(getattr(version, name) for name in _NAMES)
    transaction.run(f"INSERT INTO versions ({_COLUMNS}) VALUES ({marks})", values)  # noqa: S608


def set_yanked(transaction: Transaction, tool: str, version: str, reason: str | None) -> None:
    """Mark a version as yanked for this reason. None removes the mark."""
    transaction.run("UPDATE versions SET yanked = ? WHERE tool = ? AND version = ?", (reason, tool, version))


def find_channel(transaction: Transaction, tool: str, channel: str) -> Channel | None:
    """Return one channel of a bundle; None if it does not exist."""
    sql = "SELECT tool, channel, version, root_cid, seq, pointer FROM channels WHERE tool = ? AND channel = ?"
    row = transaction.row(sql, (tool, channel))
    return None if row is None else _row_to_channel(row)


def list_channels(transaction: Transaction, tool: str) -> list[Channel]:
    """Return all channels of a bundle, by name."""
    sql = "SELECT tool, channel, version, root_cid, seq, pointer FROM channels WHERE tool = ? ORDER BY channel"
    return [_row_to_channel(row) for row in transaction.rows(sql, (tool,))]


def set_channel(transaction: Transaction, channel: Channel) -> None:
    """Add a channel, or replace it. The transaction must hold the log's write lock."""
    transaction.run("DELETE FROM channels WHERE tool = ? AND channel = ?", (channel.tool, channel.channel))
    transaction.run(
        "INSERT INTO channels (tool, channel, version, root_cid, seq, pointer) VALUES (?, ?, ?, ?, ?, ?)",
        (channel.tool, channel.channel, channel.version, channel.root_cid, channel.seq, channel.pointer),
    )


def read_tools_page(transaction: Transaction, *, search: str = "", after: str = "", limit: int = 100) -> list[str]:
    """Return one page of bundle names, beginning after ``after``. ``search`` matches names and descriptions."""
    pattern = _build_like_pattern(search)
    rows = transaction.rows(
        "SELECT DISTINCT tool FROM versions WHERE tool > ? AND (tool LIKE ? ESCAPE '!' OR LOWER(description) LIKE ? "
        "ESCAPE '!') ORDER BY tool LIMIT ?",
        (after, pattern, pattern, limit),
    )
    return [str(row[0]) for row in rows]


def _build_like_pattern(search: str) -> str:
    """Build the SQL `LIKE` pattern for texts that contain ``search`` literally."""
    return f"%{search.lower().replace('!', '!!').replace('%', '!%').replace('_', '!_')}%"


def list_tools(transaction: Transaction) -> list[str]:
    """Return all bundle names."""
    names: list[str] = []
    while page := read_tools_page(transaction, after=names[-1] if names else "", limit=1000):
        names += page
    return sorted(names)


# Documents


def put_document(transaction: Transaction, cid: str, body: bytes) -> None:
    """Store a document under its CID, unless it is already stored."""
    if find_document(transaction, cid) is None:
        transaction.run("INSERT INTO documents (cid, body) VALUES (?, ?)", (cid, body))


def find_document(transaction: Transaction, cid: str) -> bytes | None:
    """Return the descriptor, attestation or surface with this CID; None if it is not stored."""
    return _read_body(transaction.row("SELECT body FROM documents WHERE cid = ?", (cid,)))


def put_manifest(transaction: Transaction, root_cid: str, descriptor_cid: str, body: bytes) -> None:
    """Store a manifest, unless it is already stored."""
    if find_manifest(transaction, root_cid, descriptor_cid) is None:
        values = (root_cid, descriptor_cid, body)
        transaction.run("INSERT INTO manifests (root_cid, descriptor_cid, body) VALUES (?, ?, ?)", values)


def find_manifest(transaction: Transaction, root_cid: str, descriptor_cid: str) -> bytes | None:
    """Return the manifest with these CIDs; None if it is not stored."""
    sql = "SELECT body FROM manifests WHERE root_cid = ? AND descriptor_cid = ?"
    return _read_body(transaction.row(sql, (root_cid, descriptor_cid)))


def add_attestations(
    transaction: Transaction, root_cid: str, descriptor_cid: str, attestations: Iterable[tuple[str, bytes]]
) -> None:
    """Store attestations of a bundle, as pairs of CID and document."""
    present = set(list_attestations(transaction, root_cid, descriptor_cid))
    for cid, body in attestations:
        put_document(transaction, cid, body)
        if cid not in present:
            values = (root_cid, descriptor_cid, cid)
            transaction.run("INSERT INTO attestations (root_cid, descriptor_cid, cid) VALUES (?, ?, ?)", values)
            present.add(cid)


def list_attestations(transaction: Transaction, root_cid: str, descriptor_cid: str) -> list[str]:
    """Return the CIDs of a bundle's attestations."""
    sql = "SELECT cid FROM attestations WHERE root_cid = ? AND descriptor_cid = ? ORDER BY cid"
    return [str(row[0]) for row in transaction.rows(sql, (root_cid, descriptor_cid))]


def is_published_in(transaction: Transaction, namespace: str, root_cid: str, descriptor_cid: str) -> bool:
    """Whether a bundle is published in this namespace."""
    sql = "SELECT 1 FROM versions WHERE namespace = ? AND root_cid = ? AND descriptor_cid = ?"
    return transaction.row(sql, (namespace, root_cid, descriptor_cid)) is not None


def _add_attestations(transaction: Transaction, version: PublishedVersion) -> PublishedVersion:
    return replace(
        version, attestations=tuple(list_attestations(transaction, version.root_cid, version.descriptor_cid))
    )


def _row_to_version(row: Row) -> PublishedVersion:
    return PublishedVersion(**dict(zip((*_NAMES, "taken_down"), row, strict=True)))


def _row_to_channel(row: Row) -> Channel:
    tool, channel, version, root_cid, seq, pointer = row
    body = None if pointer is None else bytes(pointer)
    return Channel(tool=tool, channel=channel, version=version, root_cid=root_cid, seq=seq, pointer=body)


def _read_body(row: Row | None) -> bytes | None:
    return None if row is None else bytes(row[0])
