"""What a lock records about an approval for which its approver gave no reason: what really happened."""

from __future__ import annotations

FOUND = "found in a client's configuration; not shown, not reviewed"
FOUND_WITH_TEXT = "found in a client's configuration; its text was recorded from the server, not shown, not reviewed"
NAMED = "named with --accept"
ALL = "taken with --accept-all, not named"
ANSWERED = "shown on a terminal and approved there"
YES = "approved with --yes"
REVIEW_NAMED = "named with pinwarden review"


def by_command(command: str) -> str:
    """A server that a command named and locked, without showing what it tells the model."""
    return f"named with pinwarden {command}; its text was not shown"
