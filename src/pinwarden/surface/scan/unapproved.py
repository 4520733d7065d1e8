"""Which warnings of the scan are about text that was not approved before."""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.surface.drift.json_values import same
from pinwarden.surface.scan.scan import Finding, scan
from pinwarden.surface.surface import Surface

WARNING = "warning"


def new_warnings(seen: Surface, approved: Iterable[Surface] = ()) -> tuple[Finding, ...]:
    """The warnings about a surface, without those that an approved surface earned with the same item.

    An item that changed earns its warnings again: the scan names one place per kind of warning, so a text that was
    approved with one could hold more of the same kind now.
    """
    warnings = tuple(finding for finding in scan(seen) if finding.severity == WARNING)
    for surface in approved if warnings else ():
        before = frozenset(scan(surface))
        warnings = tuple(each for each in warnings if each not in before or not _is_unchanged(each, surface, seen))
    return warnings


def _is_unchanged(finding: Finding, approved: Surface, seen: Surface) -> bool:
    """Whether what the finding is about is the same in both surfaces."""
    if finding.entity == "server":
        member = server_member(finding)
        return same((approved.server or {}).get(member), (seen.server or {}).get(member))
    before, now = _digests(approved, finding), _digests(seen, finding)
    return None not in now and before == now


def server_member(finding: Finding) -> str:
    """The member of the server's facts that a finding is about: its own first step."""
    return finding.path.removeprefix("/").partition("/")[0].replace("~1", "/").replace("~0", "~")


def _digests(surface: Surface, finding: Finding) -> list[str | None]:
    items = (item for item in surface.all_items() if (item.kind.entity, item.name) == (finding.entity, finding.name))
    return [None if item.digest is None else str(item.digest) for item in items]
