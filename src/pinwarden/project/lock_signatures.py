"""Signs a lockfile, checks that the required keys signed it, and creates keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.keys import PrivateKey, PublicKey
from pinwarden.core.record import Record
from pinwarden.core.report import FindingKinds, Report, Row, build_kind_table, collect_kind_reasons
from pinwarden.lock import signature as lock_signature
from pinwarden.lock.entry import LOCK_LIMITS
from pinwarden.lock.lockfile import PROBLEMS, refuse_if_tampered
from pinwarden.lock.signature import ENVELOPE_SCHEMA, RequiredSigners, SignatureReport
from pinwarden.project.lock_documents import (
    LockDocument,
    build_problem_rows,
    compute_toolpin_digest,
    problems_to_json,
    read_lock,
)
from pinwarden.project.policy_commands import compute_policy_digest
from pinwarden.system.files import create_file, read_file, write_atomically
from pinwarden.system.key_files import create_key_file, generate_key

SIGNATURE_KINDS: FindingKinds = build_kind_table(
    critical=(("signature_missing", "A required signature is missing."),),
    warning=(("signature_rejected", "A signature is not accepted; the message says why."),),
)


class SigningRequest(Record):
    """The arguments of ``pinwarden lock sign``."""

    lock: Path
    output: Path
    keys: tuple[PrivateKey, ...]
    now: str
    policy: Path | None = None
    """The policy that the lock was reviewed with. The signature covers its digest."""
    dsse: bool = False
    """Whether to write a DSSE envelope, which covers all bytes of the lock and can have several signatures."""
    add: bool = False
    """Whether to keep the signatures of an existing envelope."""


def sign_lock(signing: SigningRequest) -> Report:
    """Return the report of ``pinwarden lock sign``.

    1. Read and verify the lock. Raises if it was tampered with.
    2. Compute the digest of the policy, if one is given.
    3. Sign the lock.
    4. Write the envelope atomically.
    """
    document = read_lock(signing.lock)
    refuse_if_tampered(document.problems)
    policy = compute_policy_digest(signing.policy)
    if signing.dsse:
        envelope: Any = _build_dsse_envelope(document.data, signing, policy)
        data = lock_signature.encode_dsse(envelope)
    else:
        data = _sign_digest(document, signing, policy)
    write_atomically(signing.output, data)
    return _build_signing_report(document, signing, policy)


def verify_lock_signatures(
    lock: Path,
    signatures: Sequence[Path],
    keys: Mapping[str, PublicKey],
    required: RequiredSigners,
    policy: Path | None = None,
) -> Report:
    """Return the report of ``pinwarden lock verify-signature``.

    The check fails if the lock was tampered with, even if its signature is valid.
    """
    document = read_lock(lock)
    digest = compute_policy_digest(policy)
    envelopes = [read_file(path, LOCK_LIMITS.max_bytes) for path in signatures]
    report = lock_signature.verify_signatures(document.data, envelopes, keys, required, policy_digest=digest)
    ok = report.ok and not document.critical_problems
    signers = ", ".join(report.signers)
    return Report(
        command="lock verify-signature",
        subject=lock.name,
        summary=f"{lock.name} is signed by {signers}" if ok else _summarize_failure(lock, report.missing, document),
        exit_code=EXIT_CLEAN if ok else EXIT_REFUSED,
        rows=(*build_problem_rows(document), *_build_rows(report)),
        facts={
            "ok": ok,
            "digest": compute_toolpin_digest(document.lock),
            "policy_digest": digest,
            "signers": [
                {"name": name, "did": keys[name].did, "fingerprint": keys[name].fingerprint} for name in report.signers
            ],
            "missing": list(report.missing),
            "rejected": list(report.rejected),
            "problems": problems_to_json(document.problems),
        },
        rule_texts={**PROBLEMS, **collect_kind_reasons(SIGNATURE_KINDS)},
    )


class SignatureOptions(Record):
    """The signatures that ``pinwarden ci`` requires, and the files that contain them."""

    files: tuple[Path, ...]
    keys: Mapping[str, PublicKey]
    required: RequiredSigners
    policy: Path | None = None
    """The policy that the signatures must cover; None for the project's policy."""


def check_signatures(data: bytes, options: SignatureOptions, project_policy_digest: str | None) -> tuple[Row, ...]:
    """Check the signatures of a lock. Returns one row per problem; a missing file is a missing signature."""
    digest = project_policy_digest if options.policy is None else compute_policy_digest(options.policy)
    absent = [path for path in options.files if not (path.exists() or path.is_symlink())]
    envelopes = [read_file(path, LOCK_LIMITS.max_bytes) for path in options.files if path not in absent]
    report = lock_signature.verify_signatures(data, envelopes, options.keys, options.required, policy_digest=digest)
    absent_rows = (_build_row("signature_rejected", f"the signature file {path.name} is missing") for path in absent)
    return (*_build_rows(report), *absent_rows)


