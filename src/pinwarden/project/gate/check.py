"""The checks of ``pinwarden ci``, which find differences from what was approved.

By default, the checks do not contact servers or registries.

A failed check does not stop the other checks, so one run reports everything. A check that could not be done is reported
with its own rows and exit code, and never counts as passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import FindingKinds, Row, build_kind_table, is_failing
from pinwarden.core.text import plural
from pinwarden.lock import lock_store
from pinwarden.lock.locked_config import BUNDLE_SOURCE
from pinwarden.lock.lockfile import Lock, read_skills_pin
from pinwarden.project.gate.gate_report import (
    CHECKS,
    GateResult,
    build_gate_result,
    has_closures,
)
from pinwarden.project.gate.integrity import (
    check_entry_consistency,
    check_expected_digest,
    check_lock,
    check_name_collisions,
    check_records,
    check_required_signatures,
    report_outdated_surfaces,
)
from pinwarden.project.project import RECORDED_EVIDENCE, find_broken_rules, requires_evidence

if TYPE_CHECKING:
    from pathlib import Path

    from pinwarden.clients.config import ConfigFile
    from pinwarden.lock.mcp_registry import Registries
    from pinwarden.project.fetch_context import FetchContext
    from pinwarden.project.gate.online import ByteCheck
    from pinwarden.project.lock_signatures import SignatureOptions
    from pinwarden.project.project import Policies, Project
    from pinwarden.surface.probe.probe import ProbeOptions


class GateOptions(Record):
    """Optional checks, in addition to the lock, the surfaces, the configurations and the policy."""

    now: str
    registries: Registries | None = None
    """If given, each locked version is looked up again, and its metadata must equal the approved metadata."""
    registry_requested: bool = False
    """Whether ``--registry`` was given; otherwise the lookup is part of ``--live``."""
    probe: ProbeOptions | None = None
    """If given, servers are started or contacted, and their surfaces are compared with the approved surfaces."""
    configs: bool = True
    """Whether to compare the client configurations with the lock. Without a lock, they are read in any case."""
    expect_digest: str | None = None
    require_lock: bool = False
    require_extension: bool = False
    require_policy: bool = False
    signatures: SignatureOptions | None = None
    """If given, these keys must have signed the lock together with the policy of this project."""
    fetch_context: FetchContext | None = None
    """If given, the locked artifacts are fetched and hashed again."""
    osv: Path | None = None
    """If given, every locked package is looked up in this OSV export."""

    @property
    def requires_lock(self) -> bool:
        """Whether a project without a lock fails even if no server is configured."""
        return self.require_lock or self.require_extension or self.expect_digest is not None or bool(self.signatures)


LOCK_REQUIRED_KINDS: FindingKinds = build_kind_table(
    critical=(("lock_required", "A lock is required, but this project has none."),)
)
POLICY_KINDS: FindingKinds = build_kind_table(
    critical=(
        ("policy_missing", "A policy is required, but this project has none."),
        (
            "policy_loosened",
            "The policy allows something that is blocked by default, and no digest or signature covers the policy.",
        ),
    )
)

_SKIPPED_IF_TAMPERED = {"scripts": "skipped", "advisories": "skipped"}
"""Checks of what the lock lists, which is not reliable if the lock was tampered with."""


def check_project(project: Project, policies: Policies, options: GateOptions) -> GateResult:
    """Run the checks of ``pinwarden ci`` on one project.

    1. The lock and the files next to it, and the expected digest that is kept outside the repository.
    2. The signatures, if requested.
    3. Every client configuration.
    4. The bytes of locked artifacts, if requested.
    5. The policies, with the evidence that counts (`_choose_evidence`).
    6. The registry, if requested.
    7. The live servers, if requested. None is started if step 1 or 2 fails, nor any that the policy refuses.
    8. Yanked bundles, install scripts that are not approved, and known vulnerabilities.
    9. The skills, if any are locked or the policy requires it.

    Without a lock, only checks whether the project needs a lock or a policy.
    """
    lock, pinned_files = lock_store.read_with_files(project.lock)
    if lock is None:
        return _check_without_lock(project, policies, options)
    integrity = [
        *check_lock(project, lock, pinned_files, options),
        *check_expected_digest(project, lock, policies, options),
        *check_records(project, lock),
        *check_name_collisions(project),
        *check_entry_consistency(project, lock, policies),
    ]
    signed = check_required_signatures(project, lock, policies, options)
    config_files = project.find_configs() if options.configs else []
    configs = _check_configs(project, lock, config_files, policies)
    byte_check = _check_bytes(project, lock, options)
    evidence = _choose_evidence(options, (*integrity, *signed), byte_check)
    refused = [
        *_check_policies(lock, policies, options, evidence),
        *(() if _is_policy_covered(options, (*integrity, *signed)) else _check_loosened_policy(project, policies)),
    ]
    registry = _check_registries(lock, options)
    live = _check_live_servers(
        project, lock, pinned_files, options, _find_servers_not_to_start(lock, (*integrity, *signed), refused)
    )
    skill_rows, skill_counts = _check_skills(project, lock, pinned_files, policies)
    rows_by_check = {
        "integrity": [*integrity, *_check_yanked(project, lock)],
        "signature": signed,
        "configs": configs,
        "skills": skill_rows,
        "policy": refused,
        "registry": registry,
        "bytes": byte_check.rows if byte_check is not None else (),
        "scripts": _check_scripts(lock, pinned_files, lock_intact=_is_intact(integrity)),
        "advisories": _check_advisories(lock, pinned_files, options, lock_intact=_is_intact(integrity)),
        "live": live,
    }
    checked = build_gate_result(project, lock, config_files, rows_by_check, options=options, policies=policies)
    checked = replace(checked, skills=skill_counts, checks_not_done=_list_not_done(checked, integrity))
    if evidence is None or not requires_evidence(policies):
        return checked
    unverified = sum(not evidence.get(entry.key) for entry in lock.entries)
    if not unverified:
        return checked
    note = RECORDED_EVIDENCE.format(count=plural(unverified, "entry", "entries"))
    return replace(checked, notes=(*checked.notes, note))


def _choose_evidence(
    options: GateOptions, lock_problems: Iterable[Row], byte_check: ByteCheck | None
) -> Mapping[str, frozenset[str]] | None:
    """Return the evidence that the policies may rely on, by entry; None if the evidence recorded in the lock counts.

    Recorded evidence counts only if the lock is intact and signed by the required keys. Otherwise only what this run
    verified itself counts.
    """
    if options.signatures is not None and not any(map(is_failing, lock_problems)):
        return None
    return {} if byte_check is None else byte_check.verified_evidence


def _check_yanked(project: Project, lock: Lock) -> list[Row]:
    """Report locked bundles that were yanked, according to the last known state of their registry's log."""
    if not any(entry.source == BUNDLE_SOURCE for entry in lock.entries):
        return []
    from pinwarden.project.installed_bundles import check_yanked_bundles

    return list(check_yanked_bundles(project, lock.entries))


