"""Fusion's contract diff and token estimate, compared with recorded results of the original."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.contract.contract import tool_contract_from_json
from pinwarden.contract.costs import estimate_tokens
from pinwarden.contract.dialect import Dialect
from pinwarden.contract.diff import SEVERITIES, diff_contracts
from tests.conformance.fusion_world import labels, rows
from tests.conformance.vectors import load


@pytest.mark.parametrize(("dialect", "case"), rows("diff"))
def test_a_diff_in_compatibility_mode_is_the_originals(dialect: Dialect, case: dict[str, Any]) -> None:
    before, after = tool_contract_from_json(case["before"]), tool_contract_from_json(case["after"])
    diff = diff_contracts(before, after, compat=True)
    assert diff.to_json() == case["result"]


RIGHT_SEVERITY = {
    "description": "RISKY",
    "limit-raised": "RISKY",
    "action-middleware-flag": "RISKY",
    "action-description": "RISKY",
}
"""What the original belittles."""


@pytest.mark.parametrize(("dialect", "case"), rows("diff"))
def test_the_default_diff_reports_what_the_original_understates(dialect: Dialect, case: dict[str, Any]) -> None:
    before, after = tool_contract_from_json(case["before"]), tool_contract_from_json(case["after"])
    diff, original = diff_contracts(before, after), case["result"]["maxSeverity"]
    assert diff.max_severity == RIGHT_SEVERITY.get(case["id"], diff.max_severity)
    only_tags = {delta.field for delta in diff.deltas} == {"tags"}  # by which no host decides anything
    assert only_tags or SEVERITIES.index(diff.max_severity) <= SEVERITIES.index(original)


@pytest.mark.parametrize("label", labels("tokens"))
def test_a_token_estimate_is_the_originals(label: str) -> None:
    for case in load(f"fusion/tokens/{label}.json")["estimate"]:
        text = case["text"]
        assert estimate_tokens(text if isinstance(text, str) else text["repeat"] * text["times"]) == case["tokens"]