def create_key_pair(path: Path, passphrase: bytes | None = None) -> Report:
    """Return the report of ``pinwarden keygen``. Never overwrites a file, and writes either both files or none."""
    public_path = path.with_name(path.name + ".pub")
    if public_path.exists() or public_path.is_symlink():
        raise PinwardenError("FILE_EXISTS", f"{public_path} already exists")
    key = generate_key()
    create_key_file(path, key, passphrase)
    try:
        create_file(public_path, key.public_key.pem())
    except PinwardenError:
        path.unlink(missing_ok=True)
        raise
    public = key.public_key
    protected = "encrypted" if passphrase else "not encrypted: anyone who can read the file can sign"
    return Report(
        command="keygen",
        subject=path.name,
        summary=f"{public.did} {public.fingerprint}",
        exit_code=EXIT_CLEAN,
        notes=(
            f"{path} is the private key, {protected}; keep it out of version control",
            f"{public_path} is the public key; give it to the people who verify your signatures",
        ),
        facts={
            "private_key": str(path),
            "public_key": str(public_path),
            "did": public.did,
            "fingerprint": public.fingerprint,
            "encrypted": passphrase is not None,
        },
    )


def _sign_digest(document: LockDocument, signing: SigningRequest, policy: str | None) -> bytes:
    if len(signing.keys) != 1 or signing.add:
        raise PinwardenError(
            "USAGE", "the default signature format holds only one signature", hint="For more signatures, use --dsse."
        )
    digest = compute_toolpin_digest(document.lock)
    if digest is None:
        raise PinwardenError(
            "LOCK_INVALID", "the lock has no digest, because two of its keys have the same canonical form"
        )
    envelope = lock_signature.sign(digest, signing.keys[0], signing.now, policy_digest=policy)
    return lock_signature.to_bytes(envelope)


def _build_dsse_envelope(data: bytes, signing: SigningRequest, policy: str | None) -> dict[str, Any]:
    if not signing.add:
        return lock_signature.sign_file(data, signing.keys, signing.now, policy_digest=policy)
    envelope = lock_signature.parse(read_file(signing.output, LOCK_LIMITS.max_bytes))
    if not isinstance(envelope, dict):
        raise PinwardenError(
            "SIGNATURE_INVALID", f"{signing.output.name} is not a DSSE envelope, so it cannot hold another signature"
        )
    for key in signing.keys:
        envelope = lock_signature.countersign(envelope, data, key, policy_digest=policy)
    return envelope


def _build_signing_report(document: LockDocument, signing: SigningRequest, policy: str | None) -> Report:
    notes: list[str] = []
    if not signing.dsse and document.lock.is_extended:
        notes.append(
            "this signature does not cover Pinwarden's own fields (surfaces, approvals); a signature with --dsse does"
        )
    if policy is None:
        notes.append("the signature does not cover a policy; name one with --policy")
    names = ", ".join(key.public_key.did for key in signing.keys)
    return Report(
        command="lock sign",
        subject=signing.lock.name,
        summary=f"{signing.lock.name} signed by {names} in {signing.output}",
        exit_code=EXIT_CLEAN,
        notes=tuple(notes),
        facts={
            "file": str(signing.lock),
            "signature": str(signing.output),
            "form": "dsse" if signing.dsse else ENVELOPE_SCHEMA,
            "digest": compute_toolpin_digest(document.lock),
            "policy_digest": policy,
            "signed_at": signing.now,
            "signers": [{"did": key.public_key.did, "fingerprint": key.public_key.fingerprint} for key in signing.keys],
            "notes": notes,
        },
    )


def _build_rows(report: SignatureReport) -> tuple[Row, ...]:
    return (
        *(_build_row("signature_missing", text) for text in report.missing),
        *(_build_row("signature_rejected", text) for text in report.rejected),
    )


def _build_row(code: str, message: str) -> Row:
    return Row(
        code=code, severity=SIGNATURE_KINDS[code].severity, entity="signature", name="", path="", message=message
    )


def _summarize_failure(lock: Path, missing: Sequence[str], document: LockDocument) -> str:
    if missing:
        return f"{lock.name} lacks a required signature: {'; '.join(missing)}"
    return f"{lock.name} is signed, but was changed: {document.critical_problems[0].message}"
