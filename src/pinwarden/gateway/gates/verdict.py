"""The gateway's decision about one item of a server's surface, with the reason."""

from __future__ import annotations

from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.core.record import Record
from pinwarden.surface.drift.changes import Change

ALLOW = "allow"
"""The definition is the approved one, or differs in a way that the policy ignores."""
AUDIT = "audit"
"""The definition differs from the approved one, but the policy only records this."""
WARN = "warn"
"""The definition differs from the approved one. The gateway records this and warns the client."""
BLOCK = "block"
"""The gateway removes the item from lists, and refuses its use."""
RULE_DENIED = "rule_denied"
"""A rule of the policy denies a tool to the client. The definition itself is not in question."""
RATE_LIMITED = "rate_limited"
"""The client made as many calls of a tool as the policy allows."""


class Verdict(Record):
    """The decision about one item, server member, server request or result."""

    entity: str
    """The type of the item: tool, prompt, resource, resourceTemplate, server, request, result, task or method."""
    key: str
    """The item's name or URI; for the server: serverInfo, capabilities or instructions; otherwise the method."""
    value: Any
    """The definition as the server sent it; for an undigestable definition, the part that could be parsed."""
    digest: Digest | None
    action: str
    level: str = ""
    """The highest severity among the item's changes; empty if there are none."""
    code: str = ""
    """Stable code of the difference from the approved definition; empty if there is none."""
    reason: str = ""
    """The difference as a sentence, which never contains text from the server."""
    expected: tuple[str, ...] = ()
    """The allowed digests; empty if no item of this key was approved."""
    changes: tuple[Change, ...] = ()
    again: bool = False
    """Whether the server sent this definition earlier in the session, and a different definition of the item since."""

    @property
    def passes(self) -> bool:
        """Whether the client may see and use the item."""
        return self.action != BLOCK
