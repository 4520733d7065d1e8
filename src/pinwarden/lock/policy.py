"""Policies: ToolPin's ``.toolpin/policy.json``, and Pinwarden's table ``[policy]`` of ``pinwarden.toml``.

Unknown keys are errors, because a misspelled rule would silently not apply. Pinwarden's policy must also not be empty
or contradict itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, build_kind_table
from pinwarden.lock.entry import LOCK_CLIENTS, TIERS_WORST_FIRST
from pinwarden.lock.gateway_policy import GatewayPolicy, parse_gateway_policy
from pinwarden.lock.policy_table import GlobPattern, PolicyTable, normalize_host, policy_error

POLICY_TABLES = ("policy", "identity", "remotes")
"""The tables of ``pinwarden.toml``."""

# ToolPin's policy

_TOOLPIN_SOURCES = ("toolpin", "official", "docker", "pulsemcp", "smithery", "glama")
_SOURCE_ALIASES = {"pulse": "pulsemcp"}
_FLAGS = (
    "requireToolPinVerifiedEvidence",
    "denyRemoteEndpoints",
    "denyRequiredSecrets",
    "requireDigestPinnedOci",
    "requireMcpbSha256",
)
_LISTS = (
    "allowedSources",
    "deniedSources",
    "allowedClients",
    "deniedClients",
    "deniedServers",
    "deniedPackageTypes",
    "deniedTransports",
    "deniedRemoteHosts",
)
_TOOLPIN_ORDER = (
    "version",
    "minTrustScore",
    "minTrustTier",
    "requireToolPinVerifiedEvidence",
    *_LISTS,
    "denyRemoteEndpoints",
    "denyRequiredSecrets",
    "requireDigestPinnedOci",
    "requireMcpbSha256",
)

RECOMMENDED_TOOLPIN_POLICY: Mapping[str, Any] = {
    "version": 1,
    "minTrustTier": "conditional",
    "requireToolPinVerifiedEvidence": False,
    "requireDigestPinnedOci": True,
    "requireMcpbSha256": True,
}
"""What ToolPin writes with ``policy init --recommended``."""


class ToolPinPolicy(Record):
    """ToolPin's policy. Members have ToolPin's names; absent members set no rule."""

    members: Mapping[str, Any]

    @property
    def digest(self) -> Digest:
        """The digest by which a lock signature names the policy."""
        return Digest.of_bytes(canonicalize(dict(self.members), "toolpin"))

    def get_list(self, member: str) -> tuple[str, ...]:
        """Return the strings of a list member; empty if the policy does not have the member."""
        return tuple(self.members.get(member, ()))

    def is_enabled(self, member: str) -> bool:
        """Whether a switch is on; off if the policy does not have the member."""
        return self.members.get(member) is True


def parse_toolpin_policy(data: bytes) -> ToolPinPolicy:
    """Parse ``.toolpin/policy.json``."""
    value = strict_json.parse_json(data)
    if not isinstance(value, dict):
        raise policy_error("policy", "is not an object")
    for key in value:
        if key not in _TOOLPIN_ORDER:
            raise policy_error(key, "is not a key of ToolPin's policy")
    _check_toolpin_members(value)
    for member in ("allowedSources", "deniedSources"):
        if member in value:
            value[member] = [_parse_source(member, name) for name in value[member]]
    return ToolPinPolicy(members={member: value[member] for member in _TOOLPIN_ORDER if member in value})


def _check_toolpin_members(value: dict[str, Any]) -> None:
    if "version" in value and (value["version"] != 1 or isinstance(value["version"], bool)):
        raise policy_error("version", "is not 1")
    score = value.get("minTrustScore", 0)
    if not isinstance(score, int | float) or isinstance(score, bool) or not 0 <= score <= 100:
        raise policy_error("minTrustScore", "is not a number from 0 to 100")
    if "minTrustTier" in value and value["minTrustTier"] not in TIERS_WORST_FIRST:
        raise policy_error("minTrustTier", f"is not one of {', '.join(TIERS_WORST_FIRST)}")
    for member in _FLAGS:
        if not isinstance(value.get(member, False), bool):
            raise policy_error(member, "is neither true nor false")
    for member in _LISTS:
        listed = value.get(member, [])
        if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
            raise policy_error(member, "is not a list of strings")
    for member in ("allowedClients", "deniedClients"):
        for client in value.get(member, []):
            if client not in LOCK_CLIENTS:
                raise policy_error(member, f"names the unknown client {client[:40]!a}")


def _parse_source(member: str, name: str) -> str:
    source = _SOURCE_ALIASES.get(name, name)
    if source not in _TOOLPIN_SOURCES:
        # ToolPin's policy can name only its own registries; Pinwarden's can name any.
        raise policy_error(member, f"names the registry {name[:40]!a}, which ToolPin does not know")
    return source


# Pinwarden's policy


class AllowDenyList(Record):
    """An allow list and a deny list. Deny wins; without an allow list, everything that is not denied is allowed."""

    allow: tuple[GlobPattern, ...] | None = None
    deny: tuple[GlobPattern, ...] = ()

    def find_denying_pattern(self, *spellings: str) -> GlobPattern | None:
        """Return the first pattern that denies a name in any of these spellings, or None."""
        return next((pattern for pattern in self.deny if any(map(pattern.matches, spellings))), None)

    def is_on_allow_list(self, *spellings: str) -> bool:
        """Whether a name is on the allow list, in any of these spellings. Without an allow list, every name is."""
        return self.allow is None or any(pattern.matches(name) for pattern in self.allow for name in spellings)


class Waiver(Record):
    """An exception to a rule for some servers or settings files: the reason, the approver and the expiry date."""

    servers: GlobPattern
    code: str
    reason: str
    owner: str
    expires: date
    """The last day on which the waiver applies."""


class SandboxRule(Record):
    """The sandbox that some servers are started in."""

    servers: GlobPattern
    network: bool = False
    read: tuple[str, ...] = ()
    """Folders that the server may read, besides system files and its own files."""
    write: tuple[str, ...] = ()
    """Folders that the server may write to. Relative paths start at the project folder."""


class McpbRule(Record):
    """Requirements on the MCPB bundles of some servers: a signature under a certificate of ``anchors``, and the name
    ``name`` in their manifest."""

    servers: GlobPattern
    anchors: tuple[str, ...] = ()
    """PEM texts, each with one or more certificates. The policy's digest covers them."""
    name: str | None = None


