"""From a verdict of the gateway to what the store keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.gateway.event import HELD, Fact
from pinwarden.gateway.gates.verdict import ALLOW, Verdict
from pinwarden.gateway.store.observed import Observed, Sighting, kept_name
from pinwarden.gateway.store.reviews import Review, Reviews
from pinwarden.system.clock import now
from pinwarden.system.masking import mask_item_key


class Sightings:
    """What one server was seen to serve, and which of it waits for review."""

    def __init__(
        self, server: str, baseline: str, observed: Observed, reviews: Reviews, clock: Callable[[], str] = now
    ) -> None:
        self._server = server
        self._baseline = baseline
        self._observed = observed
        self._reviews = reviews
        self._now = clock

    def keep(self, verdicts: Iterable[Verdict]) -> tuple[Fact, ...]:
        """Keep every definition, and hold those that are not what was approved: what waits for review from now on."""
        seen = tuple(verdicts)
        moment = self._now()
        held = [self._review(verdict, moment) for verdict in seen if verdict.action != ALLOW and _is_there(verdict)]
        waiting = {(review.entity, review.item) for review in held}
        passed = {(each.entity, kept_name(each.key)) for each in seen if each.action == ALLOW} - waiting
        if passed:
            self._reviews.settle(kept_name(self._server), self._baseline, passed)
        fresh = self._reviews.hold(held) if held else []
        self._observed.saw(self._sighting(verdict, moment) for verdict in seen if _is_there(verdict))
        return tuple(fact_about(review, HELD, review.reason) for review in fresh)

    def _review(self, verdict: Verdict, moment: str) -> Review:
        return Review(
            name="",
            server=kept_name(self._server),
            baseline=self._baseline,
            entity=verdict.entity,
            item=kept_name(verdict.key),
            digest=str(verdict.digest or ""),
            expected=" ".join(verdict.expected) if _is_pinned(verdict) else "",
            definition=definition_text(verdict),
            level=verdict.level,
            code=verdict.code,
            reason=kept_name(verdict.reason),
            opened=moment,
            last_seen=moment,
        )

    def _sighting(self, verdict: Verdict, moment: str) -> Sighting:
        return Sighting(
            server=kept_name(self._server),
            entity=verdict.entity,
            item=kept_name(verdict.key),
            digest=str(verdict.digest or ""),
            definition=definition_text(verdict),
            action=verdict.action,
            first_seen=moment,
            last_seen=moment,
            sessions=0 if verdict.again else 1,
        )


def fact_about(review: Review, kind: str, reason: str, by: str = "") -> Fact:
    """What happened to a change, for the log; its correlation id is the name of the review."""
    return Fact(
        kind=kind,
        server=review.server,
        call=review.name,
        item_kind=review.entity,
        item=mask_item_key(review.entity, review.item),
        expected=tuple(review.expected.split()),
        observed=review.digest,
        level=review.level,
        code=review.code,
        reason=reason,
        by=by,
    )


def _is_there(verdict: Verdict) -> bool:
    """Whether something was served. What a server no longer says of itself is a fact, but nothing to approve."""
    return verdict.value is not None or verdict.digest is not None


def _is_pinned(verdict: Verdict) -> bool:
    """Whether the lock or the store has an item of this key: a digest that only a policy allows is not kept there."""
    return not any(change.kind == "item_added" for change in verdict.changes)


def definition_text(verdict: Verdict) -> str:
    """What was served, as canonical JSON; of an undigestable thing what can be shown of it."""
    try:
        return canonicalize(verdict.value).decode()
    except PinwardenError:
        return canonicalize({"unreadable": ascii(verdict.value)[:4096]}).decode()
