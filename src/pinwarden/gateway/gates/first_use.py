"""What of a first use may be taken as approved: everything but what reads like an attack."""

from __future__ import annotations

from pinwarden.surface.drift.changes import CRITICAL
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.scan.scan import new_warnings, server_member
from pinwarden.surface.surface import Item, Surface

_NOTHING = Surface(server=None, items={}, observed={})


def without_attacks(seen: Surface) -> Surface:
    """A surface without the items and texts that would alarm somebody who never saw the server.

    Nobody looks at a first use. So what a person would be warned of is left to a person: it is withheld, and waits.
    """
    alarming = {
        (change.entity, change.field if change.entity == "server" else change.name)
        for change in compare(_NOTHING, seen)
        if change.severity == CRITICAL
    }
    alarming |= {
        (warning.entity, server_member(warning) if warning.entity == "server" else warning.name)
        for warning in new_warnings(seen)
    }
    if not alarming:
        return seen

    def harmless(item: Item) -> bool:
        return (item.kind.entity, item.name) not in alarming

    server = seen.server
    if server is not None:
        server = {name: value for name, value in server.items() if ("server", name) not in alarming}
    items = {member: tuple(filter(harmless, listed)) for member, listed in seen.items.items()}
    return Surface(server=server, items=items, observed=seen.observed)
