"""Checks the lock itself: seals, files next to it, expected digest, consistency of entries, signatures, and whether
every server has a surface for the release that it starts now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import FindingKinds, Row, build_kind_table
from pinwarden.lock import lock_store, lockfile
from pinwarden.lock.entry import EXTENSION
from pinwarden.lock.extension import read_extension
from pinwarden.lock.locked_config import NON_REGISTRY_SOURCES
from pinwarden.lock.lockfile import Lock, verify, verify_files
from pinwarden.system.files import find_case_twins

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.project.gate.check import GateOptions
    from pinwarden.project.project import Policies, Project

_INCONSISTENT_MESSAGE = (
    "the recorded hosts, packages or tier of this entry contradict its configuration; restore the lock "
    "from version control, or if it was not edited, lock the server again: pinwarden remove NAME --keep-config, then "
    "pinwarden init"
)
LOCK_KINDS: FindingKinds = build_kind_table(
    critical=(
        ("digest_mismatch", "The lock does not have the expected digest."),
        ("digest_partial", "The expected digest does not cover the approved surfaces."),
        ("policy_changed", "The lock has the expected digest, but the policy does not."),
        (
            "name_collision",
            "Another file has the same name on file systems that ignore case, and may replace this one.",
        ),
        ("record_stripped", "Pinwarden's record of an entry is missing: approval, configuration file and surface."),
    )
)


def check_lock(project: Project, lock: Lock, pinned_files: Mapping[str, bytes], options: GateOptions) -> Iterator[Row]:
    """Verify the lock and the files next to it. Yields a row per problem."""
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
    """Compare the lock with the digest that the user keeps outside the repository.

    The digest covers the lock and the policy, or the absence of a policy. The digest of a sealed lock also covers
    approvals and surfaces.
    """
    if options.expect_digest is None:
        return
    seal = lock.seal.get("integrity") if lock.seal is not None else None
    digest = lockfile.compute_lock_digest(lock)
    lock_digest = str(seal or digest)
    combined_digest = policies.digest_with_seal(lock_digest)
    if options.expect_digest == combined_digest:
        return
    code, message = "digest_mismatch", f"the digest is {combined_digest}, expected {options.expect_digest[:100]}"
    if options.expect_digest == lock_digest:
        code = "policy_changed"
        message = (
            "the expected digest is for a lock without a policy, but this project has a policy; review the policy, "
            "then expect the digest that `pinwarden lock digest --sealed` prints"
        )
    elif options.expect_digest == digest:
        code = "digest_partial"
        message = (
            "the expected digest does not cover the approved surfaces; use the digest that "
            "`pinwarden lock digest --sealed` prints"
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
    """Report entries from which Pinwarden's record was removed. Only entries from a registry may lack the record."""
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
    """Report files whose names differ only in case from the lock, a file next to it, or a policy.

    On a file system that ignores case, only one of two such files exists after a checkout, and it may be the file that
    Pinwarden did not check.
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
            message=f"{twin.name!a} may replace a file whose name differs only in case, on systems that ignore case",
            file=project.display_path(twin),
        )


def check_entry_consistency(project: Project, lock: Lock, policies: Policies) -> Iterator[Row]:
    """Report entries whose recorded package, host or tier contradicts their configuration.

    Verification reads the record, and clients start what is configured. The tier matters only to rules of a policy.
    """
    from pinwarden.project.configured_servers import contradicts_configuration

    for entry in lock.entries:
        if contradicts_configuration(entry) or (policies.has_entry_rules and _has_raised_tier(entry)):
            yield Row(
                code="entry_inconsistent",
                severity="critical",
                entity="lock",
                name=entry.name,
                path="",
                message=_INCONSISTENT_MESSAGE,
                file=project.display_path(project.lock),
            )


def _has_raised_tier(entry: Entry) -> bool:
    from pinwarden.project.configured_entry import has_raised_tier

    return has_raised_tier(entry)


def check_required_signatures(project: Project, lock: Lock, policies: Policies, options: GateOptions) -> list[Row]:
    """Check the signatures of the lock, if the options require signatures."""
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
    """Return the digest of this project's policy, which a signature must cover; None if there is no policy."""
    present = [policy for policy in (policies.own, policies.toolpin) if policy is not None]
    if len(present) > 1:
        raise PinwardenError(
            "USAGE",
            "this project has two policies, but a signature covers only one",
            hint="Name the signed policy with --signed-policy.",
        )
    return present[0].digest.sri if present else None


# Approved surfaces

OUTDATED_SURFACE = "text_of_another_release"
UNPINNED = "text_not_pinned"
LIVE_KINDS: FindingKinds = build_kind_table(
    warning=(
        (
            OUTDATED_SURFACE,
            "The surface was approved for another release or configuration, and the server was not started since.",
        ),
        (UNPINNED, "Nothing of the server's surface is approved, so the live server cannot be compared with anything."),
    ),
)


def report_outdated_surfaces(lock: Lock) -> Iterator[Row]:
    """Report servers whose surface was approved for another release or configuration than they start now.

    The gateway still enforces the approved surface. The new surface is unknown until the server is probed.
    """
    from pinwarden.lock.locked_launch import describe_launch
    from pinwarden.project.locked_servers import build_approve_command

    for entry in lock.entries:
        extension = read_extension(entry)
        if extension is None or extension.surface is None or extension.surface_of is None:
            continue
        yield Row(
            code=OUTDATED_SURFACE,
            severity=LIVE_KINDS[OUTDATED_SURFACE].severity,
            entity="server",
            name=entry.name,
            path="",
            message=(
                f"its surface was approved for {extension.surface_of[:200]}; {describe_launch(entry)} was not started "
                f"since. The gateway blocks changes. Review them: {build_approve_command(entry, lock.entries)}"
            ),
        )


def report_unpinned_servers(lock: Lock, has_pin: Callable[[Entry], bool]) -> Iterator[Row]:
    """Report servers without an approved surface, which ``--live`` cannot compare, if other servers have one."""
    if not any(map(has_pin, lock.entries)):
        return
    from pinwarden.project.locked_servers import build_approve_command

    for entry in lock.entries:
        if not has_pin(entry):
            command = build_approve_command(entry, lock.entries)
            yield Row(
                code=UNPINNED,
                severity=LIVE_KINDS[UNPINNED].severity,
                entity="server",
                name=entry.name,
                path="",
                message=f"not checked, because it has no approved surface. Review its surface: {command}",
            )
