"""Find the page at a path. A live registry and a static export use the same pages."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.html.pages import ASSETS, HTML, PageContent, Pages, read_asset
from pinwarden.registry.pages import feeds, lists, log_pages, package_page
from pinwarden.registry.pages.page_request import PageRequest
from pinwarden.registry.read_api import describe_error
from pinwarden.registry.registry import Registry
from pinwarden.system.database import Transaction

_NAME = r"([a-z0-9._-]{1,214})"
_VERSION = r"([0-9][0-9A-Za-z.+-]{0,99})"
_INDEX = r"([0-9]{1,15})"
_pages = Pages(Path(__file__).parent / "templates")


class RenderedPage(Record):
    """A page, feed or asset."""

    body: bytes
    media_type: str = HTML


def find_page(registry: Registry, request: PageRequest) -> RenderedPage | None:
    """Return the page at a path; None if there is none."""
    with registry.database.transaction() as transaction:
        return find_page_in(registry, transaction, request)


def find_page_in(registry: Registry, transaction: Transaction, request: PageRequest) -> RenderedPage | None:
    """Return the page at a path, read in a given transaction; None if there is none."""
    if request.path in ASSETS:
        return RenderedPage(body=read_asset(request.path), media_type=ASSETS[request.path])
    for pattern, build in _ROUTES:
        match = pattern.fullmatch(request.path)
        if match is not None:
            content = build(registry, transaction, request, *match.groups())
            return None if content is None else render(registry, request, content)
    return None


def has_page_path(path: str) -> bool:
    """Whether a path is that of a page, which need not exist."""
    return COMPARISON_PATH.fullmatch(path) is not None or any(pattern.fullmatch(path) for pattern, _ in _ROUTES)


def render(registry: Registry, request: PageRequest, content: PageContent) -> RenderedPage:
    """Render a page."""
    now = None if request.is_static else registry.now()
    context = {
        "site_name": registry.identity.name,
        "identity": registry.identity,
        "now": now,
        "section": request.path.partition("/")[0],
        **content.values,
    }
    body = _pages.render(content.template, request.path, context, is_static=request.is_static)
    return RenderedPage(body=body, media_type=content.media_type)


def render_error(registry: Registry, request: PageRequest, err: PinwardenError, status: int) -> RenderedPage:
    """Render the page about an error. It reads no database."""
    values = {"status": status, "code": err.code, "message": describe_error(err, status), "hint": err.hint}
    return render(registry, request, PageContent(template="error.html", values=values))


_Build = Callable[..., PageContent | None]
_ROUTES: tuple[tuple[re.Pattern[str], _Build], ...] = tuple(
    (re.compile(pattern, re.ASCII), build)
    for pattern, build in (
        (r"", lists.build_search_page),
        (r"words/", lists.build_word_index),
        (r"words/([a-z0-9]{1,2}|other)/", lists.build_words_page),
        (rf"publishers/{_NAME}/", lists.build_publisher_page),
        (rf"bundles/{_NAME}/", package_page.build_latest_page),
        (rf"bundles/{_NAME}/{_VERSION}/", package_page.build_version_page),
        (r"log/", log_pages.build_log_page),
        (rf"log/entries/{_INDEX}/", log_pages.build_entry_page),
        (r"feed\.atom", feeds.build_feed),
        (rf"publishers/{_NAME}/feed\.atom", feeds.build_publisher_feed),
        (rf"bundles/{_NAME}/feed\.atom", feeds.build_package_feed),
    )
)
COMPARISON_PATH = re.compile(rf"bundles/{_NAME}/compare/{_VERSION}/{_VERSION}/", re.ASCII)
"""The path of a page that needs a comparison, which takes seconds."""
