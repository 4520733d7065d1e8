"""Reviewing what the gateway held: see the difference, then approve exactly that, or reject it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import as_dict, replace
from pinwarden.documents.gateway_event import APPROVED, REJECTED, SERVER_ITEM, Fact
from pinwarden.documents.surface import KINDS, Item, Surface
from pinwarden.flows.compare import compare_surfaces
from pinwarden.flows.gateway.baselines import Baseline, baseline_of
from pinwarden.flows.report import Report, Row, counted
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
        report = compare_surfaces(approved, _with(approved, [review]), subject, whole=True)
        changes = report.facts["changes"]
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
    2. Make the new surface of each server.
    3. Write down who approves what.
    4. Write the lock or the store, then the decisions.
    """
    for name in names:
        state.reviews.named(name)  # before a place is made in which to wait for others
    with state.approving():
        return _approve(state, project, names, approver, now)


def _approve(state: GatewayState, project: Project, names: Sequence[str], approver: Approver, now: str) -> Report:
    reviews = [_intact(state.reviews.named(name)) for name in dict.fromkeys(names)]
    plans: list[tuple[list[Review], Baseline, dict[str, Surface]]] = []
    for (server, baseline), group in groupby(sorted(reviews, key=_place), key=_place):
        together = list(group)
        found = baseline_of(state, project, server, baseline)
        plans.append((together, found, _changed(together, found.surfaces)))
    _write_down(state, reviews, approver, APPROVED)
    for together, found, changed in plans:
        found.approve(changed, approver, now)
        state.reviews.decide(together, APPROVED, by=approver.by, why=approver.why, now=now)
    written = {found.place: found.kind for _, found, _ in plans}
    report = _decided("review approve", reviews, APPROVED, approver, now)
    return replace(
        report,
        notes=(*(f"written to {place}" for place in written), _IN_EFFECT),
        facts={**report.facts, "written": [{"kind": kind, "place": place} for place, kind in written.items()]},
    )


def reject_reviews(state: GatewayState, names: Sequence[str], approver: Approver, now: str) -> Report:
    """Reject what waits under these names: it stays withheld, and nobody is asked again about the same content."""
    reviews = [_waiting(state.reviews.named(name)) for name in dict.fromkeys(names)]
    _write_down(state, reviews, approver, REJECTED)
    state.reviews.decide(reviews, REJECTED, by=approver.by, why=approver.why, now=now)
    return replace(_decided("review reject", reviews, REJECTED, approver, now), notes=(_STAYS_WITHHELD,))


_IN_EFFECT = "running gateways let exactly this through from now on, without a restart"
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
            hint="pinwarden review list shows what still waits.",
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
        log.record_durably(
            *(
                Fact(
                    kind=kind,
                    server=review.server,
                    item_kind=review.entity,
                    item=review.item,
                    expected=tuple(review.expected.split()),
                    observed=review.digest,
                    level=review.level,
                    code=review.code,
                    reason=approver.why,
                    by=approver.by,
                    call=review.name,
                )
                for review in reviews
            )
        )
        if log.problem is not None:
            raise log.problem


def _decided(command: str, reviews: Sequence[Review], state: str, approver: Approver, now: str) -> Report:
    decided = [
        replace(review, state=state, decided=now, decided_by=approver.by, why=approver.why) for review in reviews
    ]
    return Report(
        command=command,
        subject=", ".join(dict.fromkeys(review.server for review in reviews)),
        summary=f"{counted(len(reviews), 'change')} {state} by {approver.by}",
        exit_code=EXIT_CLEAN,
        facts={
            "reviews": [review_facts(review) for review in decided],
            "by": approver.by,
            "why": approver.why,
        },
    )
