"""Locks that CI publishes into the database, and gateways that follow them.

`publish_lock` stores a lock with its policy and signature. `PublishedLockFollower` copies the newest one into the state
folder of a gateway, which reads it there like a project's lock:

1. Check the signature, if the gateway requires one, and that the lock is not older than the last accepted one.
2. Check that the lock was not tampered with, and that the policy can be read.
3. Write the policy, and then the lock with its files.
4. Remember what was accepted, so that an older lock is refused from now on.

If any of this fails, the gateway continues with the last accepted lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.report import Report
from pinwarden.core.text import parse_timestamp
from pinwarden.gateway.store.published_locks import PublishedLock, PublishedLocks
from pinwarden.lock import lock_store, lockfile, signature
from pinwarden.lock.lockfile import refuse_if_tampered, verify, verify_files
from pinwarden.lock.policy import parse_policy
from pinwarden.project.lock_documents import read_lock
from pinwarden.project.project import OWN_POLICY
from pinwarden.system.files import read_file, write_atomically

if TYPE_CHECKING:
    from pinwarden.core.keys import PrivateKey, PublicKey
    from pinwarden.project.project import Project

_ACCEPTED = "accepted.json"
_MAX_ACCEPTED = 64 * 1024


class Publication(Record):
    """The arguments of ``pinwarden lock publish``."""

    name: str
    keys: tuple[PrivateKey, ...] = field(default=(), repr=False)
    """The keys to sign with now."""
    envelope: bytes | None = field(default=None, repr=False)
    """A DSSE envelope that was made before."""
    by: str = ""
    now: str = ""


def publish_lock(locks: Callable[[], PublishedLocks], project: Project, publication: Publication) -> Report:
    """Return the report of ``pinwarden lock publish``. Publishes nothing if the newest lock of the name is the same."""
    document = read_lock(project.lock)
    refuse_if_tampered(document.problems)
    policy = read_file(project.policy_file) if project.policy_file.exists() else None
    policy_digest = _compute_policy_digest(policy)
    envelope = publication.envelope
    if publication.keys:
        signed = signature.sign_file(document.data, publication.keys, publication.now, policy_digest=policy_digest)
        envelope = signature.encode_dsse(signed)
    signed_at = None if envelope is None else signature.check_dsse(envelope, document.data, policy_digest)
    lock = PublishedLock(
        name=publication.name,
        content=document.data,
        files=document.files,
        policy=policy,
        signature=envelope,
        published=publication.now,
        published_by=publication.by,
    )
    store = locks()
    newest = store.read_newest(publication.name)
    is_same = newest is not None and _has_same_content(newest, lock)
    sequence = newest.sequence if is_same and newest is not None else store.publish(lock)
    subject = f"{publication.name} {sequence}"
    return Report(
        command="lock publish",
        subject=publication.name,
        summary=f"{subject} is already published in {store}" if is_same else f"published {subject} in {store}",
        exit_code=EXIT_CLEAN,
        notes=()
        if envelope is not None
        else ("the lock is not signed: gateways that require a signature continue with the one before",),
        facts={
            "name": publication.name,
            "sequence": sequence,
            "digest": str(Digest.of_bytes(document.data)),
            "policy_digest": policy_digest,
            "signed_at": signed_at,
            "files": len(document.files),
            "published": not is_same,
        },
    )


def _has_same_content(newest: PublishedLock, lock: PublishedLock) -> bool:
    """Whether publishing would only repeat the newest lock. A new signature of the same content counts as the same."""
    is_signed = newest.signature is not None or lock.signature is None
    return is_signed and (newest.content, newest.policy, newest.files) == (lock.content, lock.policy, lock.files)


class LockSigners(Record):
    """Whose signatures a gateway requires."""

    keys: Mapping[str, PublicKey]
    required: signature.RequiredSigners


class _Accepted(Record):
    """The last lock that a gateway accepted."""

    sequence: int = 0
    digest: str = ""
    policy_digest: str | None = None
    signed_at: str | None = None


class PublishedLockFollower:
    """Keeps a copy of the newest published lock in a folder. Not thread-safe."""

    def __init__(
        self, locks: Callable[[], PublishedLocks], name: str, folder: Path, signers: LockSigners | None = None
    ) -> None:
        """``folder`` is private to this name. ``signers`` is None if unsigned locks are accepted."""
        self.name = name
        self._open_table = locks
        self._folder = folder
        self._signers = signers
        self._checked: int | None = None
        """The sequence number of the last lock that this process checked."""
        self._refusal: PinwardenError | None = None
        """Why that lock was refused; None if it was accepted."""

    @property
    def lock(self) -> Path:
        """The copy of the lock."""
        return self._folder / lockfile.FILE_NAME

    def apply_to(self, project: Project) -> Project:
        """Return the project with the published lock and policy instead of its own."""
        return replace(project, lock=self.lock, policy=None, policy_folder=self._folder)

    def refresh(self) -> str:
        """Copy the newest lock, unless this process did before. Returns a sentence about it; empty if nothing changed.

        Raises ``LOCK_NOT_PUBLISHED``, ``LOCK_UNSIGNED``, ``LOCK_ROLLED_BACK`` or ``LOCK_TAMPERED``. The copy is then
        the last accepted lock, if there was one.
        """
        locks = self._open_table()
        sequence = locks.read_sequence(self.name)
        if sequence is not None and sequence == self._checked:
            if self._refusal is not None:
                raise self._refusal
            return ""
        newest = locks.read_newest(self.name)
        if newest is None:
            raise PinwardenError("LOCK_NOT_PUBLISHED", f"no lock {self.name} is published in {locks}")
        accepted = self._read_accepted()
        try:
            offered = self._check(newest, accepted)
        except PinwardenError as err:
            self._checked, self._refusal = newest.sequence, err
            raise
        if offered != accepted or not self._is_intact(accepted):
            self._write(newest, offered)
        self._checked, self._refusal = newest.sequence, None
        return f"the published lock {self.name} {newest.sequence} of {newest.published} applies"

    def _check(self, newest: PublishedLock, accepted: _Accepted) -> _Accepted:
        policy_digest = _compute_policy_digest(newest.policy)
        offered = _Accepted(
            sequence=newest.sequence, digest=str(Digest.of_bytes(newest.content)), policy_digest=policy_digest
        )
        if self._signers is not None:
            offered = replace(offered, signed_at=self._check_signature(newest, policy_digest, accepted))
        elif newest.sequence < accepted.sequence or (
            newest.sequence == accepted.sequence and offered.digest != accepted.digest
        ):
            raise _rolled_back_error(newest, f"number {accepted.sequence} was accepted before")
        lock = lockfile.parse(newest.content)
        refuse_if_tampered((*verify(lock), *verify_files(lock, newest.files)))
        return offered

    def _check_signature(self, newest: PublishedLock, policy_digest: str | None, accepted: _Accepted) -> str | None:
        signers = self._signers
        assert signers is not None  # noqa: S101 - the caller checked it
        if newest.signature is None:
            raise PinwardenError("LOCK_UNSIGNED", f"the published lock {newest.name} {newest.sequence} is not signed")
        envelopes = (newest.signature,)
        report = signature.verify_signatures(
            newest.content, envelopes, signers.keys, signers.required, policy_digest=policy_digest
        )
        if not report.ok:
            reasons = "; ".join((*report.rejected, *(f"missing: {text}" for text in report.missing)))
            raise PinwardenError(
                "LOCK_UNSIGNED", f"the published lock {newest.name} {newest.sequence} lacks a signature: {reasons}"
            )
        signed_at = signature.check_dsse(newest.signature, newest.content, policy_digest)
        moment, known = parse_timestamp(signed_at), parse_timestamp(accepted.signed_at)
        if moment is None:
            raise PinwardenError(
                "LOCK_UNSIGNED", f"the signature of {newest.name} {newest.sequence} does not state when it was made"
            )
        if known is not None and moment < known:
            raise _rolled_back_error(newest, f"it was signed at {signed_at}, the accepted one at {accepted.signed_at}")
        return signed_at

    def _is_intact(self, accepted: _Accepted) -> bool:
        """Whether the copy is what was accepted. A gateway may have been killed while writing it."""
        policy = self._folder / OWN_POLICY
        return (
            self.lock.is_file()
            and str(Digest.of_bytes(lock_store.read_bytes(self.lock))) == accepted.digest
            and _compute_policy_digest(read_file(policy) if policy.exists() else None) == accepted.policy_digest
        )

    def _write(self, newest: PublishedLock, offered: _Accepted) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        policy = self._folder / OWN_POLICY
        if newest.policy is not None:
            write_atomically(policy, newest.policy)
        else:
            policy.unlink(missing_ok=True)
        lock_store.write_bytes(self.lock, newest.content, newest.files)
        members = {
            "sequence": offered.sequence,
            "digest": offered.digest,
            "policy_digest": offered.policy_digest,
            "signed_at": offered.signed_at,
        }
        write_atomically(self._folder / _ACCEPTED, canonicalize(members))

    def _read_accepted(self) -> _Accepted:
        path = self._folder / _ACCEPTED
        if not path.exists():
            return _Accepted()
        value: Any = strict_json.parse_json(read_file(path, _MAX_ACCEPTED))
        members = {"sequence": int, "digest": str, "policy_digest": str | None, "signed_at": str | None}
        if not isinstance(value, dict) or any(not isinstance(value.get(name), kind) for name, kind in members.items()):
            raise PinwardenError("DATABASE_CORRUPT", f"{path} is damaged", hint="Restore the state folder.")
        return _Accepted(**{name: value[name] for name in members})


def _rolled_back_error(newest: PublishedLock, why: str) -> PinwardenError:
    return PinwardenError(
        "LOCK_ROLLED_BACK", f"the published lock {newest.name} {newest.sequence} is older than the accepted one: {why}"
    )


def _compute_policy_digest(policy: bytes | None) -> str | None:
    return None if policy is None else parse_policy(policy).digest.sri
