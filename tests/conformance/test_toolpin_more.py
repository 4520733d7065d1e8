"""ToolPin on servers and values beside its published recordings: what the rule says where those say nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden import PinwardenError, canonicalize
from pinwarden.core.versions import compare_versions
from pinwarden.lock import lockfile, server_entry
from pinwarden.lock.install_plan import PlanOptions, build_fragment, build_install_plan
from pinwarden.lock.lockfile import verify
from pinwarden.lock.target_verification import (
    TRUSTED_IMAGE_HOSTS,
    find_bundle_anchor,
    parse_image_reference,
    verify_target,
)
from pinwarden.lock.trust_explanation import compute_verdict
from pinwarden.lock.trust_tiers import compute_trust_report
from pinwarden.surface.interop import compute_toolpin_hashes
from tests.conformance.test_toolpin_scan import scanned
from tests.conformance.toolpin_world import assert_prints
from tests.conformance.vectors import REPOSITORY, cases

NOW = "2026-07-20T12:00:00.000Z"
FOLDER = REPOSITORY / "tests" / "vectors" / "toolpin-more"
SERVERS = json.loads((FOLDER / "servers.json").read_bytes())
MICRO = json.loads((FOLDER / "micro.json").read_bytes())


@pytest.mark.parametrize("case", cases(SERVERS))
def test_a_server_has_toolpins_trust_and_configurations_and_lock(case: dict[str, Any]) -> None:
    about = server_entry.parse_server_entry(case["entry"])
    report = compute_trust_report(about, now=NOW)
    assert report.to_json() == case["info"]["trust"]
    assert compute_verdict(report, now=NOW).to_json() == case["info"]["verdict"]
    for client, expected in case["configs"].items():
        assert_prints(build_fragment(about, client), expected)
    data = case["lock"].encode()
    lock = lockfile.parse(data)
    assert (lockfile.to_bytes(lock, plain_v2=True), verify(lock)) == (data, ())
    (locked,) = json.loads(case["lock"])["servers"].values()
    integrity = locked.pop("integrity")
    plan = build_install_plan(about, locked["client"], now=NOW, options=PlanOptions(scope=locked["scope"]))
    assert (plan, lock.entries[0].integrity) == (locked, integrity)


def test_an_unrequested_probe_is_reported_as_skipped_for_an_unsafe_address_too() -> None:
    remote = {"type": "streamable-http", "url": "http://r.acme.example/mcp"}
    about = server_entry.parse_server_entry(
        {"server": {"name": "a/b", "version": "1.0.0", "remotes": [remote]}}, source="official"
    )
    codes = {issue.code for issue in verify_target(about, now=NOW).result.issues}
    assert {"insecure_remote", "remote_probe_skipped"} <= codes


@pytest.mark.parametrize("case", cases(MICRO["oci-refs"], label="identifier"))
def test_an_image_name_is_taken_apart_as_toolpin_does(case: dict[str, Any]) -> None:
    actual, expected = parse_image_reference(case["identifier"]), case["canonical"]
    assert actual == (None if expected is None else (expected["host"], expected["digest"]))
    assert actual is None or (actual[0] in TRUSTED_IMAGE_HOSTS) is case["trusted"]


@pytest.mark.parametrize("case", cases(MICRO["mcpb-hosts"], label="identifier"))
def test_a_bundle_has_toolpins_anchor(case: dict[str, Any]) -> None:
    assert find_bundle_anchor(case["identifier"]) == case["trustAnchor"]


@pytest.mark.parametrize("case", cases(MICRO["tool-hashes"]))
def test_tools_with_names_beyond_ascii_are_hashed_as_toolpin_does_or_said_to_depend_on_the_locale(
    case: dict[str, Any],
) -> None:
    hashes = compute_toolpin_hashes(case["tools"]).to_json()
    known = [name for name in ("toolDescriptionHash", "toolManifestHash", "toolSurfaceHash") if name in hashes]
    if hashes["localeDependent"]:
        assert case["id"] == "n1"  # full-width digits, which only ICU orders
        known = ["toolSurfaceHash"]
    assert {name: hashes[name] for name in known} == {name: case[name] for name in known}


def test_values_are_canonical_compared_and_scanned_as_toolpin_does() -> None:
    for case in MICRO["canonical-json"]:
        if "error" in case:
            with pytest.raises(PinwardenError, match="normali"):
                canonicalize(case["input"].encode(), "toolpin")
        else:
            assert canonicalize(case["input"].encode(), "toolpin").decode() == case["canonical"]
    for case in MICRO["version-compare"]:
        assert compare_versions(case["a"], case["b"]) == case["cmp"]
    for case in MICRO["scan-strings"]:
        assert scanned([{"name": "t", "description": case["description"]}]) == case["findings"]
    for case in MICRO["scan-toolsets"]:
        assert scanned(case["tools"]) == case["scan"]["findings"]
