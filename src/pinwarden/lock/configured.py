"""Entries that came from a client's configuration and not from a registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinwarden.lock.entry import Entry
from pinwarden.lock.record import extension_of

_MOST_NAMED = 8  # members in one note
SOURCE = "local-config"
"""What stands for a registry in such entries."""

INSTALLED = "bundle-registry"
"""What stands there for servers that were installed from a registry of bundles, which has an update of its own."""

UNLISTED = (SOURCE, INSTALLED)
"""Entries that no MCP registry is asked about."""

NO_RELEASE = "0.0.0"
"""What stands for a version, which lockfileVersion 2 demands, where a configuration names none."""

CONFIGURED_IN = "configuredIn"
"""The member of our record that says in which file of which client a server was found."""


ANSWERS = "answers"
"""The member beside these that says what the file proposed as answers to its own questions."""


def uncovered(name: str, members: Sequence[str]) -> str:
    """The note about members of a configuration whose text a lock does not hold."""
    more = f" and {len(members) - _MOST_NAMED} more" if len(members) > _MOST_NAMED else ""
    shown = ", ".join(members[:_MOST_NAMED])
    return f"{name}: the lock holds no text of {shown}{more}, because it may be secret; a change of it is not seen"


def configured_in(entry: Entry) -> Mapping[str, str] | None:
    """Client, scope and file of an entry that came from a configuration."""
    extension = extension_of(entry)
    where = extension.others.get(CONFIGURED_IN) if extension else None
    known = ("client", "scope", "file")
    return where if isinstance(where, dict) and all(isinstance(where.get(name), str) for name in known) else None


def approved_answers(entry: Entry) -> Mapping[str, Any]:
    """What the file of an entry proposed as answers when it was approved, by the question."""
    extension = extension_of(entry)
    where = extension.others.get(CONFIGURED_IN) if extension else None
    answers = where.get(ANSWERS) if isinstance(where, dict) else None
    return answers if isinstance(answers, dict) else {}
