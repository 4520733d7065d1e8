"""What forms of the dashboard do: approve, reject and reopen, with the functions of ``pinwarden review``."""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.core.errors import PinwardenError
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.dashboard.remote_pages import forget_grant
from pinwarden.dashboard.review_pages import (
    MAX_TOGETHER,
    build_review_page,
    build_selected_page,
    find_bulk_obstacle,
)
from pinwarden.dashboard.shown_change import check_rendered
from pinwarden.dashboard.sources import DashboardRequest, Redirect, Sources
from pinwarden.gateway.review import approve_reviews, reject_reviews, reopen_reviews
from pinwarden.gateway.store.reviews import ReviewComment
from pinwarden.gateway.store.tokens import revoke_tokens
from pinwarden.html.pages import PageContent
from pinwarden.project.approval_candidate import SHOWN_IN_DASHBOARD
from pinwarden.project.lock import Approver

_MAX_REASON = 2000  # characters


class DecisionRefused(Exception):  # noqa: N818  a page, not a failure of the program
    """A decision that was not made: the error, and the page with the form as it was sent."""

    def __init__(self, problem: PinwardenError, page: PageContent) -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.page = page


def decide(sources: Sources, request: DashboardRequest) -> Redirect:
    """Approve or reject the changes that the form names, as its page showed them.

    1. The person must be a reviewer.
    2. Every change must still look as on the page with the form.
    3. The decision is made by ``gateway/review.py``, for all changes or none.

    Raises `DecisionRefused` with the page of the changes as they are now, and the reason that the person wrote.
    """
    request.session.person.require("reviewer")
    pairs = list(dict.fromkeys(request.form.get("change", ())))
    if not 1 <= len(pairs) <= MAX_TOGETHER:
        raise PinwardenError("USAGE", f"a decision names 1 to {MAX_TOGETHER} changes, not {len(pairs)}")
    names = [pair.partition(":")[0] for pair in pairs]
    try:
        report = _decide(sources, request, pairs, names)
    except PinwardenError as err:
        raise DecisionRefused(err, _build_page_again(sources, request, names, err)) from err
    request.session.notices = (f"{report.summary}.", *(f"{note[:1].upper()}{note[1:]}." for note in report.notes))
    return Redirect(path=f"reviews/{names[0]}/" if len(names) == 1 else "reviews/?view=decided")


def _decide(sources: Sources, request: DashboardRequest, pairs: list[str], names: list[str]) -> Report:
    approver, now = _build_approver(request), sources.now()
    action = request.get("action")
    if action not in ("approve", "reject"):
        raise PinwardenError("USAGE", "a decision is approve or reject")
    shown = check_rendered(sources, pairs)
    if action == "reject":
        return reject_reviews(sources.state, names, approver, now)
    obstacle = find_bulk_obstacle(shown)
    if obstacle and len(names) > 1:
        raise PinwardenError("USAGE", obstacle)
    return approve_reviews(sources.state, sources.project, names, approver, now)


def reopen(sources: Sources, request: DashboardRequest) -> Redirect:
    """Undo the decisions about the changes that the form names."""
    request.session.person.require("reviewer")
    names = list(dict.fromkeys(request.form.get("name", ())))
    if not 1 <= len(names) <= MAX_TOGETHER:
        raise PinwardenError("USAGE", f"an undo names 1 to {MAX_TOGETHER} changes, not {len(names)}")
    report = reopen_reviews(sources.state, sources.project, names, _build_approver(request), sources.now())
    request.session.notices = (f"{report.summary}.", *(f"{note[:1].upper()}{note[1:]}." for note in report.notes))
    return Redirect(path=f"reviews/{names[0]}/" if len(names) == 1 else "reviews/")


def _build_approver(request: DashboardRequest) -> Approver:
    """Return who decides: the person who signed in, never a name in the form. The page showed the warnings."""
    why = request.get("why").strip()
    if len(why) > _MAX_REASON:
        raise PinwardenError("USAGE", f"the reason has {plural(len(why), 'character')}; the limit is {_MAX_REASON}")
    person = request.session.person
    return Approver(
        by=person.name,
        why=why,
        default_reason=SHOWN_IN_DASHBOARD,
        approves_warnings=True,
        identity=person.identity,
    )


def _build_page_again(
    sources: Sources, request: DashboardRequest, names: list[str], problem: PinwardenError
) -> PageContent:
    """Build the page that the form was on, with the changes as they are now."""
    try:
        if len(names) == 1:
            return build_review_page(sources, request, names[0], problem=problem)
        return build_selected_page(sources, request, problem=problem)
    except PinwardenError:
        raise problem from None


def revoke_token(sources: Sources, request: DashboardRequest) -> Redirect:
    """Revoke one token of a client, by its id."""
    request.session.person.require("admin")
    report = revoke_tokens(sources.state, request.get("id"), sources.now(), request.session.person.name)
    request.session.notices = (f"{report.summary[:1].upper()}{report.summary[1:]}.",)
    return Redirect(path="clients/")


def check_log(sources: Sources, request: DashboardRequest) -> Redirect:
    """Begin to verify the audit log. The page of the log shows the result."""
    request.session.person.require("reviewer")
    sources.log_check.start(sources.state, sources.now)
    return Redirect(path="audit/")


def comment(sources: Sources, request: DashboardRequest) -> Redirect:
    """Store a comment about a change, or a question to other reviewers. Everyone who signed in may write one."""
    text, kind = request.get("content").strip(), request.get("kind")
    if kind not in ("comment", "question") or not 1 <= len(text) <= _MAX_REASON or "\0" in text:
        raise PinwardenError("USAGE", f"a comment or question has 1 to {_MAX_REASON} characters")
    review = sources.state.reviews.get(request.get("review"))
    written = ReviewComment(
        name=review.name,
        position=0,
        written_by=request.session.person.name,
        written=sources.now(),
        kind=kind,
        content=text,
    )
    sources.state.reviews.add_comment(written)
    return Redirect(path=f"reviews/{review.name}/#comments")


ACTIONS: dict[str, Callable[[Sources, DashboardRequest], Redirect]] = {
    "decide": decide,
    "reopen": reopen,
    "revoke-token": revoke_token,
    "forget-grant": forget_grant,
    "check-log": check_log,
    "comment": comment,
}
"""What a form at a path does."""
