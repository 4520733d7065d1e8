"""Approved texts that were approved for something else than is started now: an earlier release, other arguments."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pinwarden.documents.lock.record import extension_of
from pinwarden.flows.report import Row
from pinwarden.rules.finding_kinds import Kinds, kind_table

if TYPE_CHECKING:
    from pinwarden.documents.lock.lockfile import Lock

UNREAD = "text_of_another_release"
LIVE_KINDS: Kinds = kind_table(
    warning=(
        (
            UNREAD,
            "The approved text is that of another release or configuration; nobody has looked at what it says now.",
        ),
    ),
)


def unread_rows(lock: Lock) -> Iterator[Row]:
    """Servers whose approved text was approved for something else than they start now. They are held to it all the
    same; what they say themselves is only known once they are asked."""
    from pinwarden.documents.lock.extension import SURFACE_OF
    from pinwarden.documents.lock.locked_launch import started_in_words

    for entry in lock.entries:
        extension = extension_of(entry)
        of = extension.others.get(SURFACE_OF) if extension is not None else None
        if extension is None or extension.surface is None or of is None:
            continue
        name = shlex.quote(entry.name[:120])
        yield Row(
            code=UNREAD,
            level=LIVE_KINDS[UNREAD].severity,
            entity="server",
            name=entry.name,
            path="",
            message=(
                f"its text was approved for {str(of)[:200]}, and nobody has looked at what {started_in_words(entry)} "
                f"tells the model; what differs is held back: pinwarden approve {name} --allow-execute"
            ),
        )
