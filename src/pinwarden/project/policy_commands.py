"""Implements the ``policy`` commands: write a first policy, check the lock against a policy, print its digest."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.javascript import encode_javascript_json
from pinwarden.core.report import Report, Row
from pinwarden.lock.policy import RECOMMENDED_TOOLPIN_POLICY, Policy, ToolPinPolicy, parse_policy, parse_toolpin_policy
from pinwarden.project.project import (
    OWN_POLICY,
    RECORDED_EVIDENCE,
    TOOLPIN_POLICY,
    Policies,
    find_broken_rules,
    load_policies,
    parse_file,
    requires_evidence,
)
from pinwarden.system.files import create_file, read_file, write_atomically

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.policy import Waiver
    from pinwarden.lock.policy_rules import PolicyFinding
    from pinwarden.project.project import Project

_TEMPLATE = """\
[policy]
version = 1

# The lowest trust tier that is allowed: verified, conditional or unverified. A blocked server is never allowed.
# Use a table for different environments (pinwarden policy check --environment production):
#   minimum-tier = {{ default = "conditional", production = "verified" }}
minimum-tier = "conditional"

# The lowest overall score that is allowed, 0 to 100.
# minimum-score = 50

# Requirements for every server.
[policy.require]
# Clients name the exact release of every package (pinwarden pin writes it). With false, ci only warns.
exact-releases = true
# Images are named by digest: a tag can be moved to another image.
{mark}digest-pinned-images = true
# Bundles have a declared SHA-256.
{mark}bundle-hashes = true
# No servers that are reached over the network.
# no-remotes = true
# No servers that need a secret.
# no-secrets = true

# Which servers are allowed. One star matches anything but a slash, two stars match anything. Deny takes precedence,
# and if there is an allow list, nothing else is allowed. The same lists exist for namespaces, hosts, registries,
# clients, package-types and transports.
# [policy.servers]
# allow = ["io.github.your-team/*"]
# deny = ["io.github.your-team/experimental-*"]

# Evidence that every server needs; artifact_verified means that the bytes were verified.
# [policy.evidence]
# require = ["package_pin", "artifact_verified"]
# Evidence counts only if ci --bytes verified it in the same run, or if ci --public-key verified the lock.
# proved = true

# The minimum age of a release: most malicious releases are discovered within days. A release of unknown age fails.
# [policy.release-age]
# minimum-days = 3
# exempt = ["io.github.your-team/*"]

# An exception has a reason, an owner and an expiry date. A blocked server cannot have one.
# [[policy.waivers]]
# server = "io.github.partner/legacy"
# code = "tier_below_minimum"
# reason = "reviewed by hand, replacement planned"
# owner = "security@example.org"
# expires = 2027-01-31
"""
DEFAULT_POLICY = """\
# Rules for the MCP servers of this project, which pinwarden ci checks.
[policy]
version = 1

