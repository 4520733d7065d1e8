"""Whether a locked bundle was yanked since, as the log of its registry says.

What was last seen of the log is kept on this machine, so a start or a check contacts nobody. ``fetch`` and ``update``
read the log up to its head first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.bundle.bundle_pin import BundlePin, bundle_of
from pinwarden.bundle.trust_files import load_trust, log_state_path, trust_path
from pinwarden.core.errors import PinwardenError
from pinwarden.core.finding_kinds import Kinds, kind_table
from pinwarden.core.report import Row
from pinwarden.core.visible import show_invisible
from pinwarden.registry.log_client import load_state
from pinwarden.registry.names import YANKED_PREFIX

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.project.project import Project

YANK_KINDS: Kinds = kind_table(
    warning=(("version_yanked", "The publisher yanked the locked version; its registry's log says why."),)
)
_MOST_REASON = 200


def yanked_because(pin: BundlePin, trust: Path) -> str | None:
    """That the locked version was yanked, and why; None if what is kept of its registry's log does not say so."""
    for root in load_trust(trust).roots if pin.log_id is not None else ():
        if root.log.name != pin.log_id:
            continue
        state = load_state(log_state_path(trust, root.log))
        mark = state.pointer(pin.tool, f"{YANKED_PREFIX}{pin.version}") if state is not None else None
        if mark is not None and mark.root_cid == pin.root_cid:
            words = show_invisible(" ".join((mark.reason or "")[:_MOST_REASON].split()))
            reason = f": {words}" if words else ""
            return f"{pin.tool} {pin.version} was yanked by its publisher{reason} (event {mark.seq} of its log)"
    return None


def yank_rows(project: Project, entries: Iterable[Entry]) -> Iterator[Row]:
    """One row for each locked bundle that was yanked. A log that cannot be read is told by who follows it."""
    trust = trust_path(project.home, project.variables)
    told: set[str] = set()
    for entry in entries:
        pin = bundle_of(entry)
        if pin is None or entry.name in told:
            continue
        try:
            why = yanked_because(pin, trust)
        except PinwardenError:
            continue
        if why is not None:
            told.add(entry.name)
            yield Row(code="version_yanked", level="warning", entity="server", name=entry.name, path="", message=why)
