"""What the dashboard reads: the gateway's state, the projects of this user, and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.dashboard.activity import Activity
from pinwarden.dashboard.log_check import LogCheck
from pinwarden.gateway.baselines import Baseline
from pinwarden.system import clock
from pinwarden.system.masking import mask_item_key

if TYPE_CHECKING:
    from pathlib import Path

    from pinwarden.census.census import Census
    from pinwarden.dashboard.access import DashboardSession
    from pinwarden.gateway.state import GatewayState
    from pinwarden.gateway.store.reviews import Review
    from pinwarden.project.project import Project


class Sources(Record):
    """What pages read and decisions change. The stores open a database connection for each thread."""

    state: GatewayState
    project: Project
    """The project whose locks, and those of other projects, approvals are written to."""
    scopes: tuple[Project, ...]
    """One project per scope (project, local, user); the status pages show their servers."""
    now: Callable[[], str] = clock.now
    log_check: LogCheck = field(default_factory=LogCheck)
    """The last verification of the audit log."""
    activity: Activity = field(default_factory=Activity)
    """What happened in the last days."""
    census: Census | None = None
    """The census that pages show; None if this user has none."""


class DashboardRequest(Record):
    """A request that passed all checks."""

    path: str
    """Without the base of the site and without a leading slash."""
    session: DashboardSession
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The values of a posted form by name."""

    def get(self, name: str) -> str:
        """Return one value of the form; empty without one."""
        return next(iter(self.form.get(name, ())), "")


class Part(Record):
    """A part of a page with its own source: a value, or the reason why it is unknown. A failed source fails alone."""

    value: Any = None
    problem: PinwardenError | None = None


def read_part(read: Callable[[], Any]) -> Part:
    """Return what a source says, or why it cannot be read."""
    try:
        return Part(value=read())
    except PinwardenError as err:
        return Part(problem=err)


class Redirect(Record):
    """Where the browser goes after an action, as a path of the dashboard."""

    path: str


def list_remarks(sources: Sources) -> dict[str, list[str]]:
    """Return what lists say about pending changes besides their severity, by review."""
    remarks: dict[str, list[str]] = {}
    for name, first in sources.state.reviews.list_first_approvals().items():
        remarks.setdefault(name, []).append(f"1 of 2 approvals, by {first.approved_by}")
    for name, person in sources.state.reviews.list_questions().items():
        remarks.setdefault(name, []).append(f"question by {person}")
    return remarks


def identify_server(name: str) -> str:
    """Return the word for a server in addresses. No name of a server is part of an address."""
    return sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def group_blocked_items(
    reviews: Sequence[Review], scopes: Sequence[Project]
) -> dict[tuple[Path, str], tuple[str, ...]]:
    """Return the items that are pending review, by lock and server."""
    locks = {str(Baseline.of_lock(project.lock)): project.lock for project in scopes}
    blocked: dict[tuple[Path, str], tuple[str, ...]] = {}
    for review in reviews:
        if review.baseline in locks:
            key = locks[review.baseline], review.server
            item = f"{review.entity} {mask_item_key(review.entity, review.item)}"
            blocked[key] = (*blocked.get(key, ()), item)
    return blocked


Values = dict[str, Any]
"""The values of a template."""
