"""Four eyes: a critical change needs the approvals of two different people whom an issuer authenticated.

The policy says so with ``four-eyes``. The first approval is stored and recorded, and has no effect. The second one, of
another person, approves the change. A typed name does not count: a person is who the
issuer's subject identifies, whatever the name, the role or the session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.gateway.baselines import Baseline
from pinwarden.gateway.store.reviews import FirstApproval
from pinwarden.lock.gateway_policy import four_eyes_levels
from pinwarden.project.project import load_policies

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.gateway.store.reviews import Review
    from pinwarden.project.lock import Approver
    from pinwarden.project.project import Project

NEEDS_LOGIN = "The policy demands two people who sign in at the identity provider, and you did not sign in there."
NEEDS_OTHER_PERSON = "You approved this change. Another person has to approve it too."


class FourEyes(Record):
    """Whether a change needs two people, and who approved it first."""

    is_needed: bool = False
    first: FirstApproval | None = None
    problem: str = ""
    """Why it is unknown whether the change needs two people. Then it cannot be approved."""

    def find_obstacle(self, identity: str) -> str:
        """Return why a person cannot approve; empty if the person can."""
        if not self.is_needed or self.problem:
            return self.problem
        if not identity:
            return NEEDS_LOGIN
        return NEEDS_OTHER_PERSON if self.first is not None and self.first.identity == identity else ""


def make_four_eyes_check(project: Project) -> Callable[[Review], bool]:
    """Return a function that says whether a review needs two people. Each policy is read once.

    The policy of the project counts, and that of the folder with the lock: the stricter one decides. Raises if one of
    them cannot be read.
    """
    own = four_eyes_levels(load_policies(project).gateway)
    by_lock: dict[str, frozenset[str]] = {}

    def is_needed(review: Review) -> bool:
        levels = own
        baseline = Baseline.parse(review.baseline)
        if baseline.is_lock:
            if review.baseline not in by_lock:
                other = replace(project, root=Path(baseline.name).parent, policy=None, policy_folder=None)
                by_lock[review.baseline] = four_eyes_levels(load_policies(other).gateway)
            levels |= by_lock[review.baseline]
        # A change without a known severity counts as critical.
        return (review.level if review.level in ("info", "review") else "critical") in levels

    return is_needed


def find_four_eyes(state: GatewayState, project: Project, reviews: Sequence[Review]) -> list[FourEyes]:
    """Return for each review whether it needs two people, and who approved it first. Raises if a policy is invalid."""
    is_needed = make_four_eyes_check(project)
    first = state.reviews.list_first_approvals()
    return [
        FourEyes(is_needed=True, first=first.get(review.name)) if is_needed(review) else FourEyes()
        for review in reviews
    ]


def begin_or_second(state: GatewayState, project: Project, reviews: Sequence[Review], approver: Approver) -> FourEyes:
    """Return what is known of the review if it needs two people, after checking that this person may approve it.

    Raises ``FOUR_EYES`` if the person did not log in or approved it before. Such a review is approved alone.
    """
    found = find_four_eyes(state, project, reviews)
    needed = [(review, four_eyes) for review, four_eyes in zip(reviews, found, strict=True) if four_eyes.is_needed]
    if not needed:
        return FourEyes()
    review, four_eyes = needed[0]
    if len(reviews) > 1:
        raise PinwardenError(
            "FOUR_EYES",
            f"{review.name} needs two people, so it is approved alone",
            hint="Approve it on its own page of the dashboard, and the other changes without it.",
        )
    if four_eyes.find_obstacle(approver.identity) == NEEDS_LOGIN:
        raise PinwardenError(
            "FOUR_EYES",
            f"the policy demands two people who log in for {review.name}, and {approver.by[:120]!a} did not log in",
            hint="Approve it in the dashboard, where people sign in: pinwarden dashboard --sign-in provider",
        )
    if four_eyes.find_obstacle(approver.identity):
        raise PinwardenError(
            "FOUR_EYES",
            f"{approver.by[:120]!a} approved {review.name} already; another person has to approve it too",
            hint=f"Ask another reviewer to open the change. To take the first approval back, reject {review.name}.",
        )
    return four_eyes


def join_approvals(first: FirstApproval, second: Approver) -> Approver:
    """Return both people as one approver, for the records of the decision."""
    why = first.why if first.why == second.reason else f"{first.why}; {second.reason}"
    return replace(second, by=f"{first.approved_by} and {second.by}", why=why)
