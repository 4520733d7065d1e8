"""The first page: what needs a decision, the state of this user's servers, and recent decisions."""

from __future__ import annotations

from pinwarden.dashboard.review_pages import count_levels, group_by_server
from pinwarden.dashboard.sources import DashboardRequest, Sources, Values, group_blocked_items, list_remarks, read_part
from pinwarden.gateway.store.reviews import APPROVED, PENDING, REJECTED, Review
from pinwarden.html.pages import PageContent
from pinwarden.project.status import ServerStatus
from pinwarden.project.status_report import report_status

_MAX_WAITING = 10
_MAX_DECISIONS = 5
_CHART_WIDTH, _CHART_HEIGHT = 560, 80
_STATES = ("pinned", "approved", "verified", "enforced")


def build_overview_page(sources: Sources, _: DashboardRequest) -> PageContent:
    """Build the first page."""
    pending = read_part(lambda: sources.state.reviews.select((PENDING,)))
    values: Values = {
        "pending": pending if pending.problem else read_part(lambda: _summarize_pending(sources, pending.value)),
        "servers": read_part(lambda: _summarize_servers(sources, pending.value or [])),
        "activity": read_part(lambda: _summarize_activity(sources)),
        "decisions": read_part(lambda: _list_decisions(sources)),
    }
    return PageContent(template="overview.html", values=values)


def _summarize_pending(sources: Sources, reviews: list[Review]) -> Values:
    ranks = {"critical": 0, "review": 1, "info": 2}
    waiting = sorted(reviews, key=lambda review: (ranks.get(review.level, 0), review.opened, review.name))
    return {
        "remarks": list_remarks(sources),
        "counts": count_levels(reviews),
        "total": len(reviews),
        "oldest": min((review.opened for review in reviews), default=None),
        "groups": group_by_server(waiting[:_MAX_WAITING]),
        "more": max(0, len(waiting) - _MAX_WAITING),
    }


def _summarize_activity(sources: Sources) -> Values | None:
    """Return charts and numbers of the last days; None while they are counted."""
    counts = sources.activity.read(sources.state)
    if counts is None:
        return None
    parts = counts.buckets
    return {
        "charts": [
            _build_chart("Refused calls", "critical", [(part.start, part.refused) for part in parts]),
            _build_chart("Changes put up for review", "review", [(part.start, part.changes) for part in parts]),
        ],
        "days": counts.list_days(),
        "is_complete": counts.is_complete,
    }


def _build_chart(title: str, level: str, values: list[tuple[str, int]]) -> Values:
    """Return the bars of a chart. A value that is not 0 is never an invisible bar."""
    highest = max((value for _, value in values), default=0)
    width = _CHART_WIDTH // max(1, len(values))
    bars = [
        {
            "x": index * width,
            "width": width - 2,
            "height": (height := max(2, _CHART_HEIGHT * value // highest) if value else 0),
            "y": _CHART_HEIGHT - height,
            "start": start,
            "value": value,
        }
        for index, (start, value) in enumerate(values)
    ]
    size = {"width": _CHART_WIDTH, "height": _CHART_HEIGHT}
    return {"title": title, "level": level, "bars": bars, "total": sum(value for _, value in values), **size}


def _summarize_servers(sources: Sources, pending: list[Review]) -> Values:
    status = report_status(sources.scopes, blocked=group_blocked_items(pending, sources.scopes))
    return {
        "states": [_count_state(state, status.servers) for state in _STATES],
        "total": len(status.servers),
        "attention": [server for server in status.servers if server.needs_attention],
        "problems": [row for row in status.report.rows if row.severity == "critical"],
        "next": status.report.next_command,
    }


def _count_state(state: str, servers: tuple[ServerStatus, ...]) -> tuple[str, int, int]:
    """Return a state, how many servers are in it, and how many could be."""
    relevant = [value for server in servers if (value := getattr(server, state)) != "n/a"]
    return state, relevant.count("yes"), len(relevant)


def _list_decisions(sources: Sources) -> list[Review]:
    decided = sources.state.reviews.select((APPROVED, REJECTED))
    return sorted(decided, key=lambda review: review.decided, reverse=True)[:_MAX_DECISIONS]
