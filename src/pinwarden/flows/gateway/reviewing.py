"""Reviewing what the gateway held: see the difference, then approve exactly that, or reject it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record, as_dict, replace
from pinwarden.documents.gateway_event import APPROVED, HELD, REJECTED, SERVER_ITEM
from pinwarden.documents.surface import KINDS, Item, Surface
from pinwarden.flows.compare import compare_surfaces
from pinwarden.flows.gateway.baselines import Baseline, baseline_of
from pinwarden.flows.gateway.sightings import fact_about
from pinwarden.flows.lock.approvable import OPTION, Approvable, approvable, not_approved
from pinwarden.flows.report import Report, Row, counted
from pinwarden.rules.drift.changes import CRITICAL
from pinwarden.store.observed import kept_name
from pinwarden.store.reviews import STATES, WAITING, Review, named

if TYPE_CHECKING:
    from pinwarden.flows.gateway.state import GatewayState
    from pinwarden.flows.lock.locking import Approver
    from pinwarden.flows.project import Project

_KIND_OF = {kind.entity: kind for kind in KINDS}


def list_reviews(
    state: GatewayState, *, every: bool = False, server: str | None = None, levels: Collection[str] = ()
) -> Report:
    """The report of ``pinwarden review list``."""
    found = [
        each
        for each in state.reviews.listed(STATES if every else (WAITING,))
        if server in (None, each.server) and (not levels or each.level in levels)
    ]
    waiting = sum(each.state == WAITING for each in found)
    return Report(
        command="review list",
        subject=server or "all servers",
        summary=f"{counted(waiting, 'change')} to review" if waiting else "nothing waits for review",
        exit_code=EXIT_CLEAN,
        facts={"reviews": [review_facts(each) for each in found]},
    )


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
        "definition": strict_json.parse(review.definition.encode()),
        "approval_goes_to": place if _can_be_approved(review) else None,
    }
    subject = f"{review.server}: {review.entity} {review.item}"
    if not _can_be_approved(review):
        row = Row(
            code=review.code or "undigestable",
            level="critical",
            entity=review.entity,
            name=review.item,
            path="",
            message="It cannot be approved: nobody can say what it is.",
        )
        report = Report(command="review show", subject=subject, summary="", exit_code=EXIT_CLEAN, facts={}, rows=(row,))
        changes: list[Any] = []
    else:
        served = _with(approved, [review])
        report = compare_surfaces(approved, served, subject, whole=True)
        changes = report.facts["changes"]
        report = replace(report, rows=(*report.rows, *approvable(review.server, served, (approved,)).warnings))
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
        _carry_out(plans, approver, now, undo=lambda left: _wait_again(state, left, approver, now))
    report = _decided("review approve", reviews, APPROVED, approver, now)
    return _with_places(report, plans, (_IN_EFFECT,))


class _Plan(Record):
    """What is to be written to one place."""

    reviews: tuple[Review, ...]
    baseline: Baseline
    changed: Mapping[str, Approvable]


def _planned(
    state: GatewayState,
    project: Project,
    reviews: Sequence[Review],
    change: Callable[[Sequence[Review], Mapping[str, Surface]], dict[str, Surface]],
    offer: Callable[[str, Surface, Surface], Approvable],
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
    state.reviews.reopen(
        [replace(each, state=APPROVED, decided=now, decided_by=approver.by, why=approver.reason) for each in reviews]
    )


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
        state.reviews.reopen(reviews)
        for plan in plans:
            plan.baseline.approve(plan.changed, approver, now)
    waiting = [replace(review, state=WAITING, decided="", decided_by="", why="") for review in reviews]
    report = Report(
        command="review reopen",
        subject=", ".join(dict.fromkeys(review.server for review in reviews)),
        summary=f"{counted(len(reviews), 'decision')} taken back by {approver.by}",
        exit_code=EXIT_CLEAN,
        facts={"reviews": [review_facts(review) for review in waiting], "by": approver.by, "why": approver.reason},
    )
    return _with_places(report, plans, (_WITHHELD_AGAIN,))


def _decided_about(review: Review) -> Review:
    if review.state not in (APPROVED, REJECTED) or named(review).name != review.name:
        raise PinwardenError("REVIEW_STALE", f"nobody decided about {review.name}: it is {review.state}")
    return review


def _taken_back(state: GatewayState, reviews: Sequence[Review], approved: Mapping[str, Surface]) -> dict[str, Surface]:
    """The approved surfaces without what these reviews approved; those that have it no more stay as they are."""
    changed: dict[str, Surface] = {}
    for review in reviews:
        before = _before(state, review)
        for key, surface in approved.items():
            if review.digest in _approved_digests(review, surface):
                here = changed.get(key, surface)
                changed[key] = _with(here, [before]) if before is not None else _without(here, review)
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
    kind = _KIND_OF[review.entity]
    left = tuple(each for each in approved.list_of(kind) if kept_name(each.key) != review.item)
    return replace(approved, items={**approved.items, kind.member: left})


def has_reason(approver: Approver) -> bool:
    """Whether the approver said why."""
    return approver.why.strip() not in ("", UNSAID)


def _offered(approver: Approver, server: str, seen: Surface, approved: Surface) -> Approvable:
    return approvable(server, seen, (approved,), warnings_approved=approver.approves_warnings)


def _approved_before(server: str, seen: Surface, _: Surface) -> Approvable:
    """A text that comes back was approved before, whatever the scan says of it."""
    return Approvable(server=server, surface=seen)


def _refuse_open_warnings(plans: Sequence[_Plan]) -> None:
    for plan in plans:
        for offered in plan.changed.values():
            if offered.blocked:
                names = " ".join(review.name for review in plan.reviews[:_NAMED])
                hint = f"pinwarden review show {plan.reviews[0].name} shows it; to approve it with the warnings:"
                raise not_approved(offered, f"{hint} pinwarden review approve {names} {OPTION}")


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
    state.reviews.decide(reviews, REJECTED, by=approver.by, why=approver.reason, now=now)
    return replace(_decided("review reject", reviews, REJECTED, approver, now), notes=(_STAYS_WITHHELD,))


_IN_EFFECT = "running gateways let exactly this through from now on, without a restart"
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
    value = strict_json.parse(review.definition.encode())
    key = review.item if review.entity == SERVER_ITEM else kept_name(_key(review, value))
    if str(Digest.of(canonicalize(value))) != review.digest or named(review).name != review.name or key != review.item:
        raise PinwardenError("REVIEW_STALE", f"{review.name} is not what was shown under that name")
    return review


def _key(review: Review, value: Any) -> str:
    kind = _KIND_OF.get(review.entity)
    key = value.get(kind.key) if kind is not None and isinstance(value, dict) else None
    return key if isinstance(key, str) else ""


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
            changed[key] = _with(changed.get(key, approved[key]), [review])
    return changed


def _fitting(review: Review, approved: Mapping[str, Surface]) -> list[str]:
    """The approved surfaces that the difference was judged against, or that hold already what is to be approved."""
    expected = set(review.expected.split())
    found: list[str] = []
    for key, surface in approved.items():
        there = _approved_digests(review, surface)
        if review.digest in there or (there & expected if expected else not there):
            found.append(key)
    return found


def _approved_digests(review: Review, approved: Surface) -> set[str]:
    if review.entity == SERVER_ITEM:
        said = approved.server or {}
        return {str(Digest.of(canonicalize(said[review.item])))} if review.item in said else set()
    items = approved.list_of(_KIND_OF[review.entity])
    return {str(item.digest) for item in items if kept_name(item.key) == review.item}


def _with(approved: Surface, reviews: Sequence[Review]) -> Surface:
    """The approved surface with these definitions in it, each in the place of the one of its name."""
    server = approved.server
    items = dict(approved.items)
    for review in reviews:
        value = strict_json.parse(review.definition.encode())
        if review.entity == SERVER_ITEM:
            server = {**(server or {}), review.item: value}
            continue
        kind = _KIND_OF[review.entity]
        made = Item.of(kind, value)
        others = tuple(each for each in items.get(kind.member, ()) if each.key != made.key)
        items[kind.member] = (*others, made)
    return replace(approved, server=server, items=items)


def _write_down(state: GatewayState, reviews: Sequence[Review], approver: Approver, kind: str) -> None:
    """Into the audit log first: a decision may be there that came to nothing, but never an effect without one."""
    with state.audit_log() as log:
        log.record_durably(*(fact_about(review, kind, approver.reason, approver.by) for review in reviews))
        if log.problem is not None:
            raise log.problem


def _decided(command: str, reviews: Sequence[Review], state: str, approver: Approver, now: str) -> Report:
    decided = [
        replace(review, state=state, decided=now, decided_by=approver.by, why=approver.reason) for review in reviews
    ]
    return Report(
        command=command,
        subject=", ".join(dict.fromkeys(review.server for review in reviews)),
        summary=f"{counted(len(reviews), 'change')} {state} by {approver.by}",
        exit_code=EXIT_CLEAN,
        facts={
            "reviews": [review_facts(review) for review in decided],
            "by": approver.by,
            "why": approver.reason,
        },
    )
