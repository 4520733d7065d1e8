"""What was decided about one thing that a server told, and why."""

from __future__ import annotations

from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.core.record import Record
from pinwarden.surface.drift.changes import Change

ALLOW = "allow"
"""It is what was approved, or differs in a way that the policy lets pass without a word."""
AUDIT = "audit"
"""It would have been blocked, but the policy only watches: it passes, and is recorded."""
WARN = "warn"
"""The same, and the client is told."""
BLOCK = "block"
"""It is withheld from lists, and its use is refused."""


class Verdict(Record):
    """The judgement of one item, or of one member of what a server says of itself."""

    entity: str
    """tool, prompt, resource, resourceTemplate or server."""
    key: str
    """What identifies the item in its list; for the server: serverInfo, capabilities or instructions."""
    value: Any
    """The thing as it was served; of an undigestable one what could be read."""
    digest: Digest | None
    action: str
    level: str = ""
    """The worst level of its changes; empty if there are none."""
    code: str = ""
    """Why it is not simply what was approved, as stable data: a kind of surface/drift/changes, or a code of its own."""
    reason: str = ""
    """The same for people. It never holds text of the server."""
    expected: tuple[str, ...] = ()
    """The digests that are allowed for it; none if nothing of its name was approved."""
    changes: tuple[Change, ...] = ()
    again: bool = False
    """The session was served the same before, and something else since."""

    @property
    def passes(self) -> bool:
        """Whether the client gets to see it and may use it."""
        return self.action != BLOCK