class Policy(Record):
    """Pinwarden's policy."""

    servers: AllowDenyList
    namespaces: AllowDenyList
    hosts: AllowDenyList
    registries: AllowDenyList
    clients: AllowDenyList
    package_types: AllowDenyList
    transports: AllowDenyList
    minimum_tier: Mapping[str, str]
    """The minimum tier by environment; ``default`` applies to all other environments."""
    minimum_score: int | None
    required_evidence: tuple[str, ...]
    requires_proof: bool
    """Whether evidence recorded in the lock counts only if a known key signed the lock."""
    minimum_age_days: int | None
    age_exemptions: tuple[GlobPattern, ...]
    require_exact_releases: bool
    """Whether ``ci`` fails if a client's file names no exact release of a package."""
    require_pinned_images: bool
    require_bundle_hashes: bool
    deny_remotes: bool
    deny_secrets: bool
    requires_locked_skills: bool
    """Whether ``ci`` fails if a skill on disk is not locked, even if no skill ever was."""
    requires_locked_instructions: bool
    """Whether ``ci`` fails if an instruction file of the project, such as ``AGENTS.md``, is not locked."""
    waivers: tuple[Waiver, ...]
    sandbox_rules: tuple[SandboxRule, ...]
    """The first rule that matches a server applies."""
    mcpb_rules: tuple[McpbRule, ...]
    """The first rule that matches a server applies."""
    gateway: GatewayPolicy | None
    """The table ``[policy.gateway]``; None if the policy has no such table."""
    table: Mapping[str, Any]
    """The policy's table in the file, with dates as text."""

    def find_sandbox_rule(self, server: str) -> SandboxRule | None:
        """Return the first sandbox rule that matches a server."""
        return next((rule for rule in self.sandbox_rules if rule.servers.matches(server)), None)

    def find_mcpb_rule(self, server: str) -> McpbRule | None:
        """Return the first rule for MCPB bundles that matches a server."""
        return next((rule for rule in self.mcpb_rules if rule.servers.matches(server)), None)

    @property
    def has_entry_rules(self) -> bool:
        """Whether a rule depends on what the lock records about a server, so that the record must be consistent."""
        required = {key for key, value in self.table.get("require", {}).items() if value is True}
        return bool(required - {"exact-releases"} or self.table.keys() - _KEYS_WITHOUT_ENTRY_RULES)

    @property
    def digest(self) -> Digest:
        """The digest of the whole table."""
        return Digest.of_bytes(canonicalize(dict(self.table)))


