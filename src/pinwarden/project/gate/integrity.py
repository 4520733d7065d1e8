"""The lock itself: its seals, the files next to it, the expected digest, consistency of entries, signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import FindingKinds, Row, build_kind_table
from pinwarden.lock import lock_store, lockfile
from pinwarden.lock.entry import EXTENSION
from pinwarden.lock.locked_config import NON_REGISTRY_SOURCES
from pinwarden.lock.lockfile import Lock, verify, verify_files
from pinwarden.system.files import find_case_twins

if TYPE_CHECKING:
    from pinwarden.project.gate.check import GateOptions
    from pinwarden.project.project import Policies, Project


LOCK_KINDS: FindingKinds = build_kind_table(
    critical=(
        ("digest_mismatch", "The lock does not have the expected digest."),
        ("digest_partial", "The expected digest does not cover the approved surfaces."),
        ("policy_changed", "The lock has the expected digest, and the policy does not."),
        (
            "name_collision",
            "Another file has the same name on file systems that ignore case, and may replace this one.",
        ),
        ("record_stripped", "Pinwarden's record of an entry is missing: approval, configuration file and surface."),
    )
)


def check_lock(project: Project, lock: Lock, pinned_files: Mapping[str, bytes], options: GateOptions) -> Iterator[Row]:
    """Problems of the lock and the files next to it."""
    problems = [*verify(lock, require_extension=options.require_extension), *verify_files(lock, pinned_files)]
    locations: dict[str, tuple[int, int]] = {}
    if problems:
        locations = _locate_pointers(project, [problem.path for problem in problems])
    for problem in problems:
        line, column = locations.get(problem.path, (None, None))
        yield Row(
            code=problem.code,
            severity=problem.level,
            entity="lock",
            name=problem.server or "",
            path=problem.path,
            message=problem.message,
            file=project.display_path(project.lock),
            line=line,
            column=column,
        )


def check_expected_digest(project: Project, lock: Lock, policies: Policies, options: GateOptions) -> Iterator[Row]:
    """Compare with the digest that is kept outside the repository. For a sealed lock it covers approvals and surfaces
    (through the seal) and the policy, including that there is none."""
    if options.expect_digest is None:
        return
    seal = lock.seal.get("integrity") if lock.seal is not None else None
    digest = lockfile.compute_lock_digest(lock)
    alone = str(seal or digest)
    whole = policies.digest_with_seal(alone)
    if options.expect_digest == whole:
        return
    code, message = "digest_mismatch", f"the digest is {whole}, expected {options.expect_digest[:100]}"
    if options.expect_digest == alone:
        code = "policy_changed"
        message = (
            "the expected digest is for a lock without a policy, and this project has one; review it, then store the "
            "output of `pinwarden lock digest --sealed`"
        )
    elif options.expect_digest == digest:
        code = "digest_partial"
        message = (
            "this digest covers only lockfileVersion 2, not the approved surfaces; use that of `lock digest --sealed`"
        )
    yield Row(
        code=code,
        severity=LOCK_KINDS[code].severity,
        entity="lock",
        name="",
        path="",
        message=message,
        file=project.display_path(project.lock),
    )


def check_records(project: Project, lock: Lock) -> Iterator[Row]:
    """Entries from configurations and bundles always have Pinwarden's record; if it is missing, it was removed."""
    for entry in lock.entries:
        if entry.source in NON_REGISTRY_SOURCES and EXTENSION not in entry.manifest:
            yield Row(
                code="record_stripped",
                severity=LOCK_KINDS["record_stripped"].severity,
                entity="lock",
                name=entry.name,
                path="",
                message="Pinwarden's record of this entry is missing: approval, configuration file and surface",
                file=project.display_path(project.lock),
            )


def check_name_collisions(project: Project) -> Iterator[Row]:
    """Other spellings of the names of the lock, its files and the policies.

    On a file system that ignores case only one of two such files exists after a checkout, and it may not be the one
    that was checked here.
    """
    from pinwarden.project.project import OWN_POLICY, TOOLPIN_POLICY

    lock = project.lock
    folders = (
        lock.with_name(lock_store.surfaces_folder_name(lock)),
        lock.with_name(lock_store.closures_folder_name(lock)),
    )
    policies = (project.root / OWN_POLICY, project.root / TOOLPIN_POLICY.parent, project.root / TOOLPIN_POLICY)
    for twin in find_case_twins((lock, *folders, *policies)):
        yield Row(
            code="name_collision",
            severity=LOCK_KINDS["name_collision"].severity,
            entity="lock",
            name="",
            path="",
            message=f"{twin.name!a} is the same name as another file where case is ignored, and may replace it",
            file=project.display_path(twin),
        )


def check_entry_consistency(project: Project, lock: Lock) -> Iterator[Row]:
    """Entries whose summary (hosts, packages, tier) does not follow from their configuration."""
    from pinwarden.project.configured_entry import INCONSISTENT_MESSAGE, find_inconsistent_entries

    for entry in find_inconsistent_entries(lock):
        yield Row(
            code="entry_inconsistent",
            severity="critical",
            entity="lock",
            name=entry.name,
            path="",
            message=INCONSISTENT_MESSAGE,
            file=project.display_path(project.lock),
        )


def check_required_signatures(project: Project, lock: Lock, policies: Policies, options: GateOptions) -> list[Row]:
    """Problems of the signatures, if signatures are required."""
    if options.signatures is None:
        return []
    from pinwarden.project.lock_signatures import check_signatures

    data = lock_store.read_bytes(project.lock)
    if lockfile.parse(data) != lock:
        raise PinwardenError("LOCK_BUSY", f"{project.lock.name} changed while it was being checked")
    policy = _find_policy_digest(policies) if options.signatures.policy is None else None
    file = project.display_path(project.lock)
    return [replace(row, file=file) for row in check_signatures(data, options.signatures, policy)]


def _locate_pointers(project: Project, paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    from pinwarden.core.json_values import locate_pointers
    from pinwarden.lock.entry import LOCK_LIMITS
    from pinwarden.system.files import read_file

    return locate_pointers(read_file(project.lock, LOCK_LIMITS.max_bytes), paths)


def _find_policy_digest(policies: Policies) -> str | None:
    """Return the digest of this project's policy, which a signature must name."""
    stated = [policy for policy in (policies.own, policies.toolpin) if policy is not None]
    if len(stated) > 1:
        raise PinwardenError(
            "USAGE", "this project has two policies, and a signature names one", hint="Name it with --signed-policy."
        )
    return stated[0].digest.sri if stated else None
