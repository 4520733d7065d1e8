"""Which release answered when a server without an exact version was asked, so that its approval fits the exact pin.

A configuration such as ``npx -y notes`` starts whatever is newest. If it is pinned to the release that just answered,
the approved text is the text of that very release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.clients.launch.launched import what_runs
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.lock.locked_launch import locked_launch
from pinwarden.lock.record import extension_of
from pinwarden.project.server_identity import RELEASE, entry_identity
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.project.project import Project
    from pinwarden.surface.surface import Surface

ASKED = "askedRelease"
"""The member of our record: the release that answered, where the command names none."""


def asked_release(project: Project, command: Sequence[str], seen: Surface) -> dict[str, str]:
    """The member for our record; empty where the command names a release, or which one answered is not known.

    What npx installed says it; of other launchers, the version that the server states about itself.
    """
    runs = what_runs(StdioTarget(command=tuple(command)))
    package = runs.via or runs
    if package.pinned or package.kind not in ("npm", "pypi"):
        return {}
    release = None
    if package.runner == "npx":
        from pinwarden.artifacts.npx_cache import npx_release

        spec = f"{package.identity}@{package.version}" if package.version else package.identity
        release = npx_release(spec, package.identity, project.root, project.home, project.variables)
    release = release or _stated(seen)
    return {ASKED: release[:200]} if release else {}


def _stated(seen: Surface) -> str | None:
    about = seen.server.get("serverInfo") if seen.server is not None else None
    version = about.get("version") if isinstance(about, dict) else None
    return version if isinstance(version, str) else None


def asked_of_entry(project: Project, entry: Entry, seen: Surface) -> dict[str, str]:
    """The same for an entry of the lock."""
    try:
        return asked_release(project, locked_launch(entry).command, seen)
    except PinwardenError:
        return {}  # an address


def is_release_asked(before: Entry, entry: Entry) -> bool:
    """Whether an entry only names the exact release that answered when the server was asked without one."""
    extension = extension_of(before)
    release = extension.others.get(ASKED) if extension is not None else None
    was, now = entry_identity(before), entry_identity(entry)
    if not isinstance(release, str) or was is None or now is None or len(was.starts) <= RELEASE:
        return False
    starts = (*was.starts[:RELEASE], release, *was.starts[RELEASE + 1 :])
    return replace(was, starts=starts) == now