_LIST_TABLES = ("servers", "namespaces", "hosts", "registries", "clients", "package-types", "transports")
_LIST_KEYS = ("allow", "deny")
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
MAX_ANCHOR_LENGTH = 64 * 1024
"""The maximum length of one PEM text. A certificate has about two kilobytes."""
_REQUIRE_KEYS = ("exact-releases", "digest-pinned-images", "bundle-hashes", "no-remotes", "no-secrets")
_KEYS = (
    *_LIST_TABLES,
    *(
        "version",
        "minimum-tier",
        "minimum-score",
        "evidence",
        "release-age",
        "require",
        "waivers",
        "sandbox",
        "mcpb",
        "gateway",
        "skills",
        "instructions",
    ),
)
_KEYS_WITHOUT_ENTRY_RULES = {"version", "require", "waivers", "skills", "instructions"}
EVIDENCE_CODES = (
    "package_pin",
    "digest_present",
    "file_hash_present",
    "attestation_declared",
    "npm_integrity_verified",
    "oci_digest_verified",
    "mcpb_sha256_verified",
    "pypi_sha256_verified",
    "nuget_sha512_verified",
    "cargo_checksum_verified",
    "registry_signature_verified",
    "provenance_verified",
    "tool_description_hash",
    "tool_surface_hash",
    "lock_integrity",
    "artifact_verified",
)
"""Evidence codes that a policy can require. Any recent verification of the bytes satisfies ``artifact_verified``."""
PROVABLE_CODES = frozenset(code for code in EVIDENCE_CODES if code.endswith("_verified"))
"""Evidence codes that state a verification by Pinwarden or ToolPin."""
SETTING_CODES = ("servers_enabled", "hooks", "command_setting", "variables_set", "plugins_enabled")
"""Findings about client settings, which a team may accept with a waiver that names the file."""
FILE_CODES = (*SETTING_CODES, "config_uncovered")
"""Findings about a file. Their waivers name the file instead of a server."""
RULE_KINDS: FindingKinds = build_kind_table(
    critical=(
        ("server_denied", "The policy denies this server."),
        ("server_not_allowed", "The policy allows only other servers."),
        ("namespace_denied", "The policy denies the namespace of this server."),
        ("namespace_not_allowed", "The policy allows only other namespaces."),
        ("host_denied", "The policy denies a host that the server contacts."),
        ("host_not_allowed", "The policy does not allow a host that the server contacts."),
        ("registry_denied", "The policy denies the registry that the server is from."),
        ("registry_not_allowed", "The policy allows only other registries."),
        ("client_denied", "The policy denies the client that the server is locked for."),
        ("client_not_allowed", "The policy allows only other clients."),
        ("package_type_denied", "The policy denies the package type of the server."),
        ("package_type_not_allowed", "The policy allows only other package types."),
        ("transport_denied", "The policy denies the transport of the server."),
        ("transport_not_allowed", "The policy allows only other transports."),
        ("tier_below_minimum", "The server has a lower tier than the policy requires."),
        ("score_below_minimum", "The server has a lower trust score than the policy requires."),
        ("evidence_missing", "The lock does not have the evidence that the policy requires."),
        ("evidence_only_recorded", "The policy requires evidence that was verified in this run, or a signed lock."),
        ("release_too_young", "The release was published more recently than the policy allows."),
        (
            "release_age_unknown",
            "The policy requires a minimum age, and the publication date of the release is unknown.",
        ),
        ("image_not_pinned", "The policy requires a digest, and the container image is named by a tag."),
        (
            "bundle_hash_missing",
            "The policy requires the SHA-256 of an MCPB bundle, and the server does not declare it.",
        ),
        ("remote_denied", "The policy denies remote servers."),
        ("secrets_denied", "The policy denies servers that require secrets."),
        ("entry_deleted", "The registry deleted the locked version."),
        ("verdict_blocked", "The lock records the server as blocked."),
    ),
)
"""The rules of a policy that a lock entry can break."""
WAIVABLE_CODES = (*(code for code in RULE_KINDS if code != "verdict_blocked"), "floating_release", *FILE_CODES)
"""Rules that a waiver can lift. ``verdict_blocked`` is not among them: a blocked server stays blocked."""


