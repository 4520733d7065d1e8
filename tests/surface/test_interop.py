"""Digests as other tools compute them, and the order of names that two of ToolPin's hashes depend on."""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from itertools import permutations
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden import PinwardenError, canonicalize, tool_digest
from pinwarden.core.javascript import sort_by_locale
from pinwarden.surface.interop import (
    compute_api_surface_hash,
    compute_api_surface_leaves,
    compute_fusion_digest,
    compute_surface_digests,
    compute_toolpin_hashes,
)
from pinwarden.surface.surface import TOOL, Item, Surface, surface_from_listing
from tests.conformance.vectors import cases, load, vectors_dir
from tests.support.javascript import needs_node, run_node

SORT_IN_JAVASCRIPT = (
    "const names = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
    "process.stdout.write(JSON.stringify(names.map((list) => list.sort((a, b) => a.localeCompare(b, 'en-US')))))"
)
ASCII = "".join(map(chr, range(128)))
READ: dict[str, Any] = {"name": "read", "description": "Read a file.", "inputSchema": {"type": "object"}}
WRITE: dict[str, Any] = {"name": "Write", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": False}}


def by_locale(names: list[str]) -> list[str]:
    return sort_by_locale(names, str)[0]


@pytest.fixture
def without_icu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "icu", None)


# The order of localeCompare


@needs_node
def test_every_pair_of_ascii_characters_is_ordered_as_in_javascript() -> None:
    pairs = [[left + "x", right + "x"] for left, right in permutations(ASCII, 2)]
    assert [by_locale(pair) for pair in pairs] == run_node("-e", SORT_IN_JAVASCRIPT, question=pairs)


@needs_node
def test_random_ascii_names_are_ordered_as_in_javascript() -> None:
    collected: list[list[str]] = []

    @given(st.lists(st.text(st.sampled_from("aAbBzZ09_-. /$\t\n\x00\x7f"), max_size=6), max_size=8))
    def collect(names: list[str]) -> None:
        collected.append(names)

    collect()
    assert list(map(by_locale, collected)) == run_node("-e", SORT_IN_JAVASCRIPT, question=collected)


@pytest.mark.usefixtures("without_icu")
@needs_node
def test_random_names_in_known_letters_are_ordered_as_in_javascript_and_exactly() -> None:
    pools = [
        "aezAZ_-.9",
        "aàáâãäåçéèêëěíïñóöőřšúüýžßæøœłđÆØŁeosd",
        "абеёжийкяЙЁ",
        "αβεσωάέΩ",
        "가나한글각",
        "中文日本語",
    ]
    chance = Random(7)
    names = [
        "".join(chance.choice(pool) for _ in range(chance.randint(1, 4)))
        for pool in [*pools, *map("".join, permutations(pools, 2))]
        for _ in range(40)
    ]
    ordered, exact = sort_by_locale(names, str)
    assert ([ordered], exact) == (run_node("-e", SORT_IN_JAVASCRIPT, question=[names]), True)


def test_case_counts_only_where_letters_are_equal_and_equal_names_stay_as_they_came() -> None:
    assert by_locale(["B", "b", "A", "a", "aB", "Ab", "ab"]) == ["a", "A", "ab", "aB", "Ab", "b", "B"]
    assert sort_by_locale([("x\x01", 1), ("x", 2), ("x\x02", 3)], lambda item: item[0]) == (
        [("x\x01", 1), ("x", 2), ("x\x02", 3)],
        True,
    )


@pytest.mark.usefixtures("without_icu")
@pytest.mark.parametrize(
    ("names", "exact"),
    [(["a", "b"], True), (["é"], True), ([], True), (["é", "f"], True), (["ж", "我", "a"], True), (["か", "f"], False)],
)
def test_an_order_that_had_to_be_approximated_says_so(names: list[str], exact: bool) -> None:
    assert sort_by_locale(names, str)[1] is exact


@pytest.mark.usefixtures("without_icu")
@needs_node
def test_the_approximation_orders_plainly_accented_names_as_javascript_does() -> None:
    names = ["zoë", "Zoe", "éa", "eb", "É", "e", "é", "niño", "nino", "ninp", "ж", "Ж", "а", "a…b", "a9"]
    assert [by_locale(names)] == run_node("-e", SORT_IN_JAVASCRIPT, question=[names])