[policy.require]
# Clients name the exact release of every package; pinwarden pin writes it. With false, ci only warns.
exact-releases = true
"""
"""The policy that the first ``pinwarden init`` of a project writes."""
_MINIMAL = {"version": 1, "minTrustTier": "conditional"}


def init_policy(project: Project, *, recommended: bool, toolpin: bool = False, force: bool = False) -> Report:
    """Write a policy and return the report of ``pinwarden policy init``. Replaces a policy only with ``force``."""
    if toolpin:
        path = project.root / TOOLPIN_POLICY
        data = encode_javascript_json(RECOMMENDED_TOOLPIN_POLICY if recommended else _MINIMAL)
        digest = parse_toolpin_policy(data).digest.sri
    else:
        path = project.root / OWN_POLICY
        data = _merge_into_file(path, _render_template(recommended), force)
        digest = parse_policy(data).digest.sri
    action = _write_policy(path, data, replace=force or not toolpin)
    displayed = project.display_path(path)
    return Report(
        command="policy init",
        subject=displayed,
        summary=f"{displayed} {action}; check the lock against it with pinwarden policy check",
        exit_code=EXIT_CLEAN,
        facts={"file": displayed, "action": action, "recommended": recommended, "digest": digest},
    )


def write_default_policy(project: Project) -> str | None:
    """Write the default policy of a project that has none, and return the name of the file; None if it has one."""
    own, toolpin = project.policy_file, project.root / TOOLPIN_POLICY
    if any(path.exists() or path.is_symlink() for path in (own, toolpin)):
        return None
    create_file(own, DEFAULT_POLICY.encode())
    return project.display_path(own)


def find_policy_to_sign(project: Project) -> Path | None:
    """Return the policy file that a signature of the lock has to cover; None if the project has none.

    Raises USAGE if the project has two: a signature covers only one.
    """
    files = [path for path in (project.policy_file, project.root / TOOLPIN_POLICY) if path.exists()]
    if len(files) > 1:
        raise PinwardenError(
            "USAGE",
            "this project has two policies, but a signature covers only one",
            hint=f"Name the policy to sign: --policy {project.display_path(files[0])}",
        )
    return files[0] if files else None


def check_policy(project: Project, policies: Policies, *, now: str, server: str | None = None) -> Report:
    """Return the report of ``pinwarden policy check``. Raises if the lock was tampered with."""
    from pinwarden.lock.lockfile import refuse_if_tampered
    from pinwarden.project.lock_documents import find_entries, read_lock

    document = read_lock(project.lock)
    lock = document.lock
    refuse_if_tampered(document.problems)
    entries = lock.entries if server is None else find_entries(lock, server)
    # This command verifies neither bytes nor signatures, so no evidence counts as verified.
    broken_rules_by_entry = [
        (entry, find_broken_rules(policies, entry.document, now, verified_evidence=frozenset())) for entry in entries
    ]
    refused = sum(any(rule.refuses for rule in rules) for _, rules in broken_rules_by_entry)
    count = f"{len(entries)} entr{'y' if len(entries) == 1 else 'ies'}"
    evidence_note = f"{RECORDED_EVIDENCE.format(count=count)} (both are options of pinwarden ci)"
    return Report(
        command="policy check",
        subject=server or project.lock.name,
        summary=f"{refused} of {count} refused by the policy" if refused else f"{count} allowed by the policy",
        exit_code=EXIT_REFUSED if refused else EXIT_CLEAN,
        rows=tuple(
            _build_row(entry, rule)
            for entry, rules in broken_rules_by_entry
            for rule in sorted(rules, key=lambda rule: not rule.refuses)
        ),
        notes=(evidence_note,) if entries and requires_evidence(policies) else (),
        facts={
            "ok": not refused,
            "environment": policies.environment,
            "policies": _list_digests(policies),
            "entries": [_entry_to_json(entry, rules) for entry, rules in broken_rules_by_entry],
        },
    )


def report_policy_digest(project: Project, named: Path | None = None) -> Report:
    """Return the report of ``pinwarden policy digest``."""
    if named is not None:
        file, digest = str(named), read_policy(named).digest.sri
    else:
        policies = load_required_policies(project, None)
        present = [policy for policy in (policies.own, policies.toolpin) if policy is not None]
        if len(present) > 1:
            raise PinwardenError(
                "USAGE",
                f"both {OWN_POLICY} and {TOOLPIN_POLICY} contain a policy",
                hint="Choose one of them with --policy.",
            )
        file = str(TOOLPIN_POLICY if policies.own is None else OWN_POLICY)
        digest = present[0].digest.sri
    return Report(
        command="policy digest",
        subject=file,
        summary=digest,
        exit_code=EXIT_CLEAN,
        facts={"file": file, "digest": digest},
    )


def load_required_policies(project: Project, named: Path | None, environment: str = "default") -> Policies:
    """Load the policy in the file ``named``, or the project's policies. Raises if there is no policy."""
    if named is None:
        policies = load_policies(project, environment)
    else:
        policy = read_policy(named)
        own = policy if isinstance(policy, Policy) else None
        toolpin = policy if isinstance(policy, ToolPinPolicy) else None
        policies = Policies(own=own, toolpin=toolpin, environment=environment)
    if not policies.has_policy:
        raise PinwardenError(
            "FILE_UNREADABLE",
            f"this project has no policy: neither {OWN_POLICY} with a table [policy] nor {TOOLPIN_POLICY}",
            hint="Write one with pinwarden policy init --recommended, or name one with --policy.",
        )
    return policies


