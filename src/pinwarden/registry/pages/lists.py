"""The pages that list bundles: search, and the page of a publisher."""

from __future__ import annotations

from urllib.parse import urlencode

from pinwarden.html.pages import PageContent
from pinwarden.registry.pages.page_request import PageRequest
from pinwarden.registry.registry import Registry
from pinwarden.registry.search import MAX_PAGE, MAX_QUERY_CHARS, PAGE_SIZE, read_page_number, search
from pinwarden.registry.search_terms import ITEM_NAME_WEIGHT
from pinwarden.registry.store import catalog, publishers
from pinwarden.system.database import Transaction

_ALL = 1_000_000  # a static export has all bundles on one page
_OTHER = "other"  # the page of words that do not begin with a-z or 0-9


def build_search_page(_registry: Registry, transaction: Transaction, request: PageRequest) -> PageContent:
    """Build the start page: all bundles, or those that match a query."""
    query = request.query.get("q", "")[:MAX_QUERY_CHARS]
    page = read_page_number(request.query.get("page", "1"))
    found = catalog.list_packages(transaction, _ALL, 0) if request.is_static else search(transaction, query, page)
    return PageContent(
        template="search.html",
        values={"query": query, "packages": found.packages, **_build_page_links(found.total, page, request, query)},
    )


def build_publisher_page(
    _registry: Registry, transaction: Transaction, request: PageRequest, namespace: str
) -> PageContent | None:
    """Build the page of a namespace; None if it is not registered."""
    created_at = publishers.find_created_at(transaction, namespace)
    if created_at is None:
        return None
    page = read_page_number(request.query.get("page", "1"))
    limit, offset = (_ALL, 0) if request.is_static else (PAGE_SIZE, (page - 1) * PAGE_SIZE)
    found = catalog.list_packages(transaction, limit, offset, namespace)
    values = {
        "namespace": namespace,
        "created_at": created_at,
        "keys": publishers.list_namespace_keys(transaction, namespace),
        "packages": found.packages,
        **_build_page_links(found.total, page, request, ""),
    }
    return PageContent(template="publisher.html", values=values)


def build_word_index(_registry: Registry, transaction: Transaction, request: PageRequest) -> PageContent | None:
    """Build the page that leads to all words, in place of search; None in a live registry, which has search."""
    if not request.is_static:
        return None
    return PageContent(template="words.html", values={"key": "", "keys": list_word_keys(transaction), "words": {}})


def build_words_page(
    _registry: Registry, transaction: Transaction, request: PageRequest, key: str
) -> PageContent | None:
    """Build a page with the words that begin with a key, and the bundles and tools that have them."""
    if not request.is_static:
        return None
    words: dict[str, list[str]] = {}
    for term, tool, _ in catalog.list_terms(transaction, ITEM_NAME_WEIGHT, "" if key == _OTHER else key):
        if _find_key(term) == key:
            words.setdefault(term, []).append(tool)
    return PageContent(template="words.html", values={"key": key, "keys": (), "words": words}) if words else None


def list_word_keys(transaction: Transaction) -> list[str]:
    """Return the beginnings of all words of names and tools, each of which has a page."""
    return sorted({_find_key(term) for term, _, _ in catalog.list_terms(transaction, ITEM_NAME_WEIGHT)})


def _find_key(term: str) -> str:
    key = term[:2]
    return key if key.isascii() and key.isalnum() else _OTHER


def _build_page_links(total: int, page: int, request: PageRequest, query: str) -> dict[str, object]:
    last = 1 if request.is_static else min(MAX_PAGE, max(1, -(-total // PAGE_SIZE)))

    def link(number: int) -> str | None:
        if number < 1 or number > last:
            return None
        return "?" + urlencode({**({"q": query} if query else {}), "page": number}, errors="replace")

    return {"total": total, "page": page, "last": last, "previous_link": link(page - 1), "next_link": link(page + 1)}
