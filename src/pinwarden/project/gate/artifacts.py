"""The gate's look at the bytes: what the registries give out today, held against what was locked."""

from __future__ import annotations

from collections.abc import Mapping

from pinwarden.core.errors import EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.report import UNCHECKED, Row
from pinwarden.lock.entry import Entry
from pinwarden.lock.locked_launch import locked_launch
from pinwarden.lock.lockfile import Lock
from pinwarden.lock.record import extension_of
from pinwarden.project.artifact_check import examine
from pinwarden.project.fetch_context import Workshop


def has_bytes(entry: Entry) -> bool:
    """Whether the bytes of an entry were ever pinned."""
    extension = extension_of(entry)
    return extension is not None and bool(extension.artifacts or extension.image)


class ByteCheck(Record):
    """What fetching and hashing again came to."""

    rows: tuple[Row, ...] = ()
    proved: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By the key of an entry, the codes of the evidence that was proved; of a refused artifact nothing is."""


def check_bytes(lock: Lock, shop: Workshop, now: str) -> ByteCheck:
    """Every artifact that was pinned, fetched and hashed again; each package once, however many clients have it."""
    rows: list[Row] = []
    known: dict[tuple[str, tuple[str, ...]], frozenset[str]] = {}
    proved: dict[str, frozenset[str]] = {}
    for entry in filter(has_bytes, lock.entries):
        try:
            key = entry.name, locked_launch(entry).command
            if key not in known:
                known[key] = frozenset()
                examined = examine(entry, shop, now)
                rows += (row for row in examined.rows if row.level != "info")
                passed = (str(row["code"]) for row in examined.outcome.evidence if row["status"] == "passed")
                known[key] = frozenset() if examined.refused else frozenset(passed)
            proved[entry.key] = known[key]
        except PinwardenError as err:
            rows.append(_failure(entry, err))
    if lock.entries and not any(map(has_bytes, lock.entries)):
        why = "--bytes: no entry has pinned bytes, so there is nothing to hash again; pinwarden prove pins them"
        rows.append(Row(code=UNCHECKED, level="review", entity="lock", name="", path="", message=why))
    return ByteCheck(rows=tuple(rows), proved=proved)


def _failure(entry: Entry, err: PinwardenError) -> Row:
    refused = err.exit_code == EXIT_REFUSED
    return Row(
        code=err.code.lower() if refused else UNCHECKED,
        level="critical" if refused else "review",
        entity="artifact",
        name=entry.name,
        path="",
        message=err.message,
    )
