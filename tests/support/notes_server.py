"""A small server for the drift tests, and short ways to change it and to look at what is reported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from pinwarden.surface.drift.compare import Change, compare
from pinwarden.surface.surface import surface_from_listing

Listing = dict[str, Any]

NOTES: Listing = {
    "serverInfo": {"name": "acme-notes", "version": "1.4.0"},
    "capabilities": {"tools": {"listChanged": True}, "prompts": {}, "resources": {}},
    "instructions": "Search before you write.",
    "tools": [
        {
            "name": "search_notes",
            "title": "Search notes",
            "description": "Full-text search over the user's notes.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "Words to look for.", "maxLength": 200},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10},
                    "sort": {"type": "string", "enum": ["newest", "oldest"]},
                },
                "required": ["query", "limit"],
                "additionalProperties": False,
            },
            "outputSchema": {"type": "object", "properties": {"hits": {"type": "array"}}, "required": ["hits"]},
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
        },
        {
            "name": "delete_note",
            "description": "Delete one note by id.",
            "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
            "annotations": {"readOnlyHint": False, "destructiveHint": True},
        },
        {
            "name": "export_notes",
            "description": "Export all notes as one markdown file in the workspace.",
            "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    ],
    "prompts": [
        {
            "name": "weekly_review",
            "description": "Summarise this week's notes.",
            "arguments": [{"name": "week", "description": "ISO week", "required": True}, {"name": "tone"}],
        }
    ],
    "resources": [{"uri": "notes://index", "name": "index", "description": "All notes.", "mimeType": "text/plain"}],
    "resourceTemplates": [{"uriTemplate": "https://notes.example/{id}", "name": "note"}],
}


def changed(listing: Listing, edit: Callable[[Listing], object]) -> Listing:
    """A copy of a listing after an edit."""
    fresh = copy.deepcopy(listing)
    edit(fresh)
    return fresh


def drift(before: Listing, after: Listing) -> tuple[Change, ...]:
    """The changes between two listings."""
    return compare(surface_from_listing(before), surface_from_listing(after))


def after_edit(edit: Callable[[Listing], object]) -> tuple[Change, ...]:
    """The changes that an edit of the notes server amounts to."""
    return drift(NOTES, changed(NOTES, edit))


def tool(listing: Listing, name: str) -> Any:
    """A tool of a listing by its name."""
    return next(one for one in listing["tools"] if one["name"] == name)


def summaries(changes: tuple[Change, ...]) -> list[tuple[str, str, str, str]]:
    """Severity, kind, name and path of each change."""
    return [(change.severity, change.kind, change.name, change.path) for change in changes]


def named(changes: tuple[Change, ...]) -> set[tuple[str, str, str]]:
    """What the drift cases compare."""
    return {(change.entity, change.name, change.field) for change in changes}
