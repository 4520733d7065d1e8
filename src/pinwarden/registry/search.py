"""Search in a registry, and the catalog that it reads. Every change of versions must call `update_package`."""

from __future__ import annotations

from typing import Any

from pinwarden.bundle.bundle_documents import parse_descriptor
from pinwarden.core.errors import PinwardenError
from pinwarden.registry.official_api import choose_latest_release
from pinwarden.registry.registry import Registry
from pinwarden.registry.registry_documents import PublishedVersion
from pinwarden.registry.search_terms import ITEM_DESCRIPTION_WEIGHT, list_bundle_terms, split_query
from pinwarden.registry.store import catalog, pointer_log, publications
from pinwarden.registry.store.catalog import Package, PackagePage
from pinwarden.surface.surface import Surface, parse_surface
from pinwarden.system.database import Transaction

PAGE_SIZE = 50
MAX_PAGE = 1_000
MAX_QUERY_CHARS = 200
_ALL = 1_000_000


def search(transaction: Transaction, query: str, page: int) -> PackagePage:
    """Return one page of the bundles that match all words of a query, the best first; all bundles without a query."""
    offset = (min(max(page, 1), MAX_PAGE) - 1) * PAGE_SIZE
    words = split_query(query[:MAX_QUERY_CHARS])
    if words:
        return catalog.search_packages(transaction, words, query.strip().lower(), PAGE_SIZE, offset)
    if query.strip():
        return PackagePage(packages=(), total=0)
    return catalog.list_packages(transaction, PAGE_SIZE, offset)


def search_to_json(registry: Registry, query: str, page: int) -> dict[str, Any]:
    """Return the response to ``GET /api/search``."""
    with registry.database.transaction() as transaction:
        found = search(transaction, query, page)
    tools = [_package_to_json(package) for package in found.packages]
    more = page < MAX_PAGE and page * PAGE_SIZE < found.total
    return {"tools": tools, "total": found.total, "page": page, "next": page + 1 if more else None}


def build_search_index(transaction: Transaction) -> dict[str, Any]:
    """Return the file in which clients search a static export: all bundles, with their words."""
    terms: dict[str, dict[str, int]] = {}
    for term, tool, weight in catalog.list_terms(transaction, ITEM_DESCRIPTION_WEIGHT):
        terms.setdefault(tool, {})[term] = weight
    packages = catalog.list_packages(transaction, _ALL, 0).packages
    return {
        "tools": [{**_package_to_json(package), "terms": terms.get(package.tool, {})} for package in packages],
    }


def _package_to_json(package: Package) -> dict[str, Any]:
    return {
        "tool": package.tool,
        "namespace": package.namespace,
        "description": package.description,
        "latest": None if package.is_yanked else package.version,
        "versions": package.versions,
        "published_at_utc": package.published_at,
    }


def read_page_number(text: str) -> int:
    """Return the number of a page of a list. Raises for anything that is not the number of a page."""
    if not text.isascii() or not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= MAX_PAGE:
        raise PinwardenError("USAGE", f"page must be a number from 1 to {MAX_PAGE}", hint="Begin with page=1.")
    return int(text)


def update_package(transaction: Transaction, tool: str) -> None:
    """Bring the catalog up to date with the published versions of a bundle."""
    releases = publications.list_releases(transaction, tool)
    if not releases:
        catalog.remove_package(transaction, tool)
        return
    latest = choose_latest_release(releases)
    version = publications.find_version(transaction, tool, latest or releases[-1][0])
    if version is None:
        raise PinwardenError("DATABASE_CORRUPT", f"the latest version of {tool} is missing")
    package = Package(
        tool=tool,
        namespace=version.namespace,
        version=version.version,
        is_yanked=latest is None,
        versions=len(releases),
        description=version.description,
        published_at=version.published_at,
    )
    catalog.replace_package(transaction, package, _list_terms(transaction, version))


def add_missing_packages(registry: Registry) -> None:
    """Add the bundles that an earlier release of Pinwarden published."""
    with registry.database.transaction() as transaction:
        if not catalog.list_missing_packages(transaction):
            return
    with registry.database.transaction(exclusive=pointer_log.WRITE_LOCK) as transaction:
        for tool in catalog.list_missing_packages(transaction):
            update_package(transaction, tool)


def _list_terms(transaction: Transaction, version: PublishedVersion) -> dict[str, int]:
    descriptor = publications.find_document(transaction, version.descriptor_cid)
    display_name = parse_descriptor(descriptor).display_name if descriptor is not None else ""
    return list_bundle_terms(version.tool, display_name, version.description, load_surface(transaction, version))


def load_surface(transaction: Transaction, version: PublishedVersion) -> Surface | None:
    """Return the surface that the registry recorded for a version; None if it has none."""
    body = publications.find_document(transaction, version.surface_cid) if version.surface_cid else None
    return None if body is None else parse_surface(body)
