"""What a registry gives out: versions, channels, documents."""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.core.record import Record, field, replace
from pinwarden.registry.version import PublishedVersion
from pinwarden.system.database import Row, Transaction

_COLUMNS = (
    "tool, version, namespace, description, root_cid, descriptor_cid, archive_cid, archive_size, media_type, "
    "content_hash, api_surface, surface_cid, surface_problem, published_at, published_by, seq, yanked"
)
_NAMES = tuple(name.strip() for name in _COLUMNS.split(","))


class Channel(Record):
    """Where a channel of a tool points; nowhere, once its pointer was taken away."""

    tool: str
    channel: str
    version: str | None
    root_cid: str | None
    seq: int
    """The index of the event that put it there."""
    pointer: bytes | None = field(repr=False)
    """The signed document."""


def version_of(step: Transaction, tool: str, version: str) -> PublishedVersion | None:
    """One version."""
    found = step.row(f"SELECT {_COLUMNS} FROM versions WHERE tool = ? AND version = ?", (tool, version))  # noqa: S608
    return None if found is None else _with_attestations(step, _version(found))


def versions_of(step: Transaction, tool: str) -> list[PublishedVersion]:
    """Every version of a tool, in the order in which they were published."""
    rows = step.rows(f"SELECT {_COLUMNS} FROM versions WHERE tool = ? ORDER BY seq", (tool,))  # noqa: S608
    attested: dict[tuple[str, str], list[str]] = {}
    for root_cid, descriptor_cid, cid in step.rows(_ATTESTED, (tool,)):  # in one question, however many versions
        attested.setdefault((root_cid, descriptor_cid), []).append(cid)
    found = map(_version, rows)
    return [replace(each, attestations=tuple(attested.get((each.root_cid, each.descriptor_cid), ()))) for each in found]


_ATTESTED = (
    "SELECT DISTINCT a.root_cid, a.descriptor_cid, a.cid FROM attestations a JOIN versions v "
    "ON v.root_cid = a.root_cid AND v.descriptor_cid = a.descriptor_cid WHERE v.tool = ? ORDER BY a.cid"
)


def releases_of(step: Transaction, tool: str) -> list[tuple[str, bool]]:
    """Every version of a tool by its name alone, and whether it was taken back; in the order of publishing."""
    rows = step.rows("SELECT version, yanked FROM versions WHERE tool = ? ORDER BY seq", (tool,))
    return [(str(version), yanked is not None) for version, yanked in rows]


def versions_after(step: Transaction, tool: str, seq: int, search: str, most: int) -> list[PublishedVersion]:
    """One page of all versions of all tools, without what was attested of them, from after one of them."""
    pattern = _pattern(search)
    rows = step.rows(
        f"SELECT {_COLUMNS} FROM versions WHERE (tool > ? OR (tool = ? AND seq > ?)) AND "  # noqa: S608
        "(tool LIKE ? ESCAPE '!' OR LOWER(description) LIKE ? ESCAPE '!') ORDER BY tool, seq LIMIT ?",
        (tool, tool, seq, pattern, pattern, most),
    )
    return list(map(_version, rows))


def add_version(step: Transaction, version: PublishedVersion) -> None:
    """A new version. `Conflict` if there is one of that name."""
    marks = ", ".join("?" for _ in _NAMES)
    values = tuple(getattr(version, name) for name in _NAMES)
    step.run(f"INSERT INTO versions ({_COLUMNS}) VALUES ({marks})", values)  # noqa: S608


def set_yanked(step: Transaction, tool: str, version: str, why: str | None) -> None:
    """Take a version back, or bring it back."""
    step.run("UPDATE versions SET yanked = ? WHERE tool = ? AND version = ?", (why, tool, version))


def channel_of(step: Transaction, tool: str, channel: str) -> Channel | None:
    """One channel."""
    sql = "SELECT tool, channel, version, root_cid, seq, pointer FROM channels WHERE tool = ? AND channel = ?"
    found = step.row(sql, (tool, channel))
    return None if found is None else _channel(found)


def channels_of(step: Transaction, tool: str) -> list[Channel]:
    """Every channel of a tool, by name."""
    sql = "SELECT tool, channel, version, root_cid, seq, pointer FROM channels WHERE tool = ? ORDER BY channel"
    return [_channel(row) for row in step.rows(sql, (tool,))]