def _check_skills(
    project: Project, lock: Lock | None, pinned_files: dict[str, bytes], policies: Policies
) -> tuple[Sequence[Row], Mapping[str, int]]:
    """Return the rows about skills, and how many approved skills and instruction files were compared."""
    is_locked = lock is not None and read_skills_pin(lock) is not None
    has_file = project.lock.with_name(lock_store.skills_file_name(project.lock)).exists()
    required = policies.requires_locked_skills or policies.requires_locked_instructions
    if not (is_locked or has_file or required or project.has_skills()):
        return (), {}
    from pinwarden.project.gate.skills_check import check_skills

    check = check_skills(project, lock, pinned_files, policies)
    return check.rows, check.counts


def _check_without_lock(project: Project, policies: Policies, options: GateOptions) -> GateResult:
    """Check a project without a lock. It needs a lock if it configures servers or if an option requires one.

    Reads the configurations even without ``options.configs``. Otherwise, ``--no-configs`` would pass after someone
    deleted the lock.
    """
    configs = project.find_configs()
    rows: list[Row] = []
    message = f"there is no {project.lock.name} in {project.root.name or 'this folder'}"
    if any(file.servers or file.fault for file in configs) and not options.requires_lock:
        raise PinwardenError("LOCK_MISSING", message)
    if options.requires_lock:
        level = LOCK_REQUIRED_KINDS["lock_required"].severity
        rows.append(Row(code="lock_required", severity=level, entity="lock", name="", path="", message=message))
    return GateResult(
        subject=project.display_path(project.lock),
        unconfigured=not rows,
        rows_by_check={
            "integrity": rows,
            "skills": _check_skills(project, None, {}, policies)[0],
            "policy": [*_check_policy_exists(policies, options)],
        },
        checks_not_done=dict.fromkeys(CHECKS, "none"),
    )


def _check_policies(
    lock: Lock, policies: Policies, options: GateOptions, evidence: Mapping[str, frozenset[str]] | None
) -> Iterator[Row]:
    yield from _check_policy_exists(policies, options)
    for entry in lock.entries:
        verified_evidence = None if evidence is None else evidence.get(entry.key, frozenset())
        for rule in find_broken_rules(policies, entry.document, options.now, verified_evidence=verified_evidence):
            level = "critical" if rule.refuses else "info"
            yield Row(code=rule.code, severity=level, entity="policy", name=entry.name, path="", message=rule.message)


