"""The configured servers that were found, and what became of each."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pinwarden.core.record import Record, replace
from pinwarden.project.approvable import OPTION

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile, ConfiguredServer
    from pinwarden.core.errors import PinwardenError
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.decisions import Approved, Standing
    from pinwarden.project.project import Project
    from pinwarden.surface.surface import Surface


class Found(Record):
    """One configured server, and what became of it."""

    server: ConfiguredServer
    key: str
    standing: Standing
    named: bool = False
    """Whether somebody accepted this very server."""
    accepted: bool = False
    """Whether it may be locked as it is now."""
    answered: bool = False
    """Whether it was shown on a terminal and accepted there."""
    warnings_approved: bool = False
    """Whether the scan warnings about its text were shown and approved."""
    surface: Surface | None = None
    unasked: str | None = None
    """Why its live surface was not approved."""
    failure: PinwardenError | None = None
    """Why it could not be asked although that was wanted."""
    refused: str | None = None
    """Why it was not locked."""

    @property
    def undecided(self) -> bool:
        """Whether somebody has to say first that it may be locked."""
        return self.refused is None and not self.accepted and self.standing.state in ("new", "changed")

    @property
    def how_to_accept(self) -> str:
        """The option by which somebody says so."""
        warnings = f" {OPTION}" if self.standing.attacks else ""
        return f"--accept {shlex.quote(self.server.name)}{warnings}"


def _accepted(each: Found) -> Found:
    return replace(
        each, accepted=True, answered=True, warnings_approved=each.warnings_approved or bool(each.standing.attacks)
    )


class Discovery(Record):
    """The configured servers, each beside what the lock holds of it."""

    project: Project
    files: tuple[ConfigFile, ...]
    lock: Lock | None
    approved: Approved
    found: tuple[Found, ...]
    saved: frozenset[str] = frozenset()
    """The keys of the entries that were written as soon as they were accepted."""

    @property
    def undecided(self) -> tuple[Found, ...]:
        """The servers that somebody has to decide about."""
        return tuple(each for each in self.found if each.undecided)

    def accepting(self, key: str) -> Discovery:
        """The same after one server was shown, with the warnings about it, and accepted."""
        return replace(self, found=tuple(_accepted(each) if each.key == key else each for each in self.found))

    def is_pinned(self, each: Found) -> bool:
        """Whether what a server tells the model is approved: now, or earlier for this very configuration."""
        kept = each.standing.state == "unchanged" and self.approved.surface(each.key) is not None
        return each.refused is None and (each.surface is not None or kept)
