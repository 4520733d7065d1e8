"""Ask a live server for its complete surface, and tell what it says."""

from __future__ import annotations

from typing import Any

from pinwarden.core import strict_json
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.report import Report, Row
from pinwarden.surface.drift.surface import compare
from pinwarden.surface.foreign_digests import surface_digests
from pinwarden.surface.rows import row_of
from pinwarden.surface.surface import KINDS, Surface, to_bytes


def inspect_surface(surface: Surface, subject: str) -> Report:
    """The report of ``pinwarden inspect``: what was seen, and what cannot be digested."""
    refused = tuple(
        Row(
            code="undigestable",
            level="critical",
            entity=item.kind.entity,
            name=item.name,
            path="",
            message=f"cannot be digested: {item.problem}",
        )
        for item in surface.undigestable
    )
    return Report(
        command="inspect",
        subject=subject,
        summary=_summary(surface),
        exit_code=EXIT_REFUSED if refused else EXIT_CLEAN,
        rows=refused,
        facts={"surface": document_of(surface), "digests": surface_digests(surface)},
    )


def compare_clients(first: Surface, second: Surface, subject: str) -> Report:
    """The report of a probe under two identities: a server must tell every client the same."""
    changes = compare(first, second)
    same = "the server tells both clients the same"
    return Report(
        command="inspect",
        subject=subject,
        summary=f"the server tells the two clients different things: {len(changes)} differences" if changes else same,
        exit_code=EXIT_REFUSED if changes else EXIT_CLEAN,
        rows=tuple(row_of(change) for change in changes),
        facts={"differs_per_client": bool(changes), "changes": [change.to_json() for change in changes]},
    )


def document_of(surface: Surface) -> Any:
    """The surface document as a value."""
    return strict_json.parse(to_bytes(surface))


def _summary(surface: Surface) -> str:
    counted = ", ".join(
        f"{len(surface.list_of(kind))} {kind.entity}{'' if len(surface.list_of(kind)) == 1 else 's'}"
        for kind in KINDS
        if kind.member in surface.items
    )
    digest = surface.digest or "none, because an item cannot be digested"
    return f"{counted or 'no lists offered'}; surface {digest}"
