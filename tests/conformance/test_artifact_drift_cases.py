"""The artifact cases of the drift collections: every one reported, and blocked where it must be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.artifacts.artifact_drift import compare_artifacts
from tests.conformance.vectors import assert_judged, cases, vectors_dir

# Of the collection's shape. A published collection may have none of its own.
OURS: list[dict[str, Any]] = [
    {
        "id": "same-version-other-bytes",
        "label": "attack",
        "class": "artifact.bytes_changed",
        "artifact_before": {
            "registryType": "npm",
            "name": "acme-notes-mcp",
            "version": "1.4.0",
            "integrity": "sha512-AAAA",
            "publisher": "alice",
        },
        "artifact_after": {
            "registryType": "npm",
            "name": "acme-notes-mcp",
            "version": "1.4.0",
            "integrity": "sha512-BBBB",
            "publisher": "alice",
        },
        "expect": {
            "must_report": True,
            "must_block_by_default": True,
            "changed": [["artifact", "acme-notes-mcp", "integrity"]],
        },
    },
    {
        "id": "provenance-comes",
        "label": "benign",
        "class": "artifact.provenance_gained",
        "artifact_before": {"name": "acme-notes-mcp", "version": "1.4.0", "integrity": "sha512-AAAA"},
        "artifact_after": {
            "name": "acme-notes-mcp",
            "version": "1.4.0",
            "integrity": "sha512-AAAA",
            "provenance": {"repository": "https://github.com/acme/notes"},
        },
        "expect": {
            "must_report": True,
            "must_block_by_default": False,
            "changed": [["artifact", "acme-notes-mcp", "provenance"]],
        },
    },
]


def _published() -> list[dict[str, Any]]:
    files = sorted((vectors_dir() / "attacks" / "own").glob("*.jsonl"))
    assert files, "the collection is not there"
    rows = [
        json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    return [row for row in rows if "artifact_before" in row]


@pytest.mark.parametrize("case", cases([*OURS, *_published()]))
def test_a_changed_artifact_is_judged_as_the_collection_expects(case: dict[str, Any]) -> None:
    changes = compare_artifacts(case["artifact_before"], case["artifact_after"])
    assert_judged(changes, case["expect"])
