"""Published servers: what the analysis finds is what people read in their code."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pinwarden.contract.entitlements.analysis import analyse, find_contradictions, find_handlers
from pinwarden.contract.entitlements.values import Analysis, Source
from tests.support.needs import missing
from tests.support.published import TRUTH, IndexUnreachableError, Score, sources, wheels

NAMES = ("mcp-server-git", "mcp-text-editor", "cli-mcp-server")
"""One server of each kind: the high-level class with decorators of its own, handlers as objects, a dispatching
function. ``make bench`` has the others."""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, dict[str, Source]]:
    try:
        found = wheels(NAMES, tmp_path_factory.mktemp("wheels"))
    except IndexUnreachableError as err:
        missing("a package index", f"pip download {NAMES[0]} ({err})")
    return {name: sources(wheel) for name, wheel in found.items()}


@pytest.fixture(scope="module")
def analyses(modules: Mapping[str, dict[str, Source]]) -> Mapping[str, Analysis]:
    return {name: analyse(each, find_handlers(each)) for name, each in modules.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_published_server_has_the_entitlements_that_people_read_in_its_code(
    analyses: Mapping[str, Analysis], name: str
) -> None:
    expected = TRUTH[name]["handlers"]
    score = Score()
    for handler, truth in expected.items():
        score.add(handler, truth["entitlements"], analyses[name].handlers[handler].kinds)
    assert (score.differences, set(analyses[name].handlers)) == ([], set(expected))


def test_every_finding_of_a_published_server_quotes_its_line(
    analyses: Mapping[str, Analysis], modules: Mapping[str, dict[str, Source]]
) -> None:
    for name in NAMES:
        texts = {source.path: source.text.splitlines() for source in modules[name].values()}
        findings = [each for handler in analyses[name].handlers.values() for each in handler.findings]
        assert findings
        for each in findings:
            assert each.evidence == texts[each.path][each.line - 1].strip()
            assert (each.call_path[-1].path, each.call_path[-1].line) == (each.path, each.line)


def test_settings_read_at_import_count_for_the_startup_and_not_for_a_tool(analyses: Mapping[str, Analysis]) -> None:
    server = analyses["cli-mcp-server"]
    assert "environment" in server.startup.kinds
    assert server.handlers["show_security_rules"].kinds == ()


def test_a_read_only_hint_that_a_published_servers_code_contradicts_is_reported(
    analyses: Mapping[str, Analysis],
) -> None:
    """The server marks ``git_status`` as read-only, and it runs git; ``git_commit`` would be worse."""
    handlers = analyses["mcp-server-git"].handlers
    hint = {"readOnlyHint": True}
    assert [each.kind for each in find_contradictions("git_status", hint, handlers["git_status"])] == ["subprocess"]
    assert [each.kind for each in find_contradictions("git_commit", hint, handlers["git_commit"])] == [
        "filesystem:write",
        "subprocess",
    ]


def test_the_truth_is_pinned_to_bytes_and_large_enough_to_mean_something() -> None:
    assert sum(len(each["handlers"]) for each in TRUTH.values()) >= 40
    assert {each["set"] for each in TRUTH.values()} == {"development", "held out"}
    assert all(
        len(each["sha256"]) == 64 and truth["reason"] for each in TRUTH.values() for truth in each["handlers"].values()
    )
