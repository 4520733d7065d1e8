"""A gateway's state in which every text of a server is hostile."""

from __future__ import annotations

import time
from typing import Any

from pinwarden.core.record import replace
from pinwarden.gateway.audit.event import BLOCKED, AuditEvent
from pinwarden.gateway.store.approvals import Follower
from pinwarden.gateway.store.tokens import GatewayToken
from tests.gateway.review_world import SEARCH, ReviewWorld, listing
from tests.registry.pages.hostile import HOSTILE_TEXT, LONG_WORD, SCRIPT

PARAMETER: dict[str, Any] = {"type": "string", "description": HOSTILE_TEXT, "default": HOSTILE_TEXT}
APPROVED = {**SEARCH, "description": f"Search the notes. {'Plain words. ' * 200}"}
HOSTILE: dict[str, Any] = {
    "name": "search",
    "title": HOSTILE_TEXT,
    "description": f"{APPROVED['description']} {HOSTILE_TEXT} {LONG_WORD[:40_000]}",
    "inputSchema": {
        "type": "object",
        "properties": {HOSTILE_TEXT: PARAMETER, "limit": {"type": "integer", "maximum": 1000, "enum": [HOSTILE_TEXT]}},
        "required": [HOSTILE_TEXT],
    },
    "annotations": {"title": HOSTILE_TEXT, "readOnlyHint": True},
}
NAMED = {"name": HOSTILE_TEXT, "description": HOSTILE_TEXT, "inputSchema": {"type": "object"}}
NUL = {"name": "nul", "description": "a \x00 byte and a lone \ud800 surrogate", "inputSchema": {"type": "object"}}
UNREADABLE = {"title": HOSTILE_TEXT}
CALM = {"name": "read", "description": "Read a note.", "inputSchema": {"type": "object"}}

POLICY = """
[policy.gateway]
block-at = "info"

[[policy.gateway.rules]]
server = "notes"
item = "<script>*"
unknown = "warn"

[[policy.gateway.allow]]
tool = "<img src=x>"
digest = "sha256:c98c4a645c1a7d74cf555d19d8ddda89aaea88b2d89c9e0b2b3b9f148f21db72"
"""


def fill(world: ReviewWorld) -> dict[str, str]:
    """Serve hostile definitions. Returns the names of reviews by what they are about."""
    world.lock_server(APPROVED)
    world.use()
    world.serve(APPROVED)
    world.serve(HOSTILE, NAMED, CALM, UNREADABLE, NUL, instructions=HOSTILE_TEXT)
    made = GatewayToken(digest="0" * 64, client="laptop", servers=(HOSTILE_TEXT,), made_at="2026-07-20T12:00:00.000Z")
    world.state.tokens.add(made)
    world.state.tokens.add(replace(made, digest="1" * 64, client="desk", teams=(HOSTILE_TEXT,)))
    world.state.tokens.revoke(world.state.tokens.find_revocable("desk"), "2026-07-20T13:00:00.000Z")
    follower = Follower(place=HOSTILE_TEXT, server="notes", identity="", sequence=0, refused="", seen=int(time.time()))
    world.state.approvals.report_followers([follower])
    with world.state.open_audit_log() as log:
        log.record_durably(AuditEvent(kind=BLOCKED, server="notes", item_kind="tool", item=HOSTILE_TEXT, reason=SCRIPT))
    (world.root / "pinwarden.toml").write_text(POLICY)
    calm = {"name": "other", "description": "Another.", "inputSchema": {"type": "object"}}
    world.serve_unlocked(listing(SEARCH), calm)
    return {
        review.item if review.item in ("search", "read", "nul") else review.entity: review.name
        for review in world.state.reviews.select()
    }
