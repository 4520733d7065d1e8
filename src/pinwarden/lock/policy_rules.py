"""Evaluate policies for an install plan or lock entry: ToolPin's, with its codes and sentences, and Pinwarden's own.

A server with the tier ``blocked`` is refused whatever the policy says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from pinwarden.core.canonical import format_ecmascript_number
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.text import parse_timestamp
from pinwarden.lock.entry import rank_tier
from pinwarden.lock.policy import PROVABLE_CODES, AllowDenyList, Policy, ToolPinPolicy, Waiver
from pinwarden.lock.policy_table import normalize_host
from pinwarden.lock.server_entry import Status
from pinwarden.lock.trust_tiers import ARTIFACT_CODES, PIN_CODES, find_artifact_problem, find_oci_pin_problem

_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


# ToolPin's policy


class PolicyIssue(Record):
    """A rule of ToolPin's policy that a plan breaks."""

    code: str
    message: str

    def to_json(self) -> dict[str, str]:
        """Return the issue as a JSON object, as in reports."""
        return {"code": self.code, "message": self.message}


class ToolPinPolicyReport(Record):
    """The result of ToolPin's policy for one plan."""

    key: str
    issues: tuple[PolicyIssue, ...]
    policy: ToolPinPolicy

    @property
    def ok(self) -> bool:
        """Whether the plan breaks no rule."""
        return not self.issues

    def to_json(self) -> dict[str, Any]:
        """Return the report in ToolPin's shape."""
        return {
            "ok": self.ok,
            "key": self.key,
            "issues": [issue.to_json() for issue in self.issues],
            "policy": dict(self.policy.members),
        }


def evaluate_toolpin_policy(policy: ToolPinPolicy, plan: Mapping[str, Any], *, now: str) -> ToolPinPolicyReport:
    """Evaluate ToolPin's rules in its order. As in ToolPin, an empty allow list allows everything."""
    issues = tuple(
        PolicyIssue(code=code, message=message) for code, message in _evaluate_toolpin_rules(policy, plan, now)
    )
    return ToolPinPolicyReport(key=f"{plan['name']}:{plan['client']}", issues=issues, policy=policy)


def _evaluate_toolpin_rules(policy: ToolPinPolicy, plan: Mapping[str, Any], now: str) -> Iterator[tuple[str, str]]:
    yield from _evaluate_toolpin_trust(policy, plan, now)
    yield from _evaluate_toolpin_lists(policy, plan)
    name, manifest = plan["name"], plan["capabilityManifest"]
    if policy.is_enabled("denyRemoteEndpoints") and manifest["remoteHosts"]:
        hosts = ", ".join(manifest["remoteHosts"])
        yield "remote_endpoint_denied", f"{name} declares remote endpoint host(s): {hosts}"
    required = [f"{row['source']}:{row['name']}" for row in manifest["secrets"] if row["required"]]
    if policy.is_enabled("denyRequiredSecrets") and required:
        yield "required_secrets_denied", f"{name} requires secret input(s): {', '.join(required)}"
    if policy.is_enabled("requireDigestPinnedOci") and (problem := _find_image_problem(plan)):
        manner = "with a valid sha256 digest" if "valid" in problem else "by digest"
        yield "oci_digest_required", f"{name} OCI target must be pinned {manner}"
    if policy.is_enabled("requireMcpbSha256") and _lacks_bundle_hash(plan):
        yield "mcpb_sha256_required", f"{name} MCPB target must declare a valid 64-character fileSha256"


