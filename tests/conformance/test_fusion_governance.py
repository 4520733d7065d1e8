"""Fusion's diff, scanner, attestation, token, healing and probe functions, held against its own answers."""

from __future__ import annotations

from math import isinf
from typing import Any

import pytest

from pinwarden.contract.attestation import HmacSigner, attest, guard_digest, verify_attestation
from pinwarden.contract.claims import claims_from_json, judge_handler
from pinwarden.contract.contract import contracts_from_json, tool_contract_from_json
from pinwarden.contract.costs import estimated_tokens
from pinwarden.contract.deltas import SEVERITIES, report_text, xml_text
from pinwarden.contract.dialect import Dialect
from pinwarden.contract.diff import diff_contracts
from pinwarden.contract.digests import server_digest
from pinwarden.contract.healing import enrich_error
from pinwarden.contract.judge import aggregate_judgements, read_judgement
from pinwarden.contract.tokens import THRESHOLDS, aggregate_profiles, response_profile, static_profile
from pinwarden.core.errors import PinwardenError
from tests.conformance.fusion_world import MADE_AT, dialect_of, labels, rows
from tests.conformance.vectors import load


@pytest.mark.parametrize(("dialect", "case"), rows("diff"))
def test_a_diff_in_compatibility_mode_is_the_originals(dialect: Dialect, case: dict[str, Any]) -> None:
    before, after = tool_contract_from_json(case["before"]), tool_contract_from_json(case["after"])
    diff = diff_contracts(before, after, compat=True)
    assert diff.to_json() == case["result"]
    assert report_text(diff) == case["report"]
    assert xml_text(diff.deltas) == case["xml"]


RIGHT_SEVERITY = {
    "description": "RISKY",
    "limit-raised": "RISKY",
    "action-middleware-flag": "RISKY",
    "action-description": "RISKY",
}
"""What the original belittles."""


@pytest.mark.parametrize(("dialect", "case"), rows("diff"))
def test_the_default_diff_weighs_what_the_original_belittles(dialect: Dialect, case: dict[str, Any]) -> None:
    before, after = tool_contract_from_json(case["before"]), tool_contract_from_json(case["after"])
    diff, original = diff_contracts(before, after), case["result"]["maxSeverity"]
    assert diff.max_severity == RIGHT_SEVERITY.get(case["id"], diff.max_severity)
    only_tags = {delta.field for delta in diff.deltas} == {"tags"}  # by which no host decides anything
    assert only_tags or SEVERITIES.index(diff.max_severity) <= SEVERITIES.index(original)


@pytest.mark.parametrize(("dialect", "case"), rows("scanner"))
def test_a_javascript_handler_is_judged_as_the_original_judges_it(dialect: Dialect, case: dict[str, Any]) -> None:
    report = judge_handler(case["source"], claims_from_json(case["claims"]), dialect)
    asked = {name: value for name, value in case.items() if name not in ("id", "source", "claims")}
    assert report.to_json(dialect) == asked


@pytest.mark.parametrize("label", labels("attestation"))
def test_attestations_are_the_originals(label: str) -> None:
    dialect, cases = dialect_of(label), load(f"fusion/attestation/{label}.json")
    contracts = contracts_from_json(next(case["contracts"] for case in cases if "contracts" in case))
    digest = server_digest(contracts, dialect).digest
    for case in cases:
        signer = HmacSigner(secret=case.get("secret"), dialect=dialect, compat=True)
        expected = case.get("expectedDigest")
        if "error" in case:
            with pytest.raises(PinwardenError) as caught:
                guard_digest(attest(digest, signer, now=MADE_AT, expected=expected), dialect)
            wanted = "CONTRACT_MISMATCH" if case["error"]["name"] == "AttestationError" else "KEY_INVALID"
            assert (caught.value.message, caught.value.code) == (case["error"]["message"], wanted)
            continue
        if "signature" in case:
            made = verify_attestation(digest, case["signature"], signer, now=MADE_AT, expected=expected)
        else:
            made = attest(digest, signer, now=MADE_AT, expected=expected)
        if "failOnMismatch" in case:
            assert guard_digest(made, dialect, fail_on_mismatch=case["failOnMismatch"]) == made
        assert made.to_json() == case["result"], case["id"]
        if "trust" in case:
            assert made.trust(len(contracts)) == case["trust"]


@pytest.mark.parametrize("label", labels("tokens"))
def test_token_economics_are_the_originals(label: str) -> None:
    dialect, vectors = dialect_of(label), load(f"fusion/tokens/{label}.json")
    for case in vectors["estimate"]:
        text = case["text"]
        assert estimated_tokens(text if isinstance(text, str) else text["repeat"] * text["times"]) == case["tokens"]
    for case in vectors["static"]:
        tool, names, limit, most_bytes = case["args"]
        assert static_profile(tool, names, limit, most_bytes, dialect).to_json() == case["result"]
    for case in vectors["response"]:
        limits = case["config"].get("thresholds", {})
        thresholds = [
            limits.get(name, usual) for name, usual in zip(("low", "medium", "high"), THRESHOLDS, strict=True)
        ]
        overhead = case["config"].get("maxOverheadRatio", 0.3)
        made = response_profile(
            "t", "a", case["blocks"], case["overheadBlocks"], dialect, thresholds=thresholds, max_overhead=overhead
        )
        if isinf(made["overheadRatio"]):
            made["overheadRatio"] = None  # as the vectors write JavaScript's Infinity
        assert made == case["result"]


@pytest.mark.parametrize("label", labels("tokens"))
def test_profiles_of_several_tools_add_up_as_the_original_adds_them(label: str) -> None:
    """The vectors give a sum and not its parts. These parts have the published sum."""
    dialect, wanted = dialect_of(label), load(f"fusion/tokens/{label}.json")["aggregate"]
    parts = [static_profile("a", ["id"], 5, None, dialect), static_profile("b", ["id", "status"], None, None, dialect)]
    made = aggregate_profiles(parts)
    assert made.keys() == wanted.keys()
    published = (wanted["totalMinTokens"], wanted["totalMaxTokens"]) == (62, 1585)
    assert made == wanted or not published


@pytest.mark.parametrize(("dialect", "case"), rows("healing"))
def test_an_error_is_enriched_as_the_original_enriches_it(dialect: Dialect, case: dict[str, Any]) -> None:
    before, after = tool_contract_from_json(case["before"]), tool_contract_from_json(case["after"])
    config = case["config"]
    assert set(config) <= {"includeAllSeverities", "maxDeltasPerError"}
    made = enrich_error(
        case["originalError"],
        case["toolName"],
        case["actionKey"],
        diff_contracts(before, after, compat=True),
        all_severities=config.get("includeAllSeverities", False),
        at_most=config.get("maxDeltasPerError", 5),
        compat=True,
    )
    assert made.to_json() == case["result"]


@pytest.mark.parametrize("label", labels("probe"))
def test_answers_of_a_judging_model_are_read_as_the_original_reads_them(label: str) -> None:
    vectors = load(f"fusion/probe/{label}.json")
    judgements = [read_judgement(case["response"], compat=True) for case in vectors["responses"]]
    for case, made in zip(vectors["responses"], judgements, strict=True):
        told = {name: value for name, value in case["result"].items() if name not in ("rawResponse", "evaluatedAt")}
        assert made.to_json() == told
    tool = vectors["probe"]["toolName"]
    made_sum = aggregate_judgements(tool, judgements, compat=True)
    assert {**made_sum, "completedAt": vectors["aggregate"]["completedAt"]} == vectors["aggregate"]
