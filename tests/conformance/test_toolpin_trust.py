"""ToolPin's judgement, number for number and word for word: trust, verdict, target, verification and versions."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from pinwarden.cli.output import render
from pinwarden.core.report import Report
from pinwarden.core.versions import compare_versions
from pinwarden.lock import server_entry
from pinwarden.lock.launch_choice import choose_target
from pinwarden.lock.server_entry import Remote, ServerEntry
from pinwarden.lock.target_verification import (
    TRUSTED_IMAGE_HOSTS,
    find_bundle_anchor,
    parse_image_reference,
    scan_tools,
)
from pinwarden.lock.trust_explanation import compute_verdict
from pinwarden.lock.trust_tiers import compute_trust_report
from pinwarden.project.verify import verify_server
from tests.conformance.toolpin_world import LIVE, clock, entry, files, verification
from tests.conformance.vectors import cases, load


def same_text(actual: Any, expected: Any) -> bool:
    """Equal, and in the same order of members."""
    return json.dumps(actual) == json.dumps(expected)


@pytest.mark.parametrize("case", cases(load("toolpin/micro/trust-matrix.json"), label="none"))
def test_the_matrix_has_the_same_trust_verdict_and_target(case: dict[str, Any]) -> None:
    about = server_entry.parse_server_entry(case["entry"])
    report = compute_trust_report(about, now=clock())
    assert report.to_json() == case["trust"]
    assert same_text(report.to_json(), case["trust"])
    assert compute_verdict(report, now=clock()).to_json() == case["verdict"]
    target = choose_target(about)
    assert target is not None
    kind, member = ("remote", "remote") if isinstance(target, Remote) else ("package", "pkg")
    assert {"kind": kind, member: target.raw} == case["launch"]


def normalised(entry: ServerEntry) -> dict[str, Any]:
    """The entry in the shape that ToolPin reports as ``server``; absent members are left out."""
    problem = server_entry.find_install_problem(entry)
    shape: dict[str, Any] = {
        "registrySource": entry.source,
        "registryMode": "discovery" if entry.is_discovery_only else "installable",
        "name": entry.name,
        "title": entry.title,
        "description": entry.description,
        "version": entry.version,
        "isLatest": entry.is_latest,
        "installable": problem is None,
        "installableReason": problem,
        "repositoryUrl": entry.repository_url,
        "packageTypes": list(entry.package_types),
        "remoteTypes": list(entry.remote_types),
        "transports": list(entry.transports),
        "requiresSecrets": entry.requires_secrets,
        "raw": dict(entry.server),
        "registryMeta": dict(entry.meta),
    }
    return {name: member for name, member in shape.items() if member is not None}


@pytest.mark.parametrize("path", files("info/*.json"), ids=lambda path: path.stem)
def test_information_about_a_server_is_the_same(path: Path) -> None:
    expected = json.loads(path.read_bytes())
    about = entry(path.stem)
    report = compute_trust_report(about, now=clock())
    actual = {
        "server": normalised(about),
        "trust": report.to_json(),
        "verdict": compute_verdict(report, now=clock()).to_json(),
    }
    assert actual == expected
    assert same_text(actual, expected)


@pytest.mark.parametrize("path", files("verify/*.json"), ids=lambda path: path.stem)
def test_a_verification_reports_the_same(path: Path) -> None:
    identifier, kind = path.stem.split(".", 1)
    assert kind in LIVE
    expected = json.loads(path.read_bytes())
    actual = verification(entry(identifier), kind, expected).to_json()
    assert actual == expected
    assert same_text(actual, expected)


@pytest.mark.parametrize("path", files("verify/*.sarif"), ids=lambda path: path.stem)
def test_a_verification_has_the_same_results_in_code_scanning_views(path: Path) -> None:
    (theirs,) = json.loads(path.read_bytes())["runs"]
    report = verify_server(load(f"toolpin/servers/{path.name.split('.')[0]}.json"), now=clock())
    (ours,) = json.loads(render(report, "sarif"))["runs"]
    own = {finding["code"] for finding in report.facts["findings"]}  # what ToolPin does not look for
    assert results(ours, leave_out=own) == results(theirs)
    assert all(is_said(row["message"]["text"], report) for row in theirs["results"])


def results(run: dict[str, Any], leave_out: Collection[str] = ()) -> set[tuple[str, str]]:
    """Rule and level of what is more than a note, which ToolPin leaves out."""
    rows = {(row["ruleId"], row["level"]) for row in run["results"]}
    return {(rule, level) for rule, level in rows if level != "note" and rule not in leave_out}


def is_said(text: str, report: Report) -> bool:
    """Whether a row says it; ours name what the text is about first, where it is a text of the server."""
    return any(row.message == text or row.message.endswith(f": {text}") for row in report.rows)


@pytest.mark.parametrize("path", files("scan/*.json"), ids=lambda path: path.stem)
def test_the_scan_of_metadata_finds_the_same(path: Path) -> None:
    expected = json.loads(path.read_bytes())
    report = compute_trust_report(entry(path.stem), now=clock())
    advised = {(row["code"], f"{row['subject']}: {row['message']}") for row in expected["findings"]}
    assert advised <= {(issue.code, issue.message) for issue in report.issues}
    assert ("description-scan-advisory" in report.badges) == bool(advised)


@pytest.mark.parametrize("case", cases(load("toolpin/micro/scan-toolsets.json"), label="none"))
def test_the_scan_of_tools_is_the_same(case: dict[str, Any]) -> None:
    assert scan_tools(case["tools"], now=case["scan"]["generatedAt"]) == case["scan"]


@pytest.mark.parametrize("case", cases(load("toolpin/micro/version-compare.json"), label="a"))
def test_versions_compare_the_same(case: dict[str, Any]) -> None:
    assert compare_versions(case["a"], case["b"]) == case["cmp"]
    assert compare_versions(case["b"], case["a"]) == -case["cmp"]


@pytest.mark.parametrize("case", cases(load("toolpin/micro/oci-refs.json"), label="identifier"))
def test_images_are_taken_apart_the_same(case: dict[str, Any]) -> None:
    actual = parse_image_reference(case["identifier"])
    if case["canonical"] is None:
        assert actual is None
        return
    assert actual == (case["canonical"]["host"], case["canonical"]["digest"])
    assert (actual[0] in TRUSTED_IMAGE_HOSTS) == case["trusted"]


@pytest.mark.parametrize("case", cases(load("toolpin/micro/mcpb-hosts.json"), label="identifier"))
def test_bundle_hosts_are_anchors_for_the_same_addresses(case: dict[str, Any]) -> None:
    assert find_bundle_anchor(case["identifier"]) == case["trustAnchor"]