def parse_policy(data: bytes) -> Policy:
    """Parse the table ``[policy]`` of ``pinwarden.toml``. A file without it is an error: it would allow everything."""
    return _policy_from_document(_parse_toml(data))


def parse_policy_file(data: bytes) -> Policy | None:
    """Parse a project's ``pinwarden.toml``. None if it has only other settings, such as ``[identity]``."""
    document = _parse_toml(data)
    for name in document:
        if name not in POLICY_TABLES:
            raise policy_error(name[:80], f"is not a known table; known: {', '.join(POLICY_TABLES)}")
    if "policy" not in document and document:
        return None
    return _policy_from_document(document)


def _parse_toml(data: bytes) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(data.decode("utf-8"))
    except RecursionError as err:
        raise PinwardenError("POLICY_INVALID", "the file is nested too deeply") from err
    except ValueError as err:  # not UTF-8, not TOML, or a number that is too long
        raise PinwardenError("POLICY_INVALID", f"the file is not TOML: {err}") from err


def _policy_from_document(document: dict[str, Any]) -> Policy:
    if "policy" not in document:
        raise policy_error("policy", "is missing: the file has no table [policy]")
    return policy_from_table(document["policy"])


def policy_from_table(value: Any) -> Policy:
    """Build a policy from its parsed table."""
    table = PolicyTable(value, "policy")
    table.refuse_unknown(_KEYS)
    version = table.value.get("version", 1)
    if version != 1 or isinstance(version, bool):
        table.fail("version", "is not 1")
    age = table.table("release-age", ("minimum-days", "exempt"))
    require = table.table("require", _REQUIRE_KEYS) or PolicyTable({}, "policy.require")
    evidence = table.table("evidence", ("require", "proved"))
    policy = Policy(
        servers=_parse_allow_deny_list(table.table("servers", _LIST_KEYS)),
        namespaces=_parse_allow_deny_list(table.table("namespaces", _LIST_KEYS)),
        hosts=_normalize_hosts(_parse_allow_deny_list(table.table("hosts", _LIST_KEYS))),
        registries=_parse_allow_deny_list(table.table("registries", _LIST_KEYS)),
        clients=_parse_allow_deny_list(table.table("clients", _LIST_KEYS)),
        package_types=_parse_allow_deny_list(table.table("package-types", _LIST_KEYS)),
        transports=_parse_allow_deny_list(table.table("transports", _LIST_KEYS)),
        minimum_tier=_parse_minimum_tier(table),
        minimum_score=table.optional_integer("minimum-score", 100),
        required_evidence=_parse_required_evidence(evidence),
        requires_proof=evidence.flag("proved") if evidence else False,
        minimum_age_days=age.optional_integer("minimum-days", 3650) if age else None,
        age_exemptions=age.patterns("exempt") or () if age else (),
        require_exact_releases=require.flag("exact-releases"),
        require_pinned_images=require.flag("digest-pinned-images"),
        require_bundle_hashes=require.flag("bundle-hashes"),
        deny_remotes=require.flag("no-remotes"),
        deny_secrets=require.flag("no-secrets"),
        requires_locked_skills=_parse_locked(table, "skills"),
        requires_locked_instructions=_parse_locked(table, "instructions"),
        waivers=tuple(map(_parse_waiver, table.objects("waivers", default=[]))),
        sandbox_rules=tuple(map(_parse_sandbox_rule, table.objects("sandbox", default=[]))),
        mcpb_rules=tuple(map(_parse_mcpb_rule, table.objects("mcpb", default=[]))),
        gateway=parse_gateway_policy(table.value["gateway"]) if "gateway" in table else None,
        table=_to_json(table.value),
    )
    if not _has_rules(policy) and "exact-releases" not in require:
        raise policy_error("policy", "has no rule, so it would allow everything")
    return policy


def _parse_locked(table: PolicyTable, member: str) -> bool:
    if table.value.get(member, "locked") != "locked":
        table.fail(member, 'is not "locked"')
    return member in table.value


def _parse_allow_deny_list(table: PolicyTable | None) -> AllowDenyList:
    if table is None:
        return AllowDenyList()
    allow, deny = table.patterns("allow"), table.patterns("deny")
    if allow is None and deny is None:
        raise policy_error(table.path, "has neither allow nor deny")
    for pattern in allow or ():
        if pattern in (deny or ()):
            raise policy_error(table.path, f"both allows and denies {pattern.text[:80]!a}")
    return AllowDenyList(allow=allow, deny=deny or ())


