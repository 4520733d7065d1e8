"""One change as a page shows it: the sentence, why it matters, the texts to compare, and the digest of all of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import dumps
from typing import TYPE_CHECKING, Any

from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.gateway.four_eyes import FourEyes, find_four_eyes
from pinwarden.gateway.review import ShownReview, review_to_json, show_reviews
from pinwarden.html.items import list_parameters
from pinwarden.surface.drift.change_words import describe_in_words
from pinwarden.surface.drift.changes import ABSENT, Change, parse_change
from pinwarden.surface.drift.summary import summarize_changes

if TYPE_CHECKING:
    from pinwarden.core.report import Row
    from pinwarden.dashboard.sources import Sources
    from pinwarden.gateway.store.reviews import Review

_MAX_CHANGES = 200
_NOT_RENDERED = ("last_seen", "state", "decided", "decided_by", "why")  # they may change while a person reads


class ShownDifference(Record):
    """One difference between the approved and the served definition."""

    level: str
    words: str
    reason: str
    path: str
    sentence: str
    """The sentence that makes the change critical; empty if it is the whole text, or if there is none."""
    texts: tuple[str, str] | None
    """Both texts to compare; None if there is none."""


class ShownDefinition(Record):
    """What a model reads of a definition."""

    title: str
    description: str
    parameters: tuple[tuple[str, str, bool, str], ...]
    """Name, type, whether it is required, and description."""


class ChangeView(Record):
    """A pending change, or a decided one, with everything that a person needs for the decision."""

    review: Review
    rendered: str
    """The digest of what the page shows. A decision names it, and is refused if it would be another one now."""
    verdict: str
    differences: tuple[ShownDifference, ...]
    omitted: int
    warnings: tuple[Row, ...]
    before: ShownDefinition | None
    after: ShownDefinition | None
    definitions: tuple[str, str]
    """The complete approved and served definitions, as indented JSON."""
    goes_to: str | None
    """Where an approval is stored; None if the change cannot be approved."""
    problem: PinwardenError | None = None
    """Why the change cannot be compared with what is approved."""
    four_eyes: FourEyes = FourEyes()

    @property
    def can_be_approved(self) -> bool:
        """Whether an approval is possible."""
        return self.goes_to is not None

    @property
    def level(self) -> str:
        """The severity; a change that cannot be compared is critical."""
        return self.review.level if self.review.level in ("critical", "review", "info") else "critical"


def show_change(sources: Sources, review: Review) -> ChangeView:
    """Compare a change with what is approved now."""
    return show_changes(sources, [review])[0]


def show_changes(sources: Sources, reviews: Sequence[Review]) -> list[ChangeView]:
    """Compare changes with what is approved now. A change that cannot be compared has a problem instead."""
    shown_reviews = show_reviews(sources.state, sources.project, reviews)
    return [
        replace(_build(review, shown), four_eyes=four_eyes)
        for (review, shown), four_eyes in zip(shown_reviews, _find_four_eyes(sources, reviews), strict=True)
    ]


def _find_four_eyes(sources: Sources, reviews: Sequence[Review]) -> list[FourEyes]:
    try:
        return find_four_eyes(sources.state, sources.project, reviews)
    except PinwardenError as err:
        return [FourEyes(is_needed=True, problem=f"The policy cannot be read: {err.message}")] * len(reviews)


def _build(review: Review, shown: ShownReview | PinwardenError) -> ChangeView:
    served = _parse(review.definition)
    if isinstance(shown, PinwardenError):
        return ChangeView(
            review=review,
            rendered=_compute_rendered_digest(review, None, [], ()),
            verdict="This change cannot be compared with what is approved.",
            differences=(),
            omitted=0,
            warnings=(),
            before=None,
            after=_describe_definition(served),
            definitions=("", _indent(served)),
            goes_to=None,
            problem=shown,
        )
    changes = [parse_change(value) for value in shown.report.facts["changes"]]
    warnings = shown.report.rows[len(changes) :]
    return ChangeView(
        review=review,
        rendered=_compute_rendered_digest(review, shown.approved, shown.report.facts["changes"], warnings),
        verdict=summarize_changes(changes) if changes else "",
        differences=tuple(
            _describe_difference(change, words)
            for change, words in zip(changes[:_MAX_CHANGES], describe_in_words(changes), strict=False)
        ),
        omitted=max(0, len(changes) - _MAX_CHANGES),
        warnings=warnings,
        before=None if shown.approved is None else _describe_definition(shown.approved),
        after=_describe_definition(served),
        definitions=("" if shown.approved is None else _indent(shown.approved), _indent(served)),
        goes_to=shown.report.facts["approval_goes_to"],
    )


def _compute_rendered_digest(
    review: Review, approved: Any, changes: Sequence[Mapping[str, Any]], warnings: Sequence[Row]
) -> str:
    facts = {name: value for name, value in review_to_json(review).items() if name not in _NOT_RENDERED}
    shown_warnings = [[row.code, row.path, row.message] for row in warnings]
    content = dumps([facts, review.definition, approved, changes, shown_warnings], sort_keys=True)
    return Digest.of_bytes(content.encode("ascii")).hex


def _parse(definition: str) -> Any:
    try:
        return strict_json.parse_json(definition.encode("utf-8", "surrogatepass"))
    except PinwardenError:
        return definition


def _describe_difference(change: Change, words: str) -> ShownDifference:
    texts = None
    if change.before is not ABSENT or change.after is not ABSENT:
        texts = _to_text(change.before), _to_text(change.after)
    return ShownDifference(
        level=change.severity,
        words=words,
        reason="" if change.reason == words else change.reason,
        path=change.path,
        sentence=change.sentence if change.sentence and change.sentence != change.after else "",
        texts=texts,
    )


def _to_text(value: Any) -> str:
    if value is ABSENT:
        return ""
    return value if isinstance(value, str) else _indent(value)


def _indent(value: Any) -> str:
    return dumps(value, indent=2, ensure_ascii=False, sort_keys=True)


def _describe_definition(value: Any) -> ShownDefinition:
    """Return what a model reads: of a tool, prompt or resource its description and parameters, else the text."""
    if not isinstance(value, dict):
        return ShownDefinition(title="", description=_to_text(value), parameters=())
    title, description = value.get("title"), value.get("description")
    return ShownDefinition(
        title=title if isinstance(title, str) else "",
        description=description if isinstance(description, str) else "",
        parameters=tuple(list_parameters(value)),
    )


def encode_rendered(change: ChangeView) -> str:
    """Return the value of a form for one change: its name and the digest of what the page shows."""
    return f"{change.review.name}:{change.rendered}"


def check_rendered(sources: Sources, pairs: Sequence[str]) -> list[ChangeView]:
    """Return the changes that a form names. Raises ``REVIEW_STALE`` if a page would show one differently now."""
    named = [pair.partition(":")[::2] for pair in dict.fromkeys(pairs)]
    shown = show_changes(sources, [sources.state.reviews.get(name) for name, _ in named])
    for change, (name, rendered) in zip(shown, named, strict=True):
        if change.rendered != rendered:
            raise PinwardenError(
                "REVIEW_STALE",
                f"{name} changed after this page was rendered",
                hint="The page shows it as it is now. Read it again, then decide.",
            )
    return shown
