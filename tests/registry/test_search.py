"""Search in a registry: words of names, descriptions and tools, ranked, on each database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pinwarden.bundle.document import encode_document
from pinwarden.core.errors import PinwardenError
from pinwarden.registry import names
from pinwarden.registry.registry_client import FolderRegistry
from pinwarden.registry.registry_documents import UNYANK, YANK
from pinwarden.registry.search import PAGE_SIZE, add_missing_packages, build_search_index, search_to_json
from pinwarden.registry.search_client import search_registry
from pinwarden.registry.search_terms import MAX_QUERY_WORDS, MAX_TERMS, list_bundle_terms, split_query
from pinwarden.registry.store import catalog
from pinwarden.registry.store.catalog import Package
from pinwarden.surface.surface import Surface, surface_from_listing
from tests.registry.world import World, bundle


def offer(world: World, tool: str, description: str = "", *, surface: Surface | None = None) -> None:
    """Put a bundle into the catalog, without its archive."""
    package = Package(
        tool=tool,
        namespace=tool.partition(".")[0],
        version="1.0.0",
        is_yanked=False,
        versions=1,
        description=description,
        published_at="2026-11-16T12:00:00Z",
    )
    with world.registry.database.transaction() as transaction:
        catalog.replace_package(transaction, package, list_bundle_terms(tool, "", description, surface))


def find(world: World, query: str, page: int = 1) -> list[str]:
    return [row["tool"] for row in search_to_json(world.registry, query, page)["tools"]]


def surface_of(**tools: str) -> Surface:
    listing = [{"name": name, "description": text, "inputSchema": {"type": "object"}} for name, text in tools.items()]
    return surface_from_listing({"tools": listing})


def test_all_words_must_match_and_names_come_before_tools_and_descriptions(anywhere: World) -> None:
    offer(anywhere, "acme.calendar", "Appointments and notes")
    offer(anywhere, "acme.notes", "A calendar of thoughts")
    offer(anywhere, "acme.diary", surface=surface_of(searchNotes="Full-text search", add_entry="Add a calendar entry"))
    offer(anywhere, "acme.weather", "Rain")
    assert find(anywhere, "notes") == ["acme.notes", "acme.diary", "acme.calendar"]
    assert find(anywhere, "calendar notes") == ["acme.calendar", "acme.notes", "acme.diary"]
    assert find(anywhere, "calendar rain") == []
    assert find(anywhere, "search_notes") == ["acme.diary"]
    assert find(anywhere, "cal") == ["acme.calendar", "acme.notes", "acme.diary"]


def test_the_exact_name_comes_first(anywhere: World) -> None:
    offer(anywhere, "acme.git", "git")
    offer(anywhere, "acme.git.git", "git git")
    offer(anywhere, "acme", "acme git")
    assert find(anywhere, "ACME ")[0] == "acme"
    assert find(anywhere, "acme.git") == ["acme.git", "acme.git.git", "acme"]


def test_words_are_found_without_case_accents_and_invisible_characters(anywhere: World) -> None:
    offer(anywhere, "acme.cafe", "Le CAFÉ\u200b-bar Straße 日本語検索 Пример")
    for query in ("café", "CAFE", "ca\u200bfe", "strasse", "日本", "語検索", "приме", "cafe\u0301 bar"):
        assert find(anywhere, query) == ["acme.cafe"], query
    for query in ("本日", "%", "_", "'", '"', "notes*", "\x00", "\ud800"):
        assert find(anywhere, query) == [], query


def test_results_have_pages_and_the_total(anywhere: World) -> None:
    names = [f"acme.t{number:03}" for number in range(PAGE_SIZE + 3)]
    for name in names:
        offer(anywhere, name, "Same words")
    first, second = (search_to_json(anywhere.registry, "same", page) for page in (1, 2))
    assert [row["tool"] for row in first["tools"] + second["tools"]] == names
    assert (first["total"], first["next"], second["next"]) == (len(names), 2, None)
    assert find(anywhere, "", 2) == names[PAGE_SIZE:]
    assert find(anywhere, "same", 3) == []


def test_a_static_export_is_searched_with_the_same_results(anywhere: World, tmp_path: Path) -> None:
    offer(anywhere, "acme.calendar", "Appointments and notes")
    offer(anywhere, "acme.notes", "A calendar of thoughts, cafe\u0301")
    offer(anywhere, "acme.diary", surface=surface_of(searchNotes="Rain", add_entry="Add a calendar entry"))
    for number in range(PAGE_SIZE + 3):
        offer(anywhere, f"acme.t{number:03}", "Same words")
    with anywhere.registry.database.transaction() as transaction:
        (tmp_path / names.SEARCH_INDEX).write_bytes(encode_document(build_search_index(transaction)))
    export = FolderRegistry(tmp_path)
    for query in ("notes", "calendar notes", "cal", "search_notes", "acme.notes", "CAFÉ", "same", "zzz", "'", "rain"):
        live, found = search_to_json(anywhere.registry, query, 1), search_registry(export, query, 1).facts
        assert (found["tools"], found["total"]) == (live["tools"], live["total"]), query
    assert [tool["tool"] for tool in search_registry(export, "same", 2).facts["tools"]] == find(anywhere, "same", 2)
    (tmp_path / names.SEARCH_INDEX).write_text('{"tools": [{"tool": 1}]}')
    with pytest.raises(PinwardenError, match="search index"):
        search_registry(export, "notes", 1)


def test_a_yank_and_its_reversal_change_what_is_found(anywhere: World) -> None:
    anywhere.publish(bundle(version="1.0.0"))
    anywhere.publish(bundle(version="1.1.0", content=b"other\n"))

    def latest() -> Any:
        return search_to_json(anywhere.registry, "notes does", 1)["tools"][0]["latest"]

    assert latest() == "1.1.0"
    anywhere.change(YANK, tool="acme.notes", version="1.1.0")
    assert latest() == "1.0.0"
    anywhere.change(YANK, tool="acme.notes", version="1.0.0")
    assert latest() is None
    anywhere.change(UNYANK, tool="acme.notes", version="1.0.0")
    assert latest() == "1.0.0"


def test_bundles_of_an_earlier_release_are_added_when_the_registry_is_opened(anywhere: World) -> None:
    anywhere.publish(bundle())
    with anywhere.registry.database.transaction() as transaction:
        for table in ("packages", "search_terms", "readmes"):
            transaction.run(f"DROP TABLE {table}")
        for column in ("root", "descriptor", "archive", "surface"):
            transaction.run(f"DROP INDEX versions_by_{column}")
        transaction.run("DELETE FROM pinwarden_schema WHERE name = 'registry_catalog'")
    anywhere.registry.database.close()  # the next connection creates the tables again
    assert find(anywhere, "notes") == []
    add_missing_packages(anywhere.registry)
    assert find(anywhere, "notes") == ["acme.notes"]


def test_attack_a_server_with_endless_words_does_not_fill_the_index() -> None:
    text = " ".join(f"w{number}" for number in range(10 * MAX_TERMS))
    terms = list_bundle_terms("acme.notes", "", text, surface_of(**{f"tool{n}": text for n in range(50)}))
    assert len(terms) == MAX_TERMS
    assert {"acme", "notes", "tool49"} <= terms.keys()
    assert max(map(len, list_bundle_terms("acme.x", "", "y" * 100_000, None))) < 100
    assert len(split_query(text)) == MAX_QUERY_WORDS


def test_a_readme_in_the_bundle_is_stored_with_its_content(world: World) -> None:
    made = bundle(README=b"# Notes\n")
    world.publish(made)
    with world.registry.database.transaction() as transaction:
        stored = catalog.find_readme(transaction, made.root_cid)
    assert stored is not None
    assert (stored.path, stored.body) == ("README.txt", b"# Notes\n")


@pytest.mark.parametrize("size", [256 * 1024 + 1, None])
def test_a_bundle_without_a_readme_or_with_a_huge_one_has_none(world: World, size: int | None) -> None:
    made = bundle() if size is None else bundle(README=b"x" * size)
    world.publish(made)
    with world.registry.database.transaction() as transaction:
        assert catalog.find_readme(transaction, made.root_cid) is None
