"""Reviewing what the gateway held: see the difference, then approve exactly that, or reject it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pinwarden.core import strict_json
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record, as_dict, replace
from pinwarden.core.report import Report, Row, plural
from pinwarden.gateway.approved_items import (
    KIND_OF,
    approved_digests,
    fits,
    is_intact,
    with_definitions,
)
from pinwarden.gateway.audit.event import APPROVED, HELD, REJECTED, SERVER_ITEM
from pinwarden.gateway.baselines import Baseline, baseline_of
from pinwarden.gateway.store.approvals import Approval
from pinwarden.gateway.store.reviews import STATES, WAITING, Review, review_event, storable_name, with_name
from pinwarden.project.approvable import (
    APPROVE_WARNINGS_OPTION,
    ApprovalCandidate,
    scan_candidate,
    warnings_not_approved,
)
from pinwarden.project.surface_reports import compare_surfaces
from pinwarden.surface.drift.changes import CRITICAL
from pinwarden.surface.surface import Surface

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.lock import Approver
    from pinwarden.project.project import Project


def list_reviews(
    state: GatewayState, *, every: bool = False, server: str | None = None, levels: Collection[str] = ()
) -> Report:
    """The report of ``pinwarden review list``."""
    left = _not_followed(state)
    found = [
        each
        for each in state.reviews.listed(STATES)
        if (every or each.state == WAITING or (each.state == APPROVED and _content(each) in left))
        and server in (None, each.server)
        and (not levels or each.level in levels)
    ]
    waiting = sum(each.state == WAITING for each in found)
    return Report(
        command="review list",
        subject=server or "all servers",
        summary=f"{plural(waiting, 'change')} to review" if waiting else "nothing waits for review",
        exit_code=EXIT_CLEAN,
        facts={"reviews": [{**review_facts(each), **_left_facts(each, left)} for each in found]},
        notes=tuple(
            f"{each.name} was approved, and is not followed yet by {place}"
            for each in found
            for place in _left_facts(each, left).get("not_followed_by", ())
        ),
    )


_Content = tuple[str, str, str, str]


def _content(about: Review | Approval) -> _Content:
    return about.server, about.entity, about.item, about.digest


def _not_followed(state: GatewayState) -> dict[_Content, list[str]]:
    """By content, the running gateways that have a server of that name and do not apply an approval."""
    found: dict[_Content, list[str]] = {}
    for approval, followers in state.approvals.not_followed(int(time.time())).items():
        found.setdefault(_content(approval), []).extend(each.place for each in followers)
    return found


def _left_facts(review: Review, left: Mapping[_Content, Sequence[str]]) -> dict[str, Any]:
    """Which gateways do not let an approved definition through."""
    places = left.get(_content(review), ()) if review.state == APPROVED else ()
    return {"not_followed_by": sorted(set(places))} if places else {}


def show_review(state: GatewayState, project: Project, name: str) -> tuple[Review, Report]:
    """The report of ``pinwarden review show``: what would change if it were approved."""
    review = state.reviews.find(name)
    baseline = baseline_of(state, project, review.server, review.baseline)
    shown = next(iter(_fitting(review, baseline.surfaces) or baseline.surfaces))
    return review, difference(review, baseline.surfaces[shown], baseline.place)


def difference(review: Review, approved: Surface, place: str) -> Report:
    """What approving a review would change in the approved surface, all of it, and where that would be written."""
    facts = {
        "review": review_facts(review),
        "definition": strict_json.parse_json(review.definition.encode()),
        "approval_goes_to": place if _can_be_approved(review) else None,
    }
    subject = f"{review.server}: {review.entity} {review.item}"
    if not _can_be_approved(review):
        row = Row(
            code=review.code or "undigestable",
            severity="critical",
            entity=review.entity,
            name=review.item,
            path="",
            message="It cannot be approved: nobody can say what it is.",
        )
        report = Report(command="review show", subject=subject, summary="", exit_code=EXIT_CLEAN, facts={}, rows=(row,))
        changes: list[Any] = []
    else:
        served = with_definitions(approved, [review])
        report = compare_surfaces(approved, served, subject, whole=True)
        changes = report.facts["changes"]
        report = replace(report, rows=(*report.rows, *scan_candidate(review.server, served, (approved,)).warnings))
    return replace(
        report,
        command="review show",
        summary=f"{review.name}: {review.state}{_decision(review)}",
        exit_code=EXIT_CLEAN,
        facts={**facts, "changes": changes},
    )


def _decision(review: Review) -> str:
    return f" by {review.decided_by} at {review.decided}: {review.why}" if review.decided_by else ""


def approve_reviews(
    state: GatewayState, project: Project, names: Sequence[str], approver: Approver, now: str
) -> Report:
    """Approve what waits under these names: all of it, or, if anything is wrong with one, nothing.

    1. Find what is named; each must wait, and be what its name says.
    2. Make the new surface of each server, and see that it can be written.
    3. Write down who approves what.
    4. Claim all of them, if they still wait: from here on nothing else takes their place.
    5. Write the locks and the store; what cannot be written after all waits again.
    """
    for name in names:
        state.reviews.named(name)  # before a place is made in which to wait for others
    with state.approving():
        reviews = [_intact(state.reviews.named(name)) for name in dict.fromkeys(names)]
        _refuse_without_reason(reviews, approver)
        plans = _planned(state, project, reviews, _changed, partial(_offered, approver))
        _refuse_open_warnings(plans)
        _write_down(state, reviews, approver, APPROVED)
        state.reviews.decide(reviews, APPROVED, by=approver.by, why=approver.reason, now=now)
        shared = [approval for plan in plans for approval in _shared(state, plan, approver, now)]
        state.approvals.record(shared)
        _carry_out(plans, approver, now, undo=lambda left: _wait_again(state, left, approver, now))
    report = _decided("review approve", reviews, APPROVED, approver, now)
    return _with_places(report, plans, _who_follows(state, plans, shared))


def _shared(state: GatewayState, plan: _Plan, approver: Approver, now: str) -> list[Approval]:
    """The approvals of a lock for the other gateways of the database."""
    if plan.baseline.lock is None:
        return []
    place = state.place_of(plan.baseline.lock)
    identities = dict.fromkeys(plan.baseline.identities[key] for key in plan.changed)
    return [
        Approval(
            name="",
            sequence=0,
            server=review.server,
            identity=identity,
            entity=review.entity,
            item=review.item,
            digest=review.digest,
            expected=review.expected,
            definition=review.definition,
            place=place,
            state=APPROVED,
            decided=now,
            decided_by=approver.by,
            why=approver.reason,
        )
        for review in plan.reviews
        for identity in identities
        if identity
    ]


def _who_follows(state: GatewayState, plans: Sequence[_Plan], shared: Sequence[Approval]) -> tuple[str, ...]:
    """Which gateways let through from now on what was approved, as far as they report to the database."""
    if any(plan.baseline.lock is None for plan in plans) and not shared:
        return (_ALL_FOLLOW,)
    own = {state.place_of(plan.baseline.lock) for plan in plans if plan.baseline.lock is not None}
    meant = {(approval.server, approval.identity) for approval in shared}
    servers = {review.server for plan in plans for review in plan.reviews}
    others = [each for each in state.approvals.followers(int(time.time())) if each.place not in own]
    following = sorted({each.place for each in others if (each.server, each.identity) in meant})
    apart = sorted({each.place for each in others if each.server in servers} - set(following))
    notes = [_LOCK_FOLLOWS]
    if following:
        verb = "takes" if len(following) == 1 else "take"
        who = f"{plural(len(following), 'other gateway')} of the database {state.shown}"
        notes.append(f"{who} {verb} it over within seconds, and pinwarden review list shows it until then")
        notes += [f"follows: {place}" for place in following[:_SHOWN]]
    else:
        notes.append(f"no other running gateway of the database {state.shown} has this server")
    for place in apart[:_SHOWN]:
        notes.append(f"does not take it over, because it has another server of this name or --approvals lock: {place}")
    return tuple(notes)


_SHOWN = 5  # gateways that a message names


class _Plan(Record):
    """What is to be written to one place."""

    reviews: tuple[Review, ...]
    baseline: Baseline
    changed: Mapping[str, ApprovalCandidate]


def _planned(
    state: GatewayState,
    project: Project,
    reviews: Sequence[Review],
    change: Callable[[Sequence[Review], Mapping[str, Surface]], dict[str, Surface]],
    offer: Callable[[str, Surface, Surface], ApprovalCandidate],
) -> list[_Plan]:
    plans: list[_Plan] = []
    for (server, baseline), group in groupby(sorted(reviews, key=_place), key=_place):
        together = tuple(group)
        found = baseline_of(state, project, server, baseline)
        changed = change(together, found.surfaces)
        offered = {key: offer(server, surface, found.surfaces[key]) for key, surface in changed.items()}
        plans.append(_Plan(reviews=together, baseline=found, changed=offered))
    for plan in plans:
        plan.baseline.refuse_unwritable()
    return plans


def _carry_out(plans: Sequence[_Plan], approver: Approver, now: str, undo: Callable[[Sequence[Review]], None]) -> None:
    """Write each place. If one fails, what was decided for it and for the next ones is undone."""
    for place, plan in enumerate(plans):
        try:
            plan.baseline.approve(plan.changed, approver, now)
        except BaseException as err:
            undo([review for each in plans[place:] for review in each.reviews])
            if place and isinstance(err, PinwardenError):
                done = ", ".join(each.baseline.place for each in plans[:place])
                raise PinwardenError(err.code, f"{err.message}; already written: {done}", hint=err.hint) from err
            raise


def _wait_again(state: GatewayState, reviews: Sequence[Review], approver: Approver, now: str) -> None:
    _withdraw(state, reviews, approver, now)
    state.reviews.reopen(
        [replace(each, state=APPROVED, decided=now, decided_by=approver.by, why=approver.reason) for each in reviews]
    )


def _withdraw(state: GatewayState, reviews: Sequence[Review], approver: Approver, now: str) -> None:
    """Let no gateway take these definitions from the database any more."""
    content = [(each.server, each.entity, each.item, each.digest) for each in reviews]
    state.approvals.withdraw(content, by=approver.by, why=approver.reason, now=now)


def _with_places(report: Report, plans: Sequence[_Plan], notes: tuple[str, ...]) -> Report:
    written = {plan.baseline.place: plan.baseline.kind for plan in plans if plan.changed}
    return replace(
        report,
        notes=(*(f"written to {place}" for place in written), *notes),
        facts={**report.facts, "written": [{"kind": kind, "place": place} for place, kind in written.items()]},
    )


def reopen_reviews(state: GatewayState, project: Project, names: Sequence[str], approver: Approver, now: str) -> Report:
    """Take back what was decided under these names: it waits again, and what was approved is withheld again.

    In the place of an approved definition comes the one that was approved before, or nothing if there was none.
    """
    with state.approving():
        reviews = [_decided_about(state.reviews.named(name)) for name in dict.fromkeys(names)]
        approved = [review for review in reviews if review.state == APPROVED]
        plans = _planned(state, project, approved, partial(_taken_back, state), _approved_before)
        _write_down(state, reviews, approver, HELD)
        _withdraw(state, reviews, approver, now)
        state.reviews.reopen(reviews)
        for plan in plans:
            plan.baseline.approve(plan.changed, approver, now)
    waiting = [replace(review, state=WAITING, decided="", decided_by="", why="") for review in reviews]
    report = Report(
        command="review reopen",
        subject=", ".join(dict.fromkeys(review.server for review in reviews)),
        summary=f"{plural(len(reviews), 'decision')} taken back by {approver.by}",
        exit_code=EXIT_CLEAN,
        facts={"reviews": [review_facts(review) for review in waiting], "by": approver.by, "why": approver.reason},
    )
    return _with_places(report, plans, (_WITHHELD_AGAIN,))


def _decided_about(review: Review) -> Review:
    if review.state not in (APPROVED, REJECTED) or with_name(review).name != review.name:
        raise PinwardenError("REVIEW_STALE", f"nobody decided about {review.name}: it is {review.state}")
    return review


def _taken_back(state: GatewayState, reviews: Sequence[Review], approved: Mapping[str, Surface]) -> dict[str, Surface]:
    """The approved surfaces without what these reviews approved; those that have it no more stay as they are."""
    changed: dict[str, Surface] = {}
    for review in reviews:
        before = _before(state, review)
        for key, surface in approved.items():
            if review.digest in approved_digests(review, surface):
                here = changed.get(key, surface)
                changed[key] = with_definitions(here, [before]) if before is not None else _without(here, review)
    return changed


def _before(state: GatewayState, review: Review) -> Review | None:
    """The review with the definition that was approved before; None if there was none of that name."""
    if not review.expected:
        return None
    for digest in review.expected.split() if " " not in review.expected else ():
        text = state.observed.definition(review.server, review.entity, review.item, digest)
        if text is not None:
            return replace(review, definition=text)
    raise PinwardenError(
        "REVIEW_STALE",
        f"what was approved before {review.name} is not known here any more",
        hint="Take the lock and the approved texts beside it back from version control, or approve what the server "
        "serves now with pinwarden approve.",
    )


def _without(approved: Surface, review: Review) -> Surface:
    if review.entity == SERVER_ITEM:
        return replace(
            approved, server={name: said for name, said in (approved.server or {}).items() if name != review.item}
        )
    kind = KIND_OF[review.entity]
    left = tuple(each for each in approved.items_of_kind(kind) if storable_name(each.key) != review.item)
    return replace(approved, items={**approved.items, kind.member: left})


def has_reason(approver: Approver) -> bool:
    """Whether the approver said why."""
    return approver.why.strip() not in ("", UNSAID)


def _offered(approver: Approver, server: str, seen: Surface, approved: Surface) -> ApprovalCandidate:
    return scan_candidate(server, seen, (approved,), warnings_approved=approver.approves_warnings)


def _approved_before(server: str, seen: Surface, _: Surface) -> ApprovalCandidate:
    """A text that comes back was approved before, whatever the scan says of it."""
    return ApprovalCandidate(server=server, surface=seen)


def _refuse_open_warnings(plans: Sequence[_Plan]) -> None:
    for plan in plans:
        for offered in plan.changed.values():
            if offered.blocked:
                names = " ".join(review.name for review in plan.reviews[:_NAMED])
                hint = f"pinwarden review show {plan.reviews[0].name} shows it; to approve it with the warnings:"
                raise warnings_not_approved(
                    offered, f"{hint} pinwarden review approve {names} {APPROVE_WARNINGS_OPTION}"
                )


_NAMED = 10  # names of reviews in a hint


def _refuse_without_reason(reviews: Sequence[Review], approver: Approver) -> None:
    critical = [review.name for review in reviews if review.level == CRITICAL]
    if critical and not has_reason(approver):
        raise PinwardenError(
            "USAGE",
            f"{critical[0]} is a critical change, which nobody approves without a reason",
            hint="Say it: --why TEXT",
        )


UNSAID = "reviewed"
"""The reason of who gives none."""


def reject_reviews(state: GatewayState, names: Sequence[str], approver: Approver, now: str) -> Report:
    """Reject what waits under these names: it stays withheld, and nobody is asked again about the same content."""
    reviews = [_waiting(state.reviews.named(name)) for name in dict.fromkeys(names)]
    _write_down(state, reviews, approver, REJECTED)
    _withdraw(state, reviews, approver, now)
    state.reviews.decide(reviews, REJECTED, by=approver.by, why=approver.reason, now=now)
    return replace(_decided("review reject", reviews, REJECTED, approver, now), notes=(_STAYS_WITHHELD,))


_LOCK_FOLLOWS = "running gateways with this lock let exactly this through from now on, without a restart"
_ALL_FOLLOW = "running gateways of this database let exactly this through from now on, without a restart"
_WITHHELD_AGAIN = "it is withheld from now on, and waits for a decision as soon as the server serves it"
_STAYS_WITHHELD = "it stays withheld, and nobody is asked again about the same content"


def review_facts(review: Review) -> dict[str, Any]:
    """A review as JSON, without its definition."""
    facts = as_dict(review)
    del facts["definition"]
    return {**facts, "expected": review.expected.split(), "digest": review.digest or None}


def _place(review: Review) -> tuple[str, str]:
    return review.server, review.baseline


def _waiting(review: Review) -> Review:
    if review.state != WAITING:
        raise PinwardenError(
            "REVIEW_STALE",
            f"{review.name} does not wait any more: it is {review.state}",
            hint=f"To take that decision back: pinwarden review reopen {review.name}"
            if review.state in (APPROVED, REJECTED)
            else "The server serves something else now: pinwarden review list shows what waits.",
        )
    return review


def _can_be_approved(review: Review) -> bool:
    return bool(review.digest) and review.code != "duplicate_name"


def _intact(review: Review) -> Review:
    """The review, if it waits and is what its name says. Who can write to the store could have put anything there."""
    _waiting(review)
    if not _can_be_approved(review):
        why = "two items have this name" if review.digest else "it has no digest"
        raise PinwardenError("SURFACE_INVALID", f"{review.name} cannot be approved: {why}")
    if not is_intact(review) or with_name(review).name != review.name:
        raise PinwardenError("REVIEW_STALE", f"{review.name} is not what was shown under that name")
    return review


def _changed(reviews: Sequence[Review], approved: Mapping[str, Surface]) -> dict[str, Surface]:
    """The approved surfaces that these reviews are about, with what they approve."""
    changed: dict[str, Surface] = {}
    for review in reviews:
        fitting = _fitting(review, approved)
        if not fitting:
            raise PinwardenError(
                "REVIEW_STALE", f"{review.name}: another definition was approved since the server served this one"
            )
        for key in fitting:
            changed[key] = with_definitions(changed.get(key, approved[key]), [review])
    return changed


def _fitting(review: Review, approved: Mapping[str, Surface]) -> list[str]:
    """The approved surfaces that the difference was judged against, or that hold already what is to be approved."""
    return [key for key, surface in approved.items() if fits(review, surface)]


def _write_down(state: GatewayState, reviews: Sequence[Review], approver: Approver, kind: str) -> None:
    """Into the audit log first: a decision may be there that came to nothing, but never an effect without one."""
    with state.audit_log() as log:
        log.record_durably(*(review_event(review, kind, approver.reason, approver.by) for review in reviews))
        if log.problem is not None:
            raise log.problem


def _decided(command: str, reviews: Sequence[Review], state: str, approver: Approver, now: str) -> Report:
    decided = [
        replace(review, state=state, decided=now, decided_by=approver.by, why=approver.reason) for review in reviews
    ]
    return Report(
        command=command,
        subject=", ".join(dict.fromkeys(review.server for review in reviews)),
        summary=f"{plural(len(reviews), 'change')} {state} by {approver.by}",
        exit_code=EXIT_CLEAN,
        facts={
            "reviews": [review_facts(review) for review in decided],
            "by": approver.by,
            "why": approver.reason,
        },
    )
