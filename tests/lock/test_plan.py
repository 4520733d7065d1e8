"""Install plans: what a lockfile records about one server in one client."""

from __future__ import annotations

import pytest

from pinwarden import PinwardenError
from pinwarden.lock.entry import check_shape
from pinwarden.lock.install_plan import PlanOptions, build_install_plan
from pinwarden.lock.launch_choice import choose_target
from pinwarden.lock.target_verification import LiveOutcome, verify_target
from tests.support.lock_entries import NOW, entry, package, remote


def test_a_plan_has_toolpins_members_in_toolpins_order() -> None:
    plan = build_install_plan(entry(package()), "claude", now=NOW)
    assert list(plan) == [
        "name",
        "version",
        "client",
        "scope",
        "selectedTarget",
        "trust",
        "config",
        "notes",
        "capabilityManifest",
        "resolvedAt",
        "lockedAt",
        "resolved",
        "original",
        "locked",
    ]
    assert plan["locked"] == {name: plan[name] for name in ("selectedTarget", "config", "capabilityManifest")}
    assert plan["trust"]["evidence"][-1]["code"] == "lock_integrity"


def test_the_copies_in_a_plan_are_copies() -> None:
    plan = build_install_plan(entry(package()), "claude", now=NOW)
    plan["config"]["mcpServers"].clear()
    plan["capabilityManifest"]["packageTypes"].append("oci")
    assert plan["locked"]["config"]["mcpServers"]
    assert plan["locked"]["capabilityManifest"]["packageTypes"] == ["npm"]


def test_the_plan_has_the_given_time() -> None:
    plan = build_install_plan(entry(package()), "claude", now="2001-02-03T04:05:06.007Z")
    moments = (plan["resolvedAt"], plan["lockedAt"], plan["capabilityManifest"]["generatedAt"])
    assert set(moments) == {"2001-02-03T04:05:06.007Z"}


def test_scope_and_target_are_as_chosen() -> None:
    about = entry(package(), remotes=[remote()])
    how = PlanOptions(scope="global", target=choose_target(about, "npm"))
    plan = build_install_plan(about, "cursor", now=NOW, options=how)
    assert (plan["scope"], plan["selectedTarget"]["kind"]) == ("global", "package")
    assert build_install_plan(about, "cursor", now=NOW)["selectedTarget"]["kind"] == "remote"


def test_live_tools_are_pinned_in_both_manifests() -> None:
    tools = ({"name": "read", "description": "Reads.", "inputSchema": {"type": "object"}},)
    about = entry(package())
    seen = verify_target(about, now=NOW, live=LiveOutcome(state="listed", tools=tools))
    plan = build_install_plan(about, "claude", now=NOW, verification=seen)
    manifest = plan["capabilityManifest"]
    assert manifest["toolSurfaceHash"]["toolCount"] == 1
    assert plan["locked"]["capabilityManifest"] == manifest
    codes = [row["code"] for row in plan["trust"]["evidence"]]
    assert codes[-3:] == ["tool_description_hash", "tool_surface_hash", "lock_integrity"]


def test_a_plan_without_a_version_has_none_in_its_copies() -> None:
    plan = build_install_plan(entry(package(), version=None), "claude", now=NOW)
    assert all("version" not in copy for copy in (plan, plan["resolved"], plan["original"]))
    assert "serverVersion" not in plan["capabilityManifest"]


def test_an_entry_that_cannot_be_installed_has_no_plan() -> None:
    discovered = {"dev.toolpin/source": {"mode": "discovery"}}
    for about in (entry(), entry(package(), source="glama", meta=discovered)):
        with pytest.raises(PinwardenError) as caught:
            build_install_plan(about, "claude", now=NOW)
        assert caught.value.code == "NO_INSTALL_TARGET"


def test_a_plan_has_the_shape_of_a_lock_entry() -> None:
    plan = build_install_plan(entry(package()), "claude", now=NOW)
    check_shape(plan, "/servers/plan")
