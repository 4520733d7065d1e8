"""The pages about pending and decided changes: the queue, one change, and several changes that are decided together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.dashboard.activity import Use
from pinwarden.dashboard.shown_change import ChangeView, encode_rendered, show_change, show_changes
from pinwarden.dashboard.sources import DashboardRequest, Sources, Values, identify_server, list_remarks, read_part
from pinwarden.gateway.baselines import Baseline
from pinwarden.gateway.store.reviews import APPROVED, PENDING, REJECTED, Review
from pinwarden.html.pages import PageContent

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TOGETHER = 100
"""The most changes that are shown and decided together."""
LEVELS = ("critical", "review", "info")
_PAGE = 100  # changes on a page of the queue
_VIEWS = ("pending", "decided")


class ServerGroup(Record):
    """The changes of one server on one page."""

    server: str
    id: str
    reviews: tuple[Review, ...]


def build_queue_page(sources: Sources, request: DashboardRequest) -> PageContent:
    """Build the queue: what is pending, by server, the worst first; or what was decided, the newest first."""
    view, level, server = _read_filter(request)
    reviews = _select_view(sources, view)
    matching = _filter(reviews, request)
    number, last = read_page_number(request), max(1, -(-len(matching) // _PAGE))
    shown = matching[(number - 1) * _PAGE : number * _PAGE]
    values: Values = {
        "view": view,
        "level": level,
        "levels": LEVELS,
        "server": server,
        "server_name": next((review.server for review in matching if server), ""),
        "groups": group_by_server(shown),
        "decided": shown if view == "decided" else (),
        "remarks": list_remarks(sources),
        "total": len(matching),
        "unfiltered": len(reviews),
        "counts": count_levels(reviews),
        "page": number,
        "last": last,
    }
    return PageContent(template="queue.html", values=values)


def select_reviews(sources: Sources, request: DashboardRequest) -> list[Review]:
    """Return the changes that a query selects: pending ones, the worst first, or decided ones, the newest first."""
    return _filter(_select_view(sources, _read_filter(request)[0]), request)


def _read_filter(request: DashboardRequest) -> tuple[str, str, str]:
    """Return the view, the severity and the server that the query names."""
    view = request.query.get("view") or "pending"
    level, server = request.query.get("level", ""), request.query.get("server", "")
    if view not in _VIEWS or level not in ("", *LEVELS):
        raise PinwardenError("USAGE", "this filter does not exist", hint="Remove the filter from the address.")
    return view, level, server


def _select_view(sources: Sources, view: str) -> list[Review]:
    return sources.state.reviews.select((PENDING,) if view == "pending" else (APPROVED, REJECTED))


def _filter(reviews: list[Review], request: DashboardRequest) -> list[Review]:
    view, level, server = _read_filter(request)
    matching = [
        review
        for review in reviews
        if level in ("", get_level(review)) and server in ("", identify_server(review.server))
    ]
    return sorted(matching, key=_sort_pending if view == "pending" else _sort_decided)


def build_review_page(
    sources: Sources, request: DashboardRequest, name: str, *, problem: PinwardenError | None = None
) -> PageContent:
    """Build the page of one change. ``problem`` is why a decision about it failed; the reason is kept."""
    review = sources.state.reviews.get(name)
    change = show_change(sources, review)
    pending = sources.state.reviews.select((PENDING,))
    others = sorted((other for other in pending if other.name != name), key=_sort_pending)
    history = sources.state.reviews.select_item(review.server, review.entity, review.item)
    values: Values = {
        "change": change,
        "review": review,
        "encoded": encode_rendered(change),
        "obstacle": _find_obstacle(change, request),
        "sides": request.query.get("show") == "sides",
        "newer": _find_newer(review, pending),
        "next": next(iter(others), None),
        "history": history,
        "comments": sources.state.reviews.list_comments(review.name),
        "places": {earlier.name: _describe_place(earlier) for earlier in history},
        "sightings": sources.state.observed_definitions.select_item(review.server, review.entity, review.item),
        "uses": read_part(lambda: _list_uses(sources, review)),
        "server_id": identify_server(review.server),
        "why": request.get("why"),
        "problem": problem,
    }
    return PageContent(template="review.html", values=values)


def build_selected_page(
    sources: Sources, request: DashboardRequest, *, problem: PinwardenError | None = None
) -> PageContent:
    """Build the page with the changes that the query names by server, or the form by name, for one decision."""
    reviews = _find_selected(sources, request)
    if not reviews:
        raise PinwardenError("USAGE", "no change is selected", hint="Go back to the queue and select changes.")
    changes = show_changes(sources, reviews[:MAX_TOGETHER])
    values: Values = {
        "changes": [(change, encode_rendered(change)) for change in changes],
        "omitted": max(0, len(reviews) - MAX_TOGETHER),
        "obstacle": find_bulk_obstacle(changes),
        "servers": list(dict.fromkeys(change.review.server for change in changes)),
        "sides": False,
        "why": request.get("why"),
        "problem": problem,
    }
    return PageContent(template="selected.html", values=values)


def _describe_place(review: Review) -> str:
    """Return where the server of a review is approved: two projects may each have a server of the same name."""
    try:
        return Baseline.parse(review.baseline).describe()
    except PinwardenError:
        return review.baseline


def _list_uses(sources: Sources, review: Review) -> list[Use] | None:
    """Return who used the item in the last days; None while the log is counted."""
    if sources.activity.read(sources.state) is None:
        return None
    return sources.activity.list_uses(review.server, review.entity, review.item)


def _find_obstacle(change: ChangeView, request: DashboardRequest) -> str:
    """Return why this person cannot approve a change; empty if the person can."""
    if not change.can_be_approved:
        return "This change cannot be approved, only rejected."
    return change.four_eyes.find_obstacle(request.session.person.identity)


def find_bulk_obstacle(changes: Sequence[ChangeView]) -> str:
    """Return why these changes cannot be approved together; empty if they can."""
    if len(changes) > 1 and any(change.level == "critical" for change in changes):
        return "A critical change is approved alone, on its own page, with a reason."
    if not all(change.can_be_approved for change in changes):
        return "One of these changes cannot be approved at all."
    if len(changes) > 1 and any(change.four_eyes.is_needed for change in changes):
        return "A change that needs two people is approved alone, on its own page."
    return ""


def _find_selected(sources: Sources, request: DashboardRequest) -> list[Review]:
    server = request.query.get("server", "")
    if server:
        pending = sources.state.reviews.select((PENDING,))
        return sorted((review for review in pending if identify_server(review.server) == server), key=_sort_pending)
    names = [text.partition(":")[0] for text in request.form.get("change", ())]
    found = [sources.state.reviews.get(name) for name in dict.fromkeys(names[: 2 * MAX_TOGETHER])]
    return [review for review in found if review.state == PENDING]


def _find_newer(review: Review, pending: Iterable[Review]) -> Review | None:
    """Return the pending change of the same item, if the review is not it."""
    for other in pending:
        same = (other.server, other.baseline, other.entity, other.item)
        if same == (review.server, review.baseline, review.entity, review.item) and other.name != review.name:
            return other
    return None


def get_level(review: Review) -> str:
    """Return the severity of a change; one without a known severity counts as critical."""
    return review.level if review.level in LEVELS else "critical"


def count_levels(reviews: Iterable[Review]) -> dict[str, int]:
    """Return how many changes there are of each severity."""
    levels = [get_level(review) for review in reviews]
    return {level: levels.count(level) for level in LEVELS}


def group_by_server(reviews: Sequence[Review]) -> list[ServerGroup]:
    """Group changes by server, in their order."""
    groups: dict[str, list[Review]] = {}
    for review in reviews:
        groups.setdefault(review.server, []).append(review)
    return [ServerGroup(server=name, id=identify_server(name), reviews=tuple(of)) for name, of in groups.items()]


def read_page_number(request: DashboardRequest) -> int:
    """Return the number of the page in the query."""
    text = request.query.get("page", "1")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 1_000_000:
        raise PinwardenError("USAGE", f"{text[:40]!a} is not the number of a page")
    return int(text)


def _sort_pending(review: Review) -> tuple[int, str, str, str, str]:
    return LEVELS.index(get_level(review)), review.opened, review.server, review.entity, review.item


def _sort_decided(review: Review) -> tuple[str, str]:
    return "".join(chr(0x10FFFF - ord(char)) for char in review.decided), review.name
