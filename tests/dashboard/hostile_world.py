"""A gateway's state in which every text of a server is hostile."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tests.gateway.review_world import SEARCH, ReviewWorld, listing
from tests.registry.pages.hostile import HOSTILE_TEXT, LONG_WORD

PARAMETER: dict[str, Any] = {"type": "string", "description": HOSTILE_TEXT, "default": HOSTILE_TEXT}
APPROVED = {**SEARCH, "description": f"Search the notes. {'Plain words. ' * 200}"}
HOSTILE: dict[str, Any] = {
    "name": "search",
    "title": HOSTILE_TEXT,
    "description": f"{APPROVED['description']} {HOSTILE_TEXT} {LONG_WORD}",
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


def fill(world: ReviewWorld) -> dict[str, str]:
    """Serve hostile definitions. Returns the names of reviews by what they are about."""
    world.lock_server(APPROVED)
    world.use()
    world.serve(APPROVED)
    for served in ([HOSTILE, NAMED, CALM], [HOSTILE, NAMED, CALM, UNREADABLE], [HOSTILE, NAMED, CALM, UNREADABLE, NUL]):
        with suppress(UnicodeError):  # the scripted listing cannot hold every text
            world.serve(*served, instructions=HOSTILE_TEXT)
    calm = {"name": "other", "description": "Another.", "inputSchema": {"type": "object"}}
    world.serve_unlocked(listing(SEARCH), calm)
    return {
        review.item if review.item in ("search", "read", "nul") else review.entity: review.name
        for review in world.state.reviews.select()
    }