def _evaluate_toolpin_trust(policy: ToolPinPolicy, plan: Mapping[str, Any], now: str) -> Iterator[tuple[str, str]]:
    name, trust = plan["name"], plan["trust"]
    least = policy.members.get("minTrustScore")
    if least is not None and trust["score"] < least:
        score, minimum = format_ecmascript_number(trust["score"]), format_ecmascript_number(least)
        yield "trust_below_minimum", f"{name} trust score {score} is below required minimum {minimum}"
    tier = policy.members.get("minTrustTier")
    if tier is not None and rank_tier(trust["tier"]) < rank_tier(tier):
        message = f"{name} trust tier {trust['tier']} is below required minimum {tier}"
        yield "trust_tier_below_minimum", message
    if policy.is_enabled("requireToolPinVerifiedEvidence"):
        problem = _find_proof_problem(trust, now)
        if problem is not None:
            message = f"{name} does not have fresh trusted artifact evidence verified by ToolPin ({problem})"
            yield "toolpin_verified_evidence_required", message


def _evaluate_toolpin_lists(policy: ToolPinPolicy, plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name, client, source = plan["name"], plan["client"], plan["resolved"]["source"]
    manifest = plan["capabilityManifest"]
    if policy.get_list("allowedSources") and source not in policy.get_list("allowedSources"):
        yield "source_not_allowed", f"{name} registry source {source} is not in allowedSources"
    if source in policy.get_list("deniedSources"):
        yield "source_denied", f"{name} registry source {source} is denied"
    if policy.get_list("allowedClients") and client not in policy.get_list("allowedClients"):
        yield "client_not_allowed", f"{client} is not in allowedClients"
    if client in policy.get_list("deniedClients"):
        yield "client_denied", f"{client} is denied"
    if name in policy.get_list("deniedServers"):
        yield "server_denied", f"{name} is denied"
    for member, listed, code, kind in (
        ("packageTypes", "deniedPackageTypes", "package_type_denied", "package type"),
        ("transports", "deniedTransports", "transport_denied", "transport"),
        ("remoteHosts", "deniedRemoteHosts", "remote_host_denied", "remote host"),
    ):
        for item in manifest[member]:
            if item in policy.get_list(listed):
                yield code, f"{name} uses denied {kind} {item}"


def _find_proof_problem(trust: Mapping[str, Any], now: str) -> str | None:
    if not trust.get("verifiedProvenance"):
        return "missing verified provenance"
    return find_artifact_problem(trust["evidence"], now=now)


def _find_image_problem(plan: Mapping[str, Any]) -> str | None:
    target = plan["selectedTarget"]
    return find_oci_pin_problem(target["identifier"]) if target.get("registryType") == "oci" else None


def _lacks_bundle_hash(plan: Mapping[str, Any]) -> bool:
    target = plan["selectedTarget"]
    if target.get("registryType") != "mcpb":
        return False
    digest = target.get("fileSha256", "")
    return len(digest) != 64 or not _HEX_DIGITS.issuperset(digest)


# Pinwarden's policy


class PolicyFinding(Record):
    """A rule of Pinwarden's policy that a plan breaks, and the waiver for it, if any."""

    code: str
    message: str
    waiver: Waiver | None = None
    expired_waiver: Waiver | None = None
    """An expired waiver for this rule."""

    @property
    def refuses(self) -> bool:
        """Whether the finding refuses the plan, because no waiver applies."""
        return self.waiver is None

    @property
    def full_message(self) -> str:
        """The message, with the owner and expiry date of the waiver, if there is one."""
        if self.waiver is not None:
            return f"{self.message}; waived by {self.waiver.owner} until {self.waiver.expires}: {self.waiver.reason}"
        if self.expired_waiver is not None:
            return f"{self.message}; the waiver by {self.expired_waiver.owner} ended on {self.expired_waiver.expires}"
        return self.message


class PolicyResult(Record):
    """The result of Pinwarden's policy for one plan, including waived findings."""

    server: str
    client: str
    environment: str
    findings: tuple[PolicyFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether all findings are waived."""
        return not any(finding.refuses for finding in self.findings)


class ReleaseStatus(Record):
    """The current state of a release in its registry, and the evidence that was verified in this run."""

    published_at: str | None = None
    status: Status = "active"
    proved_evidence: frozenset[str] | None = None
    """The codes of evidence that was verified in this run. None if recorded evidence counts too, because a signature
    covers it or it was just recorded."""


UNKNOWN_RELEASE = ReleaseStatus()


def evaluate_policy(  # noqa: PLR0913  most have defaults
    policy: Policy,
    plan: Mapping[str, Any],
    *,
    now: str,
    environment: str = "default",
    release: ReleaseStatus = UNKNOWN_RELEASE,
    today: date | None = None,
) -> PolicyResult:
    """Return the rules that a plan breaks, in the order of the policy.

    A rule that cannot be evaluated counts as broken: a release of unknown age is too young. Because the user may set
    ``now``, waivers expire by ``now`` or ``today`` (the system date), whichever is later.
    """
    moment = parse_timestamp(now)
    if moment is None:
        raise PinwardenError("POLICY_INVALID", f"{now[:40]!a} is not a timestamp with a time zone")
    day = max(moment.date(), today or moment.date())
    findings = (
        *_evaluate_status(plan, release.status),
        *_evaluate_lists(policy, plan),
        *_evaluate_trust(policy, plan, environment, now),
        *_evaluate_proofs(policy, plan, release.proved_evidence),
        *_evaluate_age(policy, plan, release.published_at, moment),
        *_evaluate_requirements(policy, plan),
    )
    return PolicyResult(
        server=plan["name"],
        client=plan["client"],
        environment=environment,
        findings=tuple(apply_waivers(policy, plan["name"], code, message, day) for code, message in findings),
    )


def _evaluate_status(plan: Mapping[str, Any], status: Status) -> Iterator[tuple[str, str]]:
    name, trust = plan["name"], plan["trust"]
    if trust["tier"] == "blocked":
        reasons = ", ".join(gate["code"] for gate in trust.get("vetoes", ())) or "the lock records no reason"
        yield "verdict_blocked", f"{name} is blocked: {reasons}"
    if status == "deleted":
        yield "entry_deleted", f"the registry has deleted this version of {name}"


def _evaluate_lists(policy: Policy, plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name, manifest = plan["name"], plan["capabilityManifest"]
    namespace = name.partition("/")[0]
    package_types, hosts = manifest["packageTypes"], manifest["remoteHosts"]
    for label, choice, items, denied, not_allowed in (
        ("server", policy.servers, [name], "server_denied", "server_not_allowed"),
        ("namespace", policy.namespaces, [namespace], "namespace_denied", "namespace_not_allowed"),
        ("registry", policy.registries, [plan["resolved"]["source"]], "registry_denied", "registry_not_allowed"),
        ("client", policy.clients, [plan["client"]], "client_denied", "client_not_allowed"),
        (
            "package type",
            policy.package_types,
            package_types,
            "package_type_denied",
            "package_type_not_allowed",
        ),
        ("transport", policy.transports, manifest["transports"], "transport_denied", "transport_not_allowed"),
        ("host", policy.hosts, hosts, "host_denied", "host_not_allowed"),
    ):
        yield from _evaluate_list(choice, label, items, name, codes=(denied, not_allowed))


def _evaluate_list(
    choice: AllowDenyList, label: str, items: Sequence[str], name: str, *, codes: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield code and message of each item that is not allowed. ``codes`` are for denied and for unlisted items."""
    denied, not_allowed = codes
    for item in items:
        spellings = _list_host_spellings(item) if label == "host" else (item,)
        pattern = choice.find_denying_pattern(*spellings)
        if pattern is not None:
            yield denied, f"{name}: {label} {item} is denied by {pattern.text}"
        elif not choice.is_on_allow_list(*spellings):
            yield not_allowed, f"{name}: {label} {item} is not on the allow list"


def _list_host_spellings(host: str) -> tuple[str, ...]:
    """Return a host with and without its port: a pattern without a port means every port."""
    bare, mark, port = host.rpartition(":")
    with_port = bool(mark) and port.isdigit()
    name = normalize_host(bare if with_port else host)
    return (f"{name}:{port}", name) if with_port else (name,)


def _evaluate_trust(policy: Policy, plan: Mapping[str, Any], environment: str, now: str) -> Iterator[tuple[str, str]]:
    name, trust = plan["name"], plan["trust"]
    tiers = policy.minimum_tier
    least = tiers.get(environment, tiers.get("default"))
    if least is not None and rank_tier(trust["tier"]) < rank_tier(least):
        yield "tier_below_minimum", f"{name} is {trust['tier']}; {environment} requires {least}"
    if policy.minimum_score is not None and trust["overallScore"] < policy.minimum_score:
        message = f"{name} has an overall score of {trust['overallScore']}; at least {policy.minimum_score} is required"
        yield "score_below_minimum", message
    for code in policy.required_evidence:
        if not _has_evidence(code, trust, now):
            yield "evidence_missing", f"{name} has no evidence {code}"


def _evaluate_proofs(
    policy: Policy, plan: Mapping[str, Any], proved: frozenset[str] | None
) -> Iterator[tuple[str, str]]:
    """Report evidence that is only recorded in the lock, if the policy requires a verification or a signature."""
    if not policy.requires_proof or proved is None:
        return
    for code in policy.required_evidence:
        fresh = bool(proved & set(ARTIFACT_CODES)) if code == "artifact_verified" else code in proved
        if code in PROVABLE_CODES and not fresh:
            yield (
                "evidence_only_recorded",
                f"{plan['name']}: {code} is only recorded in the lock; prove it with ci --bytes, or verify who "
                "recorded it with ci --public-key",
            )


def _has_evidence(code: str, trust: Mapping[str, Any], now: str) -> bool:
    if code == "artifact_verified":
        return find_artifact_problem(trust["evidence"], now=now) is None
    # How a package is pinned can only be declared; everything else must have been verified.
    enough = ("declared", "passed") if code in (*PIN_CODES, "attestation_declared") else ("passed",)
    rows = [row for row in trust["evidence"] if row["code"] == code]
    return any(row["status"] in enough for row in rows) and not any(row["status"] == "failed" for row in rows)


def _evaluate_age(
    policy: Policy, plan: Mapping[str, Any], published_at: str | None, now: datetime
) -> Iterator[tuple[str, str]]:
    name = plan["name"]
    if policy.minimum_age_days is None or any(pattern.matches(name) for pattern in policy.age_exemptions):
        return
    published = parse_timestamp(published_at)
    if published is None:
        yield "release_age_unknown", f"the publication date of this version of {name} is unknown"
    elif now - published < timedelta(days=policy.minimum_age_days):
        days = max(0, (now - published).days)
        message = f"this version of {name} is {days} days old; at least {policy.minimum_age_days} are required"
        yield "release_too_young", message


def _evaluate_requirements(policy: Policy, plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name, manifest = plan["name"], plan["capabilityManifest"]
    if policy.require_pinned_images and _find_image_problem(plan):
        yield "image_not_pinned", f"{name} names its image by a tag, which can change"
    if policy.require_bundle_hashes and _lacks_bundle_hash(plan):
        yield "bundle_hash_missing", f"{name} does not declare the SHA-256 of its bundle"
    if policy.deny_remotes and manifest["remoteHosts"]:
        yield "remote_denied", f"{name} declares remotes: {', '.join(manifest['remoteHosts'])}"
    required = [row["name"] for row in manifest["secrets"] if row["required"]]
    if policy.deny_secrets and required:
        yield "secrets_denied", f"{name} requires secrets: {', '.join(required)}"


def apply_waivers(policy: Policy, name: str, code: str, message: str, today: date) -> PolicyFinding:
    """Return a finding with its waiver, if any. ``name`` is the name of a server or the path of a settings file."""
    matching = [waiver for waiver in policy.waivers if waiver.code == code and waiver.servers.matches(name)]
    in_force = next((waiver for waiver in matching if today <= waiver.expires), None)
    expired = next((waiver for waiver in matching if waiver.expires < today), None) if in_force is None else None
    return PolicyFinding(code=code, message=message, waiver=in_force, expired_waiver=expired)
