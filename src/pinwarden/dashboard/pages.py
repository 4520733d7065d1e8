"""Find the page at a path, and render pages in the frame of the dashboard."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pinwarden.census.report import TEMPLATES
from pinwarden.core.errors import PinwardenError
from pinwarden.dashboard import audit_pages, census_pages, inventory_pages, operation_pages, overview, review_pages
from pinwarden.dashboard.access import DashboardSession
from pinwarden.dashboard.remote_pages import build_remotes_page
from pinwarden.dashboard.sources import DashboardRequest, Sources
from pinwarden.html.pages import PageContent, Pages
from pinwarden.system.clock import wall_clock

_FOLDER = Path(__file__).parent
SCRIPT = "assets/dashboard.js"
"""The path of the only script: keys and live updates."""
_pages = Pages(_FOLDER / "templates", TEMPLATES)

Build = Callable[..., PageContent]
ROUTES: tuple[tuple[re.Pattern[str], Build], ...] = tuple(
    (re.compile(pattern, re.ASCII), build)
    for pattern, build in (
        (r"", overview.build_overview_page),
        (r"reviews/", review_pages.build_queue_page),
        (r"reviews/selected/", review_pages.build_selected_page),
        (r"reviews/([0-9a-f]{32})/", review_pages.build_review_page),
        (r"servers/", inventory_pages.build_servers_page),
        (r"servers/([0-9a-f]{16})/", inventory_pages.build_server_page),
        (r"tools/", inventory_pages.build_tools_page),
        (r"clients/", operation_pages.build_clients_page),
        (r"policy/", operation_pages.build_policy_page),
        (r"policy/what-if/", operation_pages.build_what_if_page),
        (r"remotes/", build_remotes_page),
        (r"audit/", audit_pages.build_audit_page),
        (r"census/", census_pages.build_overview_page),
        (r"census/findings/", census_pages.build_findings_page),
        (r"census/questions/", census_pages.build_questions_page),
        (r"census/servers/", census_pages.build_servers_page),
    )
)


def find_page(sources: Sources, request: DashboardRequest) -> PageContent | None:
    """Return the page at a path; None if there is none."""
    for pattern, build in ROUTES:
        match = pattern.fullmatch(request.path)
        if match is not None:
            return build(sources, request, *match.groups())
    return None


def render_page(path: str, content: PageContent, session: DashboardSession | None) -> bytes:
    """Render a page for a session; without one, for a person who has not signed in."""
    context = {
        "site_name": "Pinwarden",
        "now": wall_clock(),
        "section": path.partition("/")[0],
        "person": None if session is None else session.person,
        "csrf": "" if session is None else session.csrf_token,
        "notices": () if session is None else session.take_notices(),
        **content.values,
    }
    return _pages.render(content.template, path, context)


def build_error_page(err: PinwardenError, status: int) -> PageContent:
    """Build the page about an error. It reads no database."""
    return PageContent(
        template="dashboard_error.html",
        values={"status": status, "code": err.code, "message": err.message, "hint": err.hint},
    )


def build_sign_in_page(problem: PinwardenError | None = None, *, at_provider: bool = False) -> PageContent:
    """Build the page that asks for a code, or that leads to the provider."""
    return PageContent(template="sign_in.html", values={"problem": problem, "at_provider": at_provider})


def read_script() -> bytes:
    """Return the script of the dashboard."""
    return (_FOLDER / SCRIPT).read_bytes()
