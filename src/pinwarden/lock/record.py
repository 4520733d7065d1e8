"""Our record of an entry, read only where there is one: a plain lock does without the reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.core.json_pointer import escape_pointer_token
from pinwarden.lock.entry import EXTENSION, Entry

if TYPE_CHECKING:
    from pinwarden.lock.extension import Extension


def extension_of(entry: Entry) -> Extension | None:
    """Our record of an entry; None if the entry has none."""
    if EXTENSION not in entry.manifest:
        return None
    from pinwarden.lock.extension import parse_record

    path = f"/servers/{escape_pointer_token(entry.key)}/capabilityManifest/{EXTENSION}"
    return parse_record(entry.manifest[EXTENSION], path)


def has_surface(entry: Entry) -> bool:
    """Whether something that the server tells the model was approved for this entry."""
    extension = extension_of(entry)
    return extension is not None and extension.surface is not None
