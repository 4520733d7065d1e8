"""Policies: ours refuses rather than guesses, and a waiver is a reason, a name and a day."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden import PinwardenError
from pinwarden.lock.install_plan import build_install_plan
from pinwarden.lock.policy import Policy, parse_policy, parse_toolpin_policy
from pinwarden.lock.policy_rules import PolicyResult, ReleaseStatus, evaluate_policy, evaluate_toolpin_policy
from tests.support.lock_entries import NOW, entry, package, remote

NPM = entry(package(environmentVariables=[{"name": "TOKEN", "isRequired": True}]))
HOSTED = entry(remotes=[remote(url="https://mcp.acme.example:8443/")], name="com.acme/crm")
TAGGED = entry(package(registryType="oci", identifier="r.example/a:1"))
BUNDLE = entry(package(registryType="mcpb", identifier="https://d.example/a"))
INSECURE = entry(remotes=[remote(url="http://h.example/")])


def policy(text: str) -> Policy:
    return parse_policy(text.encode())


def answer(text: str, about: Any = NPM, **given: Any) -> PolicyResult:
    return evaluate_policy(policy(text), build_install_plan(about, "claude", now=NOW), **{"now": NOW, **given})


def codes(result: PolicyResult) -> list[str]:
    return [finding.code for finding in result.findings]


@pytest.mark.parametrize(
    ("text", "about", "code"),
    [
        ('servers.deny = ["io.acme/*"]', NPM, "server_denied"),
        ('servers.allow = ["com.acme/*"]', NPM, "server_not_allowed"),
        ('namespaces.deny = ["io.*"]', NPM, "namespace_denied"),
        ('namespaces.allow = ["io.github.*"]', NPM, "namespace_not_allowed"),
        ('hosts.deny = ["*.acme.example"]', HOSTED, "host_denied"),
        ('hosts.deny = ["mcp.acme.example:8443"]', HOSTED, "host_denied"),
        ('hosts.allow = ["*.other.example"]', HOSTED, "host_not_allowed"),
        ('registries.deny = ["official"]', NPM, "registry_denied"),
        ('registries.allow = ["corner"]', NPM, "registry_not_allowed"),
        ('clients.deny = ["claude"]', NPM, "client_denied"),
        ('package-types.allow = ["oci"]', NPM, "package_type_not_allowed"),
        ('transports.deny = ["stdio"]', NPM, "transport_denied"),
        ('minimum-tier = "verified"', NPM, "tier_below_minimum"),
        ("minimum-score = 90", NPM, "score_below_minimum"),
        ('evidence.require = ["artifact_verified"]', NPM, "evidence_missing"),
        ('evidence.require = ["npm_integrity_verified"]', NPM, "evidence_missing"),
        ('evidence.require = ["package_pin"]', TAGGED, None),
        ('evidence.require = ["digest_present"]', TAGGED, "evidence_missing"),
        ("require.digest-pinned-images = true", TAGGED, "image_not_pinned"),
        ("require.bundle-hashes = true", BUNDLE, "bundle_hash_missing"),
        ("require.no-remotes = true", HOSTED, "remote_denied"),
        ("require.no-secrets = true", NPM, "secrets_denied"),
    ],
)
def test_a_broken_rule_refuses_under_its_own_code(text: str, about: Any, code: str | None) -> None:
    result = answer(f"[policy]\n{text}\n", about)
    assert codes(result) == ([] if code is None else [code])
    assert result.ok == (code is None)


def test_denial_wins_over_permission() -> None:
    text = '[policy.servers]\nallow = ["io.acme/*"]\ndeny = ["**/notes"]\n'
    assert codes(answer(text)) == ["server_denied"]


def test_a_star_does_not_cross_a_slash_and_two_do() -> None:
    assert codes(answer('[policy]\nservers.allow = ["io.*"]')) == ["server_not_allowed"]
    assert answer('[policy]\nservers.allow = ["io.**"]').ok


def test_a_pattern_is_not_a_regular_expression() -> None:
    assert codes(answer('[policy]\nservers.allow = ["io.acme/note."]')) == ["server_not_allowed"]


def test_the_minimum_tier_depends_on_the_environment() -> None:
    text = '[policy.minimum-tier]\ndefault = "unverified"\nproduction = "verified"\n'
    assert answer(text).ok
    assert answer(text, environment="staging").ok
    assert codes(answer(text, environment="production")) == ["tier_below_minimum"]


def test_a_blocked_server_is_refused_whatever_the_policy_allows() -> None:
    text = '[policy]\nminimum-tier = "unverified"\nservers.allow = ["**"]\n'
    result = answer(text, INSECURE)
    assert not result.ok
    assert codes(result)[0] == "verdict_blocked"


def test_a_deleted_version_is_refused() -> None:
    result = answer('[policy]\nservers.allow = ["**"]', release=ReleaseStatus(status="deleted"))
    assert codes(result) == ["entry_deleted"]


# Age of a release

AGE = "[policy.release-age]\nminimum-days = 7\n"


@pytest.mark.parametrize(
    ("published", "code"),
    [
        ("2026-07-13T12:00:00Z", None),
        ("2026-07-13T12:00:01Z", "release_too_young"),
        ("2026-07-21T00:00:00Z", "release_too_young"),
        (None, "release_age_unknown"),
        ("last week", "release_age_unknown"),
        ("2020-01-01T00:00:00", "release_age_unknown"),
    ],
)
def test_a_release_has_to_be_old_enough_and_its_age_known(published: str | None, code: str | None) -> None:
    assert codes(answer(AGE, release=ReleaseStatus(published_at=published))) == ([] if code is None else [code])


def test_servers_can_be_exempt_from_waiting() -> None:
    assert answer(AGE + 'exempt = ["io.acme/*"]\n').ok


# Waivers

WAIVED = """
[policy]
minimum-tier = "verified"
[[policy.waivers]]
server = "io.acme/*"
code = "tier_below_minimum"
reason = "The vendor publishes hashes next month."
owner = "security@acme.example"
expires = 2026-07-20
"""


def test_a_waiver_lifts_a_rule_until_its_last_day_and_stays_visible() -> None:
    result = answer(WAIVED)
    assert result.ok
    assert result.findings[0].waiver is not None
    assert result.findings[0].waiver.owner == "security@acme.example"


def test_an_expired_waiver_does_not_apply_and_is_named() -> None:
    result = answer(WAIVED, now="2026-07-21T00:00:00Z")
    assert not result.ok
    assert result.findings[0].waiver is None
    assert result.findings[0].expired_waiver is not None


def test_a_waiver_is_for_its_servers_only() -> None:
    assert not answer(WAIVED, HOSTED).ok


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('reason = "The vendor publishes hashes next month."', "reason"),
        ('owner = "security@acme.example"', "owner"),
        ("expires = 2026-07-20", "expires"),
        ('server = "io.acme/*"', "server"),
    ],
)
def test_a_waiver_without_reason_owner_day_or_server_is_refused(line: str, why: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        policy(WAIVED.replace(line, ""))
    assert caught.value.code == "POLICY_INVALID"
    assert f"policy.waivers[0].{why}" in caught.value.message


def test_no_waiver_lifts_a_blocked_verdict() -> None:
    with pytest.raises(PinwardenError) as caught:
        policy(WAIVED.replace("tier_below_minimum", "verdict_blocked"))
    assert caught.value.code == "POLICY_INVALID"


# What is refused when it is read


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ('server = "*"', "policy.mcpb[0] has neither anchors nor name"),
        ('name = "notes"', "policy.mcpb[0].server is missing"),
        ('server = "*"\nanchors = ["certs/ca.pem"]', "policy.mcpb[0].anchors is not a list of PEM texts"),
        ('server = "*"\nanchors = []', "policy.mcpb[0].anchors is empty"),
        ('server = "*"\nname = " "', "policy.mcpb[0].name is missing or empty"),
        ('server = "*"\nname = "notes"\nsigner = "me"', "policy.mcpb[0].signer is not a known key"),
    ],
)
def test_an_ambiguous_rule_for_mcpb_bundles_is_refused(rule: str, why: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        policy(f"[[policy.mcpb]]\n{rule}\n")
    assert (caught.value.code, why in caught.value.message) == ("POLICY_INVALID", True), caught.value.message


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "policy"),
        ("[policy]\n", "has no rule"),
        ("[policy]\nversion = 1\n", "has no rule"),
        ("[policy]\nversion = 2\nminimum-score = 1\n", "policy.version"),
        ("[policy]\nminimum-teir = 'verified'\n", "policy.minimum-teir"),
        ("[policy.servers]\nalow = ['x']\n", "policy.servers.alow"),
        ("[policy.servers]\n", "policy.servers is empty"),
        ("[policy.servers]\nallow = []\n", "policy.servers.allow is empty"),
        ("[policy.servers]\nallow = ['a/*']\ndeny = ['a/*']\n", "both allows and denies"),
        ("[policy.servers]\nallow = 'a'\n", "policy.servers.allow"),
        ("[policy]\nminimum-tier = 'blocked'\n", "policy.minimum-tier"),
        ("[policy.minimum-tier]\nproduction = 'verified'\n", "has no default"),
        ("[policy]\nminimum-score = 101\n", "policy.minimum-score"),
        ("[policy]\nminimum-score = true\n", "policy.minimum-score"),
        ("[policy.evidence]\nrequire = ['vibes']\n", "unknown evidence"),
        ("[policy.evidence]\nrequire = ['package_pin']\nproved = true\n", "policy.evidence.proved"),
        ("[policy.require]\nno-remotes = 'yes'\n", "policy.require.no-remotes"),
        ("[policy.require]\nno-remotes = false\n", "has no rule"),
        ("[policy.release-age]\nminimum-days = -1\n", "policy.release-age.minimum-days"),
        ("[policy\n", "not TOML"),
        ("policy = 5\n", "policy is not a table"),
        ("[policy.servers]\ndeny = ['*a*a*a*a*a*a*a*a*a*']\n", "too many stars"),
    ],
)
def test_an_empty_or_ambiguous_policy_is_refused(text: str, named: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        policy(text)
    assert caught.value.code == "POLICY_INVALID"
    assert named in caught.value.message


def test_the_digest_of_a_policy_covers_its_content() -> None:
    spaced = WAIVED.replace(" = ", "   =   ") + "# a remark\n"
    assert policy(WAIVED).digest == policy(spaced).digest
    assert policy(WAIVED).digest != policy(WAIVED.replace("2026-07-20", "2026-07-21")).digest


def test_evaluating_a_policy_needs_a_timestamp() -> None:
    with pytest.raises(PinwardenError) as caught:
        answer(WAIVED, now="today")
    assert caught.value.code == "POLICY_INVALID"


# ToolPin's policy


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"version": 2}',
        '{"version": true}',
        '{"minTrustScore": 101}',
        '{"minTrustTier": "gold"}',
        '{"deniedClients": ["notepad"]}',
        '{"deniedServers": "x"}',
        '{"denyRequiredSecrets": null}',
        '{"allowedSources": ["corner"]}',
        '{"requireEverything": true}',
    ],
)
def test_toolpins_policy_is_refused_where_toolpin_refuses_it(text: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        parse_toolpin_policy(text.encode())
    assert caught.value.code == "POLICY_INVALID"


def toolpin_codes(text: str, about: Any) -> list[str]:
    plan = build_install_plan(about, "claude", now=NOW)
    return [issue.code for issue in evaluate_toolpin_policy(parse_toolpin_policy(text.encode()), plan, now=NOW).issues]


@pytest.mark.parametrize(
    ("text", "about", "expected"),
    [
        ("{}", NPM, []),
        ('{"allowedClients": [], "allowedSources": []}', NPM, []),
        ('{"minTrustScore": 74.5}', NPM, ["trust_below_minimum"]),
        ('{"deniedTransports": ["streamable-http"]}', HOSTED, ["transport_denied"]),
        ('{"deniedRemoteHosts": ["mcp.acme.example"]}', HOSTED, []),  # exact, port included
        (
            '{"denyRemoteEndpoints": true, "deniedRemoteHosts": ["mcp.acme.example:8443"]}',
            HOSTED,
            ["remote_host_denied", "remote_endpoint_denied"],
        ),
        ('{"requireDigestPinnedOci": true, "requireMcpbSha256": true}', TAGGED, ["oci_digest_required"]),
        ('{"requireDigestPinnedOci": true, "requireMcpbSha256": true}', BUNDLE, ["mcpb_sha256_required"]),
        (
            '{"denyRequiredSecrets": true, "deniedPackageTypes": ["npm"]}',
            NPM,
            ["package_type_denied", "required_secrets_denied"],
        ),
    ],
)
def test_toolpins_rules_are_reported_in_toolpins_order(text: str, about: Any, expected: list[str]) -> None:
    assert toolpin_codes(text, about) == expected
