"""Search a registry as a user: the request, and the report about what it found."""

from __future__ import annotations

from typing import Any

from pinwarden.bundle.document import DocumentReader, read_json
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.registry.registry_client import RegistryReader

_MAX_BYTES = 2 * 1024 * 1024  # fifty bundles with the longest descriptions
_MAX_RESULTS = 1_000


def search_registry(registry: RegistryReader, query: str, page: int) -> Report:
    """Find bundles in a registry. Raises if it has no search, as a static export has none."""
    data = registry.find_query("api/search", {"q": query, "page": str(page)}, _MAX_BYTES)
    if data is None:
        raise PinwardenError(
            "SERVER_NOT_FOUND",
            f"{registry} has no search",
            hint="Static exports have none. Give the address of a live registry with --registry.",
        )
    reader = DocumentReader(read_json(data), "search result")
    tools = [_read_tool(row) for row in reader.objects("tools", max_items=_MAX_RESULTS)]
    total, has_more = reader.integer("total"), reader.value.get("next") is not None
    notes = (f"more results: add --page {page + 1}",) if has_more else ()
    return Report(
        command="search",
        subject=query,
        summary=f"{plural(total, 'bundle')} in {registry}",
        exit_code=EXIT_CLEAN,
        notes=notes,
        facts={"registry": str(registry), "query": query, "page": page, "total": total, "tools": tools},
    )


def _read_tool(reader: DocumentReader) -> dict[str, Any]:
    return {
        "tool": reader.text("tool"),
        "namespace": reader.text("namespace"),
        "latest": reader.optional_string("latest"),
        "versions": reader.integer("versions"),
        "published_at_utc": reader.timestamp("published_at_utc"),
        "description": reader.string("description"),
    }