def test_icu_decides_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with those names of PyICU that are used: the real one has to be compiled."""
    set_up: list[object] = []
    collator = SimpleNamespace(
        getSortKey=lambda name: name[::-1].encode(), setAttribute=lambda *pair: set_up.append(pair)
    )

    def create(locale: str) -> SimpleNamespace:
        set_up.append(locale)
        return collator

    icu = ModuleType("icu")
    icu.__dict__.update(
        Locale=lambda name: name,
        Collator=SimpleNamespace(createInstance=create),
        UCollAttribute=SimpleNamespace(NORMALIZATION_MODE="normalization"),
        UCollAttributeValue=SimpleNamespace(ON="on"),
    )
    monkeypatch.setitem(sys.modules, "icu", icu)
    assert sort_by_locale(["zか", "かb"], str) == (["かb", "zか"], True)
    assert set_up == ["en_US", ("normalization", "on")]


# ToolPin


def test_toolpin_hashes_take_absence_as_toolpin_does() -> None:
    hashes = compute_toolpin_hashes([{"name": "t"}])
    same_legacy = compute_toolpin_hashes([{"name": "t", "description": None, "inputSchema": None}])
    assert same_legacy.tool_description_hash == hashes.tool_description_hash
    assert same_legacy.tool_manifest_hash == hashes.tool_manifest_hash
    assert same_legacy.tool_surface_hash != hashes.tool_surface_hash
    assert hashes.tool_manifest_hash.hex == sha256(b'[{"description":"","inputSchema":{},"name":"t"}]').hexdigest()
    assert hashes.tool_surface_hash.hex == sha256(b'[{"name":"t"}]').hexdigest()


def test_toolpin_sorts_two_hashes_by_locale_and_one_by_utf16() -> None:
    hashes = compute_toolpin_hashes([{"name": "B"}, {"name": "a"}])
    assert (
        hashes.tool_description_hash.hex
        == sha256(b'[{"description":"","name":"a"},{"description":"","name":"B"}]').hexdigest()
    )
    assert hashes.tool_surface_hash.hex == sha256(b'[{"name":"B"},{"name":"a"}]').hexdigest()


@pytest.mark.usefixtures("without_icu")
def test_toolpin_hashes_of_names_in_unknown_letters_are_marked_as_locale_dependent_without_icu() -> None:
    tools = [{"name": "zebra"}, {"name": "りんご"}]
    hashes = compute_toolpin_hashes(tools)
    assert hashes.to_json()["localeDependent"] is True
    assert hashes.tool_surface_hash.hex == sha256('[{"name":"zebra"},{"name":"りんご"}]'.encode()).hexdigest()


def test_toolpin_never_sees_annotations_and_we_do() -> None:
    harmless = {**READ, "annotations": {"readOnlyHint": True}}
    assert compute_toolpin_hashes([harmless]) == compute_toolpin_hashes([READ])
    assert tool_digest(harmless) != tool_digest(READ)


def test_toolpin_hashes_of_a_tool_without_name_are_refused() -> None:
    with pytest.raises(PinwardenError) as caught:
        compute_toolpin_hashes([READ, {"description": "d"}])
    assert caught.value.code == "TOOL_INVALID"


# Fusion


def test_fusion_digest_is_over_the_input_schema_in_fusions_own_form() -> None:
    tool = {"name": "t", "inputSchema": {"properties": {"10": {}, "9": {}, "__proto__": {}, "a": {}}}}
    assert compute_fusion_digest(tool).hex == sha256(b'{"properties":{"9":{},"10":{},"a":{}}}').hexdigest()


def fusion_tools() -> list[Any]:
    """Every tool of every fixture with the digest that the original gave its schema."""
    rows = []
    for path in sorted((vectors_dir() / "fusion/servers").glob("*/*.json")):
        facts = load(f"fusion/servers/{path.parent.name}/{path.name}")
        for tool in facts.get("tools") or []:
            surface = facts["contracts"][tool["name"]]["surface"]
            label = f"{path.parent.name} {path.stem} {tool['name']}"
            rows.append({"id": label, "tool": tool["toolDefinition"], "digest": surface["inputSchemaDigest"]})
    return cases(rows)


@pytest.mark.parametrize("case", fusion_tools())
def test_fusion_digest_equals_that_of_fusion(case: dict[str, Any]) -> None:
    assert compute_fusion_digest(case["tool"]).hex == case["digest"]


def test_fusion_has_no_digest_for_a_tool_without_schema() -> None:
    with pytest.raises(PinwardenError) as caught:
        compute_fusion_digest({"name": "t"})
    assert caught.value.code == "TOOL_INVALID"


# All of them


def test_a_surface_gives_every_digest_under_its_own_name() -> None:
    surface = surface_from_listing({"instructions": "Be brief.", "tools": [READ, WRITE], "prompts": [{"name": "p"}]})
    tools = [READ, WRITE]
    assert compute_surface_digests(surface) == {
        "pinwarden": {
            "surface": str(surface.digest),
            "tools": {tool["name"]: str(tool_digest(tool)) for tool in tools},
            "prompts": {"p": "sha256:" + sha256(b'{"name":"p"}').hexdigest()},
        },
        "api-surface": {
            "hash": str(compute_api_surface_hash(tools)),
            "tools": {name: str(leaf) for name, leaf in compute_api_surface_leaves(tools).items()},
        },
        "hangar-1.2": {tool["name"]: str(tool_digest(tool, "hangar-1.2")) for tool in tools},
        "hangar": {tool["name"]: str(tool_digest(tool, "hangar")) for tool in tools},
        "toolpin": compute_toolpin_hashes(tools).to_json(),
        "fusion": {tool["name"]: str(compute_fusion_digest(tool)) for tool in tools},
        "unavailable": [],
    }


def test_all_digests_are_ready_for_json() -> None:
    digests = compute_surface_digests(surface_from_listing({"tools": [READ, WRITE]}))
    assert json.loads(canonicalize(digests)) == digests


def test_one_undigestable_tool_prevents_digests_over_all_tools_and_keeps_those_of_the_others() -> None:
    bad = Item.from_json_text(TOOL, b'{"name":"bad","description":"\\ud800"}')
    surface = Surface(server={}, items={"tools": (Item.from_value(TOOL, READ), bad)}, observed={})
    digests = compute_surface_digests(surface)
    assert digests["pinwarden"]["surface"] is None
    assert digests["api-surface"] is None
    assert digests["toolpin"] is None
    for name in ("hangar-1.2", "hangar"):
        assert digests[name] == {"read": str(tool_digest(READ, name)), bad.key: None}
    assert digests["pinwarden"]["tools"] == {"read": str(tool_digest(READ)), bad.key: None}
    missing = {(row["digest"], row["item"]) for row in digests["unavailable"]}
    assert missing == {("pinwarden", None), ("api-surface", None), ("toolpin", None)} | {
        (name, bad.key) for name in ("pinwarden", "hangar-1.2", "hangar", "fusion")
    }
    assert all("surrogate" in str(row["reason"]) for row in digests["unavailable"] if row["item"] is not None)


def test_a_name_shared_by_two_tools_has_no_digest_and_says_why() -> None:
    digests = compute_surface_digests(surface_from_listing({"tools": [READ, {**READ, "description": "shadow"}, WRITE]}))
    assert digests["hangar"] == {"read": None, "Write": str(tool_digest(WRITE, "hangar"))}
    assert digests["api-surface"] is None
    assert {"digest": "hangar", "item": "read", "reason": "2 items share this name"} in digests["unavailable"]
    assert any(row["digest"] == "api-surface" and row["item"] is None for row in digests["unavailable"])


def test_a_server_that_offers_no_tools_differs_from_one_with_an_empty_list() -> None:
    absent, empty = (
        compute_surface_digests(surface_from_listing({"prompts": []})),
        compute_surface_digests(surface_from_listing({"tools": []})),
    )
    assert absent["api-surface"] is None
    assert absent["toolpin"] is None
    assert [row["reason"] for row in absent["unavailable"]] == ["the server offers no tools"] * 2
    assert empty["api-surface"] == {"hash": str(compute_api_surface_hash([])), "tools": {}}
    assert empty["unavailable"] == []


def test_a_tool_without_a_fusion_digest_keeps_its_other_digests() -> None:
    digests = compute_surface_digests(surface_from_listing({"tools": [{"name": "t"}]}))
    assert digests["fusion"] == {"t": None}
    assert digests["unavailable"] == [{"digest": "fusion", "item": "t", "reason": "the tool has no inputSchema"}]