def _normalize_hosts(choice: AllowDenyList) -> AllowDenyList:
    def normalize(patterns: tuple[GlobPattern, ...]) -> tuple[GlobPattern, ...]:
        return tuple(GlobPattern(text=normalize_host(pattern.text)) for pattern in patterns)

    return AllowDenyList(allow=None if choice.allow is None else normalize(choice.allow), deny=normalize(choice.deny))


def _parse_minimum_tier(table: PolicyTable) -> Mapping[str, str]:
    value = table.value.get("minimum-tier", {})
    tiers = {"default": value} if isinstance(value, str) else value
    if not isinstance(tiers, dict):
        table.fail("minimum-tier", "is neither a tier nor a table of tiers by environment")
    for environment, tier in tiers.items():
        if tier not in TIERS_WORST_FIRST or tier == "blocked":
            table.fail(f"minimum-tier.{environment}", "is not one of verified, conditional, unverified")
    if tiers and "default" not in tiers:
        table.fail("minimum-tier", "has no default for other environments")
    return tiers


def _parse_required_evidence(table: PolicyTable | None) -> tuple[str, ...]:
    if table is None:
        return ()
    codes = table.nonempty_strings("require")
    for code in codes or ():
        if code not in EVIDENCE_CODES:
            table.fail("require", f"names the unknown evidence {code[:40]!a}")
    if table.flag("proved") and not PROVABLE_CODES & set(codes or ()):
        table.fail("proved", "requires proofs, but require names no evidence that can be proved")
    return codes or ()


def _parse_waiver(table: PolicyTable) -> Waiver:
    table.refuse_unknown(("server", "code", "reason", "owner", "expires"))
    code = table.required_text("code")
    if code not in WAIVABLE_CODES:
        table.fail("code", f"is {code[:40]!a}, which cannot be waived")
    return Waiver(
        servers=table.pattern(table.required_text("server")),
        code=code,
        reason=table.required_text("reason"),
        owner=table.required_text("owner"),
        expires=table.date("expires"),
    )


def _parse_sandbox_rule(table: PolicyTable) -> SandboxRule:
    table.refuse_unknown(("server", "network", "read", "write"))
    read, write = table.nonempty_strings("read") or (), table.nonempty_strings("write") or ()
    for path in (*read, *write):
        if "\0" in path or path in ("/", "~", "~/"):
            table.fail("read", f"or write names {path[:80]!a}, which would give access to everything")
    return SandboxRule(
        servers=table.pattern(table.required_text("server")), network=table.flag("network"), read=read, write=write
    )


def _parse_mcpb_rule(table: PolicyTable) -> McpbRule:
    table.refuse_unknown(("server", "anchors", "name"))
    anchors = table.nonempty_strings("anchors") or ()
    for text in anchors:
        if len(text) > MAX_ANCHOR_LENGTH or _CERTIFICATE not in text:
            table.fail("anchors", f"is not a list of PEM texts, each with a line {_CERTIFICATE}")
    name = table.required_text("name") if "name" in table else None
    if not anchors and name is None:
        raise policy_error(table.path, "has neither anchors nor name")
    return McpbRule(servers=table.pattern(table.required_text("server")), anchors=anchors, name=name)


def _has_rules(policy: Policy) -> bool:
    choices = (policy.servers, policy.namespaces, policy.hosts, policy.registries)
    kinds = (policy.clients, policy.package_types, policy.transports)
    required = (policy.require_exact_releases, policy.require_pinned_images, policy.require_bundle_hashes)
    locked = (policy.requires_locked_skills, policy.requires_locked_instructions)
    switches = (*required, policy.deny_remotes, policy.deny_secrets, *locked)
    return (
        any(choice.allow is not None or choice.deny for choice in (*choices, *kinds))
        or bool(policy.minimum_tier)
        or policy.minimum_score is not None
        or bool(policy.required_evidence)
        or policy.minimum_age_days is not None
        or bool(policy.sandbox_rules)
        or bool(policy.mcpb_rules)
        or policy.gateway is not None
        or any(switches)
        or any(waiver.code in FILE_CODES for waiver in policy.waivers)  # these rules apply without being configured
    )


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value
