"""The same as the pages, as JSON for programs: what is pending, what servers offer, and decisions.

A program signs in as a browser does, and sends the token of `get_session` with everything that changes something.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import as_dict, replace
from pinwarden.core.typed_json import JsonObject
from pinwarden.dashboard import decisions, inventory_pages
from pinwarden.dashboard.audit_pages import read_filtered_entries
from pinwarden.dashboard.openapi import build_openapi
from pinwarden.dashboard.operation_pages import list_gateways, list_settings, try_policy
from pinwarden.dashboard.review_pages import MAX_TOGETHER, count_levels, select_reviews
from pinwarden.dashboard.shown_change import ChangeView, encode_rendered, show_change
from pinwarden.dashboard.sources import DashboardRequest, Sources
from pinwarden.gateway.audit.report import entry_to_json
from pinwarden.gateway.policy_what_if import DEFAULT_DAYS, MAX_DAYS
from pinwarden.gateway.review import review_to_json
from pinwarden.gateway.store.reviews import PENDING
from pinwarden.project.project import load_policies

PREFIX = "api/"
TOKEN_HEADER = "x-csrf-token"  # noqa: S105 - the name of a header
_MAX_ENTRIES = 200
_MAX_REASON = 2000

Json = dict[str, Any]


def answer_get(sources: Sources, request: DashboardRequest) -> Json:
    """Return the JSON at a path. Raises ``PAGE_NOT_FOUND``."""
    for pattern, build in _ROUTES:
        match = pattern.fullmatch(request.path)
        if match is not None:
            return build(sources, request, *match.groups())
    raise PinwardenError("PAGE_NOT_FOUND", "there is nothing at this address", hint="See openapi.json.")


def answer_post(sources: Sources, request: DashboardRequest, body: JsonObject) -> Json:
    """Make the decision that the body of a request describes, as a form of a page does."""
    if request.path == "api/what-if":
        days = body.integer("days", maximum=MAX_DAYS) if "days" in body else DEFAULT_DAYS
        report = try_policy(sources, body.string("policy"), str(days))
        return {**report.facts, "notes": list(report.notes)}
    if request.path == "api/decisions":
        changes = body.strings("changes", max_items=MAX_TOGETHER)
        form = {"action": (body.string("action"),), "change": changes, "why": (body.string("why", default=""),)}
        act = decisions.decide
    elif request.path == "api/comments":
        form = {"review": (body.string("name"),), **{each: (body.string(each),) for each in ("kind", "content")}}
        act = decisions.comment
    elif request.path == "api/undo":
        form = {"name": body.strings("names", max_items=MAX_TOGETHER), "why": (body.string("why", default=""),)}
        act = decisions.reopen
    else:
        raise PinwardenError("PAGE_NOT_FOUND", "there is nothing at this address", hint="See openapi.json.")
    try:
        act(sources, replace(request, form=form))
    except decisions.DecisionRefused as refusal:
        raise refusal.problem from None
    return {"notes": list(request.session.take_notices())}


def get_session(_: Sources, request: DashboardRequest) -> Json:
    """Return who signed in, and the token for requests that change something."""
    person = request.session.person
    return {"name": person.name, "role": person.role, "csrf_token": request.session.csrf_token}


def _get_overview(sources: Sources, _: DashboardRequest) -> Json:
    pending = sources.state.reviews.select((PENDING,))
    return {"pending": count_levels(pending), "oldest": min((review.opened for review in pending), default=None)}


def _get_reviews(sources: Sources, request: DashboardRequest) -> Json:
    matching, first = select_reviews(sources, request), sources.state.reviews.list_first_approvals()
    return {"reviews": [review_to_json(review, first.get(review.name)) for review in matching]}


def _get_review(sources: Sources, _: DashboardRequest, name: str) -> Json:
    comments = [
        {"kind": comment.kind, "by": comment.written_by, "written": comment.written, "content": comment.content}
        for comment in sources.state.reviews.list_comments(name)
    ]
    return {**_change_to_json(show_change(sources, sources.state.reviews.get(name))), "comments": comments}


def _change_to_json(change: ChangeView) -> Json:
    return {
        "review": review_to_json(change.review, change.four_eyes.first),
        "needs_two_people": change.four_eyes.is_needed,
        "change": encode_rendered(change),
        "verdict": change.verdict,
        "differences": [
            {
                "severity": difference.level,
                "words": difference.words,
                "reason": difference.reason,
                "path": difference.path,
                "before": None if difference.texts is None else difference.texts[0],
                "after": None if difference.texts is None else difference.texts[1],
            }
            for difference in change.differences
        ],
        "warnings": [warning.message for warning in change.warnings],
        "approved": change.definitions[0] or None,
        "served": change.definitions[1],
        "approval_goes_to": change.goes_to,
        "problem": None if change.problem is None else change.problem.code,
    }


def _get_servers(sources: Sources, _: DashboardRequest) -> Json:
    return {"servers": [inventory_pages.server_to_json(server) for server in inventory_pages.list_servers(sources)]}


def _get_tools(sources: Sources, request: DashboardRequest) -> Json:
    found = inventory_pages.search_tools(sources, inventory_pages.read_words(request))
    limit = inventory_pages.MAX_TOOLS
    return {"tools": [inventory_pages.item_to_json(item) for item in found[:limit]], "more": len(found) > limit}


def _get_clients(sources: Sources, _: DashboardRequest) -> Json:
    return {
        "tokens": [
            {
                "id": token.id,
                "client": token.client,
                "servers": list(token.servers),
                "scopes": sorted(token.scopes),
                "created": token.made_at,
                "expires": token.expires_at,
                "revoked": token.revoked_at,
            }
            for token in sources.state.tokens.list_all()
        ],
        "gateways": [{**as_dict(gateway), "servers": list(gateway.servers)} for gateway in list_gateways(sources)],
    }


def _get_audit(sources: Sources, request: DashboardRequest) -> Json:
    entries, _, _ = read_filtered_entries(sources, request, _MAX_ENTRIES)
    return {"entries": [entry_to_json(entry) for entry in entries]}


def _get_policy(sources: Sources, _: DashboardRequest) -> Json:
    policy = load_policies(sources.project).gateway
    return {
        "settings": {name: value for name, value, _ in list_settings(policy)},
        "rules": [
            {"server": rule.server.text, "item": rule.item.text, "client": rule.client.text} for rule in policy.rules
        ],
    }


_ROUTES: tuple[tuple[re.Pattern[str], Callable[..., Json]], ...] = tuple(
    (re.compile(pattern, re.ASCII), build)
    for pattern, build in (
        (r"openapi\.json", lambda *_: build_openapi()),
        (r"api/session", get_session),
        (r"api/overview", _get_overview),
        (r"api/reviews", _get_reviews),
        (r"api/reviews/([0-9a-f]{32})", _get_review),
        (r"api/servers", _get_servers),
        (r"api/tools", _get_tools),
        (r"api/clients", _get_clients),
        (r"api/audit", _get_audit),
        (r"api/policy", _get_policy),
    )
)
