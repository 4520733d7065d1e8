"""Texts that nobody looked at: approved for something else than is started now, or not approved at all.

They are told and fail nothing: there is nothing that they differ from. A check that somebody asked for and that has
nothing at all to look at is another matter: it could not be done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pinwarden.core.finding_kinds import Kinds, kind_table
from pinwarden.core.report import UNCHECKED, Row
from pinwarden.lock.record import extension_of

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.lockfile import Lock

UNREAD = "text_of_another_release"
UNPINNED = "text_not_pinned"
LIVE_KINDS: Kinds = kind_table(
    warning=(
        (
            UNREAD,
            "The approved text is that of another release or configuration; what it says now was not asked.",
        ),
        (UNPINNED, "Nothing that the server tells the model was approved, so a live server has nothing to be held to."),
    ),
)


def unread_rows(lock: Lock) -> Iterator[Row]:
    """Servers whose approved text was approved for something else than they start now. They are held to it all the
    same; what they say themselves is only known once they are asked."""
    from pinwarden.lock.extension import SURFACE_OF
    from pinwarden.lock.locked_launch import started_in_words
    from pinwarden.project.locked_servers import approve_command

    for entry in lock.entries:
        extension = extension_of(entry)
        of = extension.others.get(SURFACE_OF) if extension is not None else None
        if extension is None or extension.surface is None or of is None:
            continue
        yield Row(
            code=UNREAD,
            level=LIVE_KINDS[UNREAD].severity,
            entity="server",
            name=entry.name,
            path="",
            message=(
                f"its text was approved for {str(of)[:200]}, and {started_in_words(entry)} was not asked since; what "
                f"differs is blocked: {approve_command(entry, lock.entries)}"
            ),
        )


def unpinned_rows(lock: Lock, has_pin: Callable[[Entry], bool]) -> Iterator[Row]:
    """Servers that ``--live`` has nothing to compare with, where it has something for others."""
    if not any(map(has_pin, lock.entries)):
        return
    from pinwarden.project.locked_servers import approve_command

    for entry in lock.entries:
        if not has_pin(entry):
            how = approve_command(entry, lock.entries)
            yield Row(
                code=UNPINNED,
                level=LIVE_KINDS[UNPINNED].severity,
                entity="server",
                name=entry.name,
                path="",
                message=f"was not asked: nothing that it tells the model is approved so far; {how}",
            )


def in_vain(check: str, why: str) -> Row:
    """A check that was asked for and had nothing to look at."""
    return Row(code=UNCHECKED, level="review", entity="lock", name="", path="", message=f"{check}: {why}")
