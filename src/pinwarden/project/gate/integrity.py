"""The lock itself: its seals, the files beside it, a digest that was kept elsewhere, claims, signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import FindingKinds, Row, kind_table
from pinwarden.lock import lock_store, lockfile
from pinwarden.lock.entry import EXTENSION
from pinwarden.lock.locked_config import UNLISTED
from pinwarden.lock.lockfile import Lock
from pinwarden.lock.verification import verify, verify_files
from pinwarden.system.files import find_case_twins

if TYPE_CHECKING:
    from pinwarden.project.gate.check import Gate
    from pinwarden.project.project import Policies, Project


LOCK_KINDS: FindingKinds = kind_table(
    critical=(
        ("digest_mismatch", "The lock is not the one whose digest was kept elsewhere."),
        ("digest_partial", "The digest that was kept elsewhere does not cover the approved texts."),
        ("policy_changed", "The lock is the one whose digest was kept elsewhere, and the policy is not."),
        ("name_collision", "Another file here has the same name on systems that ignore case, and may take its place."),
        ("record_stripped", "Our record of an entry is gone: who approved it, where it is configured, what it says."),
    )
)


def lock_rows(project: Project, lock: Lock, texts: Mapping[str, bytes], gate: Gate) -> Iterator[Row]:
    """What is wrong with the lock and the files beside it."""
    problems = [*verify(lock, require_extension=gate.require_extension), *verify_files(lock, texts)]
    places: dict[str, tuple[int, int]] = {}
    if problems:
        places = _places(project, [problem.path for problem in problems])
    for problem in problems:
        line, column = places.get(problem.path, (None, None))
        yield Row(
            code=problem.code,
            severity=problem.level,
            entity="lock",
            name=problem.server or "",
            path=problem.path,
            message=problem.message,
            file=project.shown(project.lock),
            line=line,
            column=column,
        )


def _places(project: Project, paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    from pinwarden.core.json_pointer import locate_pointers
    from pinwarden.lock.entry import LOCK_LIMITS
    from pinwarden.system.files import read_file

    return locate_pointers(read_file(project.lock, LOCK_LIMITS.max_bytes), paths)


def digest_rows(project: Project, lock: Lock, policies: Policies, gate: Gate) -> Iterator[Row]:
    """A digest that was kept elsewhere. Of a sealed file only the seal covers what we record: texts, approvals. The
    policy is covered as well, and that there is none."""
    if gate.expect_digest is None:
        return
    seal = lock.seal.get("integrity") if lock.seal is not None else None
    digest = lockfile.digest(lock)
    alone = str(seal or digest)
    whole = policies.sealed_with(alone)
    if gate.expect_digest == whole:
        return
    code, message = "digest_mismatch", f"the digest is {whole}, expected {gate.expect_digest[:100]}"
    if gate.expect_digest == alone:
        code = "policy_changed"
        message = (
            "the expected digest says that there is no policy, and there is one; review it, then keep the digest that "
            "pinwarden lock digest --sealed prints"
        )
    elif gate.expect_digest == digest:
        code = "digest_partial"
        message = (
            "this digest covers only lockfileVersion 2, not the approved texts; expect that of lock digest --sealed"
        )
    yield Row(
        code=code,
        severity=LOCK_KINDS[code].severity,
        entity="lock",
        name="",
        path="",
        message=message,
        file=project.shown(project.lock),
    )


def stripped_rows(project: Project, lock: Lock) -> Iterator[Row]:
    """Entries of configurations and of bundles are always ours; without our record something took it away."""
    for entry in lock.entries:
        if entry.source in UNLISTED and EXTENSION not in entry.manifest:
            yield Row(
                code="record_stripped",
                severity=LOCK_KINDS["record_stripped"].severity,
                entity="lock",
                name=entry.name,
                path="",
                message="our record of this entry is gone: who approved it, where it is configured, what it says",
                file=project.shown(project.lock),
            )


def collision_rows(project: Project) -> Iterator[Row]:
    """Second spellings of the lock, of what lies beside it, and of the policies.

    Where case is ignored only one of two such files is there after a checkout, and it need not be the one that was
    checked here.
    """
    from pinwarden.project.project import OWN_POLICY, TOOLPIN_POLICY

    lock = project.lock
    beside = (lock.with_name(lock_store.surfaces_folder(lock)), lock.with_name(lock_store.closures_folder(lock)))
    policies = (project.root / OWN_POLICY, project.root / TOOLPIN_POLICY.parent, project.root / TOOLPIN_POLICY)
    for twin in find_case_twins((lock, *beside, *policies)):
        yield Row(
            code="name_collision",
            severity=LOCK_KINDS["name_collision"].severity,
            entity="lock",
            name="",
            path="",
            message=f"{twin.name!a} stands for another file where case is ignored, and may take its place",
            file=project.shown(twin),
        )


def forged_rows(project: Project, lock: Lock) -> Iterator[Row]:
    """Entries that say something else about themselves than their own configuration does."""
    from pinwarden.project.configured_entry import FORGED, forged_entries

    for entry in forged_entries(lock):
        yield Row(
            code="entry_inconsistent",
            severity="critical",
            entity="lock",
            name=entry.name,
            path="",
            message=FORGED,
            file=project.shown(project.lock),
        )


def signature_rows_of(project: Project, lock: Lock, policies: Policies, gate: Gate) -> list[Row]:
    """The signatures, if they are asked for."""
    if gate.signatures is None:
        return []
    from pinwarden.project.lock_signatures import signature_rows

    data = lock_store.read_bytes(project.lock)
    if lockfile.parse(data) != lock:
        raise PinwardenError("LOCK_BUSY", f"{project.lock.name} changed while it was being checked")
    policy = _policy_followed(policies) if gate.signatures.policy is None else None
    file = project.shown(project.lock)
    return [replace(row, file=file) for row in signature_rows(data, gate.signatures, policy)]


def _policy_followed(policies: Policies) -> str | None:
    """The digest of the policy that holds here, which is the one that a signature has to name."""
    stated = [policy for policy in (policies.own, policies.toolpin) if policy is not None]
    if len(stated) > 1:
        raise PinwardenError(
            "USAGE", "two policies hold here, and a signature names one", hint="Name it with --signed-policy."
        )
    return stated[0].digest.sri if stated else None