def read_policy(path: Path) -> Policy | ToolPinPolicy:
    """Read a policy file. A JSON file is in ToolPin's format, a TOML file in Pinwarden's."""
    if path.suffix == ".json":
        return parse_file(path, parse_toolpin_policy)
    return parse_file(path, parse_policy)


def compute_policy_digest(path: Path | None) -> str | None:
    """Return the digest of a policy file, which lock signatures cover; None if no policy is given."""
    return None if path is None else read_policy(path).digest.sri


def _render_template(recommended: bool) -> bytes:
    return _TEMPLATE.format(mark="" if recommended else "# ").encode()


def _merge_into_file(path: Path, policy: bytes, force: bool) -> bytes:
    """Return the new content of ``pinwarden.toml``.

    Keeps other tables. Replaces the default policy of ``init``. Any other policy is replaced only with ``force``, and
    only if there are no other tables.
    """
    if not (path.exists() or path.is_symlink()):
        return policy
    before = read_file(path)
    try:
        tables = tomllib.loads(before.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise PinwardenError("POLICY_INVALID", f"{path.name} is not TOML: {err}") from err
    if before == DEFAULT_POLICY.encode():
        return policy
    if "policy" not in tables:
        return before.rstrip() + b"\n\n" + policy if before.strip() else policy
    if not force:
        raise PinwardenError("FILE_EXISTS", f"{path.name} already has a policy", hint="Replace it with --force.")
    if len(tables) > 1:
        hint = "Edit the table [policy] by hand."
        raise PinwardenError("FILE_EXISTS", f"{path.name} has other tables besides the policy", hint=hint)
    return policy


def _write_policy(path: Path, data: bytes, *, replace: bool) -> str:
    if path.is_symlink():
        raise PinwardenError("FILE_EXISTS", f"{path} is a symbolic link", hint="Replace the link by a file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path.parent} cannot be created: {err.strerror or err}") from err
    if not path.exists():
        create_file(path, data)
        return "written"
    if not replace:
        raise PinwardenError("FILE_EXISTS", f"{path} already exists", hint="Replace it with --force.")
    write_atomically(path, data)
    return "changed"


def _build_row(entry: Entry, rule: PolicyFinding) -> Row:
    return Row(
        code=rule.code,
        severity="critical" if rule.refuses else "info",
        entity="server",
        name=entry.key,
        path="",
        message=rule.full_message,
    )


def _entry_to_json(entry: Entry, rules: tuple[PolicyFinding, ...]) -> dict[str, Any]:
    return {
        "key": entry.key,
        "server": entry.name,
        "client": entry.client,
        "ok": not any(rule.refuses for rule in rules),
        "findings": [
            {
                "code": rule.code,
                "message": rule.message,
                **({"waiver": _waiver_to_json(rule.waiver)} if rule.waiver else {}),
                **({"expired_waiver": _waiver_to_json(rule.expired_waiver)} if rule.expired_waiver else {}),
            }
            for rule in rules
        ],
    }


def _waiver_to_json(waiver: Waiver) -> dict[str, str]:
    return {"owner": waiver.owner, "reason": waiver.reason, "expires": waiver.expires.isoformat()}


def _list_digests(policies: Policies) -> dict[str, str]:
    named = {"pinwarden": policies.own, "toolpin": policies.toolpin}
    return {name: policy.digest.sri for name, policy in named.items() if policy is not None}
