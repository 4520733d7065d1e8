"""Write the pages of a registry to the folder of a static export."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.html.pages import ASSETS
from pinwarden.registry.pages.compare_page import build_compare_page
from pinwarden.registry.pages.lists import list_word_keys
from pinwarden.registry.pages.page_request import PageRequest
from pinwarden.registry.pages.site import RenderedPage, find_page, render, render_error
from pinwarden.registry.registry import Registry
from pinwarden.registry.store import publications, publishers
from pinwarden.registry.version_pair import PERMANENT_FAILURES, compare_pair, find_pair

_INDEX = "index.html"


def export_pages(registry: Registry, folder: Path, base_url: str | None) -> int:
    """Write all pages, and return their number. The comparison of two versions is not written again.

    Each version is compared with the one before it. Lookup in the log and its single entries need a live registry. In
    place of search, there are pages with the words of names and tools.
    """
    written = 0
    for path in _list_paths(registry):
        page = find_page(registry, PageRequest(path=path, base_url=base_url, is_static=True))
        if page is not None:
            replace_file(folder / _to_file_path(path), page.body)
            written += 1
    for tool, before, after in _list_comparisons(registry):
        path = f"bundles/{tool}/compare/{before}/{after}/"
        target = folder / _to_file_path(path)
        if not target.exists():
            request = PageRequest(path=path, base_url=base_url, is_static=True)
            replace_file(target, _build_comparison(registry, request, (tool, before, after)).body)
            written += 1
    return written


def _to_file_path(path: str) -> str:
    return path + _INDEX if not path or path.endswith("/") else path


def _list_paths(registry: Registry) -> Iterator[str]:
    yield from ("", "log/", "feed.atom", "words/", *ASSETS)
    with registry.database.transaction() as transaction:
        namespaces = publishers.list_namespaces(transaction)
        tools = publications.list_tools(transaction)
        keys = list_word_keys(transaction)
    yield from (f"words/{key}/" for key in keys)
    for namespace in namespaces:
        yield from (f"publishers/{namespace}/", f"publishers/{namespace}/feed.atom")
    for tool in tools:
        yield from (f"bundles/{tool}/", f"bundles/{tool}/feed.atom")
        yield from (f"bundles/{tool}/{version}/" for version in _list_versions(registry, tool))


def _list_comparisons(registry: Registry) -> Iterator[tuple[str, str, str]]:
    with registry.database.transaction() as transaction:
        tools = publications.list_tools(transaction)
    for tool in tools:
        for before, after in pairwise(_list_versions(registry, tool)):
            yield tool, before, after


def _list_versions(registry: Registry, tool: str) -> list[str]:
    with registry.database.transaction() as transaction:
        return [version for version, _ in publications.list_releases(transaction, tool)]


def _build_comparison(registry: Registry, request: PageRequest, versions: tuple[str, str, str]) -> RenderedPage:
    tool, before, after = versions
    try:
        compared = compare_pair(registry, find_pair(registry, tool, before, after))
    except PinwardenError as err:
        if err.code not in PERMANENT_FAILURES:
            raise
        return render_error(registry, request, err, 422)
    return render(registry, request, build_compare_page(versions, compared))


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically, without fsync: an export can be repeated."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(data)
        fresh.replace(path)
    except OSError as err:
        fresh.unlink(missing_ok=True)
        raise PinwardenError("FILE_UNWRITABLE", f"{path} cannot be written: {err.strerror or err}") from err
