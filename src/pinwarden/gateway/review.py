"""Reviews of changes that the gateway blocked: show the difference, then approve or reject exactly that change."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.core import strict_json
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record, as_dict, replace
from pinwarden.core.report import Report, Row
from pinwarden.core.text import plural
from pinwarden.gateway.approved_items import (
    KIND_BY_ENTITY,
    add_definitions,
    can_be_added,
    find_approved_digests,
    find_approved_value,
    is_approved,
    is_intact,
)
from pinwarden.gateway.audit.event import APPROVED, FIRST_APPROVED, HELD, REJECTED, SERVER_ITEM
from pinwarden.gateway.baselines import PUBLISHED, Baseline, OpenBaseline, open_baseline
from pinwarden.gateway.four_eyes import begin_or_second, join_approvals, make_four_eyes_check
from pinwarden.gateway.store.approvals import StoredApproval
from pinwarden.gateway.store.reviews import (
    PENDING,
    STATES,
    FirstApproval,
    Review,
    ReviewDecision,
    assign_name,
    build_review_event,
    make_storable_name,
)
from pinwarden.lock import lock_store
from pinwarden.project.approval_candidate import (
    APPROVE_WARNINGS_OPTION,
    ApprovalCandidate,
    scan_for_approval,
    warnings_not_approved_error,
)
from pinwarden.project.lock import Approver
from pinwarden.project.surface_reports import compare_surfaces
from pinwarden.surface.drift.changes import CRITICAL
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.surface import Surface

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project
    from pinwarden.surface.drift.changes import Change


def list_reviews(
    state: GatewayState, *, include_decided: bool = False, server: str | None = None, levels: Collection[str] = ()
) -> Report:
    """Return the report of ``pinwarden review list``."""
    unapplied = _find_unapplied(state)
    reviews = [
        review
        for review in state.reviews.select(STATES)
        if (
            include_decided
            or review.state == PENDING
            or (review.state == APPROVED and _get_content_key(review) in unapplied)
        )
        and server in (None, review.server)
        and (not levels or review.level in levels)
    ]
    pending = sum(review.state == PENDING for review in reviews)
    first = state.reviews.list_first_approvals()
    return Report(
        command="review list",
        subject=server or "all servers",
        summary=f"{plural(pending, 'change')} pending review" if pending else "no changes pending review",
        exit_code=EXIT_CLEAN,
        next_command="pinwarden review" if pending else None,
        facts={
            "reviews": [
                {**review_to_json(review, first.get(review.name)), **_build_unapplied_members(review, unapplied)}
                for review in reviews
            ]
        },
        notes=tuple(
            f"{review.name} is approved, but the gateway of {place} does not apply it yet"
            for review in reviews
            for place in _build_unapplied_members(review, unapplied).get("not_followed_by", ())
        ),
    )


_ContentKey = tuple[str, str, str, str]


def _get_content_key(decision: Review | StoredApproval) -> _ContentKey:
    return decision.server, decision.entity, decision.item, decision.digest


def _find_unapplied(state: GatewayState) -> dict[_ContentKey, list[str]]:
    """Return where approvals are not applied: running gateways with a server of the same name, by definition."""
    places: dict[_ContentKey, list[str]] = {}
    for approval, followers in state.approvals.find_unapplied(int(time.time())).items():
        places.setdefault(_get_content_key(approval), []).extend(follower.place for follower in followers)
    return places


def _build_unapplied_members(review: Review, unapplied: Mapping[_ContentKey, Sequence[str]]) -> dict[str, Any]:
    places = unapplied.get(_get_content_key(review), ()) if review.state == APPROVED else ()
    return {"not_followed_by": sorted(set(places))} if places else {}


class ShownReview(Record):
    """What a person sees of a review."""

    report: Report
    """The report of ``pinwarden review show`` about the changes that approving it would cause."""
    approved: Any
    """The definition that is approved now; None if the item is new."""


def show_review(state: GatewayState, project: Project, name: str) -> Report:
    """Return the report of ``pinwarden review show`` about a review, by its name or the beginning of its name."""
    review = state.reviews.find(name)
    report = _show_review(review, open_baseline(state, project, review.server, review.baseline)).report
    first = state.reviews.list_first_approvals().get(review.name)
    return replace(report, facts={**report.facts, "review": review_to_json(review, first)})


def show_reviews(
    state: GatewayState, project: Project, reviews: Sequence[Review]
) -> list[tuple[Review, ShownReview | PinwardenError]]:
    """Show several reviews. Each lock is read once. If a review cannot be compared, there is the error instead."""
    baselines: dict[tuple[str, str], OpenBaseline | PinwardenError] = {}
    shown: list[tuple[Review, ShownReview | PinwardenError]] = []
    for review in reviews:
        key = _get_baseline_key(review)
        try:
            if key not in baselines:
                baselines[key] = open_baseline(state, project, review.server, review.baseline)
            baseline = baselines[key]
            shown.append((review, baseline if isinstance(baseline, PinwardenError) else _show_review(review, baseline)))
        except PinwardenError as err:
            baselines.setdefault(key, err)
            shown.append((review, err))
    return shown


def _show_review(review: Review, baseline: OpenBaseline) -> ShownReview:
    key = next(iter(_find_matching_surfaces(review, baseline.surfaces) or baseline.surfaces))
    approved = baseline.surfaces[key]
    return ShownReview(
        report=build_review_report(review, approved, baseline.place), approved=find_approved_value(review, approved)
    )


def find_pending_reviews(state: GatewayState, server: str, lock: Path | None) -> tuple[Review, ...]:
    """Return the changes of a server that a gateway blocked and that can be approved.

    With ``lock``, only changes of the server in that lock; otherwise changes of every server of that name.
    """
    name, baseline = make_storable_name(server), None if lock is None else str(Baseline.of_lock(lock))
    return tuple(
        review
        for review in state.reviews.select((PENDING,))
        if review.server == name and baseline in (None, review.baseline) and _can_be_approved(review)
    )


def compare_reviews(
    state: GatewayState, project: Project, reviews: Sequence[Review]
) -> tuple[tuple[Change, ...], tuple[Row, ...]]:
    """Return the changes and scan warnings that approving these reviews of one server and baseline would cause."""
    baseline = open_baseline(state, project, reviews[0].server, reviews[0].baseline)
    changes: dict[str, Change] = {}
    warnings: dict[Row, None] = {}
    for approved in baseline.surfaces.values():
        served = add_definitions(approved, [review for review in reviews if can_be_added(review, approved)])
        changes |= {repr(change): change for change in compare(approved, served)}
        warnings |= dict.fromkeys(scan_for_approval(reviews[0].server, served, (approved,)).warnings)
    return tuple(changes.values()), tuple(warnings)


def settle_reviews(state: GatewayState, project: Project, server: str, approver: Approver, now: str) -> int:
    """Approve pending reviews whose definition the lock already approves. Returns their number.

    Approving a whole surface in the lock also approves definitions that a gateway blocked. This function records these
    approvals in the audit log, and shares them with other gateways.
    """
    pending = find_pending_reviews(state, server, project.lock)
    if not pending:
        return 0
    surfaces = open_baseline(state, project, pending[0].server, pending[0].baseline).surfaces.values()
    needs_two = make_four_eyes_check(project)  # what one person wrote into a lock is not shared with other gateways
    covered = [
        review.name
        for review in pending
        if not needs_two(review) and any(is_approved(review, surface) for surface in surfaces)
    ]
    if covered:
        approve_reviews(state, project, covered, replace(approver, why=approver.reason, approves_warnings=True), now)
    return len(covered)


def build_review_report(review: Review, approved: Surface, place: str) -> Report:
    """Report how approving a review would change the approved surface, and where the approval would be stored."""
    facts = {
        "review": review_to_json(review),
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
            message="It cannot be approved, because it has no unambiguous digest.",
        )
        report = Report(command="review show", subject=subject, summary="", exit_code=EXIT_CLEAN, facts={}, rows=(row,))
        changes: list[Any] = []
    else:
        served = add_definitions(approved, [review])
        report = compare_surfaces(approved, served, subject, whole=True)
        changes = report.facts["changes"]
        report = replace(report, rows=(*report.rows, *scan_for_approval(review.server, served, (approved,)).warnings))
    return replace(
        report,
        command="review show",
        summary=f"{review.name}: {review.state}{_describe_decision(review)}",
        exit_code=EXIT_CLEAN,
        facts={**facts, "changes": changes},
    )


def _describe_decision(review: Review) -> str:
    return f" by {review.decided_by} at {review.decided}: {review.why}" if review.decided_by else ""


def approve_reviews(
    state: GatewayState, project: Project, names: Sequence[str], approver: Approver, now: str
) -> Report:
    """Approve the pending changes with these names. If one of them cannot be approved, approves none.

    1. Find the reviews. Each must be pending and match its name.
    2. Compute the new surface of each server, and check that it can be written.
    3. Record the approval in the audit log.
    4. Mark the reviews as approved, if they are still pending.
    If the policy demands two people (`four_eyes.py`), the first approval is recorded and stored, and steps 3 to 5 wait
    for the second one.
    5. Share the approvals of locks with other gateways, and write the locks and the store. If one cannot be written,
       the others are restored, and all reviews are pending again.
    """
    for name in names:
        state.reviews.get(name)  # fail before the state folder is created
    with state.exclude_other_approvals():
        reviews = [_check_approvable(state.reviews.get(name)) for name in dict.fromkeys(names)]
        _refuse_without_reason(reviews, approver)
        plans = _plan_changes(state, project, reviews, _add_approved, partial(_build_candidate, approver))
        _refuse_open_warnings(plans)
        four_eyes = begin_or_second(state, project, reviews, approver)
        if four_eyes.is_needed and four_eyes.first is None:
            return _record_first_approval(state, reviews[0], approver, now)
        if four_eyes.first is not None:
            approver = join_approvals(four_eyes.first, approver)
        _record_decision(state, reviews, approver, APPROVED)
        decision = ReviewDecision(state=APPROVED, by=approver.by, why=approver.reason, now=now, first=four_eyes.first)
        state.reviews.decide(reviews, decision)
        shared = [approval for plan in plans for approval in _build_shared_approvals(state, plan, approver, now)]
        state.approvals.record(shared)
        _write_plans(plans, approver, now, undo=lambda failed: _undo_approval(state, failed, approver, now))
    report = _build_decision_report("review approve", reviews, APPROVED, approver, now)
    return _add_written_places(report, plans, _build_follower_notes(state, plans, shared))


def _record_first_approval(state: GatewayState, review: Review, approver: Approver, now: str) -> Report:
    """Record the first of two approvals. The change stays pending, and blocked."""
    _record_decision(state, [review], approver, FIRST_APPROVED)
    first = FirstApproval(
        name=review.name, identity=approver.identity, approved_by=approver.by, why=approver.reason, approved=now
    )
    state.reviews.record_first_approval(review, first)
    return Report(
        command="review approve",
        subject=review.server,
        summary=f"1 of 2 approvals, by {approver.by}",
        exit_code=EXIT_CLEAN,
        facts={"reviews": [review_to_json(review, first)], "by": approver.by, "why": approver.reason, "written": []},
        notes=("it stays blocked until another person approves it too",),
    )


def _build_shared_approvals(state: GatewayState, plan: _Plan, approver: Approver, now: str) -> list[StoredApproval]:
    """Return the approvals for other gateways with the same database. Approvals of first-use servers are not shared."""
    place = plan.baseline.find_location(state)
    if place is None:
        return []
    identities = dict.fromkeys(plan.baseline.identities[key] for key in plan.changed)
    return [
        StoredApproval(
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


def _build_follower_notes(
    state: GatewayState, plans: Sequence[_Plan], shared: Sequence[StoredApproval]
) -> tuple[str, ...]:
    """Return notes about which running gateways apply the approval."""
    if not shared:
        return (_TAKES_EFFECT_WITH_DATABASE,)
    own = {plan.baseline.find_location(state) for plan in plans}
    identities = {(approval.server, approval.identity) for approval in shared}
    servers = {review.server for plan in plans for review in plan.reviews}
    others = [follower for follower in state.approvals.list_followers(int(time.time())) if follower.place not in own]
    following = sorted({other.place for other in others if (other.server, other.identity) in identities})
    not_following = sorted({other.place for other in others if other.server in servers} - set(following))
    notes = [_TAKES_EFFECT_WITH_LOCK] if any(plan.baseline.kind == "lock" for plan in plans) else []
    if following:
        verb = "applies" if len(following) == 1 else "apply"
        gateways = f"{plural(len(following), 'other gateway')} with the database {state.display_name}"
        notes.append(f"{gateways} {verb} it within seconds; pinwarden review list shows it until then")
        notes += [f"{place} applies it" for place in following[:_MAX_PLACES]]
    else:
        notes.append(f"no other running gateway with the database {state.display_name} has this server")
    for place in not_following[:_MAX_PLACES]:
        notes.append(
            f"{place} does not apply it, because it has another server of this name or runs with --approvals lock"
        )
    return tuple(notes)


_MAX_PLACES = 5  # gateways that a report names


class _Plan(Record):
    """The new approved surfaces of one server, and the reviews that change them."""

    reviews: tuple[Review, ...]
    baseline: OpenBaseline
    changed: Mapping[str, ApprovalCandidate]


def _plan_changes(
    state: GatewayState,
    project: Project,
    reviews: Sequence[Review],
    change: Callable[[Sequence[Review], Mapping[str, Surface]], dict[str, Surface]],
    make_candidate: Callable[[str, Surface, Surface], ApprovalCandidate],
) -> list[_Plan]:
    plans: list[_Plan] = []
    for (server, name), group in groupby(sorted(reviews, key=_get_baseline_key), key=_get_baseline_key):
        same_baseline = tuple(group)
        baseline = open_baseline(state, project, server, name)
        changed = change(same_baseline, baseline.surfaces)
        candidates = {key: make_candidate(server, surface, baseline.surfaces[key]) for key, surface in changed.items()}
        plans.append(_Plan(reviews=same_baseline, baseline=baseline, changed=candidates))
    for plan in plans:
        plan.baseline.refuse_unwritable()
    return plans


def _write_plans(
    plans: Sequence[_Plan], approver: Approver, now: str, undo: Callable[[Sequence[Review]], None]
) -> None:
    """Write all plans. If one fails, restore what the others wrote, and undo all decisions."""
    try:
        with ExitStack() as written:
            for lock, keys in _list_changed_entries(plans).items():
                written.enter_context(lock_store.restore_on_error(lock, keys))
            for plan in plans:
                written.enter_context(plan.baseline.restore_on_error())
                plan.baseline.approve(plan.changed, approver, now)
    except BaseException:
        undo([review for plan in plans for review in plan.reviews])
        raise


def _list_changed_entries(plans: Sequence[_Plan]) -> dict[Path, list[str]]:
    """Return the entries that the plans change, by lock. Several plans may change one lock."""
    changed: dict[Path, list[str]] = {}
    for plan in plans:
        if plan.baseline.lock is not None:
            changed.setdefault(plan.baseline.lock, []).extend(plan.changed)
    return changed


def _undo_approval(state: GatewayState, reviews: Sequence[Review], approver: Approver, now: str) -> None:
    _withdraw_approvals(state, reviews, approver, now)
    state.reviews.reopen([_set_decision(review, APPROVED, approver, now) for review in reviews])


def _withdraw_approvals(state: GatewayState, reviews: Sequence[Review], approver: Approver, now: str) -> None:
    """Stop gateways from applying approvals of these definitions."""
    state.approvals.withdraw(
        [_get_content_key(review) for review in reviews], by=approver.by, why=approver.reason, now=now
    )


def _add_written_places(report: Report, plans: Sequence[_Plan], notes: tuple[str, ...]) -> Report:
    written = {plan.baseline.place: plan.baseline.kind for plan in plans if plan.changed}
    return replace(
        report,
        notes=(*(f"written to {place}" for place in written), *notes),
        facts={**report.facts, "written": [{"kind": kind, "place": place} for place, kind in written.items()]},
    )


def reopen_reviews(state: GatewayState, project: Project, names: Sequence[str], approver: Approver, now: str) -> Report:
    """Undo the decisions about the reviews with these names. The changes are blocked and pending review again.

    The previously approved definition is approved again, if there was one and that does not need two people.
    """
    with state.exclude_other_approvals():
        reviews = [_check_decided(state.reviews.get(name)) for name in dict.fromkeys(names)]
        approved = [
            review
            for review in reviews
            # With a published lock, withdrawing the shared approval is all there is to undo.
            if review.state == APPROVED and Baseline.parse(review.baseline).kind != PUBLISHED
        ]
        restore = partial(_remove_approved, state, make_four_eyes_check(project))
        plans = _plan_changes(state, project, approved, restore, _build_restored_candidate)
        _record_decision(state, reviews, approver, HELD)
        _withdraw_approvals(state, reviews, approver, now)
        state.reviews.reopen(reviews)
        _write_plans(plans, approver, now, undo=lambda _: None)  # the reviews stay pending, so nothing passes
    pending = [replace(review, state=PENDING, decided="", decided_by="", why="") for review in reviews]
    report = Report(
        command="review reopen",
        subject=", ".join(dict.fromkeys(review.server for review in reviews)),
        summary=f"{plural(len(reviews), 'decision')} undone by {approver.by}",
        exit_code=EXIT_CLEAN,
        facts={"reviews": [review_to_json(review) for review in pending], "by": approver.by, "why": approver.reason},
    )
    return _add_written_places(report, plans, (_BLOCKED_AGAIN,))


def _check_decided(review: Review) -> Review:
    if review.state not in (APPROVED, REJECTED) or assign_name(review).name != review.name:
        raise PinwardenError("REVIEW_STALE", f"there is no decision about {review.name} to undo: it is {review.state}")
    return review


def _remove_approved(
    state: GatewayState,
    needs_two: Callable[[Review], bool],
    reviews: Sequence[Review],
    approved: Mapping[str, Surface],
) -> dict[str, Surface]:
    """Return the approved surfaces that these reviews changed, with the previous definitions restored.

    One person must not approve with an undo what needs two people: such a previous definition is removed too.
    """
    changed: dict[str, Surface] = {}
    for review in reviews:
        previous = _find_previous(state, review)
        for key, surface in approved.items():
            if review.digest in find_approved_digests(review, surface):
                current = changed.get(key, surface)
                restored = current if previous is None else add_definitions(current, [previous])
                levels = {change.severity for change in compare(current, restored)}
                is_refused = any(needs_two(replace(review, level=level)) for level in levels)
                changed[key] = _remove_definition(current, review) if previous is None or is_refused else restored
    return changed


def _find_previous(state: GatewayState, review: Review) -> Review | None:
    """Return a copy of the review that has the previously approved definition; None if the item was new."""
    if not review.expected:
        return None
    for digest in review.expected.split() if " " not in review.expected else ():
        text = state.observed_definitions.find_definition(review.server, review.entity, review.item, digest)
        if text is not None:
            return replace(review, definition=text)
    raise PinwardenError(
        "REVIEW_STALE",
        f"the definition that was approved before {review.name} is not stored here",
        hint="Restore the lock and the folder of approved surfaces from version control, or approve what the server "
        "serves now with pinwarden approve.",
    )


def _remove_definition(approved: Surface, review: Review) -> Surface:
    if review.entity == SERVER_ITEM:
        return replace(
            approved, server={name: value for name, value in (approved.server or {}).items() if name != review.item}
        )
    kind = KIND_BY_ENTITY[review.entity]
    others = tuple(item for item in approved.items_of_kind(kind) if make_storable_name(item.key) != review.item)
    return replace(approved, items={**approved.items, kind.member: others})


def has_reason(approver: Approver) -> bool:
    """Whether the approver gave a reason."""
    return approver.why.strip() not in ("", DEFAULT_REASON)


def _build_candidate(approver: Approver, server: str, served: Surface, approved: Surface) -> ApprovalCandidate:
    return scan_for_approval(server, served, (approved,), warnings_approved=approver.approves_warnings)


def _build_restored_candidate(server: str, served: Surface, _: Surface) -> ApprovalCandidate:
    """Return a candidate without a scan, because its definitions were approved before."""
    return ApprovalCandidate(server=server, surface=served)


def _refuse_open_warnings(plans: Sequence[_Plan]) -> None:
    for plan in plans:
        for candidate in plan.changed.values():
            if candidate.is_blocked:
                names = " ".join(review.name for review in plan.reviews[:_MAX_NAMES])
                hint = f"See pinwarden review show {plan.reviews[0].name}. To approve with the warnings:"
                raise warnings_not_approved_error(
                    candidate, f"{hint} pinwarden review approve {names} {APPROVE_WARNINGS_OPTION}"
                )


_MAX_NAMES = 10  # reviews that a hint names


def _refuse_without_reason(reviews: Sequence[Review], approver: Approver) -> None:
    critical = [review.name for review in reviews if review.level == CRITICAL]
    if critical and not has_reason(approver):
        raise PinwardenError(
            "USAGE",
            f"{critical[0]} is a critical change; approving it needs a reason",
            hint="Give the reason with --why TEXT.",
        )


DEFAULT_REASON = "reviewed"
"""The recorded reason if the approver gives none."""


def reject_reviews(state: GatewayState, names: Sequence[str], approver: Approver, now: str) -> Report:
    """Reject the pending changes with these names. Rejected changes stay blocked and are not reviewed again."""
    reviews = [_check_pending(state.reviews.get(name)) for name in dict.fromkeys(names)]
    _record_decision(state, reviews, approver, REJECTED)
    _withdraw_approvals(state, reviews, approver, now)
    state.reviews.decide(reviews, ReviewDecision(state=REJECTED, by=approver.by, why=approver.reason, now=now))
    return replace(_build_decision_report("review reject", reviews, REJECTED, approver, now), notes=(_STAYS_BLOCKED,))


_TAKES_EFFECT_WITH_LOCK = "running gateways with this lock allow exactly this definition from now on, without a restart"
_TAKES_EFFECT_WITH_DATABASE = (
    "running gateways with this database allow exactly this definition from now on, without a restart"
)
_BLOCKED_AGAIN = "it is blocked from now on, and pending review again when the server serves it"
_STAYS_BLOCKED = "it stays blocked, and the same content will not be pending review again"


def review_to_json(review: Review, first: FirstApproval | None = None) -> dict[str, Any]:
    """Return a review as JSON, without its definition. ``first`` is the first of two approvals, if there is one."""
    facts = as_dict(review)
    del facts["definition"]
    facts |= {"expected": review.expected.split(), "digest": review.digest or None}
    if first is not None and review.state == PENDING:
        facts["first_approval"] = {"by": first.approved_by, "why": first.why, "approved": first.approved}
    return facts


def _get_baseline_key(review: Review) -> tuple[str, str]:
    return review.server, review.baseline


def _check_pending(review: Review) -> Review:
    if review.state != PENDING:
        raise PinwardenError(
            "REVIEW_STALE",
            f"{review.name} is no longer pending: it is {review.state}",
            hint=f"To undo that decision: pinwarden review reopen {review.name}"
            if review.state in (APPROVED, REJECTED)
            else "The server serves another definition now. See pinwarden review list.",
        )
    return review


def _can_be_approved(review: Review) -> bool:
    return bool(review.digest) and review.code != "duplicate_name"


def _check_approvable(review: Review) -> Review:
    """Return the review. Raises unless it is pending, has a digest, and matches its name, which is a digest too."""
    _check_pending(review)
    if not _can_be_approved(review):
        why = "two items have this name" if review.digest else "it has no digest"
        raise PinwardenError("SURFACE_INVALID", f"{review.name} cannot be approved: {why}")
    if not is_intact(review) or assign_name(review).name != review.name:
        raise PinwardenError("REVIEW_STALE", f"the content of {review.name} does not match its name")
    return review


def _add_approved(reviews: Sequence[Review], approved: Mapping[str, Surface]) -> dict[str, Surface]:
    """Return the approved surfaces that these reviews change, with the reviewed definitions."""
    changed: dict[str, Surface] = {}
    for review in reviews:
        fitting = _find_matching_surfaces(review, approved)
        if not fitting:
            raise PinwardenError(
                "REVIEW_STALE",
                f"{review.name} is outdated: another definition was approved since the server served this one",
            )
        for key in fitting:
            changed[key] = add_definitions(changed.get(key, approved[key]), [review])
    return changed


def _find_matching_surfaces(review: Review, approved: Mapping[str, Surface]) -> list[str]:
    """Return the keys of the approved surfaces to which the reviewed definition can be added."""
    return [key for key, surface in approved.items() if can_be_added(review, surface)]


def _record_decision(state: GatewayState, reviews: Sequence[Review], approver: Approver, kind: str) -> None:
    """Record decisions in the audit log before they take effect."""
    state.record_events(*(build_review_event(review, kind, approver.reason, approver.by) for review in reviews))


def _build_decision_report(command: str, reviews: Sequence[Review], state: str, approver: Approver, now: str) -> Report:
    decided = [_set_decision(review, state, approver, now) for review in reviews]
    return Report(
        command=command,
        subject=", ".join(dict.fromkeys(review.server for review in reviews)),
        summary=f"{plural(len(reviews), 'change')} {state} by {approver.by}",
        exit_code=EXIT_CLEAN,
        facts={
            "reviews": [review_to_json(review) for review in decided],
            "by": approver.by,
            "why": approver.reason,
        },
    )


def _set_decision(review: Review, state: str, approver: Approver, now: str) -> Review:
    return replace(review, state=state, decided=now, decided_by=approver.by, why=approver.reason)