def _is_policy_covered(options: GateOptions, lock_problems: Iterable[Row]) -> bool:
    """Whether the expected digest or the signatures prove that this policy was approved."""
    signed = options.signatures is not None and options.signatures.policy is None
    return (options.expect_digest is not None or signed) and not any(map(is_failing, lock_problems))


def _check_loosened_policy(project: Project, policies: Policies) -> Iterator[Row]:
    """Report rules that allow something that is blocked by default. Anyone who can edit the repository can add them."""
    gateway = policies.own.gateway if policies.own is not None else None
    for sentence in gateway.describe_loosened_settings() if gateway is not None else ():
        yield Row(
            code="policy_loosened",
            severity=POLICY_KINDS["policy_loosened"].severity,
            entity="policy",
            name="",
            path="",
            message=f"{sentence}; if this is intended, keep the output of `pinwarden lock digest --sealed` outside the "
            "repository (--expect-digest), or sign the lock with this policy",
            file=project.display_path(project.policy_file),
        )


def _check_policy_exists(policies: Policies, options: GateOptions) -> Iterator[Row]:
    if options.require_policy and not policies.has_policy:
        yield Row(
            code="policy_missing",
            severity=POLICY_KINDS["policy_missing"].severity,
            entity="policy",
            name="",
            path="",
            message="this project has no policy",
        )


def _check_configs(project: Project, lock: Lock, files: Sequence[ConfigFile], policies: Policies) -> list[Row]:
    if not files:
        return []
    from pinwarden.project.configs import check_configs, check_floating_releases

    return [*check_configs(project, lock, files, policies), *check_floating_releases(project, files, policies)]


def _check_registries(lock: Lock, options: GateOptions) -> list[Row]:
    if options.registries is None:
        return []
    from pinwarden.project.gate.online import check_registries

    return list(check_registries(lock, options.registries, options))


def _check_bytes(project: Project, lock: Lock, options: GateOptions) -> ByteCheck | None:
    if options.fetch_context is None:
        return None
    from pinwarden.project.gate.online import check_bytes
    from pinwarden.project.last_checked import record_entries_checked

    check = check_bytes(lock, options.fetch_context, options.now)
    record_entries_checked(project, (entry for entry in lock.entries if check.verified_evidence.get(entry.key)))
    return check


def _is_intact(integrity: Iterable[Row]) -> bool:
    """Whether the lock was not tampered with. A note, such as one about a wrong clock, is no sign of that."""
    return not any(map(is_failing, integrity))


def _list_not_done(checked: GateResult, integrity: Iterable[Row]) -> Mapping[str, str]:
    """Return the state of the checks that were not done. Nothing that a tampered lock lists is looked up."""
    return {**({} if _is_intact(integrity) else _SKIPPED_IF_TAMPERED), **checked.checks_not_done}


def _check_scripts(lock: Lock, pinned_files: Mapping[str, bytes], *, lock_intact: bool) -> list[Row]:
    """Report install scripts that are not approved. Does not read the files next to a tampered lock."""
    if not lock_intact or not has_closures(lock):
        return []
    from pinwarden.project.install_scripts import check_script_approvals

    return list(check_script_approvals(lock, pinned_files))


def _check_advisories(
    lock: Lock, pinned_files: Mapping[str, bytes], options: GateOptions, *, lock_intact: bool
) -> list[Row]:
    """Report known vulnerabilities. A tampered lock is skipped, because its list of packages is not reliable."""
    if options.osv is None or not lock_intact:
        return []
    from pinwarden.artifacts.osv import find_vulnerable_packages
    from pinwarden.artifacts.osv_export import read_osv_export
    from pinwarden.project.locked_packages import build_vulnerability_rows, list_locked_packages

    packages = list_locked_packages(lock, pinned_files)
    return list(build_vulnerability_rows(find_vulnerable_packages(read_osv_export(options.osv), packages), packages))


def _find_servers_not_to_start(lock: Lock, lock_problems: Iterable[Row], refused: Iterable[Row]) -> dict[str, str]:
    """Return the servers that must not be started, with the reasons. Consent covers only approved servers."""
    if any(map(is_failing, lock_problems)):
        return dict.fromkeys((entry.name for entry in lock.entries), "the lock was changed since it was approved")
    # ``verdict_blocked`` applies only to remote servers, which are not started.
    broken = (row for row in refused if row.severity == "critical" and row.code != "verdict_blocked")
    return {row.name: "the policy refuses it" for row in broken}


def _check_live_servers(
    project: Project,
    lock: Lock,
    pinned_files: Mapping[str, bytes],
    options: GateOptions,
    not_to_start: Mapping[str, str],
) -> list[Row]:
    if options.probe is None:
        return list(report_outdated_surfaces(lock))
    from pinwarden.project.gate.online import check_live_servers

    return list(check_live_servers(project, lock, pinned_files, options.probe, not_to_start))
