"""Search a registry as a user: the request, and the report about what it found."""

from __future__ import annotations

from typing import Any

from pinwarden.bundle.document import DocumentReader, read_json
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report
from pinwarden.core.strict_json import Limits, parse_json
from pinwarden.core.text import plural
from pinwarden.registry import names
from pinwarden.registry.registry_client import RegistryReader
from pinwarden.registry.search_terms import measure_match, split_query

_MAX_BYTES = 2 * 1024 * 1024  # fifty bundles with the longest descriptions
_MAX_RESULTS = 1_000
_PAGE_SIZE = 50
_MAX_INDEX_BYTES = 128 * 1024 * 1024
_MAX_INDEXED = 200_000
_INDEX_LIMITS = Limits(max_bytes=_MAX_INDEX_BYTES, max_values=20_000_000)


def search_registry(registry: RegistryReader, query: str, page: int) -> Report:
    """Find bundles in a registry, or in the search index of a static export."""
    data = registry.find_query("api/search", {"q": query, "page": str(page)}, _MAX_BYTES)
    if data is not None:
        reader = DocumentReader(read_json(data), "search result")
        tools = [_read_tool(row) for row in reader.objects("tools", max_items=_MAX_RESULTS)]
        total, has_more = reader.integer("total"), reader.value.get("next") is not None
    else:
        index = registry.find(names.SEARCH_INDEX, _MAX_INDEX_BYTES)
        if index is None:
            raise PinwardenError(
                "SERVER_NOT_FOUND", f"{registry} has no search", hint="Export it again with this version of Pinwarden."
            )
        ranked = _search_index(index, query)
        tools, total = ranked[(page - 1) * _PAGE_SIZE : page * _PAGE_SIZE], len(ranked)
        has_more = page * _PAGE_SIZE < total
    notes = (f"more results: add --page {page + 1}",) if has_more else ()
    return Report(
        command="search",
        subject=query,
        summary=f"{plural(total, 'bundle')} in {registry}",
        exit_code=EXIT_CLEAN,
        notes=notes,
        facts={"registry": str(registry), "query": query, "page": page, "total": total, "tools": tools},
    )


def _search_index(data: bytes, query: str) -> list[dict[str, Any]]:
    """Search the index of a static export, and rank as the registry does."""
    reader = DocumentReader(parse_json(data, _INDEX_LIMITS), "search index")
    words = split_query(query)
    if query.strip() and not words:
        return []
    exact, found = query.strip().lower(), []
    for row in reader.objects("tools", max_items=_MAX_INDEXED):
        tool = _read_tool(row)
        terms = {term: weight for term, weight in row.object("terms").value.items() if isinstance(weight, int)}
        score = measure_match(words, terms)
        if score or not words:
            found.append((tool["tool"] != exact, -score, tool["tool"], tool))
    return [tool for _, _, _, tool in sorted(found, key=lambda row: row[:3])]


def _read_tool(reader: DocumentReader) -> dict[str, Any]:
    return {
        "tool": reader.text("tool"),
        "namespace": reader.text("namespace"),
        "latest": reader.optional_string("latest"),
        "versions": reader.integer("versions"),
        "published_at_utc": reader.timestamp("published_at_utc"),
        "description": reader.string("description"),
    }
