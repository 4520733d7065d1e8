"""The gate's look at the bytes: what the registries give out today, held against what was locked."""

from __future__ import annotations

from collections.abc import Iterator

from pinwarden.core.errors import EXIT_REFUSED, PinwardenError
from pinwarden.documents.lock.entry import Entry
from pinwarden.documents.lock.locked_launch import locked_launch
from pinwarden.documents.lock.lockfile import Lock
from pinwarden.documents.lock.record import extension_of
from pinwarden.flows.artifacts.closing import Workshop
from pinwarden.flows.artifacts.examining import examine
from pinwarden.flows.report import UNCHECKED, Row


def has_bytes(entry: Entry) -> bool:
    """Whether the bytes of an entry were ever pinned."""
    extension = extension_of(entry)
    return extension is not None and bool(extension.artifacts or extension.image)


def byte_rows(lock: Lock, shop: Workshop, now: str) -> Iterator[Row]:
    """Every artifact that was pinned, fetched and hashed again; each package once, however many clients have it."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for entry in lock.entries:
        if not has_bytes(entry):
            continue
        try:
            key = entry.name, locked_launch(entry).command
            if key in seen:
                continue
            seen.add(key)
            yield from (row for row in examine(entry, shop, now).rows if row.level != "info")
        except PinwardenError as err:
            refused = err.exit_code == EXIT_REFUSED
            yield Row(
                code=err.code.lower() if refused else UNCHECKED,
                level="critical" if refused else "review",
                entity="artifact",
                name=entry.name,
                path="",
                message=err.message,
            )
