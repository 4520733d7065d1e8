"""The configuration cases of the drift collection: every one reported, and blocked where it must be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.vectors import assert_judged, cases, vectors_dir
from tests.support.config_drift import compare_configs


def _config_cases() -> list[Any]:
    files = sorted((vectors_dir() / "attacks" / "own").glob("*.jsonl"))
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    return cases([row for row in rows if "config_before" in row and _is_about_servers(row)])


def _is_about_servers(case: dict[str, Any]) -> bool:
    """Servers that are gone, and settings beside servers, are reported without the configuration before."""
    return all(name and field != "removed" for _, name, field in case["expect"]["changed"])


@pytest.mark.parametrize("case", _config_cases())
def test_a_changed_configuration_is_judged_as_the_collection_expects(case: dict[str, Any]) -> None:
    changes = compare_configs(case["config_before"], case["config_after"])
    assert_judged(changes, case["expect"])


def test_there_are_configuration_cases() -> None:
    assert _config_cases()
