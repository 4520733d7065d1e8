"""The committed set of the judgement benchmark: large enough, of every family, and free to publish."""

from __future__ import annotations

from benchmarks.judgement import DATA, SECTIONS, load_cases
from pinwarden.surface.scan.scan import find_borderline_sentences, scan
from pinwarden.surface.sentences import walk_strings
from pinwarden.surface.surface import surface_from_listing
from tools.train_classifier import read_attacks, read_honest, read_reference

FAMILIES = {
    *("collecting parameter", "compliance pretext", "consent claim", "exfiltration", "forced call", "hidden text"),
    *("implicit suggestion", "order in a value", "persistence", "posing as the user", "preference", "redirection"),
    *("result as order", "role or system tag", "secrecy", "shadowing", "tampering"),
}
PERMISSIVE = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}
CASES = {kind: list(load_cases(DATA, kind)) for kind in SECTIONS}


def test_there_are_150_attacks_of_every_family() -> None:
    assert len(CASES["attacks"]) >= 150
    assert {case["family"] for case in CASES["attacks"]} == FAMILIES


def test_there_are_300_honest_definitions() -> None:
    tools = [tool for case in CASES["servers"] for tool in case["surface"]["tools"]]
    assert len(CASES["honest"]) + len(tools) >= 300


def test_there_are_40_honest_upgrades() -> None:
    assert len(CASES["upgrades"]) >= 40


def test_every_case_has_its_own_id_and_a_valid_surface() -> None:
    for kind, cases in CASES.items():
        assert len({case["id"] for case in cases}) == len(cases), kind
        for case in cases:
            for member in ("surface",) if "surface" in case else ("before", "after"):
                assert surface_from_listing(case[member]).problem is None, case["id"]


def test_published_definitions_have_a_licence_that_allows_copies() -> None:
    published = [*CASES["servers"], *CASES["upgrades"], *CASES["edits"]]
    assert {case["licence"] for case in published} <= PERMISSIVE
    packages = (DATA / "packages.md").read_text()
    names = {case["id"].partition(":")[2].partition(" ")[0] for case in [*CASES["servers"], *CASES["upgrades"]]}
    assert [name for name in names if f"`{name.rpartition('@')[0]}`" not in packages] == []


def test_each_blind_edit_changes_one_published_server() -> None:
    edits = list(load_cases(DATA / "blind", "edits"))
    assert len({edit["id"] for edit in edits}) == 60
    for edit in edits:
        assert edit["before"] in [case["surface"] for case in CASES["servers"]]
        assert edit["before"] != edit["after"], edit["id"]
        assert len(edit["after"]["tools"]) - len(edit["before"]["tools"]) in (0, 1)


def test_a_source_is_in_one_part_only() -> None:
    parts: dict[str, set[str]] = {}
    for cases in CASES.values():
        for case in cases:
            parts.setdefault(case["source"], set()).add(case["part"])
    assert {source: names for source, names in parts.items() if len(names) > 1} == {}


def test_training_attacks_contain_the_sentences_that_they_mark() -> None:
    for entry in read_attacks():
        texts = {text for _, text in walk_strings(entry.get("surface", entry.get("after")))}
        for sentence in entry.get("sentences", ()):
            assert any(sentence in text for text in texts), entry["id"]


def test_training_leaves_out_the_development_part() -> None:
    development = {case["id"] for case in CASES["attacks"] if case["part"] == "development"}
    assert development
    assert development.isdisjoint(entry["id"] for entry in read_attacks())


def test_training_reads_all_its_data_from_the_repository() -> None:
    assert len(set(read_reference())) > 4_000
    assert len({text for unit in read_honest() for text in unit}) > 5_000


def test_attacks_without_a_warning_mostly_have_a_borderline_sentence_and_published_servers_rarely() -> None:
    """A review shows these sentences first, so that nobody has to read a long list to find them."""
    attacks = [surface_from_listing(case["surface"]) for case in CASES["attacks"] if case["part"] == "development"]
    warned = [attack for attack in attacks if any(finding.severity == "warning" for finding in scan(attack))]
    shown = [attack for attack in attacks if attack not in warned and find_borderline_sentences(attack)]
    assert len(warned) + len(shown) >= 0.9 * len(attacks) > len(warned), (len(warned), len(shown))
    counts = [len(find_borderline_sentences(surface_from_listing(case["surface"]))) for case in CASES["servers"]]
    assert sum(map(bool, counts)) <= 0.1 * len(counts)
    assert max(counts) <= 4, "as many as one screen shows"
