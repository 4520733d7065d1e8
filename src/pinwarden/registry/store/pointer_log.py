"""Store the transparency log in a database. Appending an entry takes a few row operations, however long the log is.

Callers must append inside a transaction that holds `WRITE_LOCK`, because the index of the next entry depends on the
head.
"""

from __future__ import annotations

from collections.abc import Sequence

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.tlog import (
    TILE_HEIGHT,
    TILE_WIDTH,
    Frontier,
    TileNodes,
    hash_leaf,
    join_hashes,
    pack_entries,
    prove_inclusion,
    tile_width,
)
from pinwarden.registry.names import YANKED_PREFIX
from pinwarden.system.database import Transaction

WRITE_LOCK = "pointer log"
"""The name of the exclusive lock for transactions that append to the log."""
_HEAD = 0


class LogHead(Record):
    """The size and Merkle frontier of the log, and its signed checkpoint."""

    edge: Frontier
    note: bytes

    @property
    def size(self) -> int:
        """The number of entries."""
        return self.edge.size


def load_head(transaction: Transaction) -> LogHead | None:
    """Return the head of the log; None if the log does not exist yet."""
    row = transaction.row("SELECT size, edge, note FROM log_head WHERE id = ?", (_HEAD,))
    return None if row is None else LogHead(edge=Frontier.from_bytes(row[0], bytes(row[1])), note=bytes(row[2]))


def create_log(transaction: Transaction, note: bytes) -> None:
    """Write the head of an empty log."""
    transaction.run("INSERT INTO log_head (id, size, edge, note) VALUES (?, ?, ?, ?)", (_HEAD, 0, b"", note))


def append_entry(transaction: Transaction, edge: Frontier, tool: str, channel: str, entry: bytes) -> Frontier:
    """Append an entry, and return the new frontier. Readers do not see the entry before `move_head`."""
    grown, nodes = edge.append(hash_leaf(entry))
    transaction.run(
        "INSERT INTO log_entries (seq, tool, channel, leaf, entry) VALUES (?, ?, ?, ?, ?)",
        (edge.size, tool, channel, nodes[0].hash, entry),
    )
    for node in nodes[TILE_HEIGHT::TILE_HEIGHT]:
        transaction.run(
            "INSERT INTO log_nodes (level, position, hash) VALUES (?, ?, ?)",
            (node.level // TILE_HEIGHT, node.index, node.hash),
        )
    return grown


def move_head(transaction: Transaction, old: Frontier, new: Frontier, note: bytes) -> None:
    """Set the head of the log. Raises, so that the transaction rolls back, if another process changed the head."""
    touched = transaction.run(
        "UPDATE log_head SET size = ?, edge = ?, note = ? WHERE id = ? AND size = ?",
        (new.size, bytes(new), note, _HEAD, old.size),
    )
    if touched != 1:
        raise PinwardenError("DATABASE_UNAVAILABLE", "another process changed the log without the write lock")


def read_tile(transaction: Transaction, size: int, level: int, index: int, width: int) -> bytes | None:
    """Return the first ``width`` hashes of a tile in the tree of ``size`` entries; None if the tile has fewer."""
    if not 1 <= width <= tile_width(size, level, index):
        return None
    first = index * TILE_WIDTH
    if level == 0:
        sql = "SELECT leaf FROM log_entries WHERE seq >= ? AND seq < ? ORDER BY seq"
        rows = transaction.rows(sql, (first, first + width))
    else:
        sql = "SELECT hash FROM log_nodes WHERE level = ? AND position >= ? AND position < ? ORDER BY position"
        rows = transaction.rows(sql, (level, first, first + width))
    if len(rows) != width:
        raise PinwardenError("DATABASE_CORRUPT", f"tile {index} of level {level} of the log is not complete")
    return join_hashes([bytes(row[0]) for row in rows])


def read_entry_bundle(transaction: Transaction, size: int, index: int, width: int) -> bytes | None:
    """Return the first ``width`` entries of an entry bundle; None if the bundle has fewer."""
    if not 1 <= width <= tile_width(size, 0, index):
        return None
    return pack_entries(read_entries(transaction, index * TILE_WIDTH, index * TILE_WIDTH + width))


def read_entries(transaction: Transaction, start: int, stop: int) -> Sequence[bytes]:
    """Return the entries from ``start`` up to ``stop``."""
    rows = transaction.rows("SELECT entry FROM log_entries WHERE seq >= ? AND seq < ? ORDER BY seq", (start, stop))
    if len(rows) != stop - start:
        raise PinwardenError("DATABASE_CORRUPT", f"the log lacks entries between {start} and {stop}")
    return [bytes(row[0]) for row in rows]


def list_channel_entries(transaction: Transaction, tool: str, channel: str) -> list[bytes]:
    """Return the log entries about one channel of a bundle, in log order."""
    sql = "SELECT entry FROM log_entries WHERE tool = ? AND channel = ? ORDER BY seq"
    return [bytes(row[0]) for row in transaction.rows(sql, (tool, channel))]


def list_tool_entries(transaction: Transaction, tool: str, limit: int) -> list[bytes]:
    """Return the latest entries about a bundle, newest first."""
    sql = "SELECT entry FROM log_entries WHERE tool = ? ORDER BY seq DESC LIMIT ?"
    return [bytes(row[0]) for row in transaction.rows(sql, (tool, limit))]


def list_release_entries(
    transaction: Transaction, limit: int, *, tool: str | None = None, namespace: str | None = None
) -> list[bytes]:
    """Return the latest entries that published or yanked a version, newest first: of one bundle, namespace, or all."""
    where = ""
    values: tuple[str, ...] = ()
    if tool is not None:
        where, values = "e.tool = ? AND ", (tool,)
    elif namespace is not None:
        where, values = "e.tool IN (SELECT tool FROM packages WHERE namespace = ?) AND ", (namespace,)
    sql = (
        f"SELECT e.entry FROM log_entries e WHERE {where}(e.channel LIKE ? OR EXISTS "  # noqa: S608 - constants
        "(SELECT 1 FROM versions v WHERE v.tool = e.tool AND v.seq = e.seq)) ORDER BY e.seq DESC LIMIT ?"
    )
    return [bytes(row[0]) for row in transaction.rows(sql, (*values, f"{YANKED_PREFIX}%", limit))]


def compute_inclusion_path(transaction: Transaction, size: int, index: int) -> list[bytes]:
    """Return the inclusion proof of an entry in the tree of ``size`` entries."""

    def fetch(level: int, tile_index: int, width: int) -> bytes:
        return read_tile(transaction, size, level, tile_index, width) or b""

    return prove_inclusion(index, size, TileNodes(size, fetch).read)


def list_cosignatures(transaction: Transaction, size: int) -> list[str]:
    """Return the signature lines of witnesses for the checkpoint of this size."""
    rows = transaction.rows("SELECT line FROM log_cosignatures WHERE size = ? ORDER BY witness", (size,))
    return [str(row[0]) for row in rows]


def save_cosignature(transaction: Transaction, size: int, witness: str, line: str) -> None:
    """Store the signature line of a witness, which replaces an earlier line of this witness for the same size."""
    transaction.run("DELETE FROM log_cosignatures WHERE size = ? AND witness = ?", (size, witness))
    transaction.run("INSERT INTO log_cosignatures (size, witness, line) VALUES (?, ?, ?)", (size, witness, line))