def set_channel(step: Transaction, channel: Channel) -> None:
    """Let a channel point somewhere else. The transaction is alone, so nobody does the same meanwhile."""
    step.run("DELETE FROM channels WHERE tool = ? AND channel = ?", (channel.tool, channel.channel))
    step.run(
        "INSERT INTO channels (tool, channel, version, root_cid, seq, pointer) VALUES (?, ?, ?, ?, ?, ?)",
        (channel.tool, channel.channel, channel.version, channel.root_cid, channel.seq, channel.pointer),
    )


def tools(step: Transaction, *, search: str = "", after: str = "", most: int = 100) -> list[str]:
    """Names of tools in their order, from after one of them. A search looks into names and descriptions."""
    pattern = _pattern(search)
    rows = step.rows(
        "SELECT DISTINCT tool FROM versions WHERE tool > ? AND (tool LIKE ? ESCAPE '!' OR LOWER(description) LIKE ? "
        "ESCAPE '!') ORDER BY tool LIMIT ?",
        (after, pattern, pattern, most),
    )
    return [str(row[0]) for row in rows]


def _pattern(search: str) -> str:
    """What `LIKE` takes for this text and no other."""
    return f"%{search.lower().replace('!', '!!').replace('%', '!%').replace('_', '!_')}%"


def every_tool(step: Transaction) -> list[str]:
    """The names of all tools."""
    names: list[str] = []
    while page := tools(step, after=names[-1] if names else "", most=1000):
        names += page
    return sorted(names)


# Documents


def put_document(step: Transaction, cid: str, body: bytes) -> None:
    """Keep a document under its CID. One that is there already is the same."""
    if document(step, cid) is None:
        step.run("INSERT INTO documents (cid, body) VALUES (?, ?)", (cid, body))


def document(step: Transaction, cid: str) -> bytes | None:
    """A descriptor, attestation or surface."""
    return _body(step.row("SELECT body FROM documents WHERE cid = ?", (cid,)))


def put_manifest(step: Transaction, root_cid: str, descriptor_cid: str, body: bytes) -> None:
    """Keep a manifest. One that is there already is the same."""
    if manifest(step, root_cid, descriptor_cid) is None:
        values = (root_cid, descriptor_cid, body)
        step.run("INSERT INTO manifests (root_cid, descriptor_cid, body) VALUES (?, ?, ?)", values)


def manifest(step: Transaction, root_cid: str, descriptor_cid: str) -> bytes | None:
    """A manifest."""
    sql = "SELECT body FROM manifests WHERE root_cid = ? AND descriptor_cid = ?"
    return _body(step.row(sql, (root_cid, descriptor_cid)))


def add_attestations(step: Transaction, root_cid: str, descriptor_cid: str, found: Iterable[tuple[str, bytes]]) -> None:
    """Keep what was attested of a bundle: pairs of CID and document."""
    present = set(attestations_of(step, root_cid, descriptor_cid))
    for cid, body in found:
        put_document(step, cid, body)
        if cid not in present:
            values = (root_cid, descriptor_cid, cid)
            step.run("INSERT INTO attestations (root_cid, descriptor_cid, cid) VALUES (?, ?, ?)", values)
            present.add(cid)


def attestations_of(step: Transaction, root_cid: str, descriptor_cid: str) -> list[str]:
    """The CIDs of what was attested of a bundle."""
    sql = "SELECT cid FROM attestations WHERE root_cid = ? AND descriptor_cid = ? ORDER BY cid"
    return [str(row[0]) for row in step.rows(sql, (root_cid, descriptor_cid))]


def is_published_in(step: Transaction, namespace: str, root_cid: str, descriptor_cid: str) -> bool:
    """Whether a bundle is a version of this namespace."""
    sql = "SELECT 1 FROM versions WHERE namespace = ? AND root_cid = ? AND descriptor_cid = ?"
    return step.row(sql, (namespace, root_cid, descriptor_cid)) is not None


def _with_attestations(step: Transaction, version: PublishedVersion) -> PublishedVersion:
    return replace(version, attestations=tuple(attestations_of(step, version.root_cid, version.descriptor_cid)))


def _version(row: Row) -> PublishedVersion:
    return PublishedVersion(**dict(zip(_NAMES, row, strict=True)))


def _channel(row: Row) -> Channel:
    tool, channel, version, root_cid, seq, pointer = row
    body = None if pointer is None else bytes(pointer)
    return Channel(tool=tool, channel=channel, version=version, root_cid=root_cid, seq=seq, pointer=body)


def _body(row: Row | None) -> bytes | None:
    return None if row is None else bytes(row[0])
