"""The gate: is everything still as it was approved? Frozen by default: nothing is resolved anew, nothing is contacted.

Each check adds rows; none of them stops the others, so that one run tells all there is to tell. What could not be
checked is never clean: it has its own rows and its own exit code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import FindingKinds, Row, is_failing, kind_reasons, kind_table, plural
from pinwarden.lock import lock_store
from pinwarden.lock.locked_config import INSTALLED
from pinwarden.lock.lockfile import Lock
from pinwarden.project.gate.integrity import (
    collision_rows,
    digest_rows,
    forged_rows,
    lock_rows,
    signature_rows_of,
    stripped_rows,
)
from pinwarden.project.gate.report import CHECKS, Checked, checked_project, has_closures, unread_rows
from pinwarden.project.policies import ONLY_RECORDED, broken_rules, counts_records
from pinwarden.project.project import OWN_POLICY

if TYPE_CHECKING:
    from pathlib import Path

    from pinwarden.lock.mcp_registry import Registries
    from pinwarden.project.fetch_context import Workshop
    from pinwarden.project.gate.online import ByteCheck
    from pinwarden.project.lock_signatures import SignatureCheck
    from pinwarden.project.project import Policies, Project
    from pinwarden.surface.probe.probe import ProbeOptions


class Gate(Record):
    """What a run checks beyond the lock, the surfaces, the configurations and the policy."""

    now: str
    registries: Registries | None = None
    """If given, each locked version is looked up again, and its metadata must still say what was approved."""
    registry_wanted: bool = False
    """Whether somebody asked for that; otherwise it comes with another check."""
    probe: ProbeOptions | None = None
    """If given, the live servers are asked, and their surfaces compared with the approved ones."""
    configs: bool = True
    scope: str = "all"
    """Whose configurations: ``project``, ``global`` or ``all``."""
    expect_digest: str | None = None
    require_lock: bool = False
    require_extension: bool = False
    require_policy: bool = False
    signatures: SignatureCheck | None = None
    """If given, the lock must be signed by these keys, under the policy that holds here."""
    workshop: Workshop | None = None
    """If given, the locked artifacts are fetched and hashed again."""
    osv: Path | None = None
    """If given, every locked package is looked up in this export of known vulnerabilities."""

    @property
    def demands_lock(self) -> bool:
        """Whether a project without a lock fails, also where no server is configured."""
        return self.require_lock or self.require_extension or self.expect_digest is not None or bool(self.signatures)


LOCK_REQUIRED_KINDS: FindingKinds = kind_table(critical=(("lock_required", "A lock is required, and there is none."),))
POLICY_KINDS: FindingKinds = kind_table(
    critical=(
        ("policy_missing", "A policy is required, and there is none."),
        ("policy_loosened", "The policy lets pass what is blocked without it, and no digest or signature covers it."),
    )
)


def check_project(project: Project, policies: Policies, gate: Gate) -> Checked:
    """What the checks of ``pinwarden ci`` find in one project.

    1. The lock itself, and the approved texts beside it.
    2. The digest that was stated out of band.
    3. The signatures, if asked.
    4. Every client configuration that exists.
    5. The policies.
    6. The registry, if asked.
    7. The bytes of what was locked, if asked.
    8. Install scripts that nobody approved.
    9. The live servers, if asked.
    """
    lock, texts = lock_store.read_with_files(project.lock)
    if lock is None:
        return _without_lock(project, policies, gate)
    integrity = [
        *lock_rows(project, lock, texts, gate),
        *digest_rows(project, lock, policies, gate),
        *stripped_rows(project, lock),
        *collision_rows(project),
        *(forged_rows(project, lock) if policies.any else ()),
    ]
    signed = signature_rows_of(project, lock, policies, gate)
    configs = _config_rows(project, lock, policies, gate)
    hashed = _byte_check(lock, gate)
    believed = gate.signatures is not None and not any(map(is_failing, (*integrity, *signed)))
    proved = None if believed else hashed.proved if hashed is not None else {}
    refused = [
        *_policy_rows(lock, policies, gate, proved),
        *(() if _covers_policy(gate, (*integrity, *signed)) else _loosened_rows(project, policies)),
    ]
    registry = _registry_rows(lock, gate)
    live = _live_rows(project, lock, texts, gate, _held(lock, (*integrity, *signed), refused))
    found = {
        "integrity": [*integrity, *_yank_rows(project, lock)],
        "signature": signed,
        "configs": configs,
        "policy": refused,
        "registry": registry,
        "bytes": hashed.rows if hashed is not None else (),
        "scripts": _script_rows(lock, texts, whole=not integrity),
        "advisories": _advisory_rows(lock, texts, gate, whole=not integrity),
        "live": live,
    }
    checked = checked_project(project, lock, found, gate, policies)
    recorded = (
        0 if proved is None or not counts_records(policies) else sum(not proved.get(each.key) for each in lock.entries)
    )
    if not recorded:
        return checked
    return replace(checked, notes=(*checked.notes, ONLY_RECORDED.format(count=plural(recorded, "entry", "entries"))))


def _yank_rows(project: Project, lock: Lock) -> list[Row]:
    """Locked bundles that were yanked, as far as this machine has read the log of their registry."""
    if not any(entry.source == INSTALLED for entry in lock.entries):
        return []
    from pinwarden.project.installed_bundles import yank_rows

    return list(yank_rows(project, lock.entries))


def _without_lock(project: Project, policies: Policies, gate: Gate) -> Checked:
    """A repository that configures no MCP servers needs no lock, unless one is demanded."""
    configs = project.configs()
    inside = [file for file in configs if gate.scope == "global" or file.scope == "project"]
    rows: list[Row] = []
    message = f"there is no {project.lock.name} in {project.root.name or 'this folder'}"
    if any(file.servers or file.fault for file in inside) and not gate.demands_lock:
        raise PinwardenError("LOCK_MISSING", message)
    if gate.demands_lock:
        level = LOCK_REQUIRED_KINDS["lock_required"].severity
        rows.append(Row(code="lock_required", severity=level, entity="lock", name="", path="", message=message))
    notes: tuple[str, ...] = ()
    if any(file.servers for file in configs):
        notes = (f"the servers in your own client files are not checked: there is no {project.lock.name}",)
    return Checked(
        subject=project.shown(project.lock),
        unconfigured=not rows,
        found={"integrity": rows, "policy": [*_missing_policy(policies, gate)]},
        nothing=dict.fromkeys(CHECKS, "none"),
        notes=notes,
        rule_texts=kind_reasons(LOCK_REQUIRED_KINDS, POLICY_KINDS),
    )


def _policy_rows(
    lock: Lock, policies: Policies, gate: Gate, proved: Mapping[str, frozenset[str]] | None
) -> Iterator[Row]:
    yield from _missing_policy(policies, gate)
    for entry in lock.entries:
        fresh = None if proved is None else proved.get(entry.key, frozenset())
        for rule in broken_rules(policies, entry.document, gate.now, proved=fresh):
            level = "critical" if rule.refuses else "info"
            yield Row(code=rule.code, severity=level, entity="policy", name=entry.name, path="", message=rule.message)


def _covers_policy(gate: Gate, doubts: Iterable[Row]) -> bool:
    """Whether a digest that was kept elsewhere, or the signatures, say that this policy is the approved one."""
    signed = gate.signatures is not None and gate.signatures.policy is None
    return (gate.expect_digest is not None or signed) and not any(map(is_failing, doubts))


def _loosened_rows(project: Project, policies: Policies) -> Iterator[Row]:
    """What the policy of the repository lets pass that is blocked where there is none. Who changes the repository could
    have written it."""
    gateway = policies.own.gateway if policies.own is not None else None
    for sentence in gateway.loosened() if gateway is not None else ():
        yield Row(
            code="policy_loosened",
            severity=POLICY_KINDS["policy_loosened"].severity,
            entity="policy",
            name="",
            path="",
            message=f"{sentence}; if that is meant, keep the digest of pinwarden lock digest --sealed outside of the "
            "repository (--expect-digest), or sign the lock with this policy",
            file=project.shown(project.root / OWN_POLICY),
        )


def _missing_policy(policies: Policies, gate: Gate) -> Iterator[Row]:
    if gate.require_policy and not policies.any:
        yield Row(
            code="policy_missing",
            severity=POLICY_KINDS["policy_missing"].severity,
            entity="policy",
            name="",
            path="",
            message="there is no policy here",
        )


def _config_rows(project: Project, lock: Lock, policies: Policies, gate: Gate) -> list[Row]:
    files = project.configs() if gate.configs else []
    if not files:
        return []
    from pinwarden.project.configs import config_rows

    return list(config_rows(project, lock, files, gate.scope, policies))


def _registry_rows(lock: Lock, gate: Gate) -> list[Row]:
    if gate.registries is None:
        return []
    from pinwarden.project.gate.online import registry_rows

    return list(registry_rows(lock, gate.registries, gate))


def _byte_check(lock: Lock, gate: Gate) -> ByteCheck | None:
    if gate.workshop is None:
        return None
    from pinwarden.project.gate.online import check_bytes

    return check_bytes(lock, gate.workshop, gate.now)


def _script_rows(lock: Lock, texts: Mapping[str, bytes], *, whole: bool) -> list[Row]:
    """Install scripts that nobody approved. Files beside a lock that is not whole are not read."""
    if not whole or not has_closures(lock):
        return []
    from pinwarden.project.install_scripts import gate_rows

    return list(gate_rows(lock, texts))


def _advisory_rows(lock: Lock, texts: Mapping[str, bytes], gate: Gate, *, whole: bool) -> list[Row]:
    """Known vulnerabilities. Of a lock that is not whole nobody can say which packages it holds."""
    if gate.osv is None or not whole:
        return []
    from pinwarden.artifacts.osv import vulnerable_packages
    from pinwarden.artifacts.osv_export import read_export
    from pinwarden.project.locked_packages import locked_packages, vulnerable_rows

    packages = locked_packages(lock, texts)
    return list(vulnerable_rows(vulnerable_packages(read_export(gate.osv), packages), packages))


def _held(lock: Lock, doubts: Iterable[Row], refused: Iterable[Row]) -> dict[str, str]:
    """Which servers are not asked, and why: consent to start servers is consent to start approved ones."""
    if any(map(is_failing, doubts)):
        return dict.fromkeys((entry.name for entry in lock.entries), "the lock is not the one that was approved")
    # Our own verdict blocks only addresses, where nothing is started.
    broken = (row for row in refused if row.severity == "critical" and row.code != "verdict_blocked")
    return {row.name: "the policy refuses it" for row in broken}


def _live_rows(
    project: Project, lock: Lock, texts: Mapping[str, bytes], gate: Gate, held: Mapping[str, str]
) -> list[Row]:
    if gate.probe is None:
        return list(unread_rows(lock))
    from pinwarden.project.gate.online import live_rows

    return list(live_rows(project, lock, texts, gate.probe, held))
