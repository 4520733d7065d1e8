"""The transparency log in a database: an append reads one row and writes two, however long the log is.

Appending is safe only inside a transaction that is alone (`ALONE`): the next index follows from the row of the head.
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
    inclusion_proof,
    leaf_hash,
    pack_entries,
    tile_bytes,
    tile_width,
)
from pinwarden.system.database import Transaction

ALONE = "pointer log"
"""The name of the transactions that append."""
_HEAD = 0


class LogHead(Record):
    """How far the log has come, and the signed note that says so."""

    edge: Frontier
    note: bytes

    @property
    def size(self) -> int:
        """How many entries there are."""
        return self.edge.size


def head_of(step: Transaction) -> LogHead | None:
    """The head; None for a log that was never begun."""
    found = step.row("SELECT size, edge, note FROM log_head WHERE id = ?", (_HEAD,))
    return None if found is None else LogHead(edge=Frontier.from_bytes(found[0], bytes(found[1])), note=bytes(found[2]))


def begin(step: Transaction, note: bytes) -> None:
    """Write the head of an empty log."""
    step.run("INSERT INTO log_head (id, size, edge, note) VALUES (?, ?, ?, ?)", (_HEAD, 0, b"", note))


def append(step: Transaction, edge: Frontier, tool: str, channel: str, entry: bytes) -> Frontier:
    """Add an entry after the edge, and return the new edge. The head stays as it is until `move_head`."""
    grown, nodes = edge.append(leaf_hash(entry))
    step.run(
        "INSERT INTO log_entries (seq, tool, channel, leaf, entry) VALUES (?, ?, ?, ?, ?)",
        (edge.size, tool, channel, nodes[0].hash, entry),
    )
    for node in nodes[TILE_HEIGHT::TILE_HEIGHT]:
        step.run(
            "INSERT INTO log_nodes (level, position, hash) VALUES (?, ?, ?)",
            (node.level // TILE_HEIGHT, node.index, node.hash),
        )
    return grown


def move_head(step: Transaction, old: Frontier, new: Frontier, note: bytes) -> None:
    """Let the head name the new edge. If somebody moved it meanwhile, nothing of this transaction may stay."""
    touched = step.run(
        "UPDATE log_head SET size = ?, edge = ?, note = ? WHERE id = ? AND size = ?",
        (new.size, bytes(new), note, _HEAD, old.size),
    )
    if touched != 1:
        raise PinwardenError("DATABASE_UNAVAILABLE", "the log was moved by somebody who was not alone")


def tile(step: Transaction, size: int, level: int, index: int, width: int) -> bytes | None:
    """The first ``width`` hashes of a tile of the tree of that size; None if it does not have so many."""
    if not 1 <= width <= tile_width(size, level, index):
        return None
    first = index * TILE_WIDTH
    if level == 0:
        sql = "SELECT leaf FROM log_entries WHERE seq >= ? AND seq < ? ORDER BY seq"
        rows = step.rows(sql, (first, first + width))
    else:
        sql = "SELECT hash FROM log_nodes WHERE level = ? AND position >= ? AND position < ? ORDER BY position"
        rows = step.rows(sql, (level, first, first + width))
    if len(rows) != width:
        raise PinwardenError("DATABASE_CORRUPT", f"tile {index} of level {level} of the log is not complete")
    return tile_bytes([bytes(row[0]) for row in rows])


def entry_bundle(step: Transaction, size: int, index: int, width: int) -> bytes | None:
    """The first ``width`` entries of a bundle; None if it does not have so many."""
    if not 1 <= width <= tile_width(size, 0, index):
        return None
    return pack_entries(entries(step, index * TILE_WIDTH, index * TILE_WIDTH + width))


def entries(step: Transaction, start: int, stop: int) -> Sequence[bytes]:
    """The entries from one index up to another."""
    rows = step.rows("SELECT entry FROM log_entries WHERE seq >= ? AND seq < ? ORDER BY seq", (start, stop))
    if len(rows) != stop - start:
        raise PinwardenError("DATABASE_CORRUPT", f"the log has not all entries from {start} to {stop}")
    return [bytes(row[0]) for row in rows]


def entries_of(step: Transaction, tool: str, channel: str) -> list[bytes]:
    """The entries about one channel, in their order."""
    sql = "SELECT entry FROM log_entries WHERE tool = ? AND channel = ? ORDER BY seq"
    return [bytes(row[0]) for row in step.rows(sql, (tool, channel))]


def inclusion_path(step: Transaction, size: int, index: int) -> list[bytes]:
    """The path from an entry to the root of the tree of that size."""

    def fetch(level: int, number: int, width: int) -> bytes:
        return tile(step, size, level, number, width) or b""

    return inclusion_proof(index, size, TileNodes(size, fetch).read)


def cosignatures(step: Transaction, size: int) -> list[str]:
    """The lines of witnesses under the checkpoint of that size."""
    rows = step.rows("SELECT line FROM log_cosignatures WHERE size = ? ORDER BY witness", (size,))
    return [str(row[0]) for row in rows]


def keep_cosignature(step: Transaction, size: int, witness: str, line: str) -> None:
    """Keep a witness's line. A later one of the same witness for the same size takes its place."""
    step.run("DELETE FROM log_cosignatures WHERE size = ? AND witness = ?", (size, witness))
    step.run("INSERT INTO log_cosignatures (size, witness, line) VALUES (?, ?, ?)", (size, witness, line))
